"""A page of history: its samples by run, what is missing between them, and in which order they go.

A page of the newest of each key holds a later run of a source beside an earlier one, and of that
not the last numbers: those are under keys that the later run wrote since. A subscriber is given an
earlier run to its end before the next one begins, so its end is asked for by number (ADR 0206).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter

from durable_cache.model.newest import newest_per_key
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, WRAP_GAP
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.restarts import RESTART_NTP64, has_wrapped
from durable_cache.protocol.subscriber.events import Answer, AnswerPart, Fetch
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.places import Sources
from durable_cache.protocol.subscriber.reading import Reading, Readings
from durable_cache.protocol.subscriber.run_names import RunNames, under
from durable_cache.protocol.wire import Absence, AbsenceReason, incarnation_after

RETRY_NS = 100_000_000
"""The pause before what is missing is asked for again, at first."""

_LAST_SN = SOURCE_SN_MODULUS - 1
_NTP64 = attrgetter("ntp64")
_SN = attrgetter("sn")
_FIRST = itemgetter(0)
Key = tuple[SourceId, int]
"""A run: its source, and the epoch by which it goes here."""
OnPage = Mapping[Key, Sequence[Sample]]
"""What a page has of each run."""


@dataclass(frozen=True, slots=True)
class Called:
    """How a run is called: here, and by whoever answers."""

    key: Key
    name: str
    others: set[Key]
    """What else a run without a name goes by."""

    def by(self, part: AnswerPart) -> set[Key | None]:
        """Return by which names one answer means the run: by its own, and by what else it goes.

        Whoever has it under an epoch has another run without one: 0 is a name of whatever has none.
        """
        names = {part.called(self.key, self.name), *self.others}
        given = {(sample.source, sample.epoch) for sample in part.samples}
        if any(key is not None and key[1] != EPOCH_UNKNOWN for key in names & given):
            return {key for key in names if key is not None and key[1] != EPOCH_UNKNOWN}
        return names


@dataclass(slots=True)
class Group:
    """A page's samples of one numbering, and what is missing between them."""

    reading: Reading
    samples: list[Sample]
    missing: RangeSet
    given_as: Key | None = None
    """By which epoch the page calls it, where that is not by which it goes here."""
    passed: RangeSet = field(default_factory=RangeSet)
    """Missing for a reason that is no loss to who comes late."""
    follows: tuple[Key, Group] | None = None
    """The run before, which is given to its end first."""
    end: int = -1
    """The last number that is known to be of it, where its end is asked for."""
    to_end: bool = False
    """All that follows is missing, for nobody said yet where it ends."""
    until_ntp64: int = 0
    """When the next run began, where its end is asked for."""
    next_run: Key | None = None
    """What follows, where its end is asked for."""
    fetch: Fetch | None = None
    whole: bool = True
    """All answers to the question under way were whole so far."""
    due_ns: int = 0
    pause_ns: int = RETRY_NS

    @property
    def latest_ntp64(self) -> int:
        """The latest time at which a sample without an epoch may be of this run."""
        newest = max(map(_NTP64, self.samples), default=self.reading.newest_ntp64)
        if self.until_ntp64 > newest:
            return self.until_ntp64 - 1
        return newest + RESTART_NTP64

    def is_ours(self, sn: int, came_ns: int) -> bool:
        """Tell whether a number that somebody removed was published since we came, a Unix time.

        So it was where an earlier number was; and it may have been where only a later one was.
        """
        behind = min((one for one in self.samples if one.sn > sn), key=_SN, default=None)
        until_ntp64 = self.reading.newest_ntp64 if behind is None else behind.ntp64
        return self.reading.resumed or until_ntp64 >= ntp64_from_ns(came_ns)

    def seek_end(self, next_run: Key, until_ntp64: int, *, wraps: bool) -> None:
        """Miss what follows the last sample: up to the wrap, else as far as anybody says."""
        last = max(map(_SN, self.samples), default=self.reading.next_sn - 1)
        self.end = _LAST_SN if wraps else last
        self.to_end, self.next_run, self.until_ntp64 = not wraps, next_run, until_ntp64
        self.reading.end_sought = True
        if last < _LAST_SN:
            self.missing.add(last + 1, _LAST_SN)

    def seek_rest(self) -> None:
        """Miss what follows the last sample of the newest, too, as far as anybody says (ADR 0367).

        Where times go back the last number is not among those of the latest times.
        """
        self.end, self.to_end = max(map(_SN, self.samples)), True
        if self.end < _LAST_SN:
            self.missing.add(self.end + 1, _LAST_SN)

    def hand_over(
        self, key: Key, begun: Reading, live: list[Sample], outputs: Outputs, *, ours: bool
    ) -> None:
        """Leave a run to who gave its first sample meanwhile; what is before that comes too late.

        It is reported where it is `ours`, and not of before we came.
        """
        early = begun.too_late([one.sn for one in self.samples]) if ours else ()
        for lost in RangeSet.of(early):
            outputs.report(*key, lost.first, lost.last)
        live += [one for one in self.samples if one.sn >= begun.next_sn]
        self.samples, self.missing = [], RangeSet()

    def learn_end(self) -> None:
        """Miss nothing behind what is known: everybody said all that there is."""
        end = max(self.end, *map(_SN, self.samples)) if self.samples else self.end
        self.to_end = False
        if end < _LAST_SN:
            self.missing.remove(end + 1, _LAST_SN)

    def fill(
        self,
        answer: Answer,
        run: Called,
        came_ns: int,
        others: tuple[Mapping[Key, Group], Readings],
    ) -> bool:
        """Take what was said about its missing numbers; tells whether samples were.

        `came_ns` is when we came, as Unix time: what caches removed since then is a loss. What
        `others` on the page have, or were read to have, is there already: whoever has a part of a
        run without an epoch and a part with one shows no number in common (ADR 0400).
        """
        before, (page, readings) = len(self.samples), others
        if self._take(answer, run, came_ns) and not run.name:
            given, known = self.samples[before:], {at: one.samples for at, one in page.items()}
            self.samples[before:] = unread = readings.unread(given, run.key, known)
            for sn in {one.sn for one in given} - {one.sn for one in unread}:
                self.passed.add(sn, sn)  # no loss: it is given there
        return len(self.samples) > before

    def _take(self, answer: Answer, run: Called, came_ns: int) -> bool:
        self.whole &= answer.whole
        heard = self.whole and answer.cut_after is None
        for one in (one for part in answer.parts for one in part.samples):
            if (one.source, one.epoch) == self.next_run and not one.stamped:
                self.until_ntp64 = min(self.until_ntp64, one.ntp64)
        before, latest_ntp64 = len(self.samples), self.latest_ntp64
        for part in answer.parts:
            called = run.by(part)
            for sample in part.samples:
                known = (sample.source, sample.epoch) in called
                wraps = sample.sn - self.reading.next_sn > WRAP_GAP  # it is of before (ADR 0378)
                if not known or wraps or sample.sn not in self.missing:
                    continue
                # A publisher's own cache names no run: what is later is of the one it has now.
                if not sample.epoch and not sample.stamped and sample.ntp64 > latest_ntp64:
                    continue
                self.missing.remove(sample.sn, sample.sn)
                self.samples.append(under(sample, run.key[1]))
        said = [(part, absence) for part in answer.parts for absence in part.absent]
        said.sort(key=_knows_key, reverse=True)  # of that number nothing is lost, whoever lacks it
        for part, absence in said:
            is_loss = absence.reason is AbsenceReason.SKIPPED
            if absence.reason is AbsenceReason.TRIMMED:
                is_loss = self.is_ours(absence.first, came_ns)
            known = (absence.source, absence.epoch) in run.by(part)
            known = known and absence.first - self.reading.next_sn <= WRAP_GAP
            explains = heard or absence.reason is AbsenceReason.OTHER_KEY
            if not known or not explains:
                continue  # another may have what one removed or gave up
            for gone in self.missing.clip(absence.first, absence.last):
                self.missing.remove(gone.first, gone.last)
                self.end = max(self.end, gone.last) if self.to_end else self.end
                if not is_loss:  # other keys' numbers, and what was removed before we came
                    self.passed.add(gone.first, gone.last)
        if self.to_end and heard and answer.answerers:
            self.learn_end()
        return len(self.samples) > before

    def report_all(self, key: Key, outputs: Outputs) -> None:
        """Report what somebody has, and what nobody explained: it comes too late."""
        self.end = max(map(_SN, self.samples))
        self.samples.clear()
        self.finish(key, outputs)

    def finish(self, key: Key, outputs: Outputs) -> None:
        """Report what nobody gave of its end, before the first sample of the next run."""
        self.finish_before(outputs)
        if self.reading.next_sn <= self.end:
            lost = RangeSet([(self.reading.next_sn, self.end)]).difference(self.passed)
            for run in lost:
                outputs.report(*key, run.first, run.last)
            if self.reading.gone_from is None:
                self.reading.gone_from = self.reading.next_sn
            self.reading.next_sn = self.end + 1
        if self.to_end:
            outputs.begin_unsure()

    def finish_before(self, outputs: Outputs) -> None:
        """Finish the run that it follows, once."""
        if self.follows is not None:
            before, group = self.follows
            group.finish(before, outputs)
            self.follows = None


def _knows_key(said: tuple[AnswerPart, Absence]) -> bool:
    """Tell whether an answer says that a number is of another key."""
    return said[1].reason is AbsenceReason.OTHER_KEY


def seek_ends(
    page: dict[Key, Group],
    readings: Readings,
    sources: Sources,
    names: RunNames,
    *,
    newest: bool,
    window: int,
) -> bool:
    """Let runs that others follow on the page be given to their ends; tells whether one is.

    `newest`: it holds the newest of each key alone. Else only the end before a wrap is known to be
    missing: what caches lack of the others, whoever reads all that they have never hears of. Where
    nothing names the runs, numbers show a wrap, if at most `window` are missing at it.
    """
    sought = False
    for key, group in sorted(page.items(), key=_FIRST):
        source, epoch = key
        if is_unnumbered(source) or not group.samples or group.reading.late:
            continue
        if newest and group.missing:  # it is asked for anyway
            group.seek_rest()
        before = source, max((at for at in readings.of(source) if at < epoch), default=0)
        reading = readings.get(before)
        if before == key or reading is None or reading.end_sought or reading.late:
            continue
        ended = page.get(before)
        name, followed = names.of(before), sources.stands(source)
        named = names.of(key)
        wraps = bool(name) and named == incarnation_after(name)
        if not (name or named):
            last = max(
                map(_SN, () if ended is None else ended.samples), default=reading.next_sn - 1
            )
            wraps = has_wrapped(min(map(_SN, group.samples)), last, window)
        if not (newest or wraps):
            continue
        nothing_came = ended is None and reading.next_sn == reading.first_sn
        went_on = followed if reading.handed_over and followed and followed.live else None
        if nothing_came or (went_on is not None and sources.get(source) is not None):
            continue
        for run in () if went_on is None else went_on.numberings:
            if run.next_sn is not None and run.is_called(before[1], name):
                reading.take_over(Reading.of_ended(run))  # it rests, and was given further
        if ended is None:
            ended = page[before] = Group(reading, [], RangeSet())
            readings.go_on(before)
        ended.seek_end(key, min(map(_NTP64, group.samples)), wraps=wraps)
        group.follows = before, ended
        sought = True
    return sought


def merged(answer: Answer, samples: list[Sample], newest: int) -> list[Sample]:
    """Return what all parts hold up to the earliest cut, once each, in order of time.

    Where each gave the `newest` of each key that it has, not 0, those of all are wanted (ADR 0271).
    """
    if len(answer.parts) > 1:
        samples = list({sample.identity: sample for sample in samples}.values())
        samples = _newest_of(samples, newest) if newest else samples
    samples.sort(key=_NTP64)
    cut = answer.cut_after
    if cut is None:
        return samples
    place = cut.time_order
    return [s for s in samples if s.ntp64 < cut.ntp64 or s.time_order <= place]


def _newest_of(samples: list[Sample], newest: int) -> list[Sample]:
    """Return the newest of each key; what two answerers call differently counts once."""
    published = {_as_published(sample): sample for sample in samples}
    kept = set(map(_as_published, newest_per_key(published.values(), newest)))
    return [sample for sample in samples if _as_published(sample) in kept]


def _as_published(sample: Sample) -> tuple[str, SourceId, int, int]:
    stamped_by_its_publisher = 0 if sample.stamped else sample.ntp64
    return sample.key, sample.source, sample.sn, stamped_by_its_publisher


def in_source_order(groups: Mapping[Key, Group]) -> list[Sample]:
    """Merge by time, as far as each source's own order allows."""
    timed: list[tuple[int, Sample]] = []
    newest: dict[SourceId, int] = {}
    for key in sorted(groups):
        reached = newest.get(key[0], 0)
        for sample in sorted(groups[key].samples, key=_SN):
            reached = max(reached, sample.ntp64)
            timed.append((reached, sample))
        newest[key[0]] = reached
    timed.sort(key=_FIRST)
    return [sample for _, sample in timed]

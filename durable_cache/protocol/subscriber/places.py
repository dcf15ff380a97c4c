"""What is remembered of sources that are not followed at the moment.

A subscriber follows `sources_max` sources. One that lacks nothing *rests* when another needs its
room: its place, less than a kilobyte, is enough to go on where it stood. Where all that are
followed wait for something missing, another waits in the *crowd* until one of them does not: with
its token, the first of its samples, the highest and the last; what came between is asked for. A run
before the one whose token waits has begun where the source stands (ADR 0396).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, sn_distance
from durable_cache.protocol.subscriber.events import Declared, DeliveryOptions
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.outputs import Outputs

_SECOND_NS = 1_000_000_000
_LOOKED_AT_MAX = 1000
"""Sources looked at for one that may rest: a millisecond."""


@dataclass(frozen=True, slots=True)
class _Stood:
    """Where a numbering stood of which nothing is held back."""

    epoch: int
    incarnation: str
    declared_epoch: int | None
    first_sn: int | None
    next_sn: int | None
    newest_ntp64: int
    began: tuple[int, int] | None
    resumed: bool
    called: int | None
    unsure: bool
    untold: RangeSet | None

    @classmethod
    def of(cls, numbering: Numbering) -> _Stood:
        return cls(
            numbering.epoch,
            numbering.incarnation,
            numbering.declared_epoch,
            numbering.first_sn,
            numbering.next_sn,
            numbering.newest_ntp64,
            numbering.began,
            numbering.resumed,
            numbering.called,
            numbering.unsure,
            numbering.untold or None,
        )

    def numbering(self, source: SourceId) -> Numbering:
        return Numbering(
            source,
            self.epoch,
            self.incarnation,
            self.declared_epoch,
            self.first_sn,
            self.next_sn,
            self.newest_ntp64,
            began=self.began,
            resumed=self.resumed,
            called=self.called,
            unsure=self.unsure,
            untold=self.untold or RangeSet(),
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """What a source needs to go on where it stood."""

    numberings: tuple[_Stood, ...]
    ended: _Stood | None
    seen: tuple[tuple[str, int], ...]
    early_last: int
    early_until_ns: int
    live: bool

    @classmethod
    def of(cls, followed: Followed) -> _Place:
        return cls(
            tuple(map(_Stood.of, followed.numberings)),
            None if followed.ended is None else _Stood.of(followed.ended),
            tuple(followed.seen.items()),
            max([followed.early_last, *(sample.sn for _, sample in followed.early)]),
            max([followed.early_until_ns, *(until_ns for until_ns, _ in followed.early)]),
            followed.live,
        )

    def followed(self, source: SourceId) -> Followed:
        return Followed(
            source,
            [stood.numbering(source) for stood in self.numberings],
            None if self.ended is None else self.ended.numbering(source),
            dict(self.seen),
            early_last=self.early_last,
            early_until_ns=self.early_until_ns,
            live=self.live,
        )


class Sources:
    """The sources that are followed, and where the others stand.

    Of more than `places_max` that rest the first is forgotten: it counts as new when it comes
    again.
    """

    def __init__(self, options: DeliveryOptions) -> None:
        self.followed: dict[SourceId, Followed] = {}
        """The one not used for longest comes first, more or less."""
        self.steady: dict[SourceId, Numbering] = {}
        """Those whose next number needs no other look than its own."""
        self.waiting: dict[SourceId, Followed] = {}
        """Those that wait for something missing."""
        self._places: OrderedDict[SourceId, _Place] = OrderedDict()
        self._options = options
        self._sources_max, self._places_max = options.sources_max, options.places_max

    def wake_times(self) -> list[int]:
        """Return the monotonic times at which there is something to do of a source."""
        options = self._options
        timeout_ns = round(options.gap_timeout_seconds * _SECOND_NS)
        periodic = options.periodic_queries_seconds is not None
        times: list[int] = []
        for followed in self.followed.values() if periodic else self.waiting.values():
            head = followed.head
            if head is None:
                continue
            if head.opened_ns is not None:
                late = 1 if head.fetch is None else 2
                times.append(head.opened_ns + late * timeout_ns)
                if head.fetch is None and options.recovery:
                    times.append(head.due_ns)
            elif periodic and head.fetch is None and head.next_sn is not None:
                times.append(head.poll_ns)
        return times

    def get(self, source: SourceId) -> Followed | None:
        """Return a source that is followed."""
        return self.followed.get(source)

    def is_live(self, source: SourceId) -> bool:
        """Tell whether what is published of a source is passed on."""
        followed = self.followed.get(source)
        return followed is not None and followed.live

    def known(self, source: SourceId) -> Followed | None:
        """Return a source that is followed, or that rests and for which there is room."""
        if source in self.followed or source in self._places:
            return self.follow(source)
        return None

    def note(self, followed: Followed, *, between_runs: bool) -> None:
        """Note whether a source waits for something missing, and whether its next number may not.

        `between_runs`: it shows no token at the moment, though its last run had one.
        """
        source, head = followed.source, followed.head
        alone = len(followed.numberings) == 1 and not between_runs
        if head is not None and head.steady and alone:
            self.steady[source] = head
        else:
            self.steady.pop(source, None)
        if head is not None and head.opened_ns is not None:
            self.waiting[source] = followed
        else:
            self.waiting.pop(source, None)

    def hides(self, source: SourceId, incarnation: str) -> None:
        """Note that a token went."""
        followed = self.followed.get(source)
        if followed is not None and followed.shown == incarnation:
            followed.shown = ""

    def rests(self, source: SourceId) -> bool:
        """Tell whether a source is known that is not followed."""
        return source in self._places

    def stands(self, source: SourceId) -> Followed | None:
        """Return a source that is known: a copy of its place, where there is no room for it."""
        followed, place = self.known(source), self._places.get(source)
        return followed if place is None else place.followed(source)

    def called(self, source: SourceId) -> Mapping[str, int]:
        """Return by which epoch each run of a source goes that a token named, or history.

        Those that only an earlier life followed may go by what caches call them now.
        """
        known = self.followed.get(source) or self._places.get(source)
        if known is None:
            return {}
        resumed = {run.incarnation for run in known.numberings if run.resumed}
        return {run: epoch for run, epoch in dict(known.seen).items() if run not in resumed}

    def began(self, source: SourceId, incarnation: str) -> tuple[int, int] | None:
        """Return the number and the time of the first that was passed on of a named run."""
        followed = self.followed.get(source)
        runs = () if followed is None else (*followed.numberings, followed.ended)
        named = (run for run in runs if run is not None and run.incarnation == incarnation)
        return next((run.began for run in named), None)

    def let_follow(
        self, source: SourceId, epoch: int, incarnation: str, now_ns: int, *, is_known: bool
    ) -> None:
        """Let a run that history names wait behind the one that is passed on (ADR 0255)."""
        followed = None if is_known else self.known(source)
        if followed is not None and followed.live:
            followed.let_follow(epoch, incarnation, self._options, now_ns)

    def began_since(self, source: SourceId, epoch: int, incarnation: str) -> bool:
        """Tell whether a named run began since the token went of one before it (ADR 0362).

        Its own was not seen, as behind a link that was cut.
        """
        followed = self.known(source)
        if not incarnation or followed is None or followed.shown or incarnation in followed.seen:
            return False
        return any(run.declared and run.epoch < epoch for run in followed.numberings)

    def follow(self, source: SourceId) -> Followed | None:
        """Return a source, followed from now on; None where all that are followed wait."""
        followed = self.followed.get(source)
        if followed is not None:
            return followed
        rested = self._places.pop(source, None)  # before another rests in its place
        if self.make_room():
            followed = Followed(source) if rested is None else rested.followed(source)
            self.followed[source] = followed
        elif rested is not None:
            self._places[source] = rested
        return followed

    def begin_with(self, source: SourceId, first: int | None) -> None:
        """Follow from a number on, if one is told, what was not heard of its publisher (0284)."""
        if first is None:
            return
        followed = self.follow(source) or self.look(source)
        if not followed.numberings:
            followed.numberings.append(Numbering(source, EPOCH_UNKNOWN))
        if followed.numberings[-1].next_sn is None:
            followed.numberings[-1].begin(first)
        self.keep(followed)

    def every(self) -> Iterator[Followed]:
        """Yield every source that is known: copies of those that rest."""
        yield from self.followed.values()
        for source, place in self._places.items():
            yield place.followed(source)

    def look(self, source: SourceId) -> Followed:
        """Return a source as it stands, not followed: a copy; `rest` notes where it stands then."""
        place = self._places.get(source)
        return Followed(source) if place is None else place.followed(source)

    def keep(self, followed: Followed) -> None:
        """Remember where a source stands, unless it is followed."""
        if followed.source not in self.followed:
            self.rest(followed)

    def rest(self, followed: Followed) -> None:
        """Remember where a source stands and follow it no more."""
        source = followed.source
        self.followed.pop(source, None)
        self.steady.pop(source, None)
        self.waiting.pop(source, None)
        self._places[source] = _Place.of(followed)
        self._places.move_to_end(source)
        if len(self._places) > self._places_max:
            self._places.popitem(last=False)

    def make_room(self) -> bool:
        """Let the source rest that was not used for longest, unless all lack something."""
        if len(self.followed) < self._sources_max:
            return True
        for _ in range(min(2 * len(self.followed), _LOOKED_AT_MAX)):
            source, followed = next(iter(self.followed.items()))
            used = followed.used or any(n.used for n in followed.numberings)
            if not used and not followed.waits:
                self.rest(followed)
                return True
            followed.used = False
            for numbering in followed.numberings:
                numbering.used = False
            self.followed[source] = self.followed.pop(source)
        idle = next((one for one in self.followed.values() if not one.waits), None)
        if idle is not None:
            self.rest(idle)
        return idle is not None


@dataclass(slots=True)
class Crowded:
    """What came of a source there is no room for."""

    token: Declared | None = None
    samples: list[Sample] = field(default_factory=list)
    """The first, the highest and the last, as they came: a network may have changed their order."""

    def add(self, sample: Sample) -> None:
        """Keep a sample, if it is one of the three."""
        samples = self.samples
        first = samples[0].sn if samples else sample.sn
        highest = max((*samples, sample), key=lambda one: sn_distance(one.sn, first))
        between = highest is not sample and highest is not samples[0]
        samples[1:] = [highest, sample] if between else [sample]

    def runs(self, span: int) -> list[tuple[int, int]]:
        """Return the numbers that came: all between the two where they are of one run."""
        sns = [sample.sn for sample in self.samples]
        if not sns:
            return []
        first, highest = sns[0], max(sns)
        together = highest - first <= span
        runs = [(first, highest)] if together else [(first, first), (highest, highest)]
        return runs + [(sn, sn) for sn in sns[1:] if all(not a <= sn <= b for a, b in runs)]


class Crowd:
    """The sources that wait for room, in the order in which they came."""

    def __init__(self, options: DeliveryOptions) -> None:
        self._options = options
        self.waiting: OrderedDict[SourceId, Crowded] = OrderedDict()
        self._passed_by: OrderedDict[SourceId, tuple[RangeSet, Crowded]] = OrderedDict()
        """What came beyond the bound while history was read: that may bring it."""
        self._doubted: list[SourceId] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def declare(self, token: Declared) -> Declared | None:
        """Keep a source's last token; returns the one before, where that was another run's."""
        crowded = self.waiting.setdefault(token.source, Crowded())
        before, crowded.token = crowded.token, token
        return before if before and before.incarnation != token.incarnation else None

    def tokens_of(self, samples: Iterable[Sample]) -> list[Declared]:
        """Return the tokens that wait of the sources of some samples."""
        sources = dict.fromkeys(one.source for one in samples) if self.waiting else ()
        waiting = (self.waiting[source] for source in sources if source in self.waiting)
        return [crowded.token for crowded in waiting if crowded.token is not None]

    def add(self, sample: Sample) -> None:
        """Keep the first, the highest and the last sample of a source."""
        self.waiting.setdefault(sample.source, Crowded()).add(sample)

    def came_of(self, source: SourceId) -> Sequence[Sample]:
        """Return what of a source waits for room."""
        crowded = self.waiting.get(source)
        return () if crowded is None else crowded.samples

    def leave(self, source: SourceId) -> list[Sample]:
        """Return what came of a source that shows a token only now, and wait for it no more."""
        crowded = self.waiting.get(source)
        if crowded is None or crowded.token is not None:
            return []
        return self.waiting.pop(source).samples

    def take(self) -> tuple[SourceId, Crowded]:
        """Return the source that has waited for longest, and what came of it."""
        return self.waiting.popitem(last=False)

    def take_beyond(self, *, reading: bool) -> list[tuple[SourceId, int, int]]:
        """Return the numbers, as runs, of the source there is no room for, if there is one.

        As many wait as may rest. While history is read fewer do, and of the others the numbers are
        kept: nothing of them is lost yet.
        """
        options = self._options
        if len(self.waiting) <= (options.sources_max if reading else options.places_max):
            return []
        source, crowded = self.take()
        runs = crowded.runs(options.window_size_samples)
        if not reading:
            return [(source, *run) for run in runs]
        numbers, samples = self._passed_by.setdefault(source, (RangeSet(), Crowded()))
        for first, last in runs:
            numbers.add(first, last)
        for sample in crowded.samples:
            samples.add(sample)
        if len(self._passed_by) <= options.places_max:
            return []
        source, (numbers, _) = self._passed_by.popitem(last=False)
        return [(source, run.first, run.last) for run in numbers]

    def passed_by(self, sources: Sources, outputs: Outputs) -> Iterator[Followed]:
        """History is over: yield the sources of which more is known to be published now.

        Of a source that history did not bring what came beyond the bound is reported; so is what is
        older than the run that it brought last, where the one before lacks it.
        """
        passed_by, self._passed_by = self._passed_by, OrderedDict()
        for source, (numbers, crowded) in passed_by.items():
            followed = sources.known(source)
            rests = followed is None and sources.rests(source)
            if followed is None:
                followed = sources.look(source)
            newest = followed.numberings[-1] if followed.numberings else None
            reached = -1 if newest is None else newest.reached
            if newest is None or newest.next_sn is None:
                for first, last in numbers:
                    outputs.report(source, EPOCH_UNKNOWN, first, last)
            else:
                for sample in crowded.samples:
                    self._pass_by(followed, newest, sample, outputs, rests=rests)
            if rests:
                sources.rest(followed)
            elif newest is not None and newest.reached > reached:
                yield followed

    def take_doubted(self) -> list[SourceId]:
        """Return the sources of which something passed by that may be of either of two runs.

        The one before awaits its number, and of the newest nothing came: caches can tell.
        """
        doubted, self._doubted = self._doubted, []
        return doubted

    def _pass_by(
        self,
        followed: Followed,
        newest: Numbering,
        sample: Sample,
        outputs: Outputs,
        *,
        rests: bool,
    ) -> None:
        span, ended = self._options.window_size_samples, followed.ended
        before = followed.numberings[:-1]
        if any(run.has_passed_on(sample) for run in before):
            return  # of a run whose successor's token waited beside it
        if newest.reached < 0 and any(_awaits(run, sample.sn) for run in before):
            self._doubted.append(followed.source)  # or it is all that came of the newest
            return
        if newest.began_after(sample):
            if ended is not None and ended.could_go_on_to(sample, span):
                ended.report_late(sample, outputs)
        elif 0 < sample.sn - newest.reached <= span:
            if rests:
                self.add(sample)  # it follows when there is room
            else:
                newest.top = sample.sn


def _awaits(run: Numbering, sn: int) -> bool:
    """Tell whether a number is one that is still to be passed on, as others showed."""
    return run.next_sn is not None and run.next_sn <= sn <= run.top

"""What waits while history is read: live samples of sources that are not followed yet, and tokens.

A token waits behind the samples that came before it. What it says counts at once: of a run that
began while we looked, history is ours from its first number on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from durable_cache.model.run_name import names, run_of
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import WRAP_GAP, frame_start_ns
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.restarts import RESTART_NTP64, is_later
from durable_cache.protocol.subscriber.events import AnswerPart, Declared, TokenGone
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering, is_one
from durable_cache.protocol.subscriber.naming import is_of_an_earlier
from durable_cache.protocol.subscriber.places import Crowd, Sources
from durable_cache.protocol.subscriber.reading import Reading
from durable_cache.protocol.subscriber.while_shown import Waiting, leave, part, shown_after
from durable_cache.protocol.wire import Incarnation


@dataclass(slots=True)
class _Came:
    """What waits of one source."""

    begun: dict[str, bool] = field(default_factory=dict)
    """The incarnations that its tokens name, and whether each began while we looked."""
    declared: dict[str, int] = field(default_factory=dict)
    """The epoch that each of these tokens says."""
    samples: list[Sample] = field(default_factory=list)
    under: dict[str | None, list[Sample]] = field(default_factory=dict)
    """The same, by the incarnation whose token was there; None: before a token waits, or goes."""
    run: str | None = None
    """The incarnation that what comes now is of."""
    given: set[tuple[int, int]] = field(default_factory=set)
    """Number and time of what history passed on as well."""
    shown: str = ""
    """The incarnation whose token is there, where it waits."""
    before: str | None = None
    """The incarnation whose token was there before the first that waits, or that one went."""

    @property
    def before_next(self) -> str:
        """The run that what comes now is of, as far as what waits shows it."""
        return (self.before if self.run is None else self.run) or ""

    def of_run(self, incarnation: str, followed: Followed | None) -> list[Sample]:
        """Return what came while the token of a run was there."""
        shown = "" if followed is None else followed.shown
        before = shown if self.before is None else self.before
        runs = (incarnation, None) if incarnation == before else (incarnation,)
        return [one for run in runs for one in self.under.get(run, ())]

    def copies(self, followed: Followed | None) -> dict[tuple[int, int], tuple[str, int]]:
        """Return what came while the token of a run was there that began in our sight, and its run.

        Nothing that its publisher stamped before that token's time: it was on its way for long.
        """
        runs = {run: (run, self.declared[run]) for run, begun in self.begun.items() if begun}
        named: list[tuple[tuple[str, int], list[Sample]]] = [
            (runs[run], samples) for run, samples in self.under.items() if run in runs
        ]
        shown = "" if followed is None else followed.shown
        before = shown if self.before is None else self.before
        named.extend(
            ((before, one.declared_epoch), self.under.get(None, []))
            for one in (() if followed is None else followed.numberings)  # its token did not wait
            if one.incarnation == before and one.declared_epoch is not None and one.next_sn == 0
        )
        return {
            _copy(one): run
            for run, samples in named
            for one in samples
            if not one.stamped and ntp64_to_ns(one.ntp64) >= frame_start_ns(run[1])
        }


class Held:
    """Samples and tokens as they came; bounded by its owner."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._waiting: list[Waiting] = []
        self._came: dict[SourceId, _Came] = {}
        self._lagging: dict[SourceId, None] = {}
        self.repeats = 0
        """How many samples history delivered as well."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, source: SourceId) -> bool:
        return source in self._came

    def add(self, sample: Sample) -> None:
        """Keep a sample."""
        self._waiting.append(sample)
        came = self._came.setdefault(sample.source, _Came())
        came.samples.append(sample)
        own = run_of(sample)
        came.under.setdefault(came.run if own is None else own.incarnation, []).append(sample)

    def follows_crowd(self, source: SourceId, crowd: Crowd, sources: Sources) -> bool:
        """Keep what the crowd has of a source before a token does; tells whether anything waits.

        That is beyond the bound by three samples for each token. Then a number that is next may be
        of the run that the token names: it waits as well.
        """
        for sample in crowd.leave(source):
            self.add(sample)
        if source in self:
            sources.steady.pop(source, None)
            return True
        return False

    def declare(
        self, token: Declared, followed: Followed | None, *, fresh: bool, stale: bool
    ) -> None:
        """Keep a token of a source that waits, as it is `followed`.

        `fresh`: its run began in our sight; `stale`: it may be left over from a run that ended.
        """
        seen = {} if followed is None else followed.seen
        before = self.has_tokens(token.source) or (bool(seen) and token.incarnation not in seen)
        self._waiting.append(token)
        came = self._came[token.source]
        beside = came.shown or ("" if followed is None else followed.shown)
        begun = fresh or (before and not (stale and beside))
        came.before = beside if came.before is None else came.before
        begun = came.begun.setdefault(token.incarnation, begun)
        came.declared[token.incarnation] = token.epoch
        came.run = shown_after(came.before_next, token, begun=begun)
        came.shown = token.incarnation

    def gone(self, token: TokenGone) -> None:
        """Keep that a token of a source that waits went."""
        came = self._came[token.source]
        came.before = token.incarnation if came.before is None else came.before
        came.run = shown_after(came.before_next, token)
        if came.shown == token.incarnation:
            came.shown = ""
        self._waiting.append(token)

    def named(self, parts: Sequence[AnswerPart], sources: Sources) -> tuple[AnswerPart, ...]:
        """Return parts of an answer, with the names of runs whose tokens their answerers missed.

        A copy of what came here while a token was there shows that an answerer has its run without
        a name. What the publisher's own cache gave to it goes there as the token says (ADR 0352).
        """
        if not self._came:
            return tuple(parts)
        copies = {of: came.copies(sources.get(of)) for of, came in self._came.items()}
        return tuple(_with_names(part, copies) for part in parts)

    def has_tokens(self, source: SourceId) -> bool:
        """Tell whether a token of a source waits."""
        came = self._came.get(source)
        return came is not None and bool(came.begun)

    def has_begun(self, source: SourceId, incarnation: str) -> bool:
        """Tell whether the token of a run waits that began while we looked."""
        came = self._came.get(source) if incarnation else None
        return came is not None and came.begun.get(incarnation, False)

    def goes_first(
        self,
        source: SourceId,
        incarnation: str,
        page: Sequence[Sequence[Sample]],
        read: Sequence[Reading],
    ) -> bool:
        """Tell whether something waits that came before the token of a run and is on no page.

        It is of the run before: history of the newest alone leaves it out, or no cache in reach
        has it. `read` tells how far runs of the source were read.
        """
        known = {(one.sn, one.ntp64) for group in page for one in group}
        for one in self._waiting:
            if isinstance(one, Declared):
                if one.source == source and one.incarnation == incarnation:
                    return False
            elif not isinstance(one, Sample) or one.source != source or names(one, incarnation):
                continue
            elif (one.sn, one.ntp64) not in known and not any(run.has_read(one) for run in read):
                return True
        return False

    def nameless_goes_first(
        self, page: Sequence[Sequence[Sample]], samples: Sequence[Sample], read: Sequence[Reading]
    ) -> bool:
        """Tell whether what came first is of the run before a foreign one, and is on no page.

        What came behind it shows that the other one, whose `samples` are on the page, began.
        """
        came, in_order = self._came[samples[0].source], sorted(samples, key=lambda one: one.sn)
        first, begun = came.samples[0], Reading.of_samples(in_order)
        if came.begun or in_order[0].stamped or not is_of_an_earlier(begun, (first,)):
            return False
        ours = {_copy(one) for one in samples}
        shown = any(_copy(one) in ours for one in came.samples if one.sn <= first.sn)
        given = any(_copy(one) == _copy(first) for group in page for one in group)
        return shown and not given and not any(run.has_read(first) for run in read)

    def came_with(
        self, samples: Sequence[Sample], sources: Sources, incarnation: str
    ) -> list[Sample]:
        """Return what came of a run while we looked and is missing among its `samples`.

        These are on a page, in order of their numbers. What came is of their run if its time agrees
        with its number and the run's token was there, or, of a foreign run, one of them came with
        it. Behind a wrap numbers are of another run.
        """
        source = samples[0].source
        came = self._came.get(source)
        if came is None:
            return []
        sns = [sample.sn for sample in samples]
        found: dict[int, Sample] = {}
        named = shown = bool(incarnation)
        for one in came.of_run(incarnation, sources.get(source)) if named else came.samples:
            at = bisect_left(sns, one.sn)
            if at == len(sns) or sns[at] - one.sn > WRAP_GAP:
                continue
            if sns[at] == one.sn:
                shown |= is_one(samples[at], one)
            elif not named or at:
                earlier = at and is_later(samples[at - 1], one.ntp64)
                if not earlier and not is_later(one, samples[at].ntp64):
                    found[one.sn] = one
            else:  # below all that history has of a named run
                found[one.sn] = one
        return [*found.values()] if shown else []

    def note_given(self, source: SourceId, samples: Sequence[Sample]) -> None:
        """History passes on samples of a source: what waits of them is a repeat (ADR 0309)."""
        came = self._came.get(source)
        if came is not None:
            given = {(one.sn, one.ntp64) for one in samples if not one.stamped}
            came.given |= given.intersection((one.sn, one.ntp64) for one in came.samples)

    def brought_the_run_before(self, samples: Sequence[Sample]) -> bool:
        """Tell whether a foreign run on a page began while we looked: one before it came live.

        `samples` are in order of their numbers.
        """
        came, run = self._came.get(samples[0].source), Reading.of_samples(samples)
        return came is not None and not samples[0].stamped and is_of_an_earlier(run, came.samples)

    def reading_of(
        self,
        sources: Sources,
        source: SourceId,
        epoch: int,
        incarnation: str,
        *,
        waits: bool = False,
    ) -> Reading | None:
        """Return from where on history of a numbering is ours that is followed, or began here.

        `waits`: so is one of which something came live, and waits to hear where it begins.
        """
        followed = sources.stands(source)
        for numbering in () if followed is None else followed.numberings:
            live = numbering if followed is not None and followed.live else None
            has_come = numbering.next_sn is not None or (waits and live and numbering.pending)
            if has_come and numbering.is_called(epoch, incarnation):
                return Reading(
                    numbering.first_sn or 0,
                    numbering.next_sn or 0,
                    began=numbering.began,
                    numbering=live,
                    resumed=numbering.resumed,
                    untold=numbering.untold,
                )
        if self.has_begun(source, incarnation):
            return Reading(0, 0)
        if followed is None or not followed.is_past(epoch):
            return None
        return Reading(0, 0, late=True)

    def begun_meanwhile(
        self, sources: Sources, key: tuple[SourceId, int], incarnation: str, reading: Reading
    ) -> Reading | None:
        """Return where a run is followed of which nothing was given when a page came, if it is.

        What came live of it may still wait for an answer that says where it begins.
        """
        if not incarnation or reading.late or reading.began is not None:
            return None
        begun = self.reading_of(sources, *key, incarnation, waits=True)
        return None if begun is None or begun.numbering is None else begun

    def shown(self, sources: Sources, source: SourceId) -> str:
        """Return the incarnation whose token is there, as far as one is known."""
        followed, came = sources.get(source), self._came.get(source)
        waiting = "" if came is None else came.shown
        return waiting or ("" if followed is None else followed.shown)

    def is_before_shown(
        self,
        sources: Sources,
        incarnation: str,
        samples: Sequence[Sample],
        read: Callable[[SourceId, str], Reading | None],
    ) -> bool:
        """Tell whether a run on a page ended before one that was given, whose token was here.

        One run of a source shows a token at a time. Whoever did not hear of that one may call the
        one before by a later epoch, where its publisher's clock was set back (ADR 0222). `read`
        returns how far a named run was read.
        """
        source = samples[0].source
        followed, came = sources.stands(source), self._came.get(source)
        runs = () if followed is None else followed.numberings
        shown = self.shown(sources, source)
        expected = [run.incarnation for run in runs] + ([] if came is None else [*came.begun])
        if not shown or not incarnation or incarnation in expected:
            return False
        reading = read(source, shown)
        began = None if reading is None else reading.began
        began = next((run.began for run in runs if run.incarnation == shown and run.began), began)
        if began is None and followed is not None:  # nothing came of it: of the one before, perhaps
            given = [run for run in (followed.ended, *runs) if run is not None and run.declared]
            began = next((run.began for run in reversed(given) if run.began), None)
        return began is not None and any(
            one.ntp64 < began[1] and not one.stamped for one in samples
        )

    def recognise(
        self,
        sources: Sources,
        page: Mapping[tuple[SourceId, int], Sequence[Sample]],
        name_of: Callable[[tuple[SourceId, int]], str],
    ) -> None:
        """Name runs on a page that were passed on before their tokens came (ADR 0336)."""
        for key, samples in page.items():
            source, name = key[0], name_of(key)
            stands = sources.stands(source) if name else None
            if stands is None or not stands.recognise(key[1], name, samples):
                continue
            if source not in sources.followed:
                sources.rest(stands)

    def was_followed(
        self,
        sources: Sources,
        source: SourceId,
        epoch: int,
        incarnation: str,
        samples: Sequence[Sample],
    ) -> bool:
        """Tell whether a run was followed live, as far as its name says: no name says nothing new.

        What it lacked was asked for when its token went, and is reported where nobody has it. What
        history shows behind it is asked for then: the source `lags`.
        """
        followed = sources.stands(source)
        if followed is None or is_unnumbered(source):
            return False
        if not incarnation:
            return True
        known_runs = (*followed.numberings, *filter(None, (followed.ended,)))
        runs = [known for known in known_runs if known.is_called(epoch, incarnation)]
        if any(known.next_sn is None for known in runs) or incarnation not in followed.seen:
            return False
        last = max(sample.sn for sample in samples)
        if any(last > known.reached for known in runs):
            self._lagging[source] = None
        return True

    def take_lagging(self) -> list[SourceId]:
        """Return, once, the sources of which history showed more than is known of a run."""
        lagging, self._lagging = [*self._lagging], {}
        return lagging

    def take(
        self,
        sources: Sources,
        too_late: Callable[[Numbering, Sample], None],
        read: Callable[[SourceId, str], Reading | None],
    ) -> list[Waiting]:
        """Return what waited, once, but for what is of a run that has ended since.

        What came while the token of such a run was there is of that run (ADR 0250); `read` returns
        how far a named run was read. Other such samples came before the token of a run that history
        brought, or are older than that run where no token names it. What history delivered of them
        is left out, what follows it comes `too_late`. Of a publisher whose times go back one may be
        of the run that began: then its number is missing there, and is asked for.
        """
        if not self._waiting:
            return []
        before = {source: came.before or "" for source, came in self._came.items()}
        waiting, left = part(self._take_unread(), before, self.has_begun, sources)
        leave(left, sources, too_late, read)
        self._waiting, self._came = [], {}
        tokens: dict[SourceId, int] = {}
        """Where the last token of each waits whose run history brought; -1: none is of such."""
        for at, one in enumerate(waiting):
            if isinstance(one, Declared):
                known = sources.known(one.source)
                brought = known is not None and one.incarnation in known.seen
                tokens[one.source] = at if brought else -1
        kept: list[Waiting] = []
        for at, one in enumerate(waiting):
            known = sources.known(one.source) if isinstance(one, Sample) else None
            ended = None if known is None else known.ended
            if not isinstance(one, Sample) or known is None or ended is None or run_of(one):
                kept.append(one)
                continue
            token = tokens.get(one.source)
            comes_before = _is_foreign(known) if token is None else at < token
            if not comes_before:
                kept.append(one)
            elif _goes_on(ended, known.head, one):
                too_late(ended, one)
            elif _repeats(ended, one):
                self.repeats += 1
                self._losses.repeated(one.source)
            else:
                kept.append(one)
        return kept

    def _take_unread(self) -> list[Waiting]:
        """Return what waits, but for the samples that history passed on."""
        unread: list[Waiting] = []
        for one in self._waiting:
            if isinstance(one, Sample) and (one.sn, one.ntp64) in self._came[one.source].given:
                self.repeats += 1
                self._losses.repeated(one.source)
            else:
                unread.append(one)
        return unread


def _with_names(
    part: AnswerPart, copies: Mapping[SourceId, Mapping[tuple[int, int], tuple[str, int]]]
) -> AnswerPart:
    """Return a part that names the runs of what it has copies of, unless it names them anyway."""
    names = dict(part.names())
    called = {(source, name) for (source, _), name in names.items()}
    for one in part.samples:
        run = copies.get(one.source, {}).get(_copy(one))
        if run is None or one.stamped or (one.source, one.epoch) in names:
            continue
        name, declared = run
        if (one.source, name) not in called:
            names[one.source, one.epoch] = name
            names.setdefault((one.source, declared), name)
    if len(names) == len(part.incarnations):
        return part
    return replace(part, incarnations=tuple(Incarnation(*key, name) for key, name in names.items()))


def _copy(sample: Sample) -> tuple[int, int]:
    """Return what copies of a sample have in common."""
    return sample.sn, sample.ntp64


def _is_foreign(followed: Followed) -> bool:
    """Tell whether no token names the run that is followed, or the one before."""
    runs = (followed.ended, followed.head)
    return not any(run is None or run.is_named for run in runs)


def _repeats(ended: Numbering, sample: Sample) -> bool:
    """Tell whether a sample repeats a run that ended before one whose token is known."""
    known = sample.sn < (ended.next_sn or 0)
    return known and not sample.stamped and sample.ntp64 <= ended.newest_ntp64


def _goes_on(ended: Numbering, head: Numbering | None, sample: Sample) -> bool:
    """Tell whether it goes on with the run that ended, whose successor is delivered further.

    Under a number that the successor has come to, it is older than what was passed on of that. Of
    a publisher whose threads overlap the next number may be a little older than the last.
    """
    if head is None or sample.stamped or sample.sn <= ended.reached:
        return False
    older = head.began is not None and sample.ntp64 + RESTART_NTP64 < head.began[1]
    above = sample.sn > head.reached and sample.ntp64 + RESTART_NTP64 < head.newest_ntp64
    return (older or above) and ended.newest_ntp64 < sample.ntp64

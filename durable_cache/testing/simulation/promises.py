"""What is promised to a subscriber and of a cache, compared with the truth as it happens.

Published = delivered once, in the order of its source, or reported as missed, or still pending for
a reason that the history knows: a publisher that ended before anybody who can still be asked heard
of its last samples. Nothing is reported that could be had from a cache that was within reach, and
could be read, for as long as a gap is waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import frame
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.protocol.subscriber.events import Deliver, Output
from durable_cache.testing.simulation.questions import holds
from durable_cache.testing.simulation.truth import Numbering, Publication, Truth
from durable_cache.testing.simulation.untold import Heard
from durable_cache.testing.simulation.world import SECOND_NS, START_NS, World

if TYPE_CHECKING:
    from durable_cache.testing.simulation.caches import SimCache
    from durable_cache.testing.simulation.network import Network
    from durable_cache.testing.simulation.publishers import PublisherToken
    from durable_cache.testing.simulation.subscribers import SimSubscriber

_FRESH_NS = 3 << 33
"""A numbering whose time frame is longer ago when its token is seen may have begun before."""


class Finding(NamedTuple):
    """A number that was neither delivered nor reported, or was reported without need."""

    numbering: Numbering
    sn: int

    def __str__(self) -> str:
        numbering = self.numbering
        return f"{numbering.source} run {numbering.at} (epoch {numbering.epoch}) number {self.sn}"


class SubscriberPromise:
    """What one subscriber was given, and what it should have been."""

    def __init__(self, world: World, truth: Truth, caches: list[SimCache]) -> None:
        self._world, self._truth, self._caches = world, truth, caches
        self._delivered: dict[Publication, int] = {}
        self._reported: dict[Numbering, RangeSet] = defaultdict(RangeSet)
        self._reported_unnamed: dict[SourceId, RangeSet] = defaultdict(RangeSet)
        self._named: dict[tuple[SourceId, int], Numbering] = {}
        self._first: dict[Numbering, int] = {}
        """The lowest number that is owed, where that is settled."""
        self._begun: dict[Numbering, int] = {}
        """The number it was first given of each."""
        self._newest: dict[SourceId, Numbering] = {}
        self._highest: dict[Numbering, int] = {}
        self._saw: dict[Numbering, int] = {}
        self.wait_seconds = 10.0
        self._there: dict[SimCache, int] = {}
        self._there_for_history: list[SimCache] = []
        self._history_ns = -1
        """When history was complete."""
        self._subscriber: SimSubscriber | None = None
        self._history: list[Sample] = []
        self._history_checked = False
        self._heard = Heard()

    def began(self, subscriber: SimSubscriber) -> None:
        """Begin to be owed something."""
        self._subscriber = subscriber
        self._there = {cache: cache.life for cache in self._caches if self._sees(cache)}
        self.wait_seconds = subscriber.plan.delivery.gap_timeout_seconds

    def hears(self, sample: Sample) -> None:
        """Hear that the subscriber is told of a live sample."""
        publication = self._truth.of(sample)
        if publication is not None:
            self.hears_of(publication.numbering, sample.sn, sample.ntp64)
            self._heard.add(publication)

    def hears_of(self, numbering: Numbering, sn: int, ntp64: int = 0) -> None:
        """Hear that it is told of a number, perhaps without its time."""
        untold = self._truth.untold
        if untold.judge(self.name, self._heard, numbering, sn, ntp64, gives=False):
            self._world.occur("restart that nothing tells")

    def history_begins(self) -> None:
        """Hear that history is asked for from its beginning, perhaps again."""
        if self._history:
            self._check_order_in_time()

    def history_given(self, outputs: Iterable[Output]) -> None:
        """Hear what is delivered while history is read; what caches gave has an epoch."""
        for output in outputs:
            if isinstance(output, Deliver) and not self._history_checked:
                self._history.extend(sample for sample in output.samples if sample.epoch)

    def history_read(self) -> None:
        """Hear that history is complete: whoever was within reach all the while was asked."""
        self._history_ns = self._world.now_ns
        self._check_order_in_time()
        self._there_for_history = [
            cache for cache, life in self._there.items() if cache.life == life and self._sees(cache)
        ]

    def _check_order_in_time(self) -> None:
        """History comes in order of time, whatever its sources are called.

        As far as it is read from its beginning once, of sources whose own order is that of time,
        and of what was held before anybody asked.
        """
        subscriber = self._subscriber
        given, self._history = self._history, []
        if subscriber is None or self._history_checked or subscriber.plan.history != 0:
            return
        self._history_checked = True
        newest: dict[str, int] = {}
        rising: dict[SourceId, bool] = {}
        for sample in given:
            publication = self._truth.of(sample)
            if sample.source not in rising:
                rising[sample.source] = self._rises(sample.source)
            if publication is None or not rising[sample.source]:
                continue
            if self._is_excused(publication.numbering):
                continue
            held = [cache.held_ns.get(publication, 0) for cache in self._caches]
            if not 0 < max(held, default=0) <= subscriber.since_ns:
                continue
            if sample.ntp64 < newest.get(sample.key, 0):
                finding = Finding(publication.numbering, sample.sn)
                self._fail(f"was given history of {sample.key} out of time: {finding}")
                return
            newest[sample.key] = sample.ntp64

    def _rises(self, source: SourceId) -> bool:
        """Tell whether the timestamps of a source only rise, over all its runs."""
        times = [
            numbering.published[sn].sample.ntp64
            for numbering in self._truth.numberings[source]
            for sn in sorted(numbering.published)
        ]
        return times == sorted(times)

    def caches_in_reach(self) -> list[SimCache]:
        """Return the caches that the subscriber sees as it begins."""
        return [*self._there]

    def _sees(self, cache: SimCache) -> bool:
        subscriber = self._subscriber
        return (
            subscriber is not None
            and cache.process is not None
            and subscriber.network.reaches(cache.name, subscriber.name)
            and subscriber.network.reaches(subscriber.name, cache.name)
        )

    def ended(self) -> None:
        """Be owed nothing any more."""
        self._subscriber = None

    def saw(self, token: PublisherToken) -> None:
        """Hear that the subscriber saw a token."""
        self._saw.setdefault(self._truth.incarnations[token.incarnation], self._world.now_ns)

    def owes(self, publication: Publication) -> bool:
        """Tell whether the subscriber was to have it: it knows the run, and from where on.

        Whoever came after a publisher begins with the number that it is given first.
        """
        numbering = publication.numbering
        knows = numbering in self._saw or self._heard.knows(numbering)
        return knows and publication.sample.sn >= self._first.get(numbering, 0)

    def place(self, sample: Sample) -> int:
        """Return where a sample stands among all publications, as its link would keep them."""
        publication = self._truth.of(sample)
        return -1 if publication is None else publication.at

    def delivered(self, samples: Iterable[Sample]) -> None:
        """Take what was delivered: once, genuine, asked for, in order."""
        for sample in samples:
            publication = self._truth.of(sample)
            if publication is None:
                self._fail(f"was given what nobody published: {sample}")
                continue
            numbering = publication.numbering
            self._heard.add(publication)
            self._trace(f"gets {numbering.source} run {numbering.at} {sample.sn}")
            if not holds(self._key_expr, sample.key):
                self._fail(f"was given another key: {Finding(numbering, sample.sn)}", numbering)
            if publication in self._delivered:
                self._fail(f"was given twice: {Finding(numbering, sample.sn)}", numbering)
            self._delivered[publication] = self._world.now_ns
            self._named.setdefault((sample.source, sample.epoch), numbering)
            newest = self._newest.get(sample.source)
            if newest is not None and newest.at > numbering.at:
                finding = Finding(numbering, sample.sn)
                self._fail(f"was given a run after its successor: {finding}", numbering)
            elif newest is None or newest.at < numbering.at:
                self._switched(newest, numbering)
            if self._highest.get(numbering, -1) >= sample.sn:
                self._fail(f"was given out of order: {Finding(numbering, sample.sn)}", numbering)
            if sample.sn in self._reported[numbering]:
                self._fail(
                    f"was given what was reported as missed: {Finding(numbering, sample.sn)}",
                    numbering,
                )
            self._begun.setdefault(numbering, sample.sn)
            if numbering not in self._first:
                self._first[numbering] = self._owed_from(numbering, sample.sn, newest)
            self._highest[numbering] = sample.sn

    def missed(self, source: SourceId, epoch: int, first: int, last: int) -> None:
        """Take a report: it names what was published, and cannot be had."""
        self._trace(f"misses {source} epoch {epoch} {first}..{last}")
        if not self._recovers:
            return  # nobody is asked, and so nobody says which run the numbers are of
        numbering = self._called(source, epoch) or self._newest_called(source, epoch)
        if numbering is not None and first not in numbering.published:
            # What bore no name and came before a token may have borne the epoch of the run before.
            declared = (run for run in self._truth.numberings[source] if run.epoch == epoch)
            numbering = next((run for run in declared if first in run.published), numbering)
        if numbering is None or self._goes_by_two(numbering, epoch, first):
            self._reported_unnamed[source].add(first, last)
            return
        self._reported[numbering].add(first, last)
        if self._is_excused(numbering):
            return
        top = max(numbering.published, default=-1)
        if last > top or first < numbering.offset:
            # Numbers before the first of a numbering that began within sight do not exist either.
            self._fail(
                f"was told of numbers that never were: {Finding(numbering, last)}, top {top}"
            )
        for sn in range(max(first, numbering.offset), min(last, top) + 1):
            publication = numbering.published[sn]
            if publication in self._delivered:
                self._fail(f"was told to miss what it had: {Finding(numbering, sn)}")
            elif not holds(self._key_expr, publication.sample.key):
                where = self._had_at(publication, self._shown_by(numbering))
                if where:
                    self._fail(f"was told to miss another key, {where}: {Finding(numbering, sn)}")
            elif self._is_too_large(publication) or self._is_behind(numbering, sn):
                continue
            elif where := self._had_at(publication):
                self._fail(f"was told to miss what {where} has: {Finding(numbering, sn)}")

    def _newest_called(self, source: SourceId, epoch: int) -> Numbering | None:
        """Return the newest run that it was given, unless it calls that by another epoch.

        It may learn of a run, and of what nobody has of it, before it is given any of it.
        """
        newest = self._newest.get(source)
        called = {name for (_, name), run in self._named.items() if run is newest}
        return None if epoch and called and epoch not in called else newest

    def _goes_by_two(self, numbering: Numbering, epoch: int, first: int) -> bool:
        """Tell whether it may mean the newest run that it was given, by another epoch.

        Nothing names a run of others: who has but some of it cannot know it for what another has.
        """
        newest = self._newest.get(numbering.source)
        if newest is None or newest is numbering or numbering.incarnation:
            return False
        here = first in newest.published and first not in numbering.published
        return here and (numbering.source, epoch) not in self._named

    def _is_behind(self, numbering: Numbering, sn: int) -> bool:
        """Tell whether what followed was given: history that came late comes in no order then.

        What it went past to a later run was judged when it did so.
        """
        newest, begun = self._newest.get(numbering.source), self._begun.get(numbering)
        passed_by = newest is not None and newest.at > numbering.at
        return passed_by or (begun is not None and sn < begun)

    def _called(self, source: SourceId, epoch: int) -> Numbering | None:
        """Return the run that it calls by an epoch.

        Of two runs that declared one epoch the later is called by another (ADR 0107): while the
        earlier is the newest it was given, the epoch is that one's. What it was given of a run
        bears the epoch that the run goes by: under another epoch none of that is reported. Nor is
        any number of a run that published none yet, where an earlier run declared the same. Before
        it gave any of a run, it alone knows what it calls that.
        """
        newest = self._newest.get(source)
        numbering = self._named.get((source, epoch))
        otherwise = {run for (_, name), run in self._named.items() if name != epoch}
        mine = newest is not None and epoch and newest.epoch == epoch and newest not in otherwise
        if numbering is None and mine:
            numbering = newest
        if numbering is None and newest is None and not epoch:
            return None  # of the run that it is given first under 0, or of one before
        if numbering is None:
            later = reversed(self._truth.numberings[source])
            called = [one for one in later if _is_called(one, epoch) and one not in otherwise]
            meant = self._meant(source, epoch)
            if meant is not None and meant not in otherwise:
                return meant
            begun = [one for one in called if one.published]
            numbering = next(iter([*begun, *called]), None)
        return numbering or self._named_beside(source, epoch, otherwise)

    def _named_beside(
        self, source: SourceId, epoch: int, otherwise: Collection[Numbering]
    ) -> Numbering | None:
        """Return the run before or after the newest it was given that it names, if it does.

        Two runs that began within one time frame are called by that and by the next number, and so
        is one whose publisher's clock was set back (ADR 0107). One that it hears of after its
        successor, which has that time frame's number here, goes by an earlier one (ADR 0266): of
        several such it alone knows which it means.
        """
        newest = self._newest.get(source)
        if newest is None:
            return None
        called = {name for (_, name), run in self._named.items() if run is newest}
        if called and 0 < epoch < min(called) and newest.incarnation:
            before = reversed(self._truth.numberings[source][: newest.at])
            return next((run for run in before if run not in otherwise), None)
        if epoch <= max(called, default=0):
            return None
        later = self._truth.numberings[source][newest.at + 1 :]
        heard = next((run for run in later if self._heard.knows(run)), None)
        if heard is not None or newest.incarnation:
            return heard
        # Nobody names its runs: it is not the one that goes by another epoch (ADR 0263).
        before = reversed(self._truth.numberings[source][: newest.at])
        return next((run for run in before if run not in otherwise), None)

    def _meant(self, source: SourceId, epoch: int) -> Numbering | None:
        """Return the run that it names, where it knows one by an epoch."""
        name = "" if self._subscriber is None else self._subscriber.name_of(source, epoch)
        return self._truth.incarnations.get(name)

    def _shown_by(self, numbering: Numbering) -> list[SimCache]:
        """Return the caches that can show which run they mean by what they say of its numbers.

        By the epoch of a run without a name each means what it likes: a sample shows it that the
        subscriber was given of the run (ADR 0120).
        """
        if numbering.incarnation:
            return self._caches
        given = [one for one in numbering.published.values() if one in self._delivered]
        return [cache for cache in self._caches if any(one in cache.held_ns for one in given)]

    def _had_at(self, publication: Publication, caches: list[SimCache] | None = None) -> str:
        subscriber = self._subscriber
        if subscriber is None or not self._recovers:
            return ""
        since_ns = self._world.now_ns - round(self.wait_seconds * SECOND_NS)
        asked = self._caches if caches is None else caches
        return available(subscriber.network, subscriber.name, asked, publication, since_ns)

    def _switched(self, old: Numbering | None, new: Numbering) -> None:
        """Before the first of a later run, everything of the one before is settled."""
        self._newest[new.source] = new
        if old is None or old not in self._first:
            return
        missing = [
            publication
            for publication in self._truth.wanted(old, self._key_expr)
            if publication.sample.sn >= self._first[old]
            and publication not in self._delivered
            and publication.sample.sn not in self._reported[old]
            and publication.sample.sn not in self._reported_unnamed[old.source]
        ]
        for publication in missing:
            if self._unread_before(publication):
                continue
            # What went before history was read is owed where another was in reach that had it then.
            asked = self._had_for_history(publication) if self._went_before(publication) else None
            where = self._had_at(publication, asked)
            if where:
                finding = Finding(old, publication.sample.sn)
                self._fail(f"went on to the next run without what {where} has: {finding}", old)

    def _owed_from(self, numbering: Numbering, sn: int, before: Numbering | None) -> int:
        """Return the lowest number of a numbering that is owed, given the first that came."""
        subscriber = self._subscriber
        if subscriber is None:
            return sn
        if before is not None and numbering.began_ns > subscriber.since_ns:
            return numbering.offset
        saw_ns = self._saw.get(numbering)
        first = numbering.published[numbering.offset]
        if saw_ns is None or saw_ns >= first.at_ns:
            return sn
        # Of a publisher whose clock is behind nobody can tell that it began within sight.
        since_ns = max(subscriber.since_ns, saw_ns - _FRESH_NS)
        began = frame(START_NS + subscriber.skew_ns + since_ns)
        return numbering.offset if began <= numbering.epoch else sn

    def check(self) -> None:
        """Compare at the end, when all is healed and quiet."""
        subscriber = self._subscriber
        if subscriber is None:
            return
        for numberings in self._truth.numberings.values():
            for numbering in numberings:
                self._check_numbering(numbering)
        if subscriber.plan.history == 0:
            if not subscriber.history_complete:
                self._fail("has history that is not complete")
            self._check_history(subscriber.since_ns)

    def _check_numbering(self, numbering: Numbering) -> None:
        if self._is_excused(numbering):
            return
        first = self._first.get(numbering)
        wanted = self._truth.wanted(numbering, self._key_expr)
        while wanted and self._is_too_large(wanted[-1]):
            wanted.pop()  # of a run that begins, nothing after it shows whose number it is
        if first is None:
            # All that was published since this subscriber came may have been too large for it. Then
            # what it was told of first is what it begins with.
            since_ns = 0 if self._subscriber is None else self._subscriber.since_ns
            unnamed = self._reported_unnamed[numbering.source]
            told = self._reported[numbering].first or unnamed.first or 0
            wanted = [one for one in wanted if one.sample.sn >= told and not self._is_told(one)]
            if not numbering.ended and wanted and wanted[-1].at_ns >= since_ns:
                last = max(numbering.published)
                self._fail(f"was given nothing of {Finding(numbering, last)}")
            return
        reported = self._reported[numbering]
        last = self._highest[numbering]
        if reported.last is not None:
            last = max(last, reported.last)
        if not numbering.ended:
            last = max(numbering.published)
        elif numbering.incarnation:
            last = max(last, self._kept_up_to(wanted))
        for publication in wanted:
            sn = publication.sample.sn
            told = self._is_told(publication)
            if told or publication in self._delivered or self._went_before(publication):
                continue
            if self._unread_before(publication):
                continue
            if first <= sn <= last:
                self._fail(f"was neither given nor told of {Finding(numbering, sn)}")

    def _kept_up_to(self, wanted: Sequence[Publication]) -> int:
        """Return the last number that a cache has, however late it came there; -1: none.

        It is owed to whoever follows a source whose token is gone, but where the newest of each key
        are asked for (ADR 0347); of a run that another followed it is at least reported (ADR 0348).
        What a medium lost, and brought back when it was put back, nobody is told of.
        """
        if self._subscriber is None or self._subscriber.plan.history:
            return -1
        kept = (
            one
            for one in wanted
            if any(one in cache.held_ns and one not in cache.gone for cache in self._caches)
        )
        return max((one.sample.sn for one in kept), default=-1)

    def _is_told(self, publication: Publication) -> bool:
        """Tell whether it was reported as missed."""
        numbering, sn = publication.numbering, publication.sample.sn
        return sn in self._reported[numbering] or sn in self._reported_unnamed[numbering.source]

    def _went_before(self, publication: Publication) -> bool:
        """Tell whether a cache let a publication go that came before history was read.

        History is what is there: what retention or a purge took out of it is not told. What is
        removed is all that was asked for below a number, and no cache knows what of that it had.
        """
        return publication.at_ns < self._history_ns and any(
            _removed_up_to(publication, cache, self._key_expr) for cache in self._caches
        )

    def _unread_before(self, publication: Publication) -> bool:
        """Tell whether a cache could not give it for a while, perhaps as history was read.

        It lost it, or held as many newer ones as count. The publisher says of its own cache that it
        let it go: then history is what is there.
        """
        unread = any(publication in cache.unread for cache in self._caches)
        return unread and publication.at_ns < self._history_ns

    def _had_for_history(self, publication: Publication) -> list[SimCache]:
        there, read_ns = self._there_for_history, self._history_ns
        return [cache for cache in there if cache.held_ns.get(publication, read_ns) < read_ns]

    def _check_history(self, since_ns: int) -> None:
        """What was published before a late joiner came and is still held is owed to it."""
        for cache in self._there_for_history:
            for publication, held_ns in cache.held_ns.items():
                numbering, sn = publication.numbering, publication.sample.sn
                if (
                    held_ns < since_ns
                    and not self._is_excused(numbering)
                    and not self._is_too_large(publication)
                    and publication not in self._delivered
                    and holds(self._key_expr, publication.sample.key)
                    and not cache.hides(publication)
                    and sn not in self._reported[numbering]
                    and sn not in self._reported_unnamed[numbering.source]
                ):
                    finding = Finding(numbering, sn)
                    self._fail(f"was not given the history {cache.name} has: {finding}")

    def _is_too_large(self, publication: Publication) -> bool:
        subscriber = self._subscriber
        return subscriber is not None and subscriber.plan.is_too_large(publication.sample)

    @property
    def _recovers(self) -> bool:
        """Tell whether it asks for what is missing."""
        return self._subscriber is None or self._subscriber.plan.delivery.recovery

    @property
    def _key_expr(self) -> KeyExpression:
        assert self._subscriber is not None
        return self._subscriber.key_expr

    @property
    def name(self) -> str:
        return "" if self._subscriber is None else self._subscriber.name

    def _trace(self, text: str) -> None:
        if self._world.tracing:
            self._world.say(f"{self.name} {text}")

    def _is_excused(self, numbering: Numbering) -> bool:
        return self._truth.untold.excuses(self.name, numbering)

    def _fail(self, finding: str, numbering: Numbering | None = None) -> None:
        if numbering is None or not self._is_excused(numbering):
            self._world.fail(f"{self.name} {finding}")


def available(
    network: Network,
    asker: str,
    caches: Sequence[SimCache],
    publication: Publication,
    since_ns: int,
) -> str:
    """Return a cache that had a publication, could be reached and read, all the time since."""
    if since_ns < 0:
        return ""
    for cache in caches:
        held_ns = cache.held_ns.get(publication)
        if (
            held_ns is not None
            and held_ns < since_ns
            and not cache.hides(publication)
            and cache.name != asker
            and cache.reads_troubled_ns < since_ns
            and network.calm(asker, cache.name, since_ns)
        ):
            return cache.name
    return ""


def _removed_up_to(publication: Publication, cache: SimCache, key_expr: KeyExpression) -> bool:
    """Tell whether retention or a purge removed numbers up to a publication, or further.

    Nothing tells what a medium lost from what was removed, once more of its key was removed.
    """
    numbering, sn = publication.numbering, publication.sample.sn
    since = 0 if publication in cache.gone else sn
    return any(
        one.numbering is numbering and one.sample.sn >= since and holds(key_expr, one.sample.key)
        for one in cache.removed
    ) or any(
        one is numbering and floor > sn and holds(key_expr, key) for one, key, floor in cache.floors
    )


def _is_called(numbering: Numbering, epoch: int) -> bool:
    """Tell whether a run goes by an epoch: its own, or the time of one that shows that it began."""
    if numbering.epoch or not epoch:
        return numbering.epoch == epoch
    stamped_ns = (ntp64_to_ns(one.sample.ntp64) for one in numbering.published.values())
    return any(frame(ns) == epoch for ns in stamped_ns)

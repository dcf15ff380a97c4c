"""What is promised of a cache, compared with the truth as it happens.

What it acknowledges is durable, what it gives up nobody within reach has, what it answers is all
that it has; whatever happens to it, what it acknowledged stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, Stream
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.events import ReportMiss, SendAck
from durable_cache.testing.simulation.caches import SimCache
from durable_cache.testing.simulation.promises import Finding, available
from durable_cache.testing.simulation.publishers import OwnPublisher
from durable_cache.testing.simulation.questions import Question, holds
from durable_cache.testing.simulation.truth import Numbering, Publication
from durable_cache.testing.simulation.world import SECOND_NS

_PAGE_SAMPLES = 64


class CachePromise:
    """What one cache did, and what it should have done."""

    def __init__(self, cache: SimCache, caches: Sequence[SimCache]) -> None:
        self._cache, self._caches = cache, caches
        self._world, self._truth = cache.world, cache.truth
        cache.on_miss.append(self._missed)
        cache.on_ack.append(self._acknowledges)
        cache.on_answer.append(self._answered)

    def _missed(self, miss: ReportMiss) -> None:
        """What a cache gives up was published, and nobody within reach has it.

        Of a run of others that began before something was lost here, it may hold what it gives up,
        under the name that a rest of another run left.
        """
        cache = self._cache
        self._world.occur("cache gives up")
        numbering = cache.numbering_of(miss.source, miss.epoch)
        if numbering is None or self._is_excused(numbering):
            return
        since_ns = self._world.now_ns - round(cache.plan.engine.gap_timeout_seconds * SECOND_NS)
        for sn in range(miss.first, miss.last + 1):
            publication = numbering.published.get(sn)
            finding = Finding(numbering, sn)
            if publication is None:
                if self._truth.was_published_without_a_name(miss.source, sn):
                    continue  # of a run that a lost medium left to be told by its numbers alone
                self._fail(f"missed what never was: {finding}")
                return
            if cache.troubled_ns >= since_ns:
                continue
            nameless = not numbering.incarnation and self._has_lost_since(numbering.began_ns)
            if nameless and publication in cache.held_ns:
                continue
            where = available(cache.network, cache.name, self._caches, publication, since_ns)
            if where:
                self._fail(f"missed what {where} has: {finding}")
                return

    def _acknowledges(self, ack: SendAck) -> None:
        """What is acknowledged is durable at this moment.

        An acknowledgement that names no run tells a publisher of ours nothing (ADR 0332). Where
        something was lost since a run of others began, it says what is here under a number, of
        whichever run: what is left may go by the name that this one had.
        """
        numbering = self._cache.numbering_of(ack.source, ack.epoch, ack.incarnation)
        if numbering is None or self._is_excused(numbering):
            return
        if numbering.incarnation and not ack.incarnation:
            return
        runs = [numbering]
        if not numbering.incarnation and self._has_lost_since(numbering.began_ns):
            runs = self._truth.numberings[ack.source]
        for first, last in ack.runs:
            for sn in numbering.published:
                if not first <= sn <= last:
                    continue
                under_number = (run.published[sn] for run in runs if sn in run.published)
                if not any(map(self._cache.has_durably, under_number)):
                    self._fail(f"acknowledged what it has not: {Finding(numbering, sn)}")
                    return

    def _has_lost_since(self, began_ns: int) -> bool:
        return any(medium.lost_ns >= began_ns for medium in self._cache.media)

    def _answered(self, question: Question, found: list[Sample]) -> None:
        """An answer that does not say it is cut holds all that is there."""
        cache = self._cache
        if question.after is not None or question.newest is not None:
            return
        given = {self._truth.of(sample) for sample in found}
        for publication, held_ns in cache.held_ns.items():
            if (
                publication not in given
                and held_ns > cache.journal.lost_ns  # else no index knows where that moved it
                and question.names(publication.sample)
                and not cache.hides(publication)
                and not self._is_excused(publication.numbering)  # two runs under one name
            ):
                finding = Finding(publication.numbering, publication.sample.sn)
                self._fail(f"leaves out of a whole answer: {finding}")
                return

    def check(self, publishers: Sequence[OwnPublisher]) -> None:
        """Compare at the end, when all is healed and quiet."""
        cache = self._cache
        if not cache.running:
            self._fail("does not run")
            return
        found = self.readable()
        for publisher in publishers:
            self._check_acknowledged(publisher, found)
        self._check_purged(found)
        self._check_names()

    def _check_names(self) -> None:
        """What reads the backend alone finds samples under the epochs that answers show."""
        cache = self._cache
        assert cache.process is not None
        for stream, held in cache.backend.state.streams.items():
            stands = cache.process.core.epochs.canonical_stream(stream)
            if held and stands != stream:
                self._fail(f"stores {stream} under another epoch than {stands.epoch}")
                return

    def _check_purged(self, found: Mapping[Publication, int]) -> None:
        """What an operator purged never comes back, unless nothing here can know of it any more."""
        cache = self._cache
        if cache.process is None:
            return
        if cache.journal.losses and (cache.index.losses or cache.backend.losses):
            return  # without its journal the index is read anew from the backend
        floors: dict[Stream, int] = {}
        named = [floor for floor in cache.told_purges if floor.stream.epoch != EPOCH_UNKNOWN]
        for floor in map(cache.purged_runs.stands, cache.purged + named):
            stream = cache.process.core.epochs.canonical_stream(floor.stream)
            floors[stream] = max(floor.sn, floors.get(stream, 0))
        told = map(cache.purged_runs.stands, cache.told_purges)
        for floor in told:  # of no run that has got a name here
            floors[floor.stream] = max(floor.sn, floors.get(floor.stream, 0))
        for publication, epoch in found.items():
            sample = publication.sample
            if self._is_excused(publication.numbering):
                continue
            if sample.sn < floors.get(Stream(sample.key, sample.source, epoch), 0):
                finding = Finding(publication.numbering, sample.sn)
                self._fail(f"has again what was purged: {finding}")
                return

    def _check_acknowledged(
        self, publisher: OwnPublisher, found: Mapping[Publication, int]
    ) -> None:
        cache = self._cache
        for (numbering, cache_id), sns in publisher.acked.items():
            if cache_id not in cache.cache_ids:
                continue
            for sn in sorted(sns):
                one = numbering.published[sn]
                if not (one in found or one in cache.gone or cache.hides(one)):
                    self._fail(f"lost {Finding(numbering, sn)}")

    def check_aligned(self, other: CachePromise) -> None:
        """Compare with another cache: what that one has is here, under the same epoch."""
        mine, theirs = self._cache, other._cache
        if not (mine.running and theirs.running and mine.plan.align and theirs.plan.align):
            return
        found = self.readable()
        for publication, epoch in other.readable().items():
            finding = Finding(publication.numbering, publication.sample.sn)
            if self._is_excused(publication.numbering):
                continue
            if publication in found:
                if found[publication] != epoch:
                    self._fail(f"calls epoch {found[publication]} what is {epoch}: {finding}")
                    return
            elif not holds(mine.key_expr, publication.sample.key) or mine.lets_go(publication):
                continue
            elif publication in mine.unread:
                continue  # its index says that it is here, and nobody looks
            elif not _is_below_floor(theirs, publication):
                self._fail(f"lacks what {theirs.name} has: {finding}")
                return

    def readable(self) -> dict[Publication, int]:
        """Return all that can be read, with the epoch it is under."""
        process = self._cache.process
        assert process is not None
        found: dict[Publication, int] = {}
        cursor = None
        while True:
            page = process.read(Question(KeyExpression("**")).selection, _PAGE_SAMPLES, cursor)
            for sample in page.samples:
                publication = self._truth.of(sample)
                if publication is not None:
                    found[publication] = sample.epoch
            cursor = page.cursor
            if cursor is None:
                return found

    def _is_excused(self, numbering: Numbering) -> bool:
        return self._truth.untold.excuses(self._cache.name, numbering)

    def _fail(self, finding: str) -> None:
        self._world.fail(f"{self._cache.name} {finding}")


def _is_below_floor(cache: SimCache, publication: Publication) -> bool:
    """Tell whether retention removed later numbers of its stream: it came in behind that.

    What is below a floor is offered to nobody, and goes the next time.
    """
    numbering, sample = publication.numbering, publication.sample
    return any(
        one.numbering is numbering and one.sample.key == sample.key and one.sample.sn > sample.sn
        for one in cache.removed
    )

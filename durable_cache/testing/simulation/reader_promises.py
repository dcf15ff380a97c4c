"""What is promised to who reads and takes, compared with what went into the cache as it happens.

Received = in the cache + taken + lost, and what KEEP_LAST pushed out for something newer. By source
timestamp nothing comes after something newer was taken, and each life of an instance is in order.
No bound of the profile is exceeded at any time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.reader.cache import ReaderCache
from durable_cache.protocol.reader.instances import InstanceSample
from durable_cache.protocol.reader.profile import DestinationOrder, Profile
from durable_cache.protocol.reader.statuses import LostReason
from durable_cache.testing.simulation.truth import Publication, Truth
from durable_cache.testing.simulation.world import World

_Place = tuple[SourceId, int, int, str]
"""As reports name a sample: live ones of all runs have epoch 0."""
_UNBOUNDED = 1 << 62


class ReaderPromise:
    """What one reader was given, and what became of it."""

    def __init__(self, world: World, truth: Truth, name: str, profile: Profile) -> None:
        self._world, self._truth, self._name, self._profile = world, truth, name, profile
        self._by_source = profile.destination_order is DestinationOrder.BY_SOURCE_TIMESTAMP
        self._received: dict[str, list[Publication]] = defaultdict(list)
        self._latest: dict[_Place, Publication] = {}
        self._taken: Counter[Publication] = Counter()
        self._taken_up_to: dict[str, tuple[Any, ...]] = {}
        self.lost: Counter[Publication] = Counter()
        """What was reported as dropped."""
        self._lost_total = 0
        self._missed = self._missed_told = 0

    def inserted(self, samples: Sequence[Sample], cache: ReaderCache) -> None:
        """Hear what a cache took in, right after it did."""
        consumed = {
            _place(sample)
            for sample in samples
            if self._by_source and sample.time_order < self._taken_up_to.get(sample.key, ())
        }
        dropped = {
            (*lost.last, lost.key)
            for lost in cache.drops
            if lost.reason is LostReason.CONSUMED and lost.last is not None
        }
        for place in sorted(consumed ^ dropped, key=str):
            self._fail(f"consumed or not, and that was not said: {place}")
        for sample in samples:
            publication = self._truth.of(sample)
            assert publication is not None
            self._latest[_place(sample)] = publication
            self._received[sample.key].append(publication)
        self.changed(cache)

    def missed(self, count: int) -> None:
        """Hear of numbers that will never come."""
        self._missed += count

    def changed(self, cache: ReaderCache) -> None:
        """Hear that a cache changed: take its reports, and see its bounds."""
        drops, cache.drops = cache.drops, []
        for lost in drops:
            assert lost.reason is not None
            assert lost.last is not None
            self._world.occur(f"lost: {lost.reason}")
            self._lost_total += lost.change
            if lost.reason is LostReason.MISSED:
                self._missed_told += lost.change
            else:
                assert lost.key is not None
                self.lost[self._latest[*lost.last, lost.key]] += 1
        profile = self._profile
        if len(cache) > (profile.samples_max or _UNBOUNDED):
            self._fail(f"holds {len(cache)} samples")
        if cache.instances > profile.instances_max:
            self._fail(f"knows {cache.instances} instances")

    def saw(self, found: Iterable[InstanceSample], *, take: bool, whole: bool) -> None:
        """Hear what was read or taken; `whole` is all there is."""
        held: Counter[str] = Counter()
        newest: dict[tuple[str, int], tuple[Any, ...]] = {}
        for each in found:
            sample = each.sample
            if sample is None:
                continue
            held[each.key] += 1
            publication = self._truth.of(sample)
            if publication is None or publication not in self._received[each.key]:
                self._fail(f"shows what never came: {_place(sample)}")
                continue
            life = each.key, each.mark.life
            if self._by_source and sample.time_order <= newest.get(life, ()):
                self._fail(f"shows {each.key} out of order at {_place(sample)}")
            newest[life] = sample.time_order
            if take:
                self._taken[publication] += 1
                up_to = self._taken_up_to.get(each.key, ())
                self._taken_up_to[each.key] = max(up_to, sample.time_order)
        bound = self._profile.per_instance or _UNBOUNDED
        for key, count in held.items():
            if whole and count > bound:
                self._fail(f"holds {count} samples of {key}")

    def check(self, found: Iterable[InstanceSample], cache: ReaderCache) -> None:
        """Compare at the end, when all is quiet; `found` is all that is in the cache."""
        status = cache.take_sample_lost()
        if status.total != self._lost_total:
            self._fail(f"lost {status.total} by its status, {self._lost_total} as it was told")
        if self._missed != self._missed_told:
            self._fail(f"missed {self._missed}, was told of {self._missed_told}")
        held = Counter(self._truth.of(each.sample) for each in found if each.sample is not None)
        if sum(held.values()) != len(cache):
            self._fail(f"shows {sum(held.values())} samples and counts {len(cache)}")
        lives = {
            status.key: status.disposed_generations + status.no_writers_generations
            for status in cache.statuses()
        }
        kept: Counter[Publication | None] = Counter(self._taken)
        kept.update(self.lost)
        kept.update(held)
        for key, received in self._received.items():
            self._check_instance(key, received, kept, lives.get(key, 0))

    def _check_instance(
        self, key: str, received: list[Publication], kept: Counter[Publication | None], lives: int
    ) -> None:
        """See that each sample is somewhere once, or once more for a life that began with it."""
        again = sum(max(0, kept[publication] - 1) for publication in received)
        if again > lives:
            self._fail(f"has {again} samples of {key} once more, which lived {lives} times again")
        gone = [publication for publication in received if not kept[publication]]
        if not gone:
            return
        self._world.occur("pushed out")
        room = self._profile.depth
        if room is None:
            self._fail(f"KEEP_ALL lost {_place(gone[0].sample)} of {key} silently")
            return
        if self._profile.samples_max is not None:
            room = 1
        order = sorted(received, key=_time_order) if self._by_source else received
        for publication in gone:
            newer = len(order) - 1 - order.index(publication)
            if newer + lives < room:
                place = _place(publication.sample)
                self._fail(f"lost {place} of {key} silently, {newer} newer ones came")

    def _fail(self, finding: str) -> None:
        self._world.fail(f"{self._name} {finding}")


def _place(sample: Sample) -> _Place:
    return sample.source, sample.epoch, sample.sn, sample.key


def _time_order(publication: Publication) -> tuple[Any, ...]:
    return publication.sample.time_order

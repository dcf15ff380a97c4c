"""The hard cases of alignment, each by itself; a scenario tells whether it ended well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec.structs import replace as replaced

from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.alignment import (
    CacheProfile,
    Forgotten,
    RootReceived,
)
from durable_cache.protocol.alignment.wire import Pull, decode_request, decode_root
from durable_cache.testing.simulated_caches import SimulatedCache
from durable_cache.testing.simulated_network import START_NS, Network, SimulationOptions

SOURCE = SourceId("a1", 1)
STREAM = Stream("a/b/1", SOURCE, 0)


class Scene:
    """A network without losses and some caches on it."""

    def __init__(self, seed: int = 1, **options: Any) -> None:
        base = SimulationOptions()
        self.network: Network[SimulatedCache] = Network(
            seed,
            replace(
                base,
                loss=0.0,
                duplication=0.0,
                append_failure=0.0,
                aligner=replace(base.aligner, **options),
            ),
        )

    def cache(self, name: str, depth: int | None = None, scope: str = "a/**") -> SimulatedCache:
        return SimulatedCache(self.network, CacheProfile(name, "", (scope,), (), None, depth))

    def sample(self, sn: int, payload: bytes = b"x", key: str = "a/b/1") -> Sample:
        now_ns = START_NS + self.network.now_ns
        return Sample(
            key,
            SOURCE,
            0,
            sn,
            payload,
            ntp64=ntp64_from_ns(now_ns),
            timestamp_id="1",
            received_ns=now_ns,
        )

    def give(self, cache: SimulatedCache, sns: Iterable[int], payload: bytes = b"x") -> None:
        cache.take(SampleBatch(self.sample(sn, payload) for sn in sns))


def sns_of(cache: SimulatedCache) -> list[int]:
    return sorted(cache.store.get(STREAM, {}))


def the_longest_comes_back() -> bool:
    """What a cache called unrecoverable is found when the one that has it returns."""
    scene = Scene()
    one, two, three = scene.cache("one", 1), scene.cache("two"), scene.cache("three")
    three.crash()
    three.store[STREAM] = {sn: scene.sample(sn) for sn in range(10)}
    scene.give(one, range(9, 10))
    scene.network.run(120)
    if sns_of(two) != [9]:
        return False
    three.start()
    scene.network.run(300)
    return sns_of(two) == list(range(10))


def others_are_asked_before_void() -> bool:
    """The one that knows has it not; the one that has it was never heard of its roots.

    What counts as void is asked for again later: it must be there before.
    """
    scene = Scene()
    one, two, three = scene.cache("one", 1), scene.cache("two"), scene.cache("three")
    deafen(two, "three")
    scene.give(one, range(10))
    scene.give(three, range(10))
    one.trim()
    scene.network.run(60)
    return sns_of(two) == list(range(10))


def deafen(cache: SimulatedCache, cache_id: str) -> None:
    """Let a cache not hear what another announces."""
    honest = cache.feed

    def feed(event: Any) -> None:
        if not (isinstance(event, RootReceived) and _announcer(event) == cache_id):
            honest(event)

    cache.feed = feed  # type: ignore[method-assign]


def _announcer(event: RootReceived) -> str:
    return decode_root(event.payload).cache_id


def no_answer_is_no_absence() -> bool:
    """The one that has it does not answer at first: it is asked again soon, not as for a void."""
    scene = Scene(retry_seconds_max=20.0)
    one, two, three = scene.cache("one", 1), scene.cache("two"), scene.cache("three")
    honest_answer = three.answer
    deafen(two, "three")

    def answer(payload: bytes, reply: Any) -> None:
        silent = scene.network.now_ns < 30 * 10**9
        if not (silent and isinstance(decode_request(payload), Pull)):
            honest_answer(payload, reply)

    three.answer = answer  # type: ignore[method-assign]
    scene.give(one, range(10))
    scene.give(three, range(10))
    one.trim()
    scene.network.run(55)
    return sns_of(two) == list(range(10))


def live_traffic_is_no_difference() -> bool:
    """Both get everything, one later than the other: nobody asks anything."""
    scene = Scene()
    one, two = scene.cache("one"), scene.cache("two")
    scene.network.run(20)
    before = scene.network.requests
    for sn in range(300):
        batch = SampleBatch([scene.sample(sn)])
        scene.network.at(scene.network.random.random() * 0.2, partial(one.take, batch))
        scene.network.at(scene.network.random.random() * 2.0, partial(two.take, batch))
        scene.network.run(0.2)
    scene.network.run(60)
    return scene.network.requests == before and sns_of(one) == sns_of(two) == list(range(300))


def a_trimmed_sample_stays_out() -> bool:
    """A cache that trimmed does not pull from one that did not."""
    scene = Scene()
    one, two = scene.cache("one"), scene.cache("two", 3)
    scene.give(one, range(10))
    scene.give(two, range(10))
    two.trim()
    scene.give(two, [12])
    scene.give(one, [11])
    scene.network.run(200)
    two.trim()
    return not two.resurrected and two.pulled <= 1 and sns_of(two) == [9, 11, 12]


def a_purge_spreads_and_stays() -> bool:
    """What an operator removed at one goes at all, and is not pulled from a restored backup."""
    scene = Scene()
    one, two, three = scene.cache("one"), scene.cache("two"), scene.cache("three")
    for cache in (one, two, three):
        scene.give(cache, range(10))
    scene.network.run(60)
    copy = three.backup()
    one.purge(((STREAM, 5),))
    scene.network.run(120)
    spread = sns_of(two) == sns_of(three) == list(range(5, 10))
    three.crash()
    three.restore(copy)
    three.start()
    scene.network.run(200)
    return spread and all(sns_of(cache) == list(range(5, 10)) for cache in (one, two, three))


def other_content_is_reported_by_both() -> bool:
    scene = Scene()
    one, two = scene.cache("one"), scene.cache("two")
    scene.give(one, range(10))
    scene.give(two, range(10))
    one.store[STREAM].pop(4)
    one.crash()
    one.start()
    scene.give(one, [4], b"another")
    scene.network.run(300)
    kept = one.store[STREAM][4].payload, two.store[STREAM][4].payload
    return (STREAM, 4) in one.conflicts & two.conflicts and kept == (b"another", b"x")


def a_wrong_sum_heals() -> bool:
    """A sum that memory falsified is found by comparing streams that are equal, and made anew."""
    scene = Scene()
    one, two = scene.cache("one"), scene.cache("two")
    scene.give(one, range(10))
    scene.give(two, range(10))
    scene.network.run(60)
    assert two.aligner is not None
    (view,) = two.aligner.ledger.views.values()
    for level in view.tree._levels:
        for node in level.values():
            node[0] ^= 77
    scene.give(one, [10])
    scene.give(two, [10])
    scene.network.run(900)
    before = scene.network.requests
    scene.network.run(900)
    healed = (node := view.tree.root) and one.aligner is not None
    (other,) = one.aligner.ledger.views.values() if one.aligner else ()
    return bool(healed) and node == other.tree.root and scene.network.requests == before


def many_runs_are_paged() -> bool:
    """A stream with hundreds of holes is told in parts, and the oldest hole is found."""
    scene = Scene(entry_runs_max=4)
    one, two = scene.cache("one"), scene.cache("two")
    scene.give(one, range(0, 600, 2))
    scene.give(two, (sn for sn in range(0, 600, 2) if sn not in (2, 500)))
    scene.network.run(300)
    return sns_of(two) == sns_of(one) == list(range(0, 600, 2))


def a_wiped_cache_is_rebuilt() -> bool:
    scene = Scene()
    one, two = scene.cache("one"), scene.cache("two")
    for key in range(40):
        one.take(SampleBatch(scene.sample(sn, key=f"a/{key}") for sn in range(20)))
    scene.network.run(400)
    return sum(map(len, two.store.values())) == 800 and two.pulled == 800


def two_views_are_kept_apart() -> bool:
    """A cache that shares other keys with a third one announces both, in any order."""
    for seed in range(8):
        scene = Scene(seed, announce_seconds=())
        one, two = scene.cache("one"), scene.cache("two")
        scene.cache("three", scope="a/b/**")
        scene.network.run(30)
        two.take(SampleBatch([scene.sample(1), scene.sample(1, key="a/c/1")]))
        scene.network.run(300)
        if len(one.store) != 2:
            return False
    return True


def move(cache: SimulatedCache, stream: Stream, epoch: int) -> None:
    """Store a stream under another epoch, as a cache does that agreed on it."""
    moved = cache.store.pop(stream)
    cache.take(SampleBatch(replaced(sample, epoch=epoch) for sample in moved.values()))
    cache.feed(Forgotten((stream,)))


def an_epoch_is_moved_at_both() -> bool:
    """While others come in, one after the other stores a stream under another epoch."""
    scene = Scene()
    one, two = scene.cache("one"), scene.cache("two")
    for cache in (one, two):
        scene.give(cache, range(40))
    scene.network.run(60)
    for cache in (one, two):
        scene.give(cache, range(40, 44))
        scene.network.run(1)
        move(cache, STREAM, 5)
        cache.take(SampleBatch([replaced(scene.sample(44), epoch=5)]))
    scene.network.run(600)
    before = scene.network.requests
    scene.network.run(600)
    same = [*one.store] == [*two.store] == [STREAM._replace(epoch=5)]
    (one_view,) = one.aligner.ledger.views.values() if one.aligner else ()
    (two_view,) = two.aligner.ledger.views.values() if two.aligner else ()
    return (
        same
        and scene.network.requests == before
        and one_view.samples == two_view.samples == 45
        and one_view.tree.root == two_view.tree.root
        and one_view.tree.root.streams == 1
    )


SCENARIOS = [
    the_longest_comes_back,
    others_are_asked_before_void,
    no_answer_is_no_absence,
    live_traffic_is_no_difference,
    a_trimmed_sample_stays_out,
    a_purge_spreads_and_stays,
    other_content_is_reported_by_both,
    a_wrong_sum_heals,
    many_runs_are_paged,
    a_wiped_cache_is_rebuilt,
    two_views_are_kept_apart,
    an_epoch_is_moved_at_both,
]

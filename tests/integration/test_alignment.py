"""Caches on real sessions come to hold the same samples, whatever their backends."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
import zenoh

from durable_cache import (
    CacheOptions,
    Origins,
    ReliabilityCache,
    Retention,
    declare_reliability_cache,
    declare_reliable_publisher,
)
from durable_cache.endpoints.session import undeclare
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.alignment import (
    AlignerOptions,
)
from durable_cache.protocol.cache.events import Origin
from durable_cache.storage.contract import Floor, Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until

LIVE = 40_000
FAST = AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)


def declare(
    network: LocalNetwork,
    name: str,
    directory: Path | None = None,
    *,
    key_expr: str = "a/**",
    retention: Retention | None = None,
) -> ReliabilityCache:
    options = CacheOptions(
        name=name,
        align=True,
        aligner=FAST,
        allowed_origin=Origins.SESSION_LOCAL,
        retention=retention or Retention(),
        retention_seconds=0.2,
    )
    if directory is None:
        return declare_reliability_cache(network.client(), key_expr, options=options)
    url = f"sqlite:///{directory}/{name}.db"
    return declare_reliability_cache(
        network.client(),
        key_expr,
        backend="sql",
        backend_options={"url": url},
        state_dir=directory,
        options=options,
    )


def feed(cache: ReliabilityCache, samples: list[Sample]) -> None:
    """Let a cache alone receive samples, as if the others had missed them."""
    before = cache.status().appended
    cache.ingest.offer(samples, Origin.RECOVERED)
    wait_until(lambda: cache.status().appended >= before + len(samples), what="storing")


def samples(numbers: range | list[int], *, key: str = "a/b", clock: int) -> list[Sample]:
    from durable_cache.model.sample import SourceId

    return [
        Sample(
            key,
            SourceId("ab12", 7),
            5,
            sn,
            b"%d" % sn,
            attachment=b"meta",
            encoding="text/plain;x",
            ntp64=clock + sn,
            timestamp_id="ab12",
            received_ns=(clock >> 32) * 10**9,
        )
        for sn in numbers
    ]


def everything(cache: ReliabilityCache) -> list[Sample]:
    found: list[Sample] = []
    cursor = None
    while True:
        page = cache.read(Selection(), 5000, cursor)
        found += page.samples
        cursor = page.cursor
        if cursor is None:
            return found


def clock_of(session: zenoh.Session) -> int:
    return int(str(session.new_timestamp()).partition("/")[0]) - (30 << 32)


def same(*caches: ReliabilityCache) -> bool:
    first, *others = [everything(cache) for cache in caches]
    return all(first == other for other in others)


def test_two_caches_that_each_missed_some_hold_the_union(
    network: LocalNetwork, tmp_path: Path
) -> None:
    clock = clock_of(network.client())
    with declare(network, "one", tmp_path) as one, declare(network, "two") as two:
        chance = random.Random(3)
        lost_by_one = {sn for sn in range(3000) if chance.random() < 0.1}
        lost_by_two = {sn for sn in range(3000) if chance.random() < 0.1}
        feed(one, samples([n for n in range(3000) if n not in lost_by_one], clock=clock))
        feed(two, samples([n for n in range(3000) if n not in lost_by_two], clock=clock))
        wait_until(lambda: same(one, two), 40, "equality")
        assert len(everything(one)) == 3000 - len(lost_by_one & lost_by_two)


def test_a_late_cache_gets_everything(network: LocalNetwork, tmp_path: Path) -> None:
    clock = clock_of(network.client())
    with declare(network, "old", tmp_path) as old:
        feed(old, samples(range(5000), clock=clock))
        with declare(network, "new") as new:
            wait_until(lambda: same(old, new), 40, "the copy")
            assert everything(new) == samples(range(5000), clock=clock)


def test_what_was_purged_stays_away_and_the_purge_spreads(
    network: LocalNetwork, tmp_path: Path
) -> None:
    clock = clock_of(network.client())
    with declare(network, "one", tmp_path) as one, declare(network, "two") as two:
        feed(one, samples(range(100), clock=clock))
        wait_until(lambda: same(one, two) and len(everything(two)) == 100, 40, "equality")
        one.purge([Floor(samples([0], clock=clock)[0].stream, 60)])
        wait_until(lambda: len(everything(two)) == 40, 40, "the purge at the other")
        assert [sample.sn for sample in everything(one)] == list(range(60, 100))


def test_caches_of_different_depth_and_scope_align_on_what_both_keep(
    network: LocalNetwork,
) -> None:
    clock = clock_of(network.client())
    with (
        declare(network, "all") as everything_kept,
        declare(network, "few", key_expr="a/b/**", retention=Retention(samples_max=10)) as few,
    ):
        feed(everything_kept, samples(range(100), key="a/b/c", clock=clock))
        feed(everything_kept, samples(range(100, 120), key="a/x", clock=clock))
        wait_until(lambda: len(everything(few)) == 10, 40, "the newest ten")
        assert {sample.sn for sample in everything(few)} == set(range(90, 100))
        assert len(everything(everything_kept)) == 120


def test_a_wider_retention_brings_back_what_others_kept(
    network: LocalNetwork, tmp_path: Path
) -> None:
    clock = clock_of(network.client())
    with declare(network, "all") as kept:
        feed(kept, samples(range(200), clock=clock))
        with declare(network, "few", tmp_path, retention=Retention(samples_max=10)) as few:
            wait_until(lambda: len(everything(few)) == 10, 40, "the newest ten")
            feed(few, samples(range(200, 220), clock=clock))
            wait_until(lambda: trimmed_to(few, 210), 20, "trimming")
        with declare(network, "few", tmp_path, retention=Retention(samples_max=250)) as few:
            wait_until(lambda: same(kept, few), 40, "what the other kept")
            assert {sample.sn for sample in everything(few)} >= {*range(200), *range(210, 220)}
            few.purge([Floor(samples([0], clock=clock)[0].stream, 150)])
        with declare(network, "few", tmp_path) as few:
            wait_until(lambda: same(kept, few), 40, "equality")
            assert min(sample.sn for sample in everything(kept)) == 150


def trimmed_to(cache: ReliabilityCache, floor: int) -> bool:
    return any(info.floor >= floor for info in cache.store.index.all_infos())


def test_another_payload_under_one_identity_is_counted_and_never_overwritten(
    network: LocalNetwork,
) -> None:
    clock = clock_of(network.client())
    options = AlignerOptions(
        slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05, block=1, content_seconds=0.5
    )
    made = [
        declare_reliability_cache(
            network.client(),
            "a/**",
            options=CacheOptions(
                name=name, align=True, aligner=options, allowed_origin=Origins.SESSION_LOCAL
            ),
        )
        for name in ("one", "two")
    ]
    one, two = made
    try:
        honest = samples(range(20), clock=clock)
        feed(one, honest)
        import msgspec

        feed(two, [*honest[:10], msgspec.structs.replace(honest[10], payload=b"x"), *honest[11:]])

        def conflicts() -> int:
            return sum(cache.status().conflicts for cache in made)

        wait_until(conflicts, 40, "a conflict")
        assert everything(one)[10].payload == b"10"
        assert everything(two)[10].payload == b"x"
    finally:
        for cache in made:
            cache.close()


def test_what_was_purged_is_not_taken_from_a_peer_that_sent_it_before(
    network: LocalNetwork,
) -> None:
    clock = clock_of(network.client())
    with declare(network, "one") as one:
        feed(one, samples(range(50, 100), clock=clock))
        one.purge([Floor(samples([0], clock=clock)[0].stream, 60)])
        for origin in (Origin.ALIGNED, Origin.RECOVERED):
            one.ingest.offer(samples(range(40, 80), clock=clock), origin)
        feed(one, samples([100], clock=clock))
        assert [sample.sn for sample in everything(one)] == list(range(60, 101))


def test_streams_beyond_the_bound_are_said_not_to_be_aligned(
    network: LocalNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    clock = clock_of(network.client())
    options = CacheOptions(align=True, aligner=replace(FAST, streams_max=1))
    with declare_reliability_cache(network.client(), "a/**", options=options) as cache:
        feed(cache, samples(range(3), key="a/one", clock=clock))
        assert cache.status().alignment.left_out == 0
        feed(cache, samples(range(3, 6), key="a/two", clock=clock))
        wait_until(lambda: cache.status().alignment.left_out > 0, what="a word about it")
        wait_until(lambda: "streams beyond the bound are not aligned" in caplog.text)


@pytest.mark.slow
def test_nothing_is_said_when_nothing_changes_and_nothing_moves_under_live_traffic(
    network: LocalNetwork,
) -> None:
    quiet = AlignerOptions(slot_seconds=1, settle_seconds=2.0, announce_seconds=())
    options = CacheOptions(align=True, aligner=quiet)
    made = [
        declare_reliability_cache(network.client(), "a/**", options=replace(options, name=name))
        for name in ("one", "two")
    ]
    heard: list[str] = []
    listener = network.client()
    watching = listener.declare_subscriber(
        "@durable/v1/default/**", lambda sample: heard.append(str(sample.key_expr))
    )
    try:
        with declare_reliable_publisher(network.client(), "a/live") as publisher:
            wait_until(lambda: publisher.matched, 20)
            began = time.monotonic()
            for at in range(LIVE):
                publisher.put(b"%d" % at)
                if at % 100 == 99:  # ten thousand a second, for four slots
                    time.sleep(max(0.0, began + at / 10_000 - time.monotonic()))
            wait_until(lambda: all(cache.status().appended == LIVE for cache in made), 30)
        wait_until(lambda: all(equal(cache, LIVE) for cache in made), 30, "equality")
        assert [cache.status().alignment.pulled for cache in made] == [0, 0]
        # What was on its way when both became equal may still arrive.
        wait_until(lambda: unchanged(made, 2.0), 30, "the end of the last session")
        before, said = [traffic(cache) for cache in made], len(heard)
        time.sleep(6.0)  # six slots in which nothing is published
        assert [traffic(cache) for cache in made] == before
        assert len(heard) == said
    finally:
        undeclare(watching)
        for cache in made:
            cache.close()


def equal(cache: ReliabilityCache, count: int) -> bool:
    aligning = cache.aligning
    assert aligning is not None
    return [(peer.equal, peer.samples, peer.samples_there) for peer in aligning.status()] == [
        (True, count, count)
    ]


def unchanged(caches: list[ReliabilityCache], seconds: float) -> bool:
    """Tell whether nothing was sent or received for so long."""
    before = [traffic(cache) for cache in caches]
    time.sleep(seconds)
    return [traffic(cache) for cache in caches] == before


def traffic(cache: ReliabilityCache) -> tuple[int, int]:
    alignment = cache.status().alignment
    return alignment.bytes_sent, alignment.bytes_received


def test_caches_with_different_secrets_refuse_each_other_and_both_say_why(
    network: LocalNetwork,
) -> None:
    made = [
        declare_reliability_cache(
            network.client(),
            "a/**",
            options=CacheOptions(name=name, align=True, aligner=replace(FAST, secret=secret)),
        )
        for name, secret in (("one", b"this"), ("two", b"that"))
    ]
    try:
        for cache in made:
            wait_until(lambda: all(map(refusal, made)), 30, "a refusal on both sides")
            assert "secrets differ" in refusal(cache)
            assert cache.status().alignment.refused == 1
    finally:
        for cache in made:
            cache.close()


def refusal(cache: ReliabilityCache) -> str:
    aligning = cache.aligning
    assert aligning is not None
    return "".join(peer.refused for peer in aligning.status())


class Breaking(MemoryStorage):
    """A storage whose reads fail in a way nobody foresaw."""

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        raise ZeroDivisionError("unforeseen")


def test_a_read_that_breaks_is_reported_and_alignment_goes_on(
    network: LocalNetwork,
) -> None:
    broken = Breaking()
    broken.append(SampleBatch(samples(range(3), clock=1)))
    options = CacheOptions(name="broken", align=True, aligner=FAST)
    with declare_reliability_cache(
        network.client(), "a/**", backend=broken, options=options
    ) as cache:
        wait_until(lambda: "align: ZeroDivisionError" in cache.status().last_error)
        feed(cache, samples(range(3, 6), clock=2))
        assert cache.status().appended == 3
        assert cache.aligning is not None
        assert not cache.aligning.error

"""Caches that saw a foreign publisher restart at different moments give it one epoch afterwards.

Samples come in as live ones, without an epoch, with the timestamps of their publisher.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from durable_cache import CacheOptions, Origins, ReliabilityCache, declare_reliability_cache
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Selection
from durable_cache.model.sequence import frame
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.protocol.alignment import (
    AlignerOptions,
)
from durable_cache.protocol.cache.events import Alias, Origin
from durable_cache.storage.contract import Floor
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.integration.test_alignment_partition import BACKENDS, Volume, memory, opened, sqlite

FAST = AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)
SOURCE = SourceId("ab12", 7)
WAIT_SECONDS = 240
"""Thousands of samples change their names, on cores that may have other work."""


def declare(
    network: LocalNetwork,
    name: str,
    directory: Path,
    volume: Callable[[Path, str], Volume] = sqlite,
) -> ReliabilityCache:
    return declare_reliability_cache(
        network.client(),
        "a/**",
        backend=opened(volume(directory, name), name),
        state_dir=directory,
        options=CacheOptions(
            name=name, align=True, aligner=FAST, allowed_origin=Origins.SESSION_LOCAL
        ),
    )


def seconds_ago(seconds: float) -> int:
    """Return a time as a publisher stamps it."""
    return int((time.time() - seconds) * (1 << 32))


def published(run: str, first: int, last: int, began: int) -> list[Sample]:
    """Return what one run of the publisher puts, a hundred a second, in turn on two keys."""
    return [
        Sample(
            f"a/{sn % 2}",
            SOURCE,
            0,
            sn,
            f"{run} {sn}".encode(),
            ntp64=began + sn * ((1 << 32) // 100),
            timestamp_id="ab12",
            received_ns=ntp64_to_ns(began + sn * ((1 << 32) // 100)),
        )
        for sn in range(first, last + 1)
    ]


def heard(cache: ReliabilityCache, samples: list[Sample]) -> None:
    before = cache.status().appended
    cache.ingest.offer(samples, Origin.LIVE)
    wait_until(lambda: cache.status().appended >= before + len(samples), what="storing")


def everything(cache: ReliabilityCache) -> list[Sample]:
    return list(cache.read(Selection(), 10_000).samples)


def contents(samples: list[Sample]) -> list[tuple[int, int, bytes]]:
    return sorted((sample.epoch, sample.sn, sample.payload) for sample in samples)


def is_one(caches: list[ReliabilityCache], epoch: int, *runs: list[Sample]) -> bool:
    """Tell whether every cache has exactly these runs, the last under `epoch`."""
    *before, last = runs
    expected = contents(
        [sample for run in before for sample in run]
        + [msgspec.structs.replace(sample, epoch=epoch) for sample in last]
    )
    return all(contents(everything(cache)) == expected for cache in caches)


@pytest.mark.parametrize("volume", BACKENDS)
def test_two_that_saw_different_first_samples_of_a_restart(
    network: LocalNetwork, tmp_path: Path, volume: Callable[[Path, str], Volume]
) -> None:
    one_run, began = published("one", 0, 2999, seconds_ago(600)), seconds_ago(120)
    other_run = published("two", 0, 2499, began)
    epoch = frame(ntp64_to_ns(other_run[1000].ntp64))
    with declare(network, "a", tmp_path, volume) as a, declare(network, "b", tmp_path) as b:
        for cache, missed in ((a, 0), (b, 1000)):
            heard(cache, one_run)
            heard(cache, other_run[missed:2000])
        wait_until(
            lambda: is_one([a, b], epoch, one_run, other_run[:2000]), WAIT_SECONDS, "one epoch"
        )
        for cache in (a, b):
            heard(cache, other_run[2000:])
        wait_until(
            lambda: is_one([a, b], epoch, one_run, other_run), WAIT_SECONDS, "the live samples"
        )
        assert a.status().conflicts == b.status().conflicts == 0
        wait_for_silence(a, b)
        assert [agreement.epoch for agreement in a.store.index.agreements()] == [epoch]
        stored = everything(a)
    if volume is not memory:
        with declare(network, "a", tmp_path, volume) as a:
            assert everything(a) == stored


def equal(cache: ReliabilityCache) -> bool:
    aligning = cache.aligning
    return aligning is not None and all(peer.equal for peer in aligning.status())


def wait_for_silence(*caches: ReliabilityCache) -> None:
    """Wait until all say that they have the same; else tell how each stands, and what it knows."""

    def standing() -> list[object]:
        return [
            (cache.status().alignment, cache.aligning and cache.aligning.status())
            for cache in caches
        ]

    wait_until(lambda: all(map(equal, caches)), WAIT_SECONDS, what="silence", instead=standing)


def test_one_that_was_away_while_the_publisher_restarted(
    network: LocalNetwork, tmp_path: Path
) -> None:
    """First the other says so, then, at the next restart, the publisher does."""
    one_run = published("one", 0, 2999, seconds_ago(600))
    two_run = published("two", 0, 1999, seconds_ago(300))
    three_run = published("three", 0, 1999, seconds_ago(120))
    epoch = frame(ntp64_to_ns(three_run[1000].ntp64))
    with declare(network, "b", tmp_path) as b:
        heard(b, one_run)
    with declare(network, "a", tmp_path) as a:
        heard(a, one_run)
        heard(a, two_run[:1000])
        with declare(network, "b", tmp_path) as b:
            both = [a, b]
            wait_until(
                lambda: contents(everything(b)) == contents(everything(a)), WAIT_SECONDS, "the rest"
            )
            for cache in both:  # what comes now continues what the other gave
                heard(cache, two_run[1000:])
            named = max(sample.epoch for sample in everything(a))
            assert is_one(both, named, one_run, two_run)
            stream = everything(b)[-1].stream
        heard(a, three_run[:1000])
        with declare(network, "b", tmp_path) as b:
            both = [a, b]
            heard(b, three_run[1000:])
            b.purge([Floor(everything(b)[-1].stream, 1500)])
            heard(a, three_run[1000:])
            two = [msgspec.structs.replace(sample, epoch=named) for sample in two_run]
            kept = [s for s in three_run if s.key != stream.key or s.sn >= 1500]
            wait_until(lambda: is_one(both, epoch, one_run, two, kept), WAIT_SECONDS, "one epoch")
            assert a.status().conflicts == b.status().conflicts == 0


def test_one_that_knows_only_the_run_after_the_restart(
    network: LocalNetwork, tmp_path: Path
) -> None:
    """A wiped or new cache gives it no epoch; what the other has without an epoch is older."""
    one_run, began = published("one", 0, 2999, seconds_ago(600)), seconds_ago(120)
    other_run = published("two", 0, 1999, began)
    epoch = frame(ntp64_to_ns(began))
    with declare(network, "a", tmp_path) as a:
        heard(a, one_run)
        heard(a, other_run[:1000])
        with declare(network, "b", tmp_path) as b:
            heard(b, other_run[900:1500])
            heard(a, other_run[1000:1500])
            wait_until(
                lambda: is_one([a, b], epoch, one_run, other_run[:1500]), WAIT_SECONDS, "one epoch"
            )
            for cache in (a, b):
                heard(cache, other_run[1500:])
            wait_until(
                lambda: is_one([a, b], epoch, one_run, other_run), WAIT_SECONDS, "the live samples"
            )
            assert a.status().conflicts == b.status().conflicts == 0
            wait_for_silence(a, b)


def test_a_cache_that_ended_while_it_moved_an_epoch_goes_on_when_it_starts(
    network: LocalNetwork, tmp_path: Path
) -> None:
    run = published("one", 0, 499, seconds_ago(120))
    with declare(network, "b", tmp_path) as b:
        heard(b, run)
        b.store.index.agree(Alias(SOURCE, 0, 0, 77))
    with declare(network, "b", tmp_path) as b:
        wait_until(lambda: is_one([b], 77, run), 30, "the move")
        wait_until(lambda: b.store.index.agreements() == [], 30, "its end")
        heard(b, published("one", 500, 600, run[0].ntp64))
        assert {sample.epoch for sample in everything(b)} == {77}

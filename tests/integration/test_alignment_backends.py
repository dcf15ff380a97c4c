"""A cache on SQLite and a cache on every other backend come to hold the same samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from durable_cache import (
    CacheOptions,
    Origins,
    ReliabilityCache,
    declare_reliability_cache,
)
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Selection
from durable_cache.protocol.aligner_events import AlignerOptions
from durable_cache.protocol.events import Origin
from durable_cache.storage.contract import Storage
from durable_cache.storage.plugins import open_storage
from durable_cache.testing.network import LocalNetwork, wait_until

SAMPLES = 10_000
SOURCES = [SourceId("ab12", eid) for eid in range(1, 6)]
FAST = AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        yield network


def on_memory(directory: Path) -> Storage:
    return open_storage("memory", "other")


def on_sqlite(directory: Path) -> Storage:
    return open_storage("sql", "other", {"url": f"sqlite:///{directory}/other.db"})


def on_postgres(directory: Path) -> Storage:
    from durable_cache_sql import SqlBackend
    from tests.servers.postgres import options_for

    return SqlBackend().open("other", options_for(directory))


def on_influxdb(directory: Path) -> Storage:
    from durable_cache_influxdb import InfluxDbBackend
    from tests.servers.influxdb import influx_server

    name = "other-" + blake2b(str(directory).encode(), digest_size=8).hexdigest()
    return InfluxDbBackend().open(name, influx_server().options())


def on_delta(directory: Path) -> Storage:
    return open_storage("delta", "other", {"path": str(directory / "lake")})


BACKENDS = [
    on_memory,
    on_sqlite,
    pytest.param(on_postgres, marks=pytest.mark.postgres),
    pytest.param(on_influxdb, marks=pytest.mark.influxdb),
    pytest.param(on_delta, marks=pytest.mark.delta),
]


def declare(
    network: LocalNetwork, name: str, storage: Storage, directory: Path
) -> ReliabilityCache:
    options = CacheOptions(
        name=name,
        align=True,
        aligner=FAST,
        allowed_origin=Origins.SESSION_LOCAL,
        state_dir=directory,
    )
    return declare_reliability_cache(network.client(), "a/**", backend=storage, options=options)


def published(clock: int) -> list[Sample]:
    chance = random.Random(5)
    return [
        Sample(
            f"a/{at % 7}",
            SOURCES[at % len(SOURCES)],
            9,
            at // len(SOURCES),
            chance.randbytes(chance.choice([0, 5, 100])),
            attachment=chance.choice([None, b"", b"meta"]),
            encoding=chance.choice(["zenoh/bytes", "application/json;v1"]),
            ntp64=clock + at,
            timestamp_id="ab12",
            received_ns=(clock >> 32) * 10**9 + at,
        )
        for at in range(SAMPLES)
    ]


def feed(cache: ReliabilityCache, samples: list[Sample]) -> None:
    before = cache.status().appended
    for start in range(0, len(samples), 2000):
        cache.ingest.offer(samples[start : start + 2000], Origin.RECOVERED)
    wait_until(lambda: cache.status().appended >= before + len(samples), 60, "storing")


def held(cache: ReliabilityCache) -> list[Sample]:
    found: list[Sample] = []
    cursor = None
    while True:
        page = cache.read(Selection(), 5000, cursor)
        found += page.samples
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.slow
@pytest.mark.parametrize("other", BACKENDS)
def test_sqlite_and_another_backend_hold_the_union_bit_for_bit(
    network: LocalNetwork, tmp_path: Path, other: Callable[[Path], Storage]
) -> None:
    stamp = network.client().new_timestamp()
    clock = int(str(stamp).partition("/")[0]) - (60 << 32)
    samples = published(clock)
    chance = random.Random(6)
    lost_here = {at for at in range(SAMPLES) if chance.random() < 0.05}
    lost_there = {at for at in range(SAMPLES) if chance.random() < 0.05}
    url = f"sqlite:///{tmp_path}/one.db"
    given_up = samples[min(lost_here - lost_there)]
    skip = Skip(given_up.source, given_up.epoch, given_up.sn, given_up.sn)
    with (
        declare(network, "one", open_storage("sql", "one", {"url": url}), tmp_path / "s1") as one,
        declare(network, "other", other(tmp_path), tmp_path / "s2") as two,
    ):
        one.store.commit(SampleBatch(), (skip,))
        feed(one, [one for at, one in enumerate(samples) if at not in lost_here])
        feed(two, [one for at, one in enumerate(samples) if at not in lost_there])
        union = sorted(
            (one for at, one in enumerate(samples) if at not in lost_here & lost_there),
            key=lambda sample: sample.order,
        )
        wait_until(lambda: one.status().appended >= len(union), 120, "the one side")
        wait_until(lambda: two.status().appended >= len(union), 120, "the other side")
        assert held(one) == union
        assert held(two) == union
        assert given_up in held(one)

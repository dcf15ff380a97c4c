"""A service that is killed while it aligns, and parted from the other cache, ends up with it equal.

Of twenty thousand samples, a hundred thousand at night, each side lost some; one side trims, the
other purges.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest

from durable_cache import (
    CacheOptions,
    ReliabilityCache,
    declare_reliability_cache,
    declare_reliable_publisher,
)
from durable_cache.endpoints.session import Session, close_session, open_session
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Selection
from durable_cache.protocol.alignment import (
    AlignerOptions,
)
from durable_cache.protocol.cache.events import EngineOptions
from durable_cache.service.client import admin_values
from durable_cache.storage.contract import Floor, Storage
from durable_cache.storage.plugins import open_storage
from durable_cache.testing.network import LocalNetwork, free_port, wait_until
from tests.kit.faults import ModuleProcess
from tests.kit.proxy import TcpProxy

LONG, SHORT = 30, 1000
"""Streams with many samples each; and with few, ten of a source."""
LIVE = 300
ALIGNER = AlignerOptions(slot_seconds=1, settle_seconds=0.2)
RECOVERY = EngineOptions(recovery_delay_seconds=300.0, gap_timeout_seconds=600.0)
"""What is missing is left to the aligner: nothing here is found by asking for gaps."""
Volume = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How much history there is."""

    of_long: int
    """Samples of each long stream."""
    of_short: int

    @property
    def samples(self) -> int:
        return LONG * self.of_long + SHORT * self.of_short

    @property
    def depth(self) -> int:
        """So many samples of a stream the killed one keeps."""
        return self.of_long * 5 // 6

    @property
    def purged_below(self) -> int:
        return self.of_long * 7 // 30

    @property
    def slow_bytes_per_second(self) -> int:
        """A rate at which the killed one is killed long before it has what it lacks."""
        return 2 * self.samples


QUICK, WHOLE = Size(600, 2), Size(3000, 10)


def memory(directory: Path, name: str) -> Volume:
    return {"backend": "memory"}


def sqlite(directory: Path, name: str) -> Volume:
    return {"backend": "sql", "url": f"sqlite:///{directory}/{name}.db"}


def postgres(directory: Path, name: str) -> Volume:
    from tests.servers.postgres import options_for

    return {"backend": "sql", **msgspec.to_builtins(options_for(directory))}


def influxdb(directory: Path, name: str) -> Volume:
    from tests.servers.influxdb import influx_server

    server = influx_server()
    bucket = f"{server.bucket}-{digest_of(directory)}"
    return {"backend": "influxdb", **msgspec.to_builtins(server.options(bucket=bucket))}


def delta(directory: Path, name: str) -> Volume:
    return {"backend": "delta", "path": str(directory / "lake")}


def digest_of(directory: Path) -> str:
    """Return what tells a test's folder from those of others on the same server."""
    return blake2b(str(directory).encode(), digest_size=8).hexdigest()


BACKENDS = [
    pytest.param(memory, id="memory"),
    pytest.param(sqlite, id="sqlite"),
    pytest.param(postgres, id="postgres", marks=pytest.mark.postgres),
    pytest.param(influxdb, id="influxdb", marks=pytest.mark.influxdb),
    pytest.param(delta, id="delta", marks=pytest.mark.delta),
]


def opened(volume: Volume, name: str) -> Storage:
    options = dict(volume)
    return open_storage(options.pop("backend"), name, options)


def everything(read: Callable[..., Any]) -> list[Sample]:
    found: list[Sample] = []
    cursor = None
    while True:
        page = read(Selection(), 20_000, cursor)
        found += page.samples
        cursor = page.cursor
        if cursor is None:
            return found


def made(clock: int, size: Size) -> list[Sample]:
    chance = random.Random(5)
    streams = [(f"a/long/{at}", SourceId("ab12", at + 1)) for at in range(LONG)] * size.of_long
    streams += [
        (f"a/short/{at}", SourceId("cd34", at % 100 + 1)) for at in range(SHORT)
    ] * size.of_short
    numbers: dict[SourceId, int] = {}
    samples = []
    for at, stream in enumerate(streams):
        sn = numbers[stream[1]] = numbers.get(stream[1], -1) + 1
        samples.append(
            Sample(
                *stream,
                9,
                sn,
                chance.randbytes(chance.choice([0, 5, 40])),
                attachment=chance.choice([None, b"", b"meta"]),
                encoding=chance.choice(["zenoh/bytes", "application/json;v1"]),
                ntp64=clock + (at << 10),
                timestamp_id="ab12",
                qos=chance.choice([0, 42]),
                received_ns=(clock >> 32) * 10**9 + at,
            )
        )
    return samples


def undeclared(samples: list[Sample]) -> list[Sample]:
    """Return samples in order, live ones as if no epoch had been declared for them.

    Those that came before their publisher's token are stored without it.
    """
    plain = [
        msgspec.structs.replace(sample, epoch=0) if sample.key.startswith("a/live/") else sample
        for sample in samples
    ]
    return sorted(plain, key=lambda sample: sample.order)


class Losses:
    """Who lost what: one in fifty at random, and each side a stretch of its own.

    What the one trims early is not lost at the other: nobody would have it.
    """

    def __init__(self, size: Size) -> None:
        chance = random.Random(6)
        every, kept = size.samples, size.of_long // 5 * LONG
        self.here = {at for at in range(every) if chance.random() < 0.02}
        self.there = {at for at in range(kept, every) if chance.random() < 0.02}
        self.here.update(range(every * 70 // 100, every * 85 // 100))
        self.there.update(range(every * 20 // 100, every * 25 // 100))
        both = self.here & self.there
        self.here -= both
        self.given_up = min(at for at in self.here if at >= kept)


def newest(samples: list[Sample], depth: int) -> list[Sample]:
    """Return the `depth` highest numbers of each stream, in the order of storages."""
    kept = []
    for group in SampleBatch(samples).by_stream.values():
        kept += sorted(group, key=lambda sample: sample.sn)[-depth:]
    return sorted(kept, key=lambda sample: sample.order)


class Service:
    """The real process that is killed; it reaches the others through a proxy."""

    def __init__(self, folder: Path, volume: Volume, port: int, depth: int) -> None:
        self.folder, self.volume, self.depth = folder, volume, depth
        self.endpoint = f"tcp/127.0.0.1:{free_port()}"
        self.peer = f"tcp/127.0.0.1:{port}"

    def process(self, rate: int) -> ModuleProcess:
        alignment = {"enabled": True, "slot_seconds": 1, "settle_seconds": 0.2}
        config = {
            "mode": "router",
            "listen": {"endpoints": [self.endpoint]},
            "connect": {"endpoints": [self.peer], "exit_on_failure": False, "timeout_ms": -1},
            "scouting": {"multicast": {"enabled": False}},
            "plugins": {
                "durable_cache": {
                    "state_dir": str(self.folder / "state"),
                    "volumes": {"main": self.volume},
                    "storages": {
                        "fleet": {
                            "key_expr": "a/**",
                            "retention": {"samples_max": self.depth},
                            "limits": {"retention_seconds": 1},
                            "recovery": {
                                "recovery_delay_seconds": RECOVERY.recovery_delay_seconds,
                                "gap_timeout_seconds": RECOVERY.gap_timeout_seconds,
                            },
                            "alignment": {**alignment, "rate_bytes_per_second": rate},
                        }
                    },
                }
            },
        }
        path = self.folder / f"{rate}.json5"
        path.write_text(json.dumps(config))
        return ModuleProcess(
            "durable_cache.service",
            ["serve", "--config", str(path)],
            folder=self.folder,
            ready="try from another terminal",
        )

    def session(self) -> Session:
        return open_session(
            {
                "mode": "client",
                "connect": {"endpoints": [self.endpoint]},
                "scouting": {"multicast": {"enabled": False}},
                "timestamping": {"enabled": True},
            }
        )


def row(session: Session) -> dict[str, Any]:
    """Return how the service stands with its one peer, empty while it does not say."""
    for _, rows in admin_values(session, "storages/fleet/alignment"):
        for found in rows:  # type: ignore[attr-defined]
            return dict(found)
    return {}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
@pytest.mark.parametrize("other", BACKENDS)
def test_sqlite_and_another(
    stack: ExitStack, tmp_path: Path, other: Callable[[Path, str], Volume]
) -> None:
    lost_killed_and_parted(stack, tmp_path, sqlite, other, QUICK)


@pytest.mark.nightly
@pytest.mark.parametrize("other", BACKENDS)
@pytest.mark.parametrize("killed", BACKENDS[2:])
def test_every_pair(
    stack: ExitStack,
    tmp_path: Path,
    killed: Callable[[Path, str], Volume],
    other: Callable[[Path, str], Volume],
) -> None:
    lost_killed_and_parted(stack, tmp_path, killed, other, WHOLE)


def lost_killed_and_parted(
    stack: ExitStack,
    tmp_path: Path,
    killed: Callable[[Path, str], Volume],
    other: Callable[[Path, str], Volume],
    size: Size,
) -> None:
    network = stack.enter_context(LocalNetwork())
    clock = int(str(network.client().new_timestamp()).partition("/")[0]) - (600 << 32)
    samples, lost = made(clock, size), Losses(size)
    folder = tmp_path / "killed"
    folder.mkdir()
    volume = killed(folder, "fleet")
    given_up = samples[lost.given_up]
    with opened(volume, "fleet") as storage:
        skip = Skip(given_up.source, given_up.epoch, given_up.sn, given_up.sn)
        storage.append(SampleBatch(s for at, s in enumerate(samples) if at not in lost.here))
        storage.append(SampleBatch(), (skip,))
    name = f"other-{digest_of(tmp_path)}"
    storage = opened(other(tmp_path, name), name)
    storage.append(SampleBatch(s for at, s in enumerate(samples) if at not in lost.there))
    cache = stack.enter_context(
        declare_reliability_cache(
            network.client(),
            "a/**",
            backend=storage,
            options=CacheOptions(
                name=name,
                align=True,
                aligner=ALIGNER,
                engine=RECOVERY,
                state_dir=tmp_path / "state",
            ),
        )
    )
    purged = samples[0].stream
    cache.purge([Floor(purged, size.purged_below)])
    proxy = stack.enter_context(TcpProxy(int(network.endpoint.rpartition(":")[2])))
    service = Service(folder, volume, proxy.port, size.depth)

    pulled = _killed_in_the_middle(service, network.client(), size.slow_bytes_per_second)
    assert 0 < pulled < len(lost.here)
    proxy.cut()
    _published_on_both_sides(service, network, cache)
    proxy.heal()
    union = [s for s in samples if s.stream != purged or s.sn >= size.purged_below]
    kept = newest(union, size.depth)
    with service.process(rate=50_000_000) as process:
        session = network.client()
        wait_until(lambda: _same(session, len(kept) + 2 * LIVE, len(union) + 2 * LIVE), 240)
        assert process.terminate() == 0
    held = everything(cache.read)
    live = [sample for sample in held if sample.key.startswith("a/live/")]
    assert [sample.payload for sample in live] == 2 * [b"%d" % at for at in range(LIVE)]
    assert held == sorted([*union, *live], key=lambda sample: sample.order)
    with opened(volume, "fleet") as storage:
        stored = everything(storage.read)
    assert undeclared(stored) == undeclared([*kept, *live])
    assert given_up in stored


def _killed_in_the_middle(service: Service, session: Session, rate: int) -> int:
    """Kill the service once it pulls; returns how much it had pulled when it last said so."""
    pulled = 0

    def pulling() -> bool:
        nonlocal pulled
        pulled = int(row(session).get("pulled", 0))
        return pulled > 0

    with service.process(rate) as process:
        wait_until(pulling, 120, "the first of what it lacks")
        process.kill()
    return pulled


def _published_on_both_sides(
    service: Service, network: LocalNetwork, cache: ReliabilityCache
) -> None:
    """Let each side hear a publisher that the other does not, then kill the service."""
    payloads = [b"%d" % at for at in range(LIVE)]
    with service.process(rate=300_000):
        session = service.session()
        try:
            with declare_reliable_publisher(session, "a/live/1", acknowledgements=1) as publisher:
                wait_until(lambda: publisher.matched, 20)
                receipts = [publisher.put(payload) for payload in payloads]
                assert all(receipt is not None and receipt.wait(30) for receipt in receipts)
        finally:
            close_session(session)
        with declare_reliable_publisher(network.client(), "a/live/2") as publisher:
            wait_until(lambda: publisher.matched, 20)
            for payload in payloads:
                publisher.put(payload)
            wait_until(lambda: len(cache.find("a/live/2")) == LIVE, 30, "what was published")


def _same(session: Session, here: int, there: int) -> bool:
    found = row(session)
    counts = found.get("samples"), found.get("samples_there")
    return counts == (here, there)

"""SIGKILL of a publisher with a spool at random moments: all it put arrives, as it was numbered."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from durable_cache import (
    ReliabilityCache,
    Sample,
    SourceId,
    declare_reliability_cache,
    declare_reliable_subscriber,
)
from durable_cache.testing.network import LocalNetwork, free_port, wait_until
from tests.kit.faults import ModuleProcess

KILLS = 15
PROGRAM = """
import sys, time
from durable_cache import declare_reliable_publisher
from durable_cache.endpoints.session import close_session, open_session

endpoint, spool, log, zid, count = sys.argv[1:6]
retry = {"period_init_ms": 50, "period_max_ms": 200, "period_increase_factor": 1.5}
connect = {"endpoints": [endpoint], "timeout_ms": -1, "exit_on_failure": False, "retry": retry}
session = open_session({
    "mode": "peer", "listen": {"endpoints": []}, "connect": connect,
    "scouting": {"multicast": {"enabled": False}}, "timestamping": {"enabled": True},
    **({"id": zid} if zid != "-" else {}),
})
publisher = declare_reliable_publisher(
    session, "fleet/one", acknowledgements=1, spool_dir=spool, history=10,
    resend_delay_seconds=0.3, resend_seconds_max=1.0, epochs_timeout_seconds=0.2,
)
print("ready", flush=True)
put = 0
with open(log, "a", buffering=1) as told:
    while put < int(count):
        payload = f"{time.time_ns()} {put}".encode()
        receipt = publisher.put(payload)
        told.write(f"{publisher.source} {publisher.epoch} {receipt.sn} {payload.decode()}\\n")
        put += 1
        if not put % 20:
            time.sleep(0.005)
publisher.flush(90)
print("all acknowledged", flush=True)
publisher.close()
close_session(session)
"""
_Place = tuple[SourceId, int, int]


class Publishing:
    """The program as a process, and what it told of the puts that returned."""

    def __init__(self, folder: Path, endpoint: str, zid: str) -> None:
        self._folder, self._endpoint, self._zid = folder, endpoint, zid
        (folder / "program.py").write_text(PROGRAM)
        self._log = folder / "told"

    def process(self, count: int) -> ModuleProcess:
        spool, log = str(self._folder / "spool"), str(self._log)
        arguments = [self._endpoint, spool, log, self._zid, str(count)]
        return ModuleProcess("program", arguments, folder=self._folder, ready="ready")

    def finish(self) -> None:
        """Run once more, until everything that was ever put is acknowledged."""
        with self.process(1) as last:
            wait_until(lambda: "all acknowledged" in last.stdout, 120, "the last flush")

    def await_put(self) -> None:
        """Wait until this life has put something, too."""

        def size() -> int:
            return self._log.stat().st_size if self._log.exists() else 0

        before = size()
        wait_until(lambda: size() > before, 60, "a put of this life")

    @property
    def told(self) -> dict[_Place, str]:
        places = {}
        for line in self._log.read_text().splitlines():
            source, epoch, sn, payload = line.split(" ", 3)
            place = (SourceId.parse(source), int(epoch), int(sn))
            assert place not in places, f"{place} was given twice"
            places[place] = payload
        return places


def cache_on(network: LocalNetwork, directory: Path) -> ReliabilityCache:
    return declare_reliability_cache(
        network.router,
        "fleet/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{directory}/samples.db"},
        state_dir=directory,
    )


def stored(cache: ReliabilityCache) -> dict[_Place, str]:
    found = cache.find("fleet/**", limit=1_000_000)
    places = {(s.source, s.epoch, s.sn): s.payload.decode() for s in found}
    assert len(places) == len(found), "a number is stored twice"
    return places


def check_whole(places: dict[_Place, str]) -> None:
    """Every numbering is there from its first number to its last, in the order of its puts."""
    numberings: dict[tuple[SourceId, int], list[tuple[int, int]]] = {}
    for (source, epoch, sn), payload in sorted(places.items()):
        numberings.setdefault((source, epoch), []).append((sn, int(payload.split()[0])))
    for name, run in numberings.items():
        assert [sn for sn, _ in run] == [*range(len(run))], name
        assert run == sorted(run, key=lambda at: at[1]), name


@pytest.mark.slow
@pytest.mark.parametrize("zid", ["5e1f", "-"], ids=["pinned", "another"])
def test_nothing_that_was_put_is_lost_when_the_publisher_is_killed(
    network: LocalNetwork, tmp_path: Path, zid: str
) -> None:
    chance = random.Random(14)
    publishing = Publishing(tmp_path, network.endpoint, zid)
    delivered: list[Sample] = []
    subscriber = declare_reliable_subscriber(network.client(), "fleet/**", delivered.append)
    with cache_on(network, tmp_path) as cache, subscriber:
        with publishing.process(10_000_000) as process:
            for _ in range(KILLS):
                publishing.await_put()
                time.sleep(chance.random() * 0.6)
                process.kill()
                process.start()
            publishing.await_put()
            process.kill()
        publishing.finish()
        told, held = publishing.told, stored(cache)
        assert len(told) > 500
        assert {place: held.get(place) for place in told} == told
        check_whole(held)
        sources = {source for source, _, _ in held}
        assert len(sources) == (1 if zid != "-" else KILLS + 2)
        if zid != "-":
            assert len({epoch for _, epoch, _ in held}) == 1, "one numbering for all its lives"
        wait_until(lambda: len(delivered) >= len(held), 30, "delivery")
        for source in sources:
            sns = [sample.sn for sample in delivered if sample.source == source]
            assert sns == [*range(len(sns))], "once and in order"
        assert len(delivered) == len(held)


@pytest.mark.parametrize("zid", ["5e1f", "-"], ids=["pinned", "another"])
def test_a_publisher_that_was_offline_for_all_its_first_life(tmp_path: Path, zid: str) -> None:
    nobody = Publishing(tmp_path, f"tcp/127.0.0.1:{free_port()}", zid)
    with nobody.process(10_000_000) as process:
        wait_until(lambda: len(nobody.told) > 300, 60, "puts without a network")
        process.kill()
    with LocalNetwork() as network, cache_on(network, tmp_path) as cache:
        again = Publishing(tmp_path, network.endpoint, zid)
        again.finish()
        told, held = again.told, stored(cache)
        assert {place: held.get(place) for place in told} == told
        check_whole(held)

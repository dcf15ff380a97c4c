"""SIGKILL of a durable consumer at random moments: nothing is skipped, little comes again.

A consumer that is killed while it rewinds goes on from where it went back to, or where it was.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_cache import (
    ReliabilityCache,
    ReliablePublisher,
    declare_reliability_cache,
    declare_reliable_publisher,
)
from durable_cache.endpoints.session import Timestamp, build_timestamp
from durable_cache.model.timestamp import ntp64_at
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.faults import ModuleProcess

KILLS, KILLS_WHILE_REWINDING = 15, 6
SOURCES = 2
PROGRAM = """
import random, sys, time
from durable_cache import declare_reliable_subscriber
from durable_cache.consumers import ConsumerOptions
from durable_cache.endpoints.session import open_session
from durable_cache.protocol.subscriber.events import DeliveryOptions

endpoint, log, rewinds = sys.argv[1:4]
chance = random.Random()
retry = {"period_init_ms": 50, "period_max_ms": 200, "period_increase_factor": 1.5}
session = open_session({
    "mode": "client", "connect": {"endpoints": [endpoint], "timeout_ms": 20_000, "retry": retry},
    "scouting": {"multicast": {"enabled": False}}, "timestamping": {"enabled": True},
})
told = open(log, "a", buffering=1)
told.write("begins\\n")
handled, sources = {}, {}

def handle(sample):
    told.write(f"handled {sample.key} {sample.sn}\\n")
    handled[sample.key] = sample.sn
    sources[sample.key] = sample.source

consumer = declare_reliable_subscriber(
    session, "fleet/*", handle, consumer="bill",
    consumer_options=ConsumerOptions(confirm_seconds=0.02),
    options=DeliveryOptions(history_page_samples=100, history_timeout_seconds=600),
)
print("ready", flush=True)
while True:
    before = dict(handled)
    consumer.flush()
    for key, sn in before.items():
        told.write(f"held {key} {sn}\\n")
        if rewinds == "rewinds" and chance.random() < 0.2:
            back = max(0, sn - chance.randrange(30))
            told.write(f"asks {key} {back}\\n")
            consumer.rewind(back, source=sources[key])
            told.write(f"rewound {key} {back}\\n")
    time.sleep(0.01)
"""


def cache_on(network: LocalNetwork, directory: Path) -> ReliabilityCache:
    return declare_reliability_cache(
        network.router,
        ["fleet/**", "@durable/v1/default/consumers/**"],
        backend="sql",
        backend_options={"url": f"sqlite:///{directory}/samples.db"},
        state_dir=directory,
    )


class Publishing:
    """Sources that put all the time, until they are told to end."""

    def __init__(self, network: LocalNetwork) -> None:
        self._publishers: list[ReliablePublisher[object]] = [
            declare_reliable_publisher(network.client(), f"fleet/{at}", acknowledgements=1)
            for at in range(SOURCES)
        ]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.005):
            for publisher in self._publishers:
                publisher.put(b"", timestamp=self._stamp(publisher.next_sn))

    def _stamp(self, sn: int) -> Timestamp:
        """Return the time, and now and then one from before the last few kills."""
        back_seconds = 3 if sn % 40 == 7 else 0
        return build_timestamp(ntp64_at(time.time_ns() - back_seconds * 10**9), "abcd")

    def finish(self) -> dict[str, int]:
        """Return how many samples each source put, once caches hold them."""
        self._ended.set()
        self._thread.join()
        for publisher in self._publishers:
            publisher.flush(60)
        return {str(publisher.key_expr): publisher.next_sn for publisher in self._publishers}

    def close(self) -> None:
        self._ended.set()
        for publisher in self._publishers:
            publisher.close()


def lives(log: Path) -> Iterator[tuple[dict[str, list[int]], dict[str, int]]]:
    """Yield of each life which numbers of each key it handled, and which one was known held."""
    for life in log.read_text().split("begins\n")[1:]:
        handled: dict[str, list[int]] = {}
        held: dict[str, int] = {}
        for line in life.splitlines():
            words = line.split()
            if len(words) == 3 and words[2].isdigit():
                what, key, sn = words[0], words[1], int(words[2])
                if what == "handled":
                    handled.setdefault(key, []).append(sn)
                else:
                    held[key] = sn
        yield handled, held


@pytest.mark.slow
def test_a_killed_consumer_goes_on_behind_what_it_confirmed(
    network: LocalNetwork, tmp_path: Path
) -> None:
    chance = random.Random(14)
    (tmp_path / "program.py").write_text(PROGRAM)
    log = tmp_path / "told"
    cache = cache_on(network, tmp_path)
    publishing = Publishing(network)
    program = program_in(tmp_path, network, log, "goes on")
    try:
        with program:
            for kill in range(KILLS):
                time.sleep(0.05 + chance.random() * 0.6)
                program.kill()
                if kill % 3 == 2:
                    cache.close()
                    cache = cache_on(network, tmp_path)
                program.start()
            put = publishing.finish()

            def reached() -> dict[str, int]:
                *_, (last, _) = lives(log)
                return {key: sns[-1] + 1 for key, sns in last.items()}

            wait_until(lambda: reached() == put, 60, f"the last of {put}")
    finally:
        publishing.close()
        cache.close()
    check(log, put)


def program_in(folder: Path, network: LocalNetwork, log: Path, rewinds: str) -> ModuleProcess:
    arguments = [network.endpoint, str(log), rewinds]
    return ModuleProcess("program", arguments, folder=folder, ready="ready")


@pytest.mark.slow
def test_a_consumer_that_is_killed_while_it_rewinds_delivers_all_behind_that_again(
    network: LocalNetwork, tmp_path: Path
) -> None:
    chance = random.Random(141)
    (tmp_path / "program.py").write_text(PROGRAM)
    log = tmp_path / "told"
    cache = cache_on(network, tmp_path)
    publishing = Publishing(network)
    try:
        with program_in(tmp_path, network, log, "rewinds") as program:
            wait_until(lambda: "rewound " in log.read_text(), 60, "a rewind that came to its end")
            for _ in range(KILLS_WHILE_REWINDING):
                time.sleep(0.3 + chance.random() * 0.7)
                program.kill()
                program.start()
            program.kill()
        put = publishing.finish()
        with program_in(tmp_path, network, log, "goes on"):
            ends = [f"handled {key} {count - 1}\n" for key, count in put.items()]
            wait_until(
                lambda: all(end in log.read_text().rpartition("begins\n")[2] for end in ends),
                60,
                f"the last of {put}",
            )
    finally:
        publishing.close()
        cache.close()
    rewinds = [check_rewound(log.read_text(), key) for key in put]
    assert sum(rewinds) > 0


def check_rewound(told: str, key: str) -> int:
    """Follow one key through all lives; return how many rewinds were known to be in force.

    Within a life each number follows the one before, or is one that was gone back to. A life goes
    on behind what was known to be held, but where a rewind was asked for; and no later than where
    the last one ended, or than the number of a rewind whose delivery it did not see.
    """
    reached, known, rewinds = -1, -1, 0
    awaited: int | None = None
    for life in told.split("begins\n")[1:]:
        asked: set[int] = set()
        last: int | None = None
        is_seen = False
        """Something was delivered since it was last asked for a rewind."""
        for words in map(str.split, life.splitlines()):
            if len(words) != 3 or words[1] != key:
                continue
            what, sn = words[0], int(words[2])
            if what == "handled":
                if last is None:
                    assert known < sn <= (reached + 1 if awaited is None else awaited)
                else:
                    assert sn == last + 1 or sn in asked, (last, sn, asked)
                last, reached, is_seen = sn, max(reached, sn), True
                awaited = None if awaited is not None and sn <= awaited else awaited
            elif what == "held":
                known = max(known, sn) if not asked else known
            elif what == "asks":
                asked.add(sn)
                known, awaited, is_seen = min(known, sn - 1), None, False
            else:
                rewinds += 1
                awaited = None if is_seen else sn
    return rewinds


def check(log: Path, put: dict[str, int]) -> None:
    """Each life goes on at the latest where the one before ended, behind all it knew was held."""
    reached, known = dict.fromkeys(put, -1), dict.fromkeys(put, -1)
    for handled, held in lives(log):
        for key, sns in handled.items():
            assert sns == [*range(sns[0], sns[0] + len(sns))], "in order, once, without a hole"
            assert known[key] < sns[0] <= reached[key] + 1, (key, known, reached)
            reached[key] = max(reached[key], sns[-1])
        known.update(held)
    assert reached == {key: count - 1 for key, count in put.items()}
    assert min(known.values()) > 0

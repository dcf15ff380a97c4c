"""SIGKILL of members that share a consumer, at random moments: nothing is skipped, and nothing
that was known to be confirmed is processed again, whoever takes it over.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from durable_cache import ReliablePublisher, declare_reliability_cache, declare_reliable_publisher
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.faults import ModuleProcess

MEMBERS, KILLS, SOURCES = 3, 5, 6
PROGRAM = """
import sys, time
from durable_cache import declare_reliable_subscriber
from durable_cache.consumers import ConsumerOptions
from durable_cache.endpoints.session import open_session
from durable_cache.protocol.subscriber.events import DeliveryOptions

endpoint, log, members = sys.argv[1:4]
retry = {"period_init_ms": 50, "period_max_ms": 200, "period_increase_factor": 1.5}
session = open_session({
    "mode": "client", "connect": {"endpoints": [endpoint], "timeout_ms": 20_000, "retry": retry},
    "scouting": {"multicast": {"enabled": False}}, "timestamping": {"enabled": True},
})
told = open(log, "a", buffering=1)
handled = {}

def handle(sample):
    told.write(f"{time.monotonic_ns()} handled {sample.key} {sample.sn}\\n")
    handled[sample.key] = sample.sn

consumer = declare_reliable_subscriber(
    session, "fleet/*", handle, consumer="bill",
    consumer_options=ConsumerOptions(confirm_seconds=0.02, members_max=int(members)),
    options=DeliveryOptions(history_page_samples=100, history_timeout_seconds=600),
)
print("ready", flush=True)
while True:
    before = dict(handled)
    consumer.flush()
    for key, sn in before.items():
        told.write(f"{time.monotonic_ns()} held {key} {sn - 1}\\n")  # sn is perhaps in hand
    time.sleep(0.01)
"""


def events(folder: Path) -> list[tuple[int, str, str, int]]:
    """Return what all members did: when, what, of which key, which number."""
    found = []
    for log in folder.glob("told-*"):
        for line in log.read_text().splitlines():
            words = line.split()
            if len(words) == 4 and words[3].isdigit():
                found.append((int(words[0]), words[1], words[2], int(words[3])))
    return sorted(found)


def put_until(ended: threading.Event, publishers: list[ReliablePublisher[object]]) -> None:
    while not ended.wait(0.01):
        for publisher in publishers:
            publisher.put(b"")


@pytest.mark.slow
def test_killed_members_leave_their_sources_to_the_others(
    network: LocalNetwork, tmp_path: Path
) -> None:
    chance = random.Random(156)
    (tmp_path / "program.py").write_text(PROGRAM)
    with ExitStack() as stack:
        stack.enter_context(
            declare_reliability_cache(
                network.router,
                ["fleet/**", "@durable/v1/default/consumers/**"],
                backend="sql",
                backend_options={"url": f"sqlite:///{tmp_path}/samples.db"},
                state_dir=tmp_path,
            )
        )
        session = network.client()
        publishers: list[ReliablePublisher[object]] = [
            stack.enter_context(
                declare_reliable_publisher(session, f"fleet/{at}", acknowledgements=1)
            )
            for at in range(SOURCES)
        ]
        members = [stack.enter_context(program_in(tmp_path, network, at)) for at in range(MEMBERS)]
        ended = threading.Event()
        putting = threading.Thread(target=put_until, args=(ended, publishers))
        stack.callback(putting.join)
        stack.callback(ended.set)
        putting.start()
        for kill in range(KILLS):
            time.sleep(0.1 + chance.random() * 0.7)
            killed = members[kill % MEMBERS]
            killed.kill()
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.5)  # the others take over meanwhile
            killed.start()
        ended.set()
        putting.join()
        for publisher in publishers:
            publisher.flush(60)
        put = {str(publisher.key_expr): publisher.next_sn for publisher in publishers}

        def handled() -> dict[str, int]:
            numbers: dict[str, set[int]] = {}
            for _, what, key, sn in events(tmp_path):
                if what == "handled":
                    numbers.setdefault(key, set()).add(sn)
            return {key: len(sns) for key, sns in numbers.items()}

        wait_until(lambda: handled() == put, 60, f"every one of {put}")
    check(events(tmp_path))


def check(story: list[tuple[int, str, str, int]]) -> None:
    """Nothing is handled once any member knew that caches held its confirmation."""
    held: dict[str, int] = {}
    for at, what, key, sn in story:
        if what == "held":
            held[key] = max(sn, held.get(key, -1))
        else:
            assert sn > held.get(key, -1), (at, key, sn, held)
    assert len(held) == SOURCES


def program_in(folder: Path, network: LocalNetwork, at: int) -> ModuleProcess:
    arguments = [network.endpoint, str(folder / f"told-{at}"), str(MEMBERS)]
    return ModuleProcess("program", arguments, folder=folder, ready="ready")

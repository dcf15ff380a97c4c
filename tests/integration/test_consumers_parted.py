"""Members of one consumer in two halves of a network that was cut: what both did is reported."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from durable_cache import (
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions, SharingConsumer, find_consumers
from durable_cache.endpoints.session import Session, close_session, open_session
from durable_cache.service.cli import main
from durable_cache.service.config import read_settings
from durable_cache.service.service import Service
from durable_cache.testing.network import LocalNetwork, free_port, wait_until
from tests.kit.proxy import TcpProxy

SOURCES, SAMPLES = 6, 5
SHARED = ConsumerOptions(level="memory", confirm_seconds=0.01, members_max=2)


class Half:
    """One half of the network: a cache, and a member whose handler waits until it may go on."""

    def __init__(self, stack: ExitStack, router: Session, client: Session) -> None:
        kept = ["a/**", "@durable/v1/default/consumers/**"]
        stack.enter_context(declare_reliability_cache(router, kept))
        self.may_go_on = threading.Event()
        stack.callback(self.may_go_on.set)
        self.handled: Counter[tuple[str, int]] = Counter()
        member = declare_reliable_subscriber(
            client, "a/*", self._handle, consumer="bill", consumer_options=SHARED
        )
        assert isinstance(member, SharingConsumer)
        self.member = stack.enter_context(member)

    def _handle(self, sample: Sample) -> None:
        self.may_go_on.wait(30)
        self.handled[sample.key, sample.sn] += 1


def shared(*halves: Half) -> bool:
    members = [half.member for half in halves]
    return all(one.agreed and len(one.members) == len(members) for one in members)


def far_router(stack: ExitStack, link: TcpProxy, endpoint: str) -> Session:
    retry = {"period_init_ms": 50, "period_max_ms": 200}
    connect: dict[str, object] = {"exit_on_failure": False, "timeout_ms": -1, "retry": retry}
    connect["endpoints"] = [f"tcp/127.0.0.1:{link.port}"]
    return opened(
        stack, {"mode": "router", "listen": {"endpoints": [endpoint]}, "connect": connect}
    )


def opened(stack: ExitStack, settings: dict[str, object]) -> Session:
    session = open_session({"scouting": {"multicast": {"enabled": False}}, **settings})
    stack.callback(close_session, session)
    return session


def shows_what_was_done_twice(
    near: LocalNetwork, directory: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """What an operator sees of it: `consumers`, `status`, and the metrics of a service."""
    where = ("--connect", near.endpoint)
    (found,) = find_consumers(near.client(), "bill")
    assert found.processed_twice == count
    assert main(["consumers", "--json", *where]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["consumer"], shown["processed_twice"]) == ("bill", count)
    assert main(["consumers", *where]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert (heading.split()[-1], line.split()[-1]) == ("processed_twice", str(count))
    assert main(["consumers", "bill", *where]) == 0
    assert f"2 members, {count} samples processed twice" in capsys.readouterr().err
    http = f"127.0.0.1:{free_port()}"
    settings = {
        "mode": "client",
        "connect": {"endpoints": [near.endpoint]},
        "scouting": {"multicast": {"enabled": False}},
        "plugins": {
            "durable_cache": {
                "state_dir": str(directory / "state"),
                "http": {"listen": http},
                "storages": {"other": {"key_expr": "other/**"}},
            }
        },
    }
    with Service(read_settings(settings)):
        assert main(["status", "--json", *where]) == 0
        (report,) = json.loads(capsys.readouterr().out)
        counted = {"consumer": "bill", "members": 2, "processed_twice": count}
        assert report["consumers"] == [counted], "at the first look, which no other one preceded"
        assert main(["status", *where]) == 0
        tables = capsys.readouterr().out.splitlines()
        assert tables[-1].split() == ["default", "bill", "2", str(count)]
        measured = f'consumer_processed_twice{{consumer="bill"}} {count}\n'
        wait_until(lambda: measured in urlopen(f"http://{http}/metrics").read().decode())
        assert main(["status", "--url", f"http://{http}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["consumers"] == [counted]


def test_what_both_halves_of_a_network_processed_is_reported_when_it_heals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        near = stack.enter_context(LocalNetwork())
        link = stack.enter_context(TcpProxy(int(near.endpoint.rpartition(":")[2])))
        endpoint = f"tcp/127.0.0.1:{free_port()}"
        router = far_router(stack, link, endpoint)
        client: dict[str, Any] = {"mode": "client", "connect": {"endpoints": [endpoint]}}
        client["timestamping"] = {"enabled": True}
        halves = (
            Half(stack, near.router, near.client()),
            Half(stack, router, opened(stack, client)),
        )
        wait_until(lambda: shared(*halves), what="agreement")
        publishers = [
            stack.enter_context(
                declare_reliable_publisher(
                    near.client(), f"a/{at}", acknowledgements=2, level="memory"
                )
            )
            for at in range(SOURCES)
        ]
        for publisher in publishers:
            for _ in range(SAMPLES):
                publisher.put(b"")
        for publisher in publishers:
            publisher.flush(10)
        owned = [
            sum(half.member.owns(publisher.source) for publisher in publishers) for half in halves
        ]
        assert sum(owned) == SOURCES
        link.cut()
        for half in halves:
            half.may_go_on.set()
        everything = {(f"a/{at}", sn): 1 for at in range(SOURCES) for sn in range(SAMPLES)}
        for half in halves:
            wait_until(lambda half=half: half.handled == everything, 30, "all, in each half")
            half.member.flush(10)
            assert half.member.processed_twice == 0, "who is cut off cannot know"
        link.heal()
        wait_until(lambda: shared(*halves), 30, "agreement")
        wait_until(
            lambda: (
                [half.member.processed_twice for half in halves]
                == [SAMPLES * count for count in reversed(owned)]
            )
        )
        assert all(half.handled == everything for half in halves)
        shows_what_was_done_twice(near, tmp_path, capsys, SAMPLES * SOURCES)

"""Does `consumers` say how far consumers have come, and does it rewind one?"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from durable_cache import (
    ReliablePublisher,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import (
    ConsumerOptions,
    ReliableConsumer,
    SharingConsumer,
    find_consumers,
)
from durable_cache.endpoints.session import Session
from durable_cache.protocol.consumers import position_key
from durable_cache.testing.network import LocalNetwork, wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]
KEPT = "@durable/v1/default/consumers/**"
SOON = ConsumerOptions(level="memory", confirm_seconds=0.01)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with (
        LocalNetwork() as network,
        declare_reliability_cache(
            network.client(),
            ["fleet/**", KEPT],
            backend="sql",
            backend_options={"url": f"sqlite:///{tmp_path}/samples.db"},
            state_dir=tmp_path,
        ),
    ):
        yield network


def publish(network: LocalNetwork, key_expr: str = "fleet/7") -> ReliablePublisher[Any]:
    return declare_reliable_publisher(
        network.client(), key_expr, acknowledgements=1, level="memory", cache=False
    )


def put(publisher: ReliablePublisher[Any], count: int) -> None:
    for _ in range(count):
        publisher.put(b"trip")
    publisher.flush(10)


def consume(session: Session) -> ReliableConsumer:
    return declare_reliable_subscriber(
        session, "fleet/*", consumer="billing", confirm="manual", consumer_options=SOON
    )


def test_positions_members_and_dead_letters_are_shown_and_rewound(
    network: LocalNetwork, run: Run
) -> None:
    where = ("--connect", network.endpoint)
    session = network.client()
    with publish(network) as publisher:
        put(publisher, 10)
        with consume(session) as consumer:
            samples = [consumer.recv(10) for _ in range(10)]
            consumer.confirm(*samples[:4], samples[5])
            consumer.reject(samples[6], "no such trip")
            consumer.flush(10)
            shown = run("consumers", "--json", *where)
            assert shown.returncode == 0, shown.stderr
            (status,) = json.loads(shown.stdout)
            (seen,) = status["runs"]
            member = status.pop("members")
            assert (len(member), status["consumer"], status["key_expr"]) == (
                1,
                "billing",
                "fleet/*",
            )
            assert (status["behind"], status["open"], status["dead_letters"]) == (4, 4, 1)
            assert (seen["confirmed_to"], seen["reached"], seen["newest"]) == (3, 9, 9)
            used = run("consumers", "--reset", "billing", *where)
            assert (used.returncode, used.stdout) == (2, "")
            assert "'billing' is in use by another subscriber" in used.stderr
            consumer.confirm(*samples)
        put(publisher, 2)
        table = run("consumers", *where)
        assert table.stdout.splitlines()[1].split() == [
            "billing",
            "fleet/*",
            "1",
            "2",
            "0",
            "1",
            "0",
            "no",
        ], "of members nothing is known where none lives"
        assert table.stderr == "1 consumer\n"
        detail = run("consumers", "billing", *where).stdout.splitlines()
        assert detail[1].split() == [
            str(publisher.source), str(samples[0].epoch), "9", "9", "0", "11", "2",
        ]  # fmt: skip
        letters = json.loads(run("consumers", "billing", "--dead-letters", "--json", *where).stdout)
        assert [(one["sn"], one["reason"], one["payload"]) for one in letters] == [
            (6, "no such trip", "trip")
        ]
        reset = run("consumers", "--reset", "billing", "--to", "8", *where)
        assert (reset.returncode, reset.stdout) == (0, "billing: rewound to 8 in 1 run\n")
        with consume(session) as consumer:
            assert [consumer.recv(10).sn for _ in range(4)] == [8, 9, 10, 11]
        for to, runs in (("now(-1h)", 1), ("", 1)):
            given = ("--to", to) if to else ()
            again = run("consumers", "--reset", "billing", *given, "--json", *where)
            assert json.loads(again.stdout)["runs"] == runs, again.stderr
            with consume(session) as consumer:
                assert consumer.recv(10).sn == 0


def test_members_and_what_each_of_them_has_are_shown(network: LocalNetwork, run: Run) -> None:
    where = ("--connect", network.endpoint)
    shared = ConsumerOptions(level="memory", confirm_seconds=0.01, members_max=2)
    handled: list[str] = []
    with ExitStack() as stack:
        publishers = [stack.enter_context(publish(network)) for _ in range(6)]
        members: list[SharingConsumer] = []
        for _ in range(2):
            one = declare_reliable_subscriber(
                network.client(),
                "fleet/*",
                lambda sample: handled.append(str(sample.source)),
                consumer="billing",
                consumer_options=shared,
            )
            assert isinstance(one, SharingConsumer)
            members.append(stack.enter_context(one))
        wait_until(lambda: all(len(one.members) == 2 and one.agreed for one in members))
        for publisher in publishers:
            put(publisher, 3)
        wait_until(lambda: len(handled) == 18)
        for member in members:
            member.flush(10)
        status: dict[str, Any] = {}

        def has_settled() -> bool:
            """Caches may call a run by a name of their own until they saw its publisher's token."""
            status.update(json.loads(run("consumers", "--json", *where).stdout)[0])
            return {seen["fence"] for seen in status["runs"]} == {1}  # nothing was stored before

        wait_until(has_settled, 30, "a position of each run")
        assert len(status["members"]) == 2
        assert len(status["runs"]) == 6
        epochs = {str(publisher.source): publisher.epoch for publisher in publishers}
        assert {one["source"]: one["epoch"] for one in status["runs"]} == epochs
        has = {one["source"]: one["member"] for one in status["runs"]}
        assert sorted(has) == sorted(str(publisher.source) for publisher in publishers)
        for publisher in publishers:
            (owner,) = [one for one in members if one.owns(publisher.source)]
            assert has[str(publisher.source)] == str(owner.member)
        detail = run("consumers", "billing", *where)
        assert detail.stderr == "fleet/*, 2 members\n"
        shown = [line.split()[-1] for line in detail.stdout.splitlines()[1:]]
        assert sorted(shown) == sorted(has.values())


def test_a_position_that_cannot_be_read_costs_its_neighbours_nothing(
    network: LocalNetwork, run: Run
) -> None:
    session = network.client()
    with publish(network) as publisher:
        put(publisher, 1)
        with consume(session) as consumer:
            consumer.confirm(consumer.recv(10))
        key = position_key("default", "ship", publisher.source, 5)
    with declare_reliable_publisher(session, key, acknowledgements=1, level="memory") as damaged:
        damaged.put(b"no frame").result(10)
    shown = run("consumers", "--connect", network.endpoint)
    assert shown.returncode == 1
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == ["billing", "ship"]
    assert f"the position at {key}" in shown.stderr
    assert [one.consumer for one in find_consumers(session, "billing")] == ["billing"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("nobody",), "no consumer is called 'nobody'; durable-cache consumers lists them"),
        (("nobody", "--dead-letters"), "no consumer is called 'nobody'"),
        (("--reset", "nobody"), "nothing was confirmed under that name"),
        (("--reset", "a", "--to", "soon"), "--to"),
        (("--reset", "a", "--to", "2999-01-01T00:00:00Z"), "--to: 2999-01-01T00:00:00Z: no sample"),
        (("--reset", "a", "--to", "now()", "--source", "ab:1"), "--source: it says whose number"),
        (("--reset", "a/b"), "--reset: expected a name"),
        (("--dead-letters",), "name the consumer"),
    ],
)
def test_what_cannot_be_is_a_mistake_of_usage(
    network_alone: LocalNetwork, run: Run, given: tuple[str, ...], said: str
) -> None:
    asked = run("consumers", *given, "--connect", network_alone.endpoint)
    assert (asked.returncode, asked.stdout) == (2, ""), asked.stderr
    assert said in asked.stderr


@pytest.fixture(scope="module")
def network_alone() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network, declare_reliability_cache(network.client(), KEPT):
        yield network


def test_no_cache_that_answers_is_no_empty_list(run: Run) -> None:
    with LocalNetwork() as network:
        asked = run("consumers", "--connect", network.endpoint)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert "no cache answered" in asked.stderr

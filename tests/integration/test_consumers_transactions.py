"""A consumer confirms together with its own transaction: effect and position are one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from durable_cache import (
    ReliabilityCache,
    ReliablePublisher,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions, KeptPosition, ReliableConsumer
from durable_cache.endpoints.session import Session
from durable_cache.errors import ConfigError, LocalProtocolError
from durable_cache.protocol.consumers import Position, decode_position, encode_position
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.tree import ROOT

KEPT = "@durable/v1/default/consumers/**"


@pytest.fixture
def cache(network: LocalNetwork) -> Iterator[ReliabilityCache]:
    with declare_reliability_cache(network.client(), ["fleet/**", KEPT]) as cache:
        yield cache


@pytest.fixture
def publisher(network: LocalNetwork, cache: ReliabilityCache) -> Iterator[ReliablePublisher[Any]]:
    assert cache.key_exprs
    with declare_reliable_publisher(
        network.client(), "fleet/7/trips", acknowledgements=1, level="memory", cache=False
    ) as publisher:
        yield publisher


def put(publisher: ReliablePublisher[Any], count: int) -> None:
    for _ in range(count):
        publisher.put(b"trip %d" % publisher.next_sn)
    publisher.flush(10)


def consume(session: Session, kept: dict[str, bytes], key_expr: str = "fleet/**") -> Any:
    options = ConsumerOptions(level="memory", positions=tuple(kept.values()))
    return declare_reliable_subscriber(
        session, key_expr, consumer="billing", confirm="manual", consumer_options=options
    )


def keep(consumer: ReliableConsumer, kept: dict[str, bytes], sample: Sample) -> KeptPosition:
    position = consumer.position(sample)
    kept[position.run] = position.value
    return position


def test_caches_hear_at_the_start_of_what_was_kept(
    network: LocalNetwork, publisher: ReliablePublisher[Any], cache: ReliabilityCache
) -> None:
    """A pipe before the consumer waits for it, and nothing else may ever be published."""
    put(publisher, 3)
    with consume(network.client(), {}) as consumer:
        *_, last = [consumer.recv(10) for _ in range(3)]
        run, value = consumer.position(last)
    all_done = msgspec.structs.replace(decode_position(value), open=())

    def told() -> list[Position]:
        found = cache.find("@durable/v1/default/consumers/billing/**")
        return [decode_position(sample.payload) for sample in found]

    assert all_done not in told()
    with consume(network.client(), {run: encode_position(all_done)}):
        wait_until(lambda: any((one.reached, one.open) == (2, ()) for one in told()))


def test_what_was_kept_is_confirmed_though_caches_never_heard_of_it(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    kept: dict[str, bytes] = {}
    put(publisher, 5)
    with consume(network.client(), kept) as consumer:
        first, second, third, *_ = [consumer.recv(10) for _ in range(5)]
        keep(consumer, kept, first)
        consumer.confirm(first)
        keep(consumer, kept, third)
        assert consumer.unconfirmed == 4, "a position that is asked for confirms nothing"
    with consume(network.client(), kept) as consumer:
        assert [consumer.recv(10).sn for _ in range(3)] == [second.sn, 3, 4]
        consumer.rewind(0)
        again = [consumer.recv(10) for _ in range(5)]
        assert [sample.sn for sample in again] == [*range(5)]
    with consume(network.client(), kept) as consumer:
        samples = [consumer.recv(10) for _ in range(5)]
        assert [sample.sn for sample in samples] == [*range(5)], "a rewind outweighs the table"
        keep(consumer, kept, samples[0])
    with consume(network.client(), kept) as consumer:
        assert consumer.recv(10).sn == 1


def test_what_is_no_position_is_refused(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    kept: dict[str, bytes] = {}
    put(publisher, 1)
    with consume(network.client(), kept) as consumer:
        sample = consumer.recv(10)
        keep(consumer, kept, sample)
        with pytest.raises(LocalProtocolError, match="was not delivered"):
            consumer.position(Sample("a", sample.source, sample.epoch, 9, b""))
    with pytest.raises(ConfigError, match="positions: one is damaged"):
        consume(network.client(), {"a": b"no frame"})
    with pytest.raises(ConfigError, match=r"consumes fleet/\*\*, not fleet/\*/trips"):
        consume(network.client(), kept, "fleet/*/trips")
    with pytest.raises(ConfigError, match="positions"):
        ConsumerOptions(positions=("text",)).checked()  # type: ignore[arg-type]


@pytest.mark.postgres
def test_the_example_of_the_documentation_bills_each_trip_once(
    network: LocalNetwork, publisher: ReliablePublisher[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program dies behind every third transaction, before caches are told."""
    psycopg = pytest.importorskip("psycopg")
    from tests.servers.postgres import postgres_url

    page = (ROOT / "docs" / "consumers.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(import psycopg\n.*?)^```", page, re.M | re.S)
    program: dict[str, Any] = {}
    exec(example, program)  # what the documentation shows
    monkeypatch.setitem(program, "ConsumerOptions", _in_memory)
    name = f"billing_{uuid4().hex}"
    server = _plain_url(postgres_url())
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    database = server.rsplit("/", 1)[0] + f"/{name}"
    put(publisher, 12)
    died = 0
    confirm = ReliableConsumer.confirm

    def dying(self: ReliableConsumer, *samples: Sample) -> None:
        if samples[0].sn % 3 == 2:
            raise _Death
        confirm(self, *samples)

    monkeypatch.setattr(ReliableConsumer, "confirm", dying)
    while died < 4:
        with pytest.raises(_Death):
            program["bill_trips"](network.client(), database)
        died += 1
    with psycopg.connect(database) as connection:
        billed = [trip for (trip,) in connection.execute("SELECT trip FROM invoice")]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert billed == [f"trip {at}" for at in range(12)]


class _Death(Exception):
    """Where the program is killed."""


def _in_memory(**chosen: Any) -> ConsumerOptions:
    return ConsumerOptions(level="memory", **chosen)


def _plain_url(url: str) -> str:
    return re.sub(r"^postgresql\+\w+:", "postgresql:", url)

"""Whoever waits for ever may say so with None, with infinity or with a very long time."""

from __future__ import annotations

import math

import pytest

from durable_cache import (
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions
from durable_cache.testing.network import LocalNetwork


@pytest.mark.parametrize("for_ever", [None, math.inf, 1e12, 10**400])
def test_a_wait_takes_every_way_to_say_for_ever(
    network: LocalNetwork, for_ever: float | None
) -> None:
    stored = ("a/**", "@durable/v1/default/consumers/*/**")
    cache = declare_reliability_cache(network.client(), stored)
    publisher = declare_reliable_publisher(
        network.client(), "a/b", acknowledgements=1, level="memory"
    )
    options = ConsumerOptions(level="memory")
    consumer = declare_reliable_subscriber(
        network.client(), "a/**", consumer="c", confirm="manual", consumer_options=options
    )
    assert publisher.put(b"1").wait(for_ever)
    publisher.put(b"2")
    publisher.flush(for_ever)
    assert publisher.wait_for_all_acked(for_ever)
    for payload in (b"1", b"2"):
        sample = consumer.recv(for_ever)
        assert sample.payload == payload
        consumer.confirm(sample)
    consumer.flush(for_ever)
    consumer.close(for_ever)  # type: ignore[arg-type]
    publisher.close()
    assert not publisher.matched
    cache.close(for_ever)  # type: ignore[arg-type]

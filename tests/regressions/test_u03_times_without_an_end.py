"""Whoever waits for ever may say so with None, with infinity or with a very long time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from durable_cache import (
    CacheOptions,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions
from durable_cache.errors import ConfigError
from durable_cache.modes import ModeOptions
from durable_cache.protocol.cache.events import EngineOptions as CacheEngineOptions
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.storage.contract import Retention
from durable_cache.testing.network import LocalNetwork
from tests.servers.zenoh_sources import await_path


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


@pytest.mark.parametrize("for_ever", [math.inf, 1e12, 10**400])
def test_every_time_in_options_takes_every_way_to_say_for_ever(
    network: LocalNetwork, for_ever: float
) -> None:
    stored = ("a/**", "@durable/v1/default/consumers/*/**")
    engine = CacheEngineOptions(gap_timeout_seconds=for_ever)
    cache = declare_reliability_cache(
        network.client(),
        stored,
        options=CacheOptions(engine=engine, retention=Retention(age_seconds_max=for_ever)),
    )
    source, target = network.client(), network.client()
    publisher = declare_reliable_publisher(
        source,
        "a/b",
        acknowledgements=1,
        level="memory",
        subject_sequences=True,
        pub_window_time=for_ever,
        unacknowledged_seconds_max=for_ever,
        acknowledgement_delay_seconds=for_ever,
        resend_seconds_max=for_ever,
        resend_timeout_seconds=for_ever,
        epochs_timeout_seconds=for_ever,
    )
    patient = DeliveryOptions(
        sub_window_time=for_ever, convergence_seconds=for_ever, retry_seconds_max=for_ever
    )
    times = {
        "gap_timeout_seconds": for_ever,
        "history_timeout_seconds": for_ever,
        "query_timeout_seconds": for_ever,
        "periodic_queries": for_ever,
    }
    with (
        declare_reliable_subscriber(
            network.client(), "a/**", options=patient, history=True, **times
        ) as subscriber,
        declare_reliable_subscriber(
            target,
            "a/**",
            mode="at-least-once",
            confirm="manual",
            mode_options=ModeOptions(confirm_timeout_seconds=for_ever),
        ) as retried,
    ):
        await_path(source, target)
        assert publisher.put(b"1").wait(30)
        publisher.flush(30)
        assert subscriber.recv(30).payload == b"1"
        sample = retried.recv(30)
        retried.confirm(sample)
    publisher.close()
    cache.close()


@pytest.mark.parametrize("name", ["gap_timeout_seconds", "retry_seconds", "token_wait_seconds"])
@pytest.mark.parametrize("wrong", [-1, math.nan])
def test_a_time_that_is_none_is_refused_where_it_is_given(
    network: LocalNetwork, name: str, wrong: float
) -> None:
    options = replace(DeliveryOptions(), **{name: wrong})
    with pytest.raises(ConfigError, match=name):
        declare_reliable_subscriber(network.client(), "a/**", options=options)


@pytest.mark.parametrize("name", ["pending_samples_max", "sources_max", "history_page_samples"])
def test_a_bound_that_lets_nothing_through_is_refused(network: LocalNetwork, name: str) -> None:
    options = replace(DeliveryOptions(), **{name: 0})
    with pytest.raises(ConfigError, match=name):
        declare_reliable_subscriber(network.client(), "a/**", options=options)

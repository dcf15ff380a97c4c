"""A cache of one publisher, which stores and answers under that prefix only."""

from __future__ import annotations

from pathlib import Path

import pytest
import zenoh

from durable_cache import (
    CacheOptions,
    ReliabilityCache,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.errors import ConfigError
from durable_cache.service.building import cache_options
from durable_cache.service.config import read_settings
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, ask, connected, sns


def publish(cache: ReliabilityCache, source: Numbered, other: Numbered) -> None:
    for publisher in (source.publisher, other.publisher):
        connected(publisher)
    for sn in range(3):
        other.put(sn)
        source.put(sn)
    wait_until(lambda: cache.status().appended == 3)
    wait_until(lambda: cache.status().of_others == 3)


@pytest.mark.parametrize("whole", [True, False])
def test_only_samples_of_the_source_are_stored_and_others_are_counted(
    network: LocalNetwork, whole: bool
) -> None:
    source, other = Numbered(network.client(), "a/b"), Numbered(network.client(), "a/b")
    name = source.prefix if whole else source.prefix.partition(":")[0]
    with declare_reliability_cache(network.client(), "a/**", source=name) as cache:
        publish(cache, source, other)
        assert {str(sample.source) for sample in cache.find("a/**")} == {source.prefix}
        assert sns(cache.find("a/**")) == [0, 1, 2]


def test_it_answers_under_the_prefix_of_its_source_alone(network: LocalNetwork) -> None:
    source, other = Numbered(network.client(), "a/b"), Numbered(network.client(), "a/b")
    with declare_reliability_cache(network.client(), "a/**", source=source.prefix) as cache:
        publish(cache, source, other)
        asker = network.client()
        querier = asker.declare_querier(f"{source.prefix}/a/b")
        connected(querier)
        elsewhere = asker.declare_querier(f"{other.prefix}/a/b")
        plain = asker.declare_querier("a/b")
        assert sns(ask(asker, f"{source.prefix}/a/b?_sn=1..")) == [1, 2]
        assert not elsewhere.matching_status.matching
        assert not plain.matching_status.matching
        assert {str(sample.source) for sample in ask(asker, "*/a/**")} == {source.prefix}


def test_plain_gets_are_answered_where_that_is_asked_for(network: LocalNetwork) -> None:
    source, other = Numbered(network.client(), "a/b"), Numbered(network.client(), "a/b")
    options = CacheOptions(source=source.prefix, answer_plain=True)
    with declare_reliability_cache(network.client(), "a/**", options=options) as cache:
        publish(cache, source, other)
        asker = network.client()
        connected(asker.declare_querier("a/b"))
        (reply,) = asker.get("a/b", consolidation=zenoh.ConsolidationMode.NONE)
        assert reply.ok is not None
        assert reply.ok.payload.to_bytes() == b"2"


def test_what_was_stored_of_others_before_is_not_answered(
    network: LocalNetwork, tmp_path: Path
) -> None:
    source, other = Numbered(network.client(), "a/b"), Numbered(network.client(), "a/b")
    backend = {"url": f"sqlite:///{tmp_path}/one.db"}
    folder = tmp_path / "state"
    with declare_reliability_cache(
        network.client(), "a/**", backend="sql", backend_options=backend, state_dir=folder
    ) as cache:
        for publisher in (source, other):
            connected(publisher.publisher)
            publisher.put(0)
        wait_until(lambda: cache.status().appended == 2)
    with declare_reliability_cache(
        network.client(),
        "a/**",
        backend="sql",
        backend_options=backend,
        state_dir=folder,
        source=source.prefix,
    ):
        asker = network.client()
        connected(asker.declare_querier(f"{source.prefix}/a/b"))
        assert {str(sample.source) for sample in ask(asker, "*/a/b")} == {source.prefix}


def test_a_late_subscriber_gets_the_history_of_that_publisher(network: LocalNetwork) -> None:
    session = network.client()
    received: list[int] = []
    with declare_reliable_publisher(session, "a/b", cache=False) as publisher:
        name = str(publisher.source)
        with declare_reliability_cache(network.client(), "a/**", source=name) as cache:
            connected(publisher._publisher)
            for _ in range(5):
                publisher.put(b"x")
            wait_until(lambda: cache.status().appended == 5)
            with declare_reliable_subscriber(
                network.client(), "a/**", lambda sample: received.append(sample.sn), history=True
            ):
                wait_until(lambda: received == [0, 1, 2, 3, 4])


@pytest.mark.parametrize("source", ["*", "xyz", "4f2a:", "4f2a:-1", "4F2A:7", "4f2a:7/a"])
def test_a_source_that_is_none_is_refused_by_name(network: LocalNetwork, source: str) -> None:
    storage = MemoryStorage()
    with pytest.raises(ConfigError, match=r"source '"):
        declare_reliability_cache(network.client(), "a/**", backend=storage, source=source)


def test_a_cache_of_one_publisher_is_not_aligned(network: LocalNetwork) -> None:
    options = CacheOptions(source="4f2a:7", align=True)
    with pytest.raises(ConfigError, match="not aligned"):
        declare_reliability_cache(network.client(), "a/**", options=options)


def test_a_service_takes_the_source_of_a_storage_and_names_a_wrong_one() -> None:
    def options_of(**storage: object) -> CacheOptions:
        section = {"storages": {"one": {"key_expr": "a/**", **storage}}}
        return cache_options(read_settings({"plugins": {"durable_cache": section}}), "one")

    assert options_of(source="4f2a:7").source == "4f2a:7"
    with pytest.raises(ConfigError, match=r"storages\.one: source 'x' is no source_id"):
        options_of(source="x")
    with pytest.raises(ConfigError, match="not aligned"):
        options_of(source="4f2a", alignment={"enabled": True})

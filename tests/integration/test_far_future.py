"""What becomes of a delete that is stamped an hour ahead? Routers replace no timestamp of a delete.

By the one order it is the newest of its key for an hour: for caches, for plain queries and for
readers, and all say the same. Whoever reads is told whose clock is wrong and what was lost by it,
no reader stops, and other keys go on.
"""

from __future__ import annotations

from functools import partial

import pytest
import zenoh

from durable_cache import (
    ReliableReader,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import build_timestamp, raw_timestamp
from durable_cache.errors import ConfigError
from durable_cache.ext import declare_advanced_publisher
from durable_cache.model.sample import Kind, Sample
from durable_cache.model.selection import Selection
from durable_cache.profiles import InstanceState, LostReason
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.integration.test_stale_updates import answers
from tests.servers.zenoh_sources import Numbered

HOUR_NTP64 = 3600 << 32
STATES = {"a/b": InstanceState.NOT_ALIVE_DISPOSED, "a/c": InstanceState.ALIVE}


def test_a_delete_of_the_far_future_is_reported_and_all_agree_on_it(
    network: LocalNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    early = declare_reliable_subscriber(network.client(), "a/**", profile="eventually-consistent")
    session = network.client()
    foreign = Numbered(network.client(), "a/b")
    with (
        early,
        declare_reliability_cache(network.client(), "a/**") as cache,
        declare_reliable_publisher(session, "a/*", acknowledgements=1, level="memory") as publisher,
    ):
        wait_until(lambda: publisher.matched, what="a match")
        assert publisher.put(b"1", key="a/b").wait(10)
        far = an_hour_ahead(session)
        foreign.delete(0, far)
        wait_until(lambda: cache.status().timestamps_ahead == 1)
        assert publisher.put(b"of now", key="a/b").wait(10)
        assert publisher.put(b"other", key="a/c").wait(10)

        stored = {sample.key: sample for sample in cache.values(Selection(newest=1), 9).samples}
        assert stored["a/b"].kind is Kind.DELETE
        assert stored["a/b"].ntp64 == raw_timestamp(far)[0], "nobody replaced it on its way"
        assert {key for key, _ in answers(network.client())} == {"a/c"}
        with declare_reliable_subscriber(
            network.client(), "a/**", profile="eventually-consistent"
        ) as late:
            for reader in (early, late):
                wait_until(partial(ends_as, reader, STATES))
                assert reader.timestamps_ahead == 1
            assert early.sample_lost_status().reason is LostReason.NO_ROOM, "what came as older"
            said = [r.getMessage() for r in caplog.records if "ahead of this clock" in r.message]
            assert len(said) == 3, "each reader says it once, and the cache"
            assert all(one.startswith(f"a/b of {foreign.prefix} is 3") for one in said)

            assert early.take()
            assert publisher.put(b"after it was taken", key="a/b").wait(10)
            assert publisher.put(b"goes on", key="a/c").wait(10)
            wait_until(lambda: [e.payload for e in seen(early)] == [b"goes on"])
            assert early.sample_lost_status().reason is LostReason.CONSUMED


def test_a_publisher_refuses_a_time_that_routers_replace(network: LocalNetwork) -> None:
    session = network.client()
    ntp64, name = raw_timestamp(session.new_timestamp())
    soon = build_timestamp(ntp64 + (1 << 30), name)
    assert soon is not None
    with (
        declare_reliability_cache(network.client(), "a/**") as cache,
        declare_reliable_publisher(session, "a/b", acknowledgements=1, level="memory") as publisher,
    ):
        far = an_hour_ahead(session)
        for refused in (partial(publisher.put, b"x"), publisher.delete):
            with pytest.raises(ConfigError, match=r"3\d{3}\.\d s ahead of this session's clock"):
                refused(timestamp=far)
        assert publisher.next_sn == 0, "what is refused has no number"
        assert publisher.put(b"soon", timestamp=soon).wait(10)
        (stored,) = cache.values(Selection(newest=1), 9).samples
        assert stored.ntp64 == raw_timestamp(soon)[0]
        assert cache.status().timestamps_ahead == 0


def test_a_publisher_of_zenoh_exts_names_refuses_it_too(network: LocalNetwork) -> None:
    session = network.client()
    with declare_advanced_publisher(session, "a/b") as publisher:
        for refused in (partial(publisher.put, b"x"), publisher.delete):
            with pytest.raises(ConfigError, match="ahead of this session's clock"):
                refused(timestamp=an_hour_ahead(session))


def an_hour_ahead(session: zenoh.Session) -> zenoh.Timestamp:
    ntp64, name = raw_timestamp(session.new_timestamp())
    far = build_timestamp(ntp64 + HOUR_NTP64, name)
    assert far is not None
    return far


def ends_as(reader: ReliableReader, states: dict[str, InstanceState]) -> bool:
    return {each.key: each.state for each in reader.instances()} == states


def seen(reader: ReliableReader) -> list[Sample]:
    return [each.sample for each in reader.read() if each.sample is not None]

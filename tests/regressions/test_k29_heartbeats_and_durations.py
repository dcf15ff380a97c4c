"""K29, K13, C6: native heartbeats are heard, durations read, attachments left alone, names win."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import zenoh

from durable_cache import declare_reliability_cache, declare_reliable_subscriber
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import source_of, zid_of
from durable_cache.model.sample import SampleBatch
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import delivery_options, old_sample
from tests.servers.zenoh_sources import Inbox, Numbered, sns, stored


def test_a_lost_tail_shows_with_a_native_heartbeat(network: LocalNetwork) -> None:
    inbox = Inbox()
    session = network.client()
    with (
        declare_reliability_cache(session, "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", inbox),
    ):
        numbered = Numbered(session, "a/b")
        inbox.await_path_from(session)
        for sn in range(3):
            numbered.put(sn, lost=sn > 0)
        stored(cache, 3)
        source = source_of(numbered.publisher)
        beat = session.declare_publisher(f"a/b/@adv/pub/{source.zid}/{source.eid}/_")
        wait_until(lambda: beat.put((2).to_bytes(4, "little")) or len(inbox.samples) == 3)
        assert sns(inbox.samples) == [0, 1, 2]


def test_a_time_range_with_a_duration_is_read(network: LocalNetwork) -> None:
    storage = MemoryStorage()
    storage.append(SampleBatch(old_sample(sn, 60 * sn) for sn in range(10)))
    begin = datetime.fromtimestamp(1_700_000_000 + 120, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    session = network.client()
    with declare_reliability_cache(network.client(), "a/**", backend=storage):
        asking = Asking(session, zid_of(session), timeout_seconds=5)
        gathered = asking.select(f"*/a/**?_time=[{begin};150s];_max=100")
        while not (gathered.single or gathered.errors):
            gathered = asking.select(f"*/a/**?_time=[{begin};150s];_max=100")
        assert gathered.errors == []
        assert sorted(sample.sn for sample in gathered.single) == [2, 3, 4]


def test_an_attachment_that_begins_like_an_envelope_is_the_publishers_own(
    network: LocalNetwork,
) -> None:
    session = network.client()
    native = zenoh.ext.declare_advanced_publisher(
        session,
        "a/b",
        cache=zenoh.ext.CacheConfig(max_samples=10),
        sample_miss_detection=zenoh.ext.MissDetectionConfig(),
        publisher_detection=True,
    )
    inbox = Inbox()
    with declare_reliable_subscriber(network.client(), "a/**", inbox):
        inbox.await_path_from(session)
        for number in range(3):
            native.put(b"%d" % number, attachment=b"\x01\x01 and then mine")
        wait_until(lambda: len(inbox.samples) == 3)
    asker = network.client()
    gathered = Asking(asker, zid_of(asker), timeout_seconds=5).publisher(
        "a/**", inbox.samples[0].source
    )
    assert gathered.errors == []
    assert [one.attachment for one in gathered.native] == [b"\x01\x01 and then mine"] * 3
    native.undeclare()


def test_named_arguments_win_over_options(network: LocalNetwork) -> None:
    inbox = Inbox()
    options = delivery_options(gap_timeout_seconds=60)
    with declare_reliable_subscriber(
        network.client(), "a/**", inbox, gap_timeout_seconds=0.2, options=options
    ) as subscriber:
        numbered = Numbered(network.client(), "a/b")
        inbox.await_path_from(numbered.session)
        began = time.monotonic()
        numbered.put(0)
        numbered.put(2)
        wait_until(lambda: sns(inbox.samples) == [0, 2])
        assert time.monotonic() - began < 10
        assert subscriber.missed == 1

"""Puts that caches did not acknowledge reach them, and them alone, once more; on real sessions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import zenoh

from durable_cache import (
    CacheOptions,
    PublisherOptions,
    ReliabilityCache,
    declare_reliability_cache,
    declare_reliable_publisher,
)
from durable_cache.endpoints.publisher import Receipt, ReliablePublisher
from durable_cache.endpoints.session import Session, declare_token, zid_of
from durable_cache.errors import ConfigError, OutcomeUnknown, Unacknowledged
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.resends import (
    RefusalReason,
    ResendRefusal,
    ResendRequest,
    decode_resent,
    encode_resend,
)
from durable_cache.protocol.wire import own_key, store_key
from durable_cache.testing.network import LocalNetwork, wait_until

SOON = {"resend_delay_seconds": 0.2, "resend_seconds_max": 1.0}


def cache_on(network: LocalNetwork, *key_exprs: str, **options: object) -> ReliabilityCache:
    chosen = CacheOptions(**options)  # type: ignore[arg-type]
    return declare_reliability_cache(network.client(), key_exprs or ("a/**",), options=chosen)


def publisher_on(session: Session, **settings: object) -> ReliablePublisher[Receipt]:
    """Declare a publisher that answers no questions: only resends can bring what was lost."""
    chosen = {"acknowledgements": 1, "cache": False, "level": "memory", **SOON, **settings}
    return declare_reliable_publisher(session, "a/b", **chosen)  # type: ignore[call-overload,no-any-return]


def payloads(cache: ReliabilityCache) -> list[bytes]:
    return [sample.payload for sample in sorted(cache.find("a/**"), key=lambda s: s.sn)]


def test_a_cache_that_comes_late_gets_everything_and_plain_subscribers_see_no_repeat(
    network: LocalNetwork,
) -> None:
    seen: list[tuple[int, bytes]] = []
    plain = network.client()

    def saw(sample: zenoh.Sample) -> None:
        assert sample.source_info is not None
        seen.append((sample.source_info.source_sn, sample.payload.to_bytes()))

    plain.declare_subscriber("a/**", saw)
    with publisher_on(network.client()) as publisher:
        wait_until(lambda: publisher.matched, what="the plain subscriber")
        receipts = [publisher.put(b"%d" % at, attachment=b"x") for at in range(300)]
        receipts.append(publisher.delete())
        with cache_on(network) as cache:
            publisher.flush(20)
            assert all(receipt.done for receipt in receipts)
            assert payloads(cache) == [*(b"%d" % at for at in range(300)), b""]
            stored = cache.find("a/**")
            assert {(s.source, s.epoch) for s in stored} == {(publisher.source, publisher.epoch)}
            assert all(receipt.result(0) for receipt in receipts)
        wait_until(lambda: len(seen) >= 301, what="every sample")
    assert [sn for sn, _ in seen] == [*range(301)]


def test_the_second_cache_wanted_gets_what_the_first_has(network: LocalNetwork) -> None:
    with (
        cache_on(network) as first,
        publisher_on(network.client(), acknowledgements=2) as publisher,
    ):
        wait_until(lambda: publisher.matched, what="the first cache")
        receipts = [publisher.put(b"%d" % at) for at in range(50)]
        wait_until(lambda: all(receipt.caches for receipt in receipts), what="the first cache")
        assert not any(receipt.done for receipt in receipts)
        assert not publisher.wait_for_all_acked(0.1)
        with cache_on(network) as second:
            assert publisher.wait_for_all_acked(20)
            assert payloads(second) == payloads(first)
            caches = {first.cache_id, second.cache_id}
            assert all(receipt.caches.keys() == caches for receipt in receipts)


def test_a_cache_acknowledges_once_more_what_its_publisher_did_not_hear(
    network: LocalNetwork,
) -> None:
    with cache_on(network) as cache, publisher_on(network.client()) as publisher:
        wait_until(lambda: publisher.matched, what="the cache")
        heard = publisher._acknowledged
        next(s for s in publisher._declared if isinstance(s, zenoh.Subscriber)).undeclare()
        receipts = [publisher.put(b"%d" % at) for at in range(20)]
        wait_until(lambda: cache.status().appended == 20, what="storing")
        assert not any(receipt.caches for receipt in receipts)
        publisher._session.declare_subscriber(
            own_key("default", "ack", str(publisher.source)),
            lambda sample: heard(sample.payload.to_bytes()),
        )
        publisher.flush(20)
        assert all(receipt.done for receipt in receipts)
        assert cache.status().appended == 20


def test_a_forged_resend_for_a_living_source_is_refused(network: LocalNetwork) -> None:
    with cache_on(network) as cache, publisher_on(network.client()) as publisher:
        wait_until(lambda: publisher.matched, what="the cache")
        assert publisher.put(b"true").wait(10)
        thief = network.client()
        forged = [
            Sample(
                "a/b", publisher.source, publisher.epoch, sn, b"forged", ntp64=1, timestamp_id="1"
            )
            for sn in (0, 1)
        ]
        request = ResendRequest(
            zid_of(thief), publisher.source, publisher.epoch, publisher.incarnation, tuple(forged)
        )
        (reply,) = thief.get(store_key("default", cache.cache_id), payload=encode_resend(request))
        assert reply.ok is not None
        assert decode_resent(reply.ok.payload.to_bytes()).refused == (
            ResendRefusal(0, 1, RefusalReason.CLAIMED),
        )
        assert publisher.put(b"genuine").wait(10)
        assert payloads(cache) == [b"true", b"genuine"]


def test_a_cache_takes_only_what_is_its_to_store(network: LocalNetwork) -> None:
    with cache_on(network, "a/**") as cache:
        session = network.client()
        source = SourceId("ab12", 7)
        samples = [Sample(key, source, 9, sn, b"") for sn, key in enumerate(("a/x", "b/x", "a/*"))]
        request = ResendRequest(zid_of(session), source, 9, "0000aaaa", tuple(samples))
        (reply,) = session.get(store_key("default", cache.cache_id), payload=encode_resend(request))
        assert reply.ok is not None
        assert decode_resent(reply.ok.payload.to_bytes()).refused == (
            ResendRefusal(1, 1, RefusalReason.NOT_STORED),
        )
        wait_until(lambda: cache.status().appended == 2, what="the others")


def test_a_frame_of_another_version_gets_an_answer_that_names_both(network: LocalNetwork) -> None:
    with cache_on(network) as cache:
        (reply,) = network.client().get(
            store_key("default", cache.cache_id), payload=b"\x09\x07abcd"
        )
        assert reply.err is not None
        assert "frame version 9, this is version 1" in reply.err.payload.to_string()


def test_beside_a_cache_of_an_earlier_version_a_publisher_works_on_and_says_so(
    network: LocalNetwork,
) -> None:
    earlier = network.client()
    token = declare_token(earlier, own_key("default", "history", "c0", "0000aaaa", "a/**"))
    with publisher_on(network.client(), acknowledgements=2) as publisher:
        with cache_on(network) as cache:
            wait_until(lambda: publisher.matched, what="the cache")
            publisher.put(b"x")
            wait_until(lambda: "c0" in publisher.resend_error, 20, "the earlier cache")
            assert payloads(cache) == [b"x"]
            with pytest.raises(OutcomeUnknown, match="no answer"):
                publisher.flush(0.5)
    token.undeclare()


def test_after_its_time_the_outcome_is_unknown_never_not_stored(network: LocalNetwork) -> None:
    with publisher_on(network.client(), unacknowledged_seconds_max=0.5) as publisher:
        told: list[Receipt] = []
        receipt = publisher.put(b"x")
        receipt.on_done(told.append)
        with pytest.raises(OutcomeUnknown, match="unknown"):
            receipt.result(20)
        assert (receipt.done, receipt.unknown) == (False, True)
        wait_until(lambda: told == [receipt], what="the callback")
        assert publisher.unknown == 1
        assert publisher.wait_for_all_acked(0)  # nothing waits any more
        publisher.put(b"y")
        with pytest.raises(OutcomeUnknown, match="may be all the same"):
            publisher.flush(20)
        assert publisher.unknown == 2


def test_a_callback_does_not_wait_for_what_its_own_thread_does(network: LocalNetwork) -> None:
    with publisher_on(network.client(), unacknowledged_seconds_max=0.3) as publisher:
        waited: list[bool] = []
        publisher.put(b"x").on_done(lambda _: waited.append(publisher.wait_for_all_acked()))
        publisher.put(b"y")
        wait_until(lambda: waited, what="the callback")


def test_a_full_window_raises_at_once_or_after_its_time(network: LocalNetwork) -> None:
    with publisher_on(
        network.client(), unacknowledged_bytes_max=5000, put_timeout_seconds=0
    ) as publisher:
        publisher.put(bytes(6000))
        began = time.monotonic()
        with pytest.raises(Unacknowledged, match="unacknowledged_bytes_max"):
            publisher.put(b"x")
        assert time.monotonic() - began < 2
        with cache_on(network):
            publisher.flush(20)
        assert publisher.put(b"x").sn == 1


def test_a_blocking_put_waits_for_room_however_long(network: LocalNetwork, tmp_path: Path) -> None:
    with publisher_on(
        network.client(), unacknowledged_max=1, put_timeout_seconds=float("inf")
    ) as publisher:
        publisher.put(b"0")
        with cache_on(network, name="late", state_dir=tmp_path):
            assert publisher.put(b"1").wait(20)


def test_a_frame_is_bounded_as_its_options_say(network: LocalNetwork) -> None:
    options = PublisherOptions(
        acknowledgements=1,
        cache=False,
        level="memory",
        resend_samples_max=3,
        resend_bytes_max=2000,
        resend_timeout_seconds=2.0,
        resend_delay_seconds=0.1,
        resend_seconds_max=0.5,
    )
    with declare_reliable_publisher(network.client(), "a/b", options=options) as publisher:
        for at in range(20):
            publisher.put(b"%d" % at)
        with cache_on(network, resends_waiting_max=1) as cache:
            publisher.flush(20)
            assert payloads(cache) == [b"%d" % at for at in range(20)]


def test_what_is_too_large_is_refused_for_good_and_costs_its_neighbours_nothing(
    network: LocalNetwork,
) -> None:
    with (
        cache_on(network, payload_bytes_max=1000) as cache,
        publisher_on(network.client()) as publisher,
    ):
        large, small = publisher.put(bytes(2000)), publisher.put(b"1")
        assert small.wait(20)
        wait_until(lambda: "too large" in publisher.resend_error, what="the reason")
        assert not large.wait(1.5)
        assert payloads(cache) == [b"1"]


def test_without_acknowledgements_there_is_nothing_to_wait_for(network: LocalNetwork) -> None:
    with declare_reliable_publisher(network.client(), "a/b") as publisher:
        publisher.put(b"x")
        publisher.flush(0)
        with pytest.raises(ConfigError, match="acknowledgements=0"):
            publisher.wait_for_all_acked(0)

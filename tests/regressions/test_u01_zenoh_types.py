"""U1: what every Zenoh program passes is taken by `put`; what nobody can send is refused there."""

from __future__ import annotations

import pytest
import zenoh

from durable_cache import (
    CacheOptions,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.errors import ConfigError
from durable_cache.testing.network import LocalNetwork, wait_until


def test_samples_put_with_zenohs_own_types_are_in_the_history(network: LocalNetwork) -> None:
    with declare_reliable_publisher(network.client(), zenoh.KeyExpr("a/**")) as publisher:
        publisher.put(
            zenoh.ZBytes(b"1"),
            encoding=zenoh.Encoding.APPLICATION_JSON,
            attachment=zenoh.ZBytes(b"note"),
            key=zenoh.KeyExpr("a/b"),
        )
        publisher.put(
            "2", encoding=zenoh.Encoding.TEXT_PLAIN.with_schema("utf-8"), attachment="n", key="a/b"
        )
        publisher.put(bytearray(b"3"), attachment=memoryview(b"m"), key="a/b")
        publisher.delete(attachment="gone", key=zenoh.KeyExpr("a/b"))
        received: list[Sample] = []
        with declare_reliable_subscriber(
            network.client(), zenoh.KeyExpr("a/**"), received.append, history=True
        ):
            wait_until(lambda: len(received) == 4, what="history from the publisher's own cache")
    assert [(s.payload, s.encoding, s.attachment) for s in received] == [
        (b"1", "application/json", b"note"),
        (b"2", "text/plain;utf-8", b"n"),
        (b"3", "zenoh/bytes", b"m"),
        (b"", "zenoh/bytes", b"gone"),
    ]


@pytest.mark.parametrize("payload", [None, "\ud800"])
def test_a_payload_that_nobody_can_send_is_refused_at_the_call(
    network: LocalNetwork, payload: str | None
) -> None:
    with declare_reliable_publisher(network.client(), "a/*", acknowledgements=1) as publisher:
        with pytest.raises(ConfigError):
            publisher.put(payload)  # type: ignore[arg-type]
        assert publisher.next_sn == 0
        receipt = publisher.put(b"good", key="a/b")
        assert receipt is not None
        assert receipt.sn == 0
        assert [sample.payload for sample in publisher.kept()] == [b"good"]


@pytest.mark.parametrize(
    "encoding",
    ["x" * 256, "text/plain;" + "x" * 256, zenoh.Encoding("a/b").with_schema("c" * 255), "é" * 128],
)
def test_an_encoding_that_zenoh_cannot_send_is_refused_at_the_call(
    network: LocalNetwork, encoding: str | zenoh.Encoding
) -> None:
    session = network.client()
    with declare_reliable_publisher(session, "a/b") as publisher:
        with pytest.raises(ConfigError, match="255"):
            publisher.put(b"1", encoding=encoding)
        assert publisher.next_sn == 0
        publisher.put(b"2", encoding="text/plain;" + "x" * 255)
    with pytest.raises(ConfigError, match="255"):
        declare_reliable_publisher(session, "a/b", encoding=encoding)


def test_an_encoding_that_zenoh_cannot_send_is_refused_where_it_was_stored(
    network: LocalNetwork,
) -> None:
    """It comes in a frame of ours, or on the cache's own session; no other session sends it."""
    session = network.client()
    with declare_reliability_cache(session, "a/**", unnumbered="store") as cache:
        session.put(
            "a/b", b"1", encoding="x" * 300, allowed_destination=zenoh.Locality.SESSION_LOCAL
        )
        session.put("a/c", b"2")
        wait_until(lambda: cache.status().appended == 2, what="both")
        replies = [*network.client().get("a/**", consolidation=zenoh.ConsolidationMode.NONE)]
        assert sorted(str(reply.ok and reply.ok.key_expr) for reply in replies) == ["None", "a/c"]


@pytest.mark.parametrize("domain", ["", "a/b", "*", "é", "@x", "x" * 65])
def test_a_domain_that_would_be_no_chunk_of_a_key_is_refused(
    network: LocalNetwork, domain: str
) -> None:
    session = network.client()
    for declare in (declare_reliable_publisher, declare_reliable_subscriber):
        with pytest.raises(ConfigError, match="domain: expected 1 to 64 of"):
            declare(session, "a/b", domain=domain)
    with pytest.raises(ConfigError, match="domain: expected 1 to 64 of"):
        declare_reliability_cache(session, "a/b", options=CacheOptions(domain=domain))

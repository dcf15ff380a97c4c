"""U1: what every Zenoh program passes is taken by `put`; what nobody can send is refused there."""

from __future__ import annotations

import pytest
import zenoh

from durable_cache import Sample, declare_reliable_publisher, declare_reliable_subscriber
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

"""Does a sample leave as its put says, whatever is read only once of its publisher?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs

from durable_cache.endpoints.publisher import declare_reliable_publisher
from durable_cache.endpoints.session import (
    Decoder,
    Session,
    close_session,
    open_session,
    raw_timestamp,
)
from durable_cache.model.run_name import RunName, run_of
from durable_cache.model.sample import Sample


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    alone = {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    session = open_session({**alone, "timestamping": {"enabled": True}})
    yield session
    close_session(session)


def test_what_a_publisher_keeps_is_what_left(session: Session) -> None:
    subscriber = session.declare_subscriber("kept/*")
    with declare_reliable_publisher(session, "kept/a", encoding="text/plain") as publisher:
        publisher.put(b"one")
        publisher.put(b"two", encoding="application/json", attachment=b"noted")
        publisher.delete()
        kept = publisher.kept()
        assert publisher.kept() == kept
    assert {run_of(one) for one in kept} == {RunName(publisher.epoch, publisher.incarnation)}
    left = Decoder(kept[0].timestamp_id, 64).decode([subscriber.recv() for _ in kept], 0)
    subscriber.undeclare()
    epoch = publisher.epoch
    assert [_as_it_left(it, epoch) for it in kept] == [_as_it_left(it, epoch) for it in left]
    assert [it.received_ns > 1_700_000_000 * 10**9 for it in kept] == [True] * 3


def _as_it_left(sample: Sample, epoch: int) -> Sample:
    return structs.replace(sample, epoch=epoch, received_ns=0)


def test_a_number_that_is_given_with_its_stamp_is_kept(session: Session) -> None:
    with declare_reliable_publisher(session, "kept/b") as publisher:
        stamp = session.new_timestamp()
        publisher.put(b"one", timestamp=stamp)
        (kept,) = publisher.kept()
    assert (kept.ntp64, kept.timestamp_id) == raw_timestamp(stamp)


def test_each_put_leaves_in_its_own_encoding(session: Session) -> None:
    subscriber = session.declare_subscriber("enc/*")
    with declare_reliable_publisher(session, "enc/a", encoding="text/plain") as publisher:
        publisher.put(b"own")
        publisher.put(b"other", encoding="application/json")
        publisher.put(b"named", encoding="text/plain")
        publisher.delete()
        publisher.put(b"again")
    with declare_reliable_publisher(session, "enc/*", encoding="text/plain") as publisher:
        publisher.put(b"one of many", key="enc/b")
    heard = [subscriber.try_recv() for _ in range(6)]
    assert [(str(it.encoding), it.payload.to_bytes()) for it in heard if it is not None] == [
        ("text/plain", b"own"),
        ("application/json", b"other"),
        ("text/plain", b"named"),
        ("zenoh/bytes", b""),
        ("text/plain", b"again"),
        ("text/plain", b"one of many"),
    ]
    subscriber.undeclare()

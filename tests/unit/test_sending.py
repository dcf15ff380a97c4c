"""Does a sample leave as its put says, whatever is read only once of its publisher?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durable_cache.endpoints.publisher import declare_reliable_publisher
from durable_cache.endpoints.session import (
    Origins,
    Outlet,
    Session,
    close_session,
    declare_own_publisher,
    new_stamp,
    open_session,
    raw_timestamp,
    undeclare,
)
from durable_cache.model.sample import Qos


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    alone = {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    session = open_session({**alone, "timestamping": {"enabled": True}})
    yield session
    close_session(session)


def test_a_new_stamp_reads_as_zenoh_writes_it(session: Session) -> None:
    publisher = declare_own_publisher(session, "a/b", Qos(), "text/plain")
    outlet = Outlet(session, publisher, "text/plain", Origins.ANY)
    for _ in range(100):
        stamp, ntp64, name = new_stamp(outlet)
        assert (ntp64, name) == raw_timestamp(stamp)
    undeclare(publisher)


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

"""How Zenoh's samples become ours: alike one by one and many at once, with all they came with."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import zenoh

from durable_cache import open_session
from durable_cache.endpoints.session import Decoder, close_session, undeclare
from durable_cache.model.sample import Kind, Qos, Sample, SourceId

OWN_ZID = "ab12"
RECEIVED_NS = 1_700_000_000_000_000_000
MANY = 40


@pytest.fixture(scope="module")
def session() -> Iterator[zenoh.Session]:
    settings: dict[str, object] = {
        "mode": "peer",
        "scouting": {"multicast": {"enabled": False}},
        "listen": {"endpoints": []},
        "timestamping": {"enabled": False},
    }
    session = open_session(settings)
    yield session
    close_session(session)


class Network:
    """Puts to itself, and what came of it."""

    def __init__(self, session: zenoh.Session) -> None:
        self.session = session
        self.publishers = [session.declare_publisher("t/a"), session.declare_publisher("t/b")]
        self.subscriber = session.declare_subscriber("t/**", zenoh.handlers.FifoChannel(1000))
        self.sn = -1

    def put(self, at: int = 0, payload: bytes = b"value", **given: object) -> None:
        """Put under the next number, with a timestamp; `given` says otherwise."""
        publisher = self.publishers[at]
        self.sn += 1
        ordinary: dict[str, object] = {
            "timestamp": self.session.new_timestamp(),
            "source_info": zenoh.SourceInfo(publisher.id, self.sn),
        }
        publisher.put(payload, **{**ordinary, **given})  # type: ignore[arg-type]

    def source(self, at: int = 0) -> SourceId:
        identity = self.publishers[at].id
        return SourceId(str(identity.zid), identity.eid)

    def taken(self) -> list[zenoh.Sample]:
        return list(iter(self.subscriber.handler.try_recv, None))

    def undeclare(self) -> None:
        for declared in (*self.publishers, self.subscriber):
            undeclare(declared)


@pytest.fixture
def network(session: zenoh.Session) -> Iterator[Network]:
    network = Network(session)
    yield network
    network.undeclare()


def decoded_alike(taken: list[zenoh.Sample], bytes_max: int = 1000) -> list[Sample]:
    """Return the samples decoded together, which must be what they are one by one."""
    decoder, counts = Decoder(OWN_ZID, bytes_max), Decoder(OWN_ZID, bytes_max)
    left_out, each_left_out = list[Sample](), list[Sample]()
    together = decoder.decode(taken, RECEIVED_NS, keep_plain=True, left_out=left_out)
    each = [
        sample
        for one in taken
        for sample in counts.decode([one], RECEIVED_NS, keep_plain=True, left_out=each_left_out)
    ]
    assert together == each
    assert left_out == each_left_out
    assert (decoder.oversized, decoder.without_source) == (counts.oversized, counts.without_source)
    # No field is of another kind than it says: what is encoded can be read again.
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(together), type=list[Sample]) == together
    return together


def test_many_of_one_stream(network: Network) -> None:
    for at in range(MANY):
        network.put(payload=b"%d" % at, encoding="text/plain;utf-8")
    samples = decoded_alike(network.taken())
    assert [sample.sn for sample in samples] == list(range(MANY))
    assert [sample.payload for sample in samples] == [b"%d" % at for at in range(MANY)]
    assert {sample.source for sample in samples} == {network.source()}
    assert {(sample.key, sample.encoding) for sample in samples} == {("t/a", "text/plain;utf-8")}
    assert {(sample.epoch, sample.stamped, sample.kind) for sample in samples} == {
        (0, False, Kind.PUT)
    }
    assert len({sample.ntp64 for sample in samples}) == MANY


@pytest.mark.parametrize("odd", [0, 1, MANY // 2, MANY - 1])
def test_one_that_is_otherwise_among_many(network: Network, odd: int) -> None:
    """In any one field, wherever it stands."""
    others: list[dict[str, object]] = [
        {"at": 1},
        {"encoding": "text/plain"},
        {"encoding": "zenoh/bytes;a-schema"},
        {"attachment": b"with it"},
        {"timestamp": None},
        {"source_info": None},
        {"payload": b"x" * 1001},
        {"payload": b""},
        {"timestamp": zenoh.Timestamp(zenoh.NTP64(5, 7), zenoh.TimestampId(b"\x01"))},
    ]
    for other in others:
        for at in range(MANY):
            network.put(**(other if at == odd else {}))  # type: ignore[arg-type]
        taken = network.taken()
        samples = decoded_alike(taken)
        without = decoded_alike(taken[:odd] + taken[odd + 1 :])
        if other.get("payload") != b"x" * 1001:
            shown = samples.pop(odd)
            assert (shown.key == "t/b") == ("at" in other)
            assert shown.encoding == other.get("encoding", "zenoh/bytes")
            assert shown.attachment == other.get("attachment")
            assert shown.stamped == ("timestamp" in other and other["timestamp"] is None)
            assert (shown.source.eid == 0) == ("source_info" in other)
        assert samples == without


def test_quality_of_service_and_deletes_among_many(network: Network) -> None:
    hasty = network.session.declare_publisher(
        "t/c",
        priority=zenoh.Priority.REAL_TIME,
        congestion_control=zenoh.CongestionControl.BLOCK,
        express=True,
    )
    for at in range(MANY):
        network.put()
        told: dict[str, object] = {
            "timestamp": network.session.new_timestamp(),
            "source_info": zenoh.SourceInfo(hasty.id, at),
        }
        if at % 3:
            hasty.put(b"now", **told)  # type: ignore[arg-type]
        else:
            hasty.delete(**told)  # type: ignore[arg-type]
    samples = decoded_alike(network.taken())
    undeclare(hasty)
    of_c = [sample for sample in samples if sample.key == "t/c"]
    assert {Qos.unpack(sample.qos) for sample in of_c} == {Qos(1, 1, True)}
    assert [sample.kind for sample in of_c] == [
        Kind.PUT if at % 3 else Kind.DELETE for at in range(MANY)
    ]
    assert {sample.kind for sample in samples if sample.key != "t/c"} == {Kind.PUT}


def test_sources_that_share_a_number_within_their_sessions_are_told_apart() -> None:
    """Entities are numbered within a session, so two sessions' publishers are alike by that."""
    settings = {
        "mode": "peer",
        "scouting": {"multicast": {"enabled": False}},
        "listen": {"endpoints": []},
    }
    sessions = [open_session(settings), open_session(settings)]
    publishers = [session.declare_publisher("t/d") for session in sessions]
    assert publishers[0].id.eid == publishers[1].id.eid
    here = sessions[0].declare_subscriber("t/d", zenoh.handlers.FifoChannel(1000))
    for at in range(MANY):
        told = publishers[at % 2].id
        stamp = sessions[0].new_timestamp()
        publishers[0].put(b"", timestamp=stamp, source_info=zenoh.SourceInfo(told, at))
    samples = decoded_alike(list(iter(here.handler.try_recv, None)))
    expected = [SourceId(str(one.id.zid), one.id.eid) for one in publishers]
    assert [sample.source for sample in samples] == [expected[at % 2] for at in range(MANY)]
    for session in sessions:
        close_session(session)

"""Does what one cache writes reach the other as it was, and is everything else refused?"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream
from durable_cache.protocol.alignment import (
    flat,
)
from durable_cache.protocol.alignment.packing import (
    Entry,
    NodeSums,
    decode_entries,
    decode_nodes,
    encode_entries,
    encode_nodes,
    squeeze,
    unsqueeze,
)
from durable_cache.protocol.alignment.wire import (
    Blocks,
    BlocksReply,
    Diff,
    DiffReply,
    Entries,
    EntriesReply,
    Hello,
    Lane,
    Parameters,
    Pull,
    PullReply,
    Refused,
    Reply,
    Request,
    Root,
    WrongSlot,
    decode_reply,
    decode_request,
    decode_root,
    encode_reply,
    encode_request,
    encode_root,
)
from durable_cache.protocol.wire import FRAME_VERSION, Incarnation, seal

runs = st.sets(st.integers(0, 300), max_size=20).map(lambda sns: flat(RangeSet.of(sns)))
words = st.integers(0, (1 << 64) - 1)
entries = st.builds(
    Entry,
    words,
    st.integers(0, 1 << 35),
    st.integers(0, 1 << 35),
    runs,
    runs,
    st.integers(0, 1 << 35),
    st.integers(0, 1 << 35),
    words,
    st.tuples(st.integers(0, 1 << 32), st.integers(0, 1 << 32)),
)
STREAM = Stream("a/b", SourceId("a1", 1), 7)
HELLO = Hello("c1", "i1", Parameters(1, 5, 16, 99), ("a/**",), ("a/x",), 60.0, 100, None)
ROOT = Root("c1", "i1", 7, 9, bytes(16), 11, 3, 30, True)
REQUESTS: list[Request] = [
    HELLO,
    Diff(7, "i1", 9, 8, True, Lane.KNOWLEDGE, 12345, 2, encode_nodes([], 2)),
    Entries(7, "i1", Lane.CONTENT, ((5, 0), (6, 77))),
    Pull(7, "i1", ((5, (0, 4, 6, 9)),), 0, 1 << 20, 512),
    Blocks(7, "i1", ((5, 0, 100),)),
]
REPLIES: list[Reply] = [
    HELLO,
    DiffReply(b"", (1, 2), b"", (3,), (STREAM,)),
    EntriesReply(b"", (STREAM,)),
    DiffReply(b"", (1, 2), b"", (3,), (STREAM,), ((5, 1 << 63),)),
    EntriesReply(b"", (STREAM,), ((5, 1 << 63),)),
    PullReply(b"", ((5, (0, 4)),), ()),
    PullReply(b"abc", (), ((5, (0, 4)),), 70),
    PullReply(b"abc", (), (), 0, (Incarnation(STREAM.source, 7, "0a0a0a0a"),)),
    BlocksReply(((5, 0, 63, 2, bytes(8 * 32)),)),
    WrongSlot(9, 8),
    Refused("why", True),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda value: type(value).__name__)
def test_requests_come_back(request_: Request) -> None:
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda value: type(value).__name__)
def test_replies_come_back(reply: Reply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


def test_a_root_comes_back_and_is_small() -> None:
    packed = encode_root(ROOT)
    assert decode_root(packed) == ROOT
    assert len(packed) < 80


@given(st.lists(entries, max_size=8))
def test_entries_come_back(found: list[Entry]) -> None:
    for entry in found:
        if not entry.content:
            entry.blocks = (0, -1)
    assert decode_entries(encode_entries(found)) == found


@given(
    st.integers(0, 15),
    st.lists(
        st.tuples(
            st.integers(0, 1 << 60),
            st.integers(0, 0xFFFF),
            st.dictionaries(st.integers(0, 15), st.integers(0, (1 << 16) - 1)),
        ),
        max_size=8,
    ),
)
def test_nodes_come_back(level: int, found: list[tuple[int, int, dict[int, int]]]) -> None:
    nodes = [NodeSums(path % (1 << 4 * level), asked, sums) for path, asked, sums in found]
    assert decode_nodes(encode_nodes(nodes, level), level) == nodes


def test_an_entry_of_one_run_takes_about_sixteen_bytes() -> None:
    assert len(encode_entries([Entry(1 << 63, 1000, 0, (1000, 1999), ())])) <= 16


@given(st.binary(max_size=400))
def test_noise_is_refused_or_read(noise: bytes) -> None:
    for decode in (decode_entries, lambda packed: decode_nodes(packed, 4)):
        try:
            decode(noise)
        except RemoteProtocolError:
            continue
    for read in (decode_root, decode_request, decode_reply):
        with pytest.raises(RemoteProtocolError):
            read(noise)


@given(
    st.sampled_from([16, 17, 18]),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.text()
        | st.binary(),
        lambda inner: st.lists(inner, max_size=6),
        max_leaves=30,
    ),
)
def test_sealed_noise_raises_only_what_is_promised(content: int, value: object) -> None:
    for read in (decode_root, decode_request, decode_reply):
        try:
            read(seal(content, value))
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize("number", range(len(REQUESTS) + len(REPLIES)))
def test_truncated_or_garbled_messages_are_refused(number: int) -> None:
    random = Random(number)
    if number < len(REQUESTS):
        whole, read = encode_request(REQUESTS[number]), decode_request
    else:
        whole, read = encode_reply(REPLIES[number - len(REQUESTS)]), decode_reply  # type: ignore[assignment]
    for length in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            read(whole[:length])
    for _ in range(200):
        at = random.randrange(len(whole))
        garbled = whole[:at] + bytes([whole[at] ^ random.randint(1, 255)]) + whole[at + 1 :]
        with pytest.raises(RemoteProtocolError):
            read(garbled)


def test_another_version_is_refused_with_what_to_do() -> None:
    packed = encode_request(HELLO)
    with pytest.raises(RemoteProtocolError, match="upgrade the older side"):
        decode_request(bytes([FRAME_VERSION + 1]) + packed[1:])


@pytest.mark.parametrize(
    "bad",
    [
        Pull(7, "i1", ((5, (4, 0)),), 0, 1, 1),
        Pull(7, "i1", ((5, (0, 4, 5, 6)),), 0, 1, 1),
        Pull(7, "i1", ((5, (0,)),), 0, 1, 1),
        Pull(7, "i1", ((5, (0, 1 << 63)),), 0, 1, 1),
        Pull(7, "i1", ((-1, (0, 1)),), 0, 1, 1),
        Pull(7, "i1", tuple((at, (0, 0)) for at in range(5000)), 0, 1, 1),
        Diff(7, "i1", 9, 8, True, Lane.KNOWLEDGE, 1, 16, b""),
        Diff(-7, "i1", 9, 8, True, Lane.KNOWLEDGE, 1, 1, b""),
        Hello("a/b", "i1", HELLO.parameters, ("a/**",), (), None, None, None),
        Hello("c1", "", HELLO.parameters, ("a/**",), (), None, None, None),
        Hello("c1", "i1", HELLO.parameters, ("a//b",), (), None, None, None),
        Hello("c1", "i1", HELLO.parameters, (), (), None, None, None),
    ],
)
def test_requests_out_of_bounds_are_refused(bad: Request) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(encode_request(bad))


def test_an_entry_that_claims_a_million_runs_costs_nothing() -> None:
    honest = encode_entries([Entry(1, 5, 0, (7, 8, 10, 12), ())])
    claimed = honest[:10] + b"\xff\xff\x3f" + honest[11:]
    with pytest.raises(RemoteProtocolError):
        decode_entries(claimed)


def test_samples_are_squeezed_where_that_saves_and_come_out_as_they_went_in() -> None:
    alike, random_bytes = b"fleet/robot/" * 1000, Random(1).randbytes(10_000)
    small, size = squeeze(alike)
    assert len(small) < len(alike) // 10
    assert unsqueeze(small, size) == alike
    assert squeeze(random_bytes) == (random_bytes, 0)
    assert unsqueeze(random_bytes, 0) == random_bytes


@pytest.mark.parametrize("size", [1, 11_999, 12_001, (16 << 20) + 1])
def test_squeezed_samples_of_another_size_than_told_are_refused(size: int) -> None:
    small, _ = squeeze(b"fleet/robot/" * 1000)
    with pytest.raises(RemoteProtocolError):
        unsqueeze(small, size)
    with pytest.raises(RemoteProtocolError):
        unsqueeze(b"\x00garbled", 100)

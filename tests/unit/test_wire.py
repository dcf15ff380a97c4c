"""Does every frame come back as it was, and does nothing hostile do more than raise?"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random
from zlib import crc32

import msgspec
import pytest
import zenoh
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.key_expression import KEY_BYTES_MAX, KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.protocol import wire
from durable_cache.protocol.consumers import (
    DeadLetter,
    Position,
    decode_dead_letter,
    decode_position,
    encode_dead_letter,
    encode_position,
)
from durable_cache.protocol.resends import (
    RefusalReason,
    ResendRefusal,
    ResendReply,
    ResendRequest,
    decode_resend,
    decode_resent,
    encode_resend,
    encode_resent,
)
from durable_cache.protocol.spool_rows import decode_spooled, encode_spooled
from durable_cache.protocol.standings import (
    Standing,
    decode_beginning,
    decode_standings,
    encode_beginning,
    encode_standings,
)
from durable_cache.protocol.wire import Absence, AbsenceReason, Ack, Content
from durable_cache.testing.samples import SOURCE, filled, run, sample
from durable_cache.testing.strategies import (
    EPOCH_MAX,
    SN_MAX,
    batches,
    key_expressions,
    samples,
    skips,
    sources,
)

DECODERS: dict[Content, Callable[[bytes], object]] = {
    Content.ENVELOPE: wire.decode_envelope,
    Content.BATCH: wire.decode_batch,
    Content.PACKED: wire.decode_packed,
    Content.ACK: wire.decode_ack,
    Content.JOURNAL: wire.decode_journal,
    Content.PLACE: wire.decode_place,
    Content.RESEND: decode_resend,
    Content.RESENT: decode_resent,
    Content.POSITION: decode_position,
    Content.DEAD_LETTER: decode_dead_letter,
    Content.STANDINGS: decode_standings,
    Content.BEGINNING: decode_beginning,
    Content.SPOOLED: lambda frame: decode_spooled(
        frame, {("0123abcd", filled().epoch): filled().source}
    ),
}
ACK = Ack("cache", 2, SOURCE, 7, ((0, 4), (9, 9)))
FRAMES: dict[Content, bytes] = {
    Content.ENVELOPE: wire.encode_envelope(filled()),
    Content.BATCH: wire.encode_batch(SampleBatch([*run(0, 3), filled(9)])),
    Content.PACKED: wire.encode_packed(SampleBatch(run(0, 3)), more=True),
    Content.ACK: wire.encode_ack(ACK),
    Content.JOURNAL: wire.encode_journal(SampleBatch(run(0, 3)), (Skip(SOURCE, 1, 4, 5),)),
    Content.PLACE: wire.encode_place(filled()),
    Content.RESEND: encode_resend(
        ResendRequest(SOURCE.zid, SOURCE, run(0, 1)[0].epoch, "0123abcd", tuple(run(0, 3)))
    ),
    Content.RESENT: encode_resent(
        ResendReply("cache", (ResendRefusal(4, 9, RefusalReason.CONFLICT),))
    ),
    Content.POSITION: encode_position(Position("a/**", SOURCE, 7, "0123abcd", 9, ((2, 3), (6, 6)))),
    Content.DEAD_LETTER: encode_dead_letter(DeadLetter("no such trip", 3, filled())),
    Content.STANDINGS: encode_standings([Standing(SOURCE, 7, "0123abcd", 10, 1 << 40)]),
    Content.BEGINNING: encode_beginning(1 << 40),
    Content.SPOOLED: encode_spooled(filled(), "0123abcd"),
}
REASONS = tuple(AbsenceReason)
contents = pytest.mark.parametrize("content", Content)


def sealed(content: int, body: bytes) -> bytes:
    """A frame with a right checksum around any body: what a hostile peer can always make."""
    return bytes((wire.FRAME_VERSION, content)) + crc32(body).to_bytes(4, "little") + body


def plain(batch: SampleBatch) -> list[dict[str, object]]:
    return [msgspec.structs.asdict(one) for one in batch]


@given(batches, st.booleans(), st.lists(skips(), max_size=3).map(tuple))
def test_batches_come_back(batch: SampleBatch, more: bool, given_up: tuple[Skip, ...]) -> None:
    assert plain(wire.decode_batch(wire.encode_batch(batch))) == plain(batch)
    packed, *answered = wire.decode_packed(wire.encode_packed(batch, more))
    assert (plain(packed), answered) == (plain(batch), [more, (), (), True, 0])
    stored, found = wire.decode_journal(wire.encode_journal(batch, given_up))
    assert (plain(stored), found) == (plain(batch), given_up)
    assert all(type(skip) is Skip and type(skip.source) is SourceId for skip in found)


def test_an_answer_says_what_is_absent_and_how_incarnations_are_called() -> None:
    absent = tuple(Absence(SOURCE, 7, at, at + 1, reason) for at, reason in enumerate(REASONS))
    known = (wire.Incarnation(SOURCE, 7, "0123abcd"),)
    answer = wire.decode_packed(wire.encode_packed(SampleBatch(), False, absent, known))
    assert answer == (SampleBatch(), False, absent, known, True, 0)
    assert all(type(one.reason) is AbsenceReason for one in answer.absent)


def test_a_reply_that_others_follow_says_so() -> None:
    frame = wire.encode_packed(SampleBatch(run(0, 1)), last=False, place=7)
    answer = wire.decode_packed(frame)
    assert (len(answer.samples), answer.last, answer.place) == (2, False, 7)


def test_a_reason_of_a_later_version_costs_nothing_else() -> None:
    later = (SOURCE, 7, 3, 4, 99)
    told = Absence(SOURCE, 7, 5, 6, AbsenceReason.TRIMMED)
    body = msgspec.msgpack.encode((tuple(run(0, 1)), True, (later, told)))
    answer = wire.decode_packed(sealed(Content.PACKED, body))
    assert (len(answer.samples), answer.more, answer.absent) == (2, True, (told,))


def test_an_answer_without_what_is_absent_is_read_as_before() -> None:
    body = msgspec.msgpack.encode((tuple(run(0, 1)), True))
    assert wire.decode_packed(sealed(Content.PACKED, body)) == (
        SampleBatch(run(0, 1)),
        True,
        (),
        (),
        True,
        0,
    )
    assert wire.encode_packed(SampleBatch(run(0, 1)), True) == sealed(Content.PACKED, body)


@pytest.mark.parametrize(
    "field",
    [
        {"absent": ((SOURCE, 7, 4, 3, 0),)},
        {"absent": ((SOURCE, 7, 0, 1 << 35, 0),)},
        {"absent": ((SOURCE, 1 << 29, 0, 1, 0),)},
        {"absent": ((SourceId("G", 1), 1, 0, 1, 0),)},
        {"absent": ((SOURCE, 7, 0, 1, 0),) * (wire.ABSENCES_MAX + 1)},
        {"incarnations": (wire.Incarnation(SOURCE, 7, "0123ABCD"),)},
        {"incarnations": (wire.Incarnation(SOURCE, -1, "0123abcd"),)},
        {"incarnations": (wire.Incarnation(SOURCE, 7, "0123abcd"),) * 1001},
    ],
)
def test_what_no_cache_can_know_is_refused(field: dict[str, tuple[object, ...]]) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode_packed(wire.seal(Content.PACKED, wire.Packed((), **field)))


@given(samples)
def test_an_envelope_and_its_reply_make_the_sample(one: Sample) -> None:
    envelope = wire.decode_envelope(wire.encode_envelope(one))
    assert plain(SampleBatch([envelope.open(one.key, one.payload, one.encoding)])) == plain(
        SampleBatch([one])
    )


@given(samples)
def test_a_place_is_the_sample_without_its_load(one: Sample) -> None:
    place = wire.decode_place(wire.encode_place(one))
    assert (place.order, place.time_order) == (one.order, one.time_order)
    assert (place.payload, place.attachment) == (b"", None)


def test_a_place_may_be_on_the_longest_key() -> None:
    one = sample(key="k" * KEY_BYTES_MAX)
    assert wire.decode_place(wire.encode_place(one)).order == one.order


@given(
    sources,
    st.integers(0, EPOCH_MAX),
    st.lists(st.tuples(st.integers(0, SN_MAX), st.integers(0, SN_MAX)).map(sorted), max_size=9),
)
def test_acks_come_back(source: SourceId, epoch: int, ends: list[list[int]]) -> None:
    ack = Ack("c", 2, source, epoch, tuple((first, last) for first, last in ends))
    assert wire.decode_ack(wire.encode_ack(ack)) == ack


@contents
def test_a_frame_cut_anywhere_is_refused(content: Content) -> None:
    for length in range(len(FRAMES[content])):
        with pytest.raises(RemoteProtocolError):
            DECODERS[content](FRAMES[content][:length])


@contents
def test_a_frame_with_any_bit_flipped_is_refused(content: Content) -> None:
    frame = FRAMES[content]
    for at in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[at] ^= 1 << bit
            with pytest.raises(RemoteProtocolError):
                DECODERS[content](bytes(damaged))


@contents
def test_a_frame_of_another_kind_or_version_is_named(content: Content) -> None:
    frame = FRAMES[content]
    for other in Content:
        if other is not content:
            with pytest.raises(RemoteProtocolError, match=f"content {int(content)}"):
                DECODERS[other](frame)
    with pytest.raises(RemoteProtocolError, match=r"version 2.*upgrade"):
        DECODERS[content](b"\x02" + frame[1:])


@contents
@given(body=st.binary(max_size=60))
def test_any_body_gives_a_value_or_our_error(content: Content, body: bytes) -> None:
    try:
        DECODERS[content](sealed(content, body))
    except RemoteProtocolError:
        return


@contents
def test_a_damaged_body_with_a_right_checksum_gives_a_value_or_our_error(content: Content) -> None:
    random, body = Random(int(content)), FRAMES[content][6:]
    for _ in range(2_000):
        damaged = bytearray(body)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(len(damaged))] = random.choice([0, 0xC0, 0xFF, 0x9F, 0xDD])
        try:
            DECODERS[content](sealed(content, bytes(damaged)))
        except RemoteProtocolError:
            continue


@contents
@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\x00\xff\xff\xff" + b"\xc0" * 50,
        b"\x9f\xdd\x7f\xff\xff\xff",
    ],
    ids=range(7),
)
def test_a_length_that_is_not_there_allocates_nothing(content: Content, body: bytes) -> None:
    frame = sealed(content, body)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            DECODERS[content](frame)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


BAD_FIELDS: list[dict[str, object]] = [
    {"source": SourceId("", 1)},
    {"source": SourceId("0a", 1)},
    {"source": SourceId("XY", 1)},
    {"source": SourceId("a" * 33, 1)},
    {"source": SourceId("a", -1)},
    {"source": SourceId("a", 1 << 32)},
    {"epoch": -1},
    {"epoch": 1 << 29},
    {"sn": -1},
    {"sn": (1 << 35) - 1},
    {"ntp64": -1},
    {"timestamp_id": "zz"},
    {"timestamp_id": "a" * 33},
    {"timestamp_id": "0x1"},
    {"received_ns": -1},
    {"received_ns": 1 << 63},
    {"qos": -1},
    {"qos": 1 << 20},
    {"kind": 7},
    {"key": ""},
    {"key": "a*b"},
    {"key": "a/$b"},
    {"key": "a//b"},
    {"key": "k" * 70_000},
    {"key": "a?b"},
]


def test_a_sample_that_cannot_be_taken_costs_none_of_its_neighbours() -> None:
    good = run(0, 3)
    bad = [
        msgspec.structs.replace(good[0], key="a?b"),
        msgspec.structs.replace(good[0], epoch=-1),
    ]
    update = msgspec.structs.replace(good[0], sn=7, key="a/**")
    frame = wire.encode_packed(SampleBatch([good[0], *bad, update, *good[1:]]), more=True)
    refused: list[str] = []
    answer = wire.decode_packed(frame, refused=refused)
    assert (list(answer[0]), answer.more) == ([good[0], update, *good[1:]], True)
    assert [reason.split(",")[0] for reason in refused] == ["'a?b' is no key", "epoch -1"]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=lambda f: str(f)[:40])
def test_numbers_and_names_that_no_sample_can_have_are_refused(fields: dict[str, object]) -> None:
    bad = msgspec.structs.replace(sample(), **fields)
    for frame, decode in (
        (wire.encode_batch(SampleBatch([sample(), bad])), wire.decode_batch),
        (wire.encode_packed(SampleBatch([bad])), wire.decode_packed),
        (wire.encode_place(bad), wire.decode_place),
    ):
        with pytest.raises(RemoteProtocolError):
            decode(frame)
    if "key" not in fields:
        with pytest.raises(RemoteProtocolError):
            wire.decode_envelope(wire.encode_envelope(bad))


@pytest.mark.parametrize(
    "runs", [((5, 4),), ((-1, 4),), ((0, 1 << 35),), tuple((n, n) for n in range(1_025))]
)
def test_acks_with_impossible_runs_are_refused(runs: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="runs"):
        wire.decode_ack(wire.encode_ack(msgspec.structs.replace(ACK, runs=runs)))


def test_the_callers_bounds_hold() -> None:
    batch = SampleBatch(run(0, 9))
    for frame, decode in (
        (wire.encode_batch(batch), wire.decode_batch),
        (wire.encode_packed(batch), wire.decode_packed),
    ):
        decode(frame, bytes_max=len(frame), samples_max=10)
        with pytest.raises(RemoteProtocolError, match="9 are allowed"):
            decode(frame, samples_max=9)
        with pytest.raises(RemoteProtocolError, match=f"{len(frame) - 1} are allowed"):
            decode(frame, bytes_max=len(frame) - 1)


def test_our_keys_are_keys_that_no_wildcard_reaches() -> None:
    keys = [
        wire.ack_key("default", SOURCE),
        wire.cache_token("default", "c1", "7"),
        wire.publisher_token("default", SOURCE, 5, "0a1b2c3d", "fleet/**"),
    ]
    for key in keys:
        zenoh.KeyExpr(key)
        assert not KeyExpression("**").intersects(KeyExpression(key))


incarnations = st.text("0123456789abcdef", min_size=8, max_size=8)


@given(sources, st.integers(0, EPOCH_MAX), incarnations, key_expressions)
def test_publisher_tokens_come_back(
    source: SourceId, epoch: int, incarnation: str, key_expr: KeyExpression
) -> None:
    token = wire.publisher_token("home", source, epoch, incarnation, key_expr.text)
    assert wire.parse_publisher_token(token, "home") == (source, epoch, key_expr, incarnation)
    assert wire.parse_publisher_token(token, "other") is None


def test_tokens_of_earlier_versions_name_no_incarnation() -> None:
    token = wire.parse_publisher_token("@durable/v1/home/pub/4f2a:7/5/a/*", "home")
    assert token == (SourceId("4f2a", 7), 5, KeyExpression("a/*"), "")


@pytest.mark.parametrize("incarnation", ["", "0a1b2c3d"])
def test_an_ack_names_the_incarnation_or_none(incarnation: str) -> None:
    ack = msgspec.structs.replace(ACK, incarnation=incarnation)
    assert wire.decode_ack(wire.encode_ack(ack)) == ack


def test_acks_of_earlier_versions_are_read() -> None:
    earlier = wire.seal(wire.Content.ACK, msgspec.structs.astuple(ACK)[:-1])
    assert wire.decode_ack(earlier) == ACK


@pytest.mark.parametrize("incarnation", ["0a1b2c3", "0A1B2C3D", "0a1b2c3d4", "x" * 60_000])
def test_acks_with_an_impossible_incarnation_are_refused(incarnation: str) -> None:
    with pytest.raises(RemoteProtocolError, match="incarnation"):
        wire.decode_ack(wire.encode_ack(msgspec.structs.replace(ACK, incarnation=incarnation)))


@pytest.mark.parametrize(
    "tail",
    [
        "",
        "4f2a:7",
        "4f2a:7/5",
        "4f2a:7/x/a",
        "4f2a:7/-5/a",
        "4f2a:7/5/",
        "4F:7/5/a",
        "4f2a:7/٣/a",
        f"4f2a:7/{EPOCH_MAX + 1}/a",
        "4f2a:7/" + "9" * 5000 + "/a",
        "4f2a:7/5/a//b",
        "*/5/a",
        "4f2a:7/5-/a",
        "4f2a:7/5-0a1b2c3/a",
        "4f2a:7/5-0a1b2c3d4/a",
        "4f2a:7/5-0A1B2C3D/a",
        "4f2a:7/-0a1b2c3d/a",
    ],
)
def test_what_is_no_publisher_token_is_none(tail: str) -> None:
    assert wire.parse_publisher_token(f"@durable/v1/home/pub/{tail}", "home") is None


@pytest.mark.parametrize(
    ("key_expr", "own", "stored_by_nobody"),
    [
        ("**", False, False),
        ("fleet/@durable/x", False, False),
        ("@durable/v1/default/x", True, True),
        ("@durable/**", True, True),
        ("@durable/v1/default/consumers/billing/a:7/5", True, False),
    ],
)
def test_keys_of_ours_are_known(key_expr: str, own: bool, stored_by_nobody: bool) -> None:
    parsed = KeyExpression(key_expr)
    assert wire.is_own(parsed) is own
    assert wire.is_stored_by_nobody(parsed) is stored_by_nobody

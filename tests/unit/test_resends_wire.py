"""Are resends and their answers read back as they were written, and refused where they are none?"""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.sample import Sample, SourceId
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
from durable_cache.protocol.wire import Content, parse_history_token, seal

SOURCE = SourceId("ab12", 7)
SAMPLES = tuple(Sample("a/b", SOURCE, 5, sn, b"%d" % sn) for sn in range(3))
REQUEST = ResendRequest("cd34", SOURCE, 5, "0000aaaa", SAMPLES)
REPLY = ResendReply("c1", (ResendRefusal(0, 4, RefusalReason.CONFLICT),))


def test_both_are_read_as_they_were_written() -> None:
    read, samples = decode_resend(encode_resend(REQUEST))
    assert (read, samples.samples) == (REQUEST, SAMPLES)
    assert decode_resent(encode_resent(REPLY)) == REPLY


@pytest.mark.parametrize(
    "change",
    [
        {"sender": "no zid"},
        {"source": SourceId("ab12", 1 << 32)},
        {"epoch": 6},
        {"source": SourceId("ab12", 8)},
        {"incarnation": "AAAA"},
        {"incarnation": ""},
        {"proof": bytes(257)},
        {"samples": SAMPLES * 4000},
    ],
)
def test_what_contradicts_itself_is_refused_whole(change: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_resend(encode_resend(msgspec.structs.replace(REQUEST, **change)))


def test_one_sample_that_cannot_be_taken_costs_no_neighbour() -> None:
    bad = msgspec.structs.replace(SAMPLES[1], qos=900)
    request = msgspec.structs.replace(REQUEST, samples=(SAMPLES[0], bad, SAMPLES[2]))
    assert decode_resend(encode_resend(request))[1].samples == (SAMPLES[0], SAMPLES[2])


def test_an_answer_names_a_thousand_refusals_at_most_and_no_impossible_ones() -> None:
    many = ResendReply("c1", tuple(ResendRefusal(2 * sn, 2 * sn, 0) for sn in range(1500)))
    assert len(decode_resent(encode_resent(many)).refused) == 1000
    for bad in [(5, 4, 0), (-1, 4, 0), (0, 1 << 40, 0)]:
        with pytest.raises(RemoteProtocolError, match="range"):
            decode_resent(seal(Content.RESENT, ("c1", (bad,))))
    with pytest.raises(RemoteProtocolError, match="allowed"):
        decode_resent(seal(Content.RESENT, ("c1", ((0, 0, 0),) * 1001)))


def test_another_version_is_refused_by_both_numbers() -> None:
    for frame, decode in [(encode_resend(REQUEST), decode_resend), (encode_resent(REPLY), None)]:
        later = b"\x09" + frame[1:]
        with pytest.raises(RemoteProtocolError, match="frame version 9, this is version 1"):
            (decode or decode_resent)(later)


def test_fields_of_a_later_version_are_passed_over() -> None:
    later = seal(Content.RESENT, ("c1", ((0, 1, 250),), "more"))
    assert decode_resent(later).refused == ((0, 1, 250),)


@pytest.mark.parametrize(
    "key",
    [
        "@durable/v1/d/history/*/0000aaaa/a/**",
        "@durable/v1/d/history/c1/*/a/**",
        "@durable/v1/d/history/c1/0000aaaa",
        "@durable/v1/other/history/c1/0000aaaa/a",
        "@durable/v1/d/history/c1/0000aaaa/a//b",
    ],
)
def test_a_token_that_is_none_names_no_cache(key: str) -> None:
    assert parse_history_token(key, "d") is None


def test_a_caches_token_is_read() -> None:
    token = parse_history_token("@durable/v1/d/history/c1/0000aaaa/a/**", "d")
    assert token is not None
    assert (token.cache_id, token.incarnation, str(token.key_expr)) == ("c1", "0000aaaa", "a/**")

"""Does docs/wire.md describe every key and every frame that the code writes?"""

from __future__ import annotations

import ast
import re

import msgspec
import pytest

from durable_cache.model.sample import Sample
from durable_cache.protocol import consumers, resends, spool_rows, standings, wire
from durable_cache.protocol.alignment import wire as alignment
from tests.tree import ROOT, named, parsed, source_files

PAGE = " ".join((ROOT / "docs" / "wire.md").read_text(encoding="utf-8").split())
FRAMES: dict[str, type[msgspec.Struct]] = {
    "ENVELOPE": wire.Envelope,
    "PACKED": wire.Packed,
    "ACK": wire.Ack,
    "JOURNAL": wire._JournalEntry,
    "RESEND": resends.ResendRequest,
    "RESENT": resends.ResendReply,
    "POSITION": consumers.Position,
    "DEAD_LETTER": consumers.DeadLetter,
    "BEGINNING": standings.Beginning,
    "SPOOLED": spool_rows.SpoolRow,
    "ROOT": alignment.Root,
}
MESSAGES = (
    *(alignment.Hello, alignment.Diff, alignment.Entries, alignment.Pull, alignment.Blocks),
    *(alignment.DiffReply, alignment.EntriesReply, alignment.PullReply, alignment.BlocksReply),
    *(alignment.WrongSlot, alignment.Refused),
)
CONTENTS = {content.name: int(content) for content in wire.Content} | {
    "ROOT": alignment._ROOT,
    "REQUEST": alignment._REQUEST,
    "REPLY": alignment._REPLY,
}


def fields(struct: type[msgspec.Struct]) -> str:
    return ", ".join(struct.__struct_fields__)


@pytest.mark.parametrize(("name", "number"), CONTENTS.items())
def test_every_frame_is_described(name: str, number: int) -> None:
    assert f"| {number} | `{name}` |" in PAGE


@pytest.mark.parametrize(("name", "struct"), FRAMES.items())
def test_every_field_of_a_frame_is_named_in_its_order(
    name: str, struct: type[msgspec.Struct]
) -> None:
    assert f"| {CONTENTS[name]} | `{name}` | {fields(struct)} |" in PAGE


def test_every_field_of_a_standing_is_named_in_its_order() -> None:
    assert f"A standing is {fields(standings.Standing)}:" in PAGE


def test_every_field_of_a_sample_is_named_in_its_order() -> None:
    assert f"A sample is {fields(Sample)}." in PAGE


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_message_of_alignment_is_described(message: type[msgspec.Struct]) -> None:
    tag = message.__struct_config__.tag
    assert f"| {tag} | `{message.__name__}` | {fields(message)} |" in PAGE


def kinds_of_keys() -> dict[str, str]:
    """Return the first chunk of every key of ours that the code makes, with its place."""
    kinds = {}
    for path in source_files():
        for node in ast.walk(parsed(path)):
            if not (isinstance(node, ast.Call) and len(node.args) > 1):
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called == "own_key" and isinstance(node.args[1], ast.Constant):
                kinds[str(node.args[1].value)] = f"{named(path)}:{node.lineno}"
    return kinds


def test_every_key_of_ours_is_described() -> None:
    kinds = kinds_of_keys()
    assert {"pub", "ack", "store", "cache", "root", "align"} <= kinds.keys()
    missing = [
        where for kind, where in kinds.items() if f"`@durable/v1/<domain>/{kind}/" not in PAGE
    ]
    assert not missing, f"describe in docs/wire.md: {missing}"
    assert wire.own_key("d", "x") == "@durable/v1/d/x"


@pytest.mark.parametrize(
    ("what", "number"),
    [("layout of keys", "`v1`"), ("frames", wire.FRAME_VERSION), ("alignment", alignment.PROTOCOL)],
)
def test_every_version_is_told(what: str, number: object) -> None:
    assert f"| {what} | {number} |" in PAGE


def test_another_version_is_refused_by_both_numbers() -> None:
    frame = bytearray(wire.encode_ack(wire.Ack("c", 2, SOURCE, 1, ())))
    frame[0] = 9
    with pytest.raises(wire.RemoteProtocolError, match="frame version 9, this is version 1"):
        wire.decode_ack(bytes(frame))


def test_a_frame_of_an_earlier_version_is_read_with_defaults() -> None:
    old = wire.seal(wire.Content.ACK, ("c", 2, SOURCE, 1, ()))
    assert wire.decode_ack(old).incarnation == ""
    packed = wire.decode_packed(wire.seal(wire.Content.PACKED, ((), True)))
    assert (packed.more, packed.absent, packed.incarnations, packed.last) == (True, (), (), True)
    token = wire.parse_publisher_token("@durable/v1/d/pub/ab12:7/5/a/b", "d")
    assert token is not None
    assert (token.epoch, token.incarnation) == (5, "")


def test_a_later_field_is_passed_over() -> None:
    later = wire.seal(wire.Content.ACK, ("c", 2, SOURCE, 1, (), "", "of a later version"))
    assert wire.decode_ack(later).cache_id == "c"


SOURCE = wire.SourceId("ab12", 7)


def test_the_page_names_no_parameter_that_is_refused() -> None:
    from durable_cache.endpoints import replies

    shown = set(re.findall(r"`(_[a-z]+)", PAGE))
    assert shown == replies._OURS

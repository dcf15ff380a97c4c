"""Are the tokens that speak of instances written and read alike, and all else passed over?"""

from __future__ import annotations

import pytest

from durable_cache.model.sample import SourceId
from durable_cache.protocol.reader.tokens import (
    Unregistered,
    auto_dispose_token,
    parse_auto_dispose_token,
    parse_native_token,
    parse_unregistered_token,
    unregistered_token,
)
from durable_cache.protocol.wire import parse_publisher_token

SOURCE = SourceId("4f2a", 7)


@pytest.mark.parametrize("key", ["a", "a/b/c", "a/@verbatim/b"])
def test_what_is_written_is_read(key: str) -> None:
    said = Unregistered(SOURCE, (1 << 64) - 1, key)
    assert parse_unregistered_token(unregistered_token("d", said), "d") == said
    assert parse_auto_dispose_token(auto_dispose_token("d", SOURCE), "d") == SOURCE


@pytest.mark.parametrize(
    "token",
    [
        unregistered_token("other", Unregistered(SOURCE, 1, "a")),
        unregistered_token("d", Unregistered(SOURCE, 1 << 64, "a")),
        unregistered_token("d", Unregistered(SOURCE, 1, "a/*")),
        unregistered_token("d", Unregistered(SOURCE, 1, "a//b")),
        "@durable/v1/d/unregistered/4f2a:7/x/a",
        "@durable/v1/d/unregistered/4f2a/1/a",
        "@durable/v1/d/unregistered/4f2a:7/1",
        "@durable/v1/d/unregistered/4f2a:7/²/a",
        "a/b",
    ],
)
def test_what_is_malformed_or_of_another_domain_is_passed_over(token: str) -> None:
    assert parse_unregistered_token(token, "d") is None


@pytest.mark.parametrize(
    "token", ["@durable/v1/d/auto_dispose/x", "@durable/v1/e/auto_dispose/1:1"]
)
def test_no_publisher_is_read_from_another_token(token: str) -> None:
    assert parse_auto_dispose_token(token, "d") is None


@pytest.mark.parametrize(
    ("token", "source"),
    [
        ("a/b/@adv/pub/4f2a/7/_", SOURCE),
        ("a/b/@adv/pub/4f2a/7/meta/x", SOURCE),
        ("a/b/@adv/pub/4f2a/uhlc/_", None),
        ("a/b/@adv/sub/4f2a/7/_", None),
        ("@adv/pub/4f2a/7", None),
    ],
)
def test_a_native_publisher_is_read_from_its_token(token: str, source: SourceId | None) -> None:
    assert parse_native_token(token) == source


def test_a_peer_of_an_earlier_version_takes_none_of_them_for_a_publisher() -> None:
    said = unregistered_token("d", Unregistered(SOURCE, 1, "a"))
    for token in (said, auto_dispose_token("d", SOURCE)):
        assert parse_publisher_token(token, "d") is None

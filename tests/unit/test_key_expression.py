"""Does our matcher decide as Zenoh decides? Zenoh's own KeyExpr is the oracle."""

from __future__ import annotations

from random import Random

import pytest
import zenoh
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.key_expression import KEY_BYTES_MAX, KeyExpression
from durable_cache.testing.samples import HOSTILE_KEYS
from durable_cache.testing.strategies import key_expressions, keys

PAIRS = 16_000
CHUNKS = ["a", "b", "ab", "aab", "*", "**", "$*a", "a$*", "a$*b", "$*a$*", "a$*a$*b", "@a", "@b"]
CHUNKS += ["@a$*", "$*@a", "a@", "é", "\U0001f980$*", '"', "%", "_", "\n", "'", "\\", "a\\$*", "."]
CHUNKS += ["..", " ", "\t$*", "x\x00", "x\x00$*", "x$*\x00", "x$*", "\x00$*", "(a|b)", "[a]", "$*]"]


def texts(random: Random) -> str:
    pool = random.choice([CHUNKS, CHUNKS[:12], ["a", "b", "*", "**", "@a", "a$*", "$*b"]])
    return "/".join(random.choice(pool) for _ in range(random.randint(1, 5)))


def ours(text: str) -> KeyExpression | None:
    try:
        return KeyExpression(text)
    except ValueError:
        return None


def theirs(text: str) -> zenoh.KeyExpr | None:
    try:
        return zenoh.KeyExpr(text)
    except zenoh.ZError:
        return None


def compare(one: str, two: str) -> bool:
    """Compare all decisions on a pair; False where it is none because a side is no expression."""
    left, right, zenoh_left, zenoh_right = ours(one), ours(two), theirs(one), theirs(two)
    assert (left is None) == (zenoh_left is None), one
    assert (right is None) == (zenoh_right is None), two
    if left is None or right is None or zenoh_left is None or zenoh_right is None:
        return False
    pair = f"{one!r} and {two!r}"
    assert left.intersects(right) == zenoh_left.intersects(zenoh_right), pair
    assert right.intersects(left) == left.intersects(right), pair
    assert left.includes(right) == zenoh_left.includes(zenoh_right), pair
    if right.is_key:
        named = zenoh_left.intersects(zenoh_right)
        assert left.matches(two) == named, pair
        if named:
            assert two.startswith(left.prefix), pair
    return True


@pytest.mark.parametrize("seed", range(4))
def test_every_decision_is_zenohs(seed: int) -> None:
    random = Random(seed)
    compared = 0
    while compared < PAIRS // 4:
        compared += compare(texts(random), texts(random))


@given(key_expressions, keys | key_expressions.map(str))
def test_hostile_text_is_decided_as_zenoh_decides_it(wide: KeyExpression, other: str) -> None:
    assert compare(wide.text, other)


@given(keys)
def test_every_key_names_itself(key: str) -> None:
    itself = KeyExpression(key)
    assert itself.is_key
    assert itself.prefix == key
    assert itself.matches(key)
    assert not itself.matches(key + "x")
    assert not itself.matches(key + "\n")


@pytest.mark.parametrize("key", HOSTILE_KEYS)
def test_hostile_keys_are_keys(key: str) -> None:
    expression = KeyExpression(key)
    assert expression.is_key
    assert expression.matches(key)
    assert [other for other in HOSTILE_KEYS if expression.matches(other)] == [key]


@given(st.text("a/*$@#?\n\x00é", max_size=12) | st.text(max_size=12))
def test_what_is_an_expression_is_what_zenoh_takes(text: str) -> None:
    assert (ours(text) is None) == (theirs(text) is None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        "a#b",
        "a?b",
        "a*",
        "*a",
        "***",
        "a/$*",
        "$*$*a",
        "**/**",
        "**/*",
        "a$b",
        "$",
        "$$*",
        "x" * (KEY_BYTES_MAX + 1),
        "a/\udcc3\udca9",
        "é" * (KEY_BYTES_MAX // 2 + 1),
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        KeyExpression(text)


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("a/b", "a/b"),
        ("a/*", "a/"),
        ("a/**", "a"),
        ("a/b$*/c", "a/b"),
        ("**", ""),
        ("*/a", ""),
        ("a/**/b", "a"),
        ("a/$*b", "a/"),
        ("@a/**", "@a"),
        ("a/b$*/**", "a/b"),
    ],
)
def test_the_certain_prefix(text: str, prefix: str) -> None:
    assert KeyExpression(text).prefix == prefix


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a$*" * 30 + "b", "a" * 60_000),
        ("/".join(["a", "**"] * 30) + "/b", "/".join(["a"] * 30_000)),
        ("**/" + "a$*" * 20 + "b/**/c", "/".join(["a" * 40] * 1_500)),
        ("/".join(["**/a$*a$*b"] * 12), "/".join(["aaaaaaaaaa"] * 6_000)),
    ],
)
def test_no_pair_keeps_the_matcher_busy(text: str, key: str) -> None:
    """With backtracking these take longer than anyone would wait."""
    assert not KeyExpression(text).matches(key)


def test_expressions_are_values() -> None:
    assert KeyExpression("a/*") == KeyExpression("a/*") != KeyExpression("a/**")
    assert len({KeyExpression("a/*"), KeyExpression("a/*")}) == 1
    assert str(KeyExpression("a/*")) == "a/*"
    assert KeyExpression("a/*") != "a/*"

"""Does a selector mean what it says, and is every text that says nothing refused?"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample
from durable_cache.model.selection import (
    Order,
    Selection,
    SnBounds,
    TimeBounds,
    parse_max,
    parse_sn,
    parse_source,
    parse_time,
)
from durable_cache.model.sequence import UNNUMBERED_SN_MAX as SN_MAX
from durable_cache.model.timestamp import NTP64_MAX, ntp64_from_ns, ntp64_to_ns
from durable_cache.testing.samples import sample
from durable_cache.testing.strategies import keys, samples, sns, sources

SECOND_NS = 10**9
NOW_NS = 1_795_248_000 * SECOND_NS
NOW = "2026-11-21T08:00:00"
EVERYTHING = [SnBounds(), TimeBounds()]
hostile = st.text(max_size=30) | st.text("0123456789.-+;[]now()smhdwTZ: \x00\n", max_size=40)


@given(sns, sns)
def test_sn_bounds_come_back_from_their_text(one: int, two: int) -> None:
    first, last = sorted((one, two))
    assert parse_sn(f"{first}..{last}") == SnBounds(first, last)
    assert parse_sn(f"{first}..") == SnBounds(first, None)
    assert parse_sn(f"..{last}") == SnBounds(None, last)
    assert parse_sn(f"{first}") == SnBounds(first, first)


@given(st.none() | st.integers(0, 20), st.none() | st.integers(0, 20), st.integers(0, 21))
def test_sn_bounds_hold_both_ends(first: int | None, last: int | None, sn: int) -> None:
    model = range(first or 0, 22 if last is None else last + 1)
    assert SnBounds(first, last).holds(sn) == (sn in model)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "...",
        "1...2",
        "1.2",
        "-1",
        "-1..2",
        "1..-2",
        "5..4",
        "a..b",
        "*",
        "0x10",
        "1e3",
        " 1..2",
        "1..2 ",
        "1..2\n",
        "1,2",
        "1;2",
        "١..٢",
        "1_0",
        "+1",
        "[1..2]",
        "1..2..3",
        "\x00",
        str(SN_MAX + 1),
        f"0..{SN_MAX + 1}",
        "9" * 20,
        "9" * 5000,
        "." * 5000,
        "1.." + "0" * 21,
    ],
)
def test_a_bad_sn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="_sn"):
        parse_sn(text)


def test_the_largest_number_is_taken() -> None:
    assert parse_sn(str(SN_MAX)) == SnBounds(SN_MAX, SN_MAX)
    assert parse_sn("007..010") == SnBounds(7, 10)


@given(st.integers(1, 10**10 - 1))
def test_max_comes_back_from_its_text(number: int) -> None:
    assert parse_max(str(number)) == number


@pytest.mark.parametrize(
    "text", ["", "0", "00", "-1", "+1", "1.0", " 1", "1\n", "all", "٣", "1e2", "9" * 11, "9" * 5000]
)
def test_a_bad_max_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="_max"):
        parse_max(text)


@given(hostile)
def test_no_text_means_everything_by_mistake(text: str) -> None:
    """The parsers answer with ValueError or with bounds that the text has written in it."""
    with suppress(ValueError):
        bounds = parse_sn(text)
        assert bounds not in EVERYTHING
        assert all(end is None or str(end) in text for end in bounds)
    with suppress(ValueError):
        assert parse_max(text) == int(text) > 0
    with suppress(ValueError):
        times = parse_time(text, NOW_NS)
        assert times not in EVERYTHING or text[1:-1] == ".."
        assert 0 <= times.first <= NTP64_MAX
        assert 0 <= times.last <= NTP64_MAX


@given(hostile)
def test_no_prefix_raises_anything_but_valueerror(text: str) -> None:
    with suppress(ValueError):
        zid, eid = parse_source(text)
        assert (zid, eid) != (None, None) or text == "*"


@pytest.mark.parametrize(
    ("text", "expected"), [("*", (None, None)), ("4f", ("4f", None)), ("4f:0", ("4f", 0))]
)
def test_prefixes(text: str, expected: tuple[str | None, int | None]) -> None:
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "**",
        "4F",
        "0f",
        "4f:",
        ":1",
        "4f:01",
        "4f:-1",
        f"4f:{1 << 32}",
        "4f:1:2",
        "g",
        "f" * 33,
        "4f:*",
        "4f:٣",
        "4f: 1",
        "4f:1\n",
    ],
)
def test_a_bad_prefix_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_source(text)


def holds_ns(bounds: TimeBounds, unix_ns: int) -> bool:
    """Whether every NTP64 number of a nanosecond is within; all of them are, or none."""
    first, after = ntp64_from_ns(unix_ns), ntp64_from_ns(unix_ns + 1)
    answers = {bounds.holds(ntp64) for ntp64 in range(first, after)}
    assert len(answers) == 1, "the bound cuts through a nanosecond"
    return answers.pop()


@given(st.sampled_from("[]"), st.sampled_from("[]"), st.integers(0, 4), st.integers(0, 4))
def test_brackets_say_which_ends_are_in(opening: str, closing: str, start: int, end: int) -> None:
    text = f"{opening}{NOW}.{start:09}Z..{NOW}.{end:09}Z{closing}"
    bounds = parse_time(text, 0)
    for at in range(-1, 6):
        after = at >= start if opening == "[" else at > start
        before = at <= end if closing == "]" else at < end
        assert holds_ns(bounds, NOW_NS + at) == (after and before), (text, at)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("[now()..]", 0, None),
        ("[..now()]", None, 0),
        ("[now(-1h)..now(1h)]", -3600, 3600),
        ("[now(-1.5d)..now(2w)]", -129_600, 1_209_600),
        ("[now(-90m);1h]", -5400, -1800),
        ("[now(-10);5]", -10, -5),
        ("[2026-11-21T07:59:00Z;30s]", -60, -30),
        ("[2026-11-21T09:00:30+01:00..]", 30, None),
        ("[ now(-1s) .. now( 1s ) ]", -1, 1),
    ],
)
def test_times_relative_and_absolute(text: str, first: int | None, last: int | None) -> None:
    bounds = parse_time(text, NOW_NS)
    if first is not None:
        assert holds_ns(bounds, NOW_NS + first * SECOND_NS)
        assert not holds_ns(bounds, NOW_NS + first * SECOND_NS - 1)
    else:
        assert bounds.first == 0
    if last is not None:
        assert holds_ns(bounds, NOW_NS + last * SECOND_NS)
        assert not holds_ns(bounds, NOW_NS + last * SECOND_NS + 1)
    else:
        assert bounds.last == NTP64_MAX


@given(
    st.integers(0, 10**7),
    st.integers(0, 10**12 - 1),
    st.sampled_from([("us", 1000), ("ms", 10**6), ("s", SECOND_NS), ("m", 60 * SECOND_NS)]),
)
def test_durations_are_exact(whole: int, fraction: int, unit: tuple[str, int]) -> None:
    length = Fraction(f"{whole}.{fraction:012}") * unit[1]
    bounds = parse_time(f"[{NOW}Z;{whole}.{fraction:012}{unit[0]}]", 0)
    assert ntp64_to_ns(bounds.last) == NOW_NS + round(length)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "now()",
        "(now()..)",
        "[now()]",
        "[;1h]",
        "[now();]",
        "[now();1y]",
        "[now(1x)..]",
        "[now(..]",
        "[now()...now()]",
        "[a..b]",
        "[2026..2027]",
        "[..;1h]",
        "[now();-]",
        "[now();.5s]",
        "[now();1e3s]",
        "[now();infs]",
        "[now();nan]",
        "now()..now()",
        "[now()..now()",
        "[*..]",
        " ",
        "[" + "." * 300 + "]",
        "[now()..]\n",
        "[now();9999999999999s]",
        "[2026-11-21T08:00:00..]",
    ],
)
def test_a_bad_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_time(text, NOW_NS)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("[1960-01-01T00:00:00Z..]", [0, 5, NTP64_MAX]),
        ("]1960-01-01T00:00:00Z..]", [0, 5, NTP64_MAX]),
        ("[..1960-01-01T00:00:00Z]", []),
        ("[..1960-01-01T00:00:00Z[", []),
        ("[..1970-01-01T00:00:00Z[", []),
        ("[2200-01-01T00:00:00Z..]", []),
        ("]2106-02-07T06:28:15.999999999Z..]", []),
        ("[..2106-02-07T06:28:15.999999999Z]", [0, 5, NTP64_MAX]),
        ("[..2200-01-01T00:00:00Z[", [0, 5, NTP64_MAX]),
        ("[now();-1h]", []),
        ("[now(999999999999w)..]", []),
    ],
)
def test_bounds_beyond_the_ends_of_time(text: str, held: list[int]) -> None:
    bounds = parse_time(text, NOW_NS)
    assert [ntp64 for ntp64 in (0, 5, NTP64_MAX) if bounds.holds(ntp64)] == held
    assert 0 <= bounds.first <= NTP64_MAX
    assert 0 <= bounds.last <= NTP64_MAX


@given(samples, st.data())
def test_every_filter_narrows(one: Sample, data: st.DataObject) -> None:
    assert Selection(KeyExpression(one.key)).holds(one)
    other = data.draw(sources)
    key = KeyExpression(data.draw(keys))
    cases = {
        Selection(key): key.matches(one.key),
        Selection(KeyExpression(one.key), zid=other.zid): other.zid == one.source.zid,
        Selection(KeyExpression(one.key), zid=one.source.zid, eid=other.eid): (
            other.eid == one.source.eid
        ),
        Selection(KeyExpression(one.key), epoch=one.epoch + 1): False,
        Selection(KeyExpression(one.key), sns=SnBounds(one.sn, one.sn)): True,
        Selection(KeyExpression(one.key), sns=SnBounds(one.sn + 1)): False,
        Selection(KeyExpression(one.key), times=TimeBounds(one.ntp64, one.ntp64)): True,
        Selection(KeyExpression(one.key), times=TimeBounds(one.ntp64 + 1)): False,
        Selection(KeyExpression(one.key), times=TimeBounds(0, one.ntp64 - 1)): False,
    }
    for selection, expected in cases.items():
        assert selection.holds(one) == expected, selection


def test_the_place_follows_the_order() -> None:
    one = sample(3)
    assert Selection().place(one) == one.order
    assert Selection(order=Order.TIME).place(one) == one.time_order

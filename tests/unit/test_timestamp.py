"""Do times survive the way from nanoseconds to NTP64, to text, and back?"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.timestamp import (
    NTP64_MAX,
    format_ntp64,
    ntp64_at,
    ntp64_from_ns,
    ntp64_to_ns,
    parse_rfc3339_ns,
)

SECOND_NS = 10**9
nanoseconds = st.integers(0, (1 << 32) * SECOND_NS - 1)
ntp64s = st.integers(0, NTP64_MAX)


@given(nanoseconds)
def test_nanoseconds_come_back_exactly(unix_ns: int) -> None:
    assert ntp64_to_ns(ntp64_from_ns(unix_ns)) == unix_ns


@given(ntp64s)
def test_nanoseconds_are_rounded_down(ntp64: int) -> None:
    exact = Fraction(ntp64, 1 << 32) * SECOND_NS
    assert ntp64_to_ns(ntp64) == exact // 1
    assert ntp64_from_ns(ntp64_to_ns(ntp64)) <= ntp64


@given(st.integers(-(10**20), 10**20))
def test_the_number_is_the_first_not_before_the_time(unix_ns: int) -> None:
    exact = Fraction(unix_ns, SECOND_NS) * (1 << 32)
    assert ntp64_at(unix_ns) == -(-exact // 1)
    assert ntp64_from_ns(unix_ns) == min(max(0, ntp64_at(unix_ns)), NTP64_MAX)


@given(ntp64s)
def test_text_comes_back_to_the_nanosecond(ntp64: int) -> None:
    assert parse_rfc3339_ns(format_ntp64(ntp64)) == ntp64_to_ns(ntp64)


def test_text_is_what_people_expect() -> None:
    assert format_ntp64(0) == "1970-01-01T00:00:00.000000000Z"
    assert format_ntp64(NTP64_MAX) == "2106-02-07T06:28:15.999999999Z"


@given(
    st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)),
    st.integers(-1439, 1439),
    st.integers(0, 9),
)
def test_offsets_and_fractions(moment: datetime, offset: int, digits: int) -> None:
    zone = timezone(timedelta(minutes=offset))
    whole = moment.replace(microsecond=0, tzinfo=zone)
    fraction = "123456789"[:digits]
    head, zone_text = whole.isoformat()[:19], whole.isoformat()[19:]
    text = f"{head}{'.' + fraction if fraction else ''}{zone_text}"
    seconds = (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    assert parse_rfc3339_ns(text) == seconds * SECOND_NS + int(fraction.ljust(9, "0"))


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T08:00:00.5Z",
        "2026-11-21t08:00:00.500000000z",
        " 2026-11-21T09:30:00.5+01:30 ",
        "2026-11-21T07:00:00.5-01:00",
    ],
)
def test_one_moment_written_in_many_ways(text: str) -> None:
    assert parse_rfc3339_ns(text) == 1_795_248_000_500_000_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026",
        "2026-11-21",
        "2026-11-21T08:00:00",
        "2026-11-21 08:00:00Z",
        "2026-11-21T08:00:00.Z",
        "2026-11-21T08:00:00.1234567890Z",
        "2026-11-21T08:00:00,5Z",
        "2026-11-21T08.5:00:00Z",
        "2026.5-11-21T08:00:00Z",
        "2026-11-21T08:00:00+01:00:30.5",
        "20261121T080000Z",
        "2026-W47-6T08:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-11-21T24:00:01Z",
        "2026-11-21T08:00:61Z",
        "2026-11-21T08:00:00+24:00",
        "\x00",
        "T",
        "２026-11-21T08:00:00Z",
        "2026-11-21T08:00:00Z2026",
        "-2026-11-21T08:00:00Z",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_rfc3339_ns(text)


@given(st.text(max_size=40) | st.text("0123456789-:.TZ+", max_size=35))
def test_no_text_raises_anything_but_valueerror(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_rfc3339_ns(text), int)

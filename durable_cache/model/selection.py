"""Which samples somebody asks for: the parsed form of a selector.

The parser is strict: a parameter that cannot be read is an error, never "everything".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId, Stream, is_zid
from durable_cache.model.sequence import UNNUMBERED_SN_MAX
from durable_cache.model.timestamp import NTP64_MAX, ntp64_at, parse_rfc3339_ns

PARAMETER_LENGTH_MAX = 256


class Order(Enum):
    """In which order a read returns its samples."""

    IDENTITY = "identity"
    """key as UTF-8 bytes, zid and eid as numbers, epoch, sn."""
    TIME = "time"
    """HLC timestamp, its id as a number, then identity."""


class SnBounds(NamedTuple):
    """The sn asked for, both ends included; None is no bound."""

    first: int | None = None
    last: int | None = None

    def holds(self, sn: int) -> bool:
        return (self.first is None or sn >= self.first) and (self.last is None or sn <= self.last)


class TimeBounds(NamedTuple):
    """The NTP64 timestamps asked for, both ends included; open brackets are already resolved."""

    first: int = 0
    last: int = NTP64_MAX

    def holds(self, ntp64: int) -> bool:
        return self.first <= ntp64 <= self.last


ANY_SN, ANY_TIME = SnBounds(), TimeBounds()
NO_TIME = TimeBounds(1, 0)
"""Bounds that no timestamp is within."""

Cursor = tuple[int | bytes, ...]
"""Where a page ended: the `order` or `time_order` of its last sample."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a read returns; every filter narrows it, `newest` applies after all others."""

    key_expr: KeyExpression = KeyExpression("**")
    zid: str | None = None
    eid: int | None = None
    """Only with `zid`."""
    epoch: int | None = None
    sns: SnBounds = ANY_SN
    times: TimeBounds = ANY_TIME
    newest: int | None = None
    """At most so many per key, the newest by `Sample.time_order`; still returned oldest first."""
    order: Order = Order.IDENTITY

    @property
    def asks_numbers(self) -> bool:
        """Whether it asks for numbers of one source, and for them all."""
        return (
            self.zid is not None
            and self.eid is not None
            and self.newest is None
            and self.times == ANY_TIME
            and self.sns != ANY_SN
        )

    def has_numbering(self, source: SourceId, epoch: int) -> bool:
        """Tell whether the selection may hold samples of a source's epoch, the key aside."""
        return (
            (self.zid is None or source.zid == self.zid)
            and (self.eid is None or source.eid == self.eid)
            and (self.epoch is None or epoch == self.epoch)
        )

    def names(self, stream: Stream) -> bool:
        """Tell whether the selection may hold samples of a stream."""
        return self.has_numbering(stream.source, stream.epoch) and self.key_expr.matches(stream.key)

    def holds(self, sample: Sample) -> bool:
        """Tell whether `sample` passes every filter but `newest`."""
        return (
            self.has_numbering(sample.source, sample.epoch)
            and self.sns.holds(sample.sn)
            and self.times.holds(sample.ntp64)
            and self.key_expr.matches(sample.key)
        )

    def place(self, sample: Sample) -> Cursor:
        """Return where `sample` stands in this selection's order."""
        return sample.order if self.order is Order.IDENTITY else sample.time_order


def parse_source(text: str) -> tuple[str | None, int | None]:
    """Read a query's prefix: ``*`` (any), ``<zid>`` or ``<zid>:<eid>``; ValueError otherwise."""
    if text == "*":
        return None, None
    if is_zid(text):
        return text, None
    source = SourceId.parse(text)
    return source.zid, source.eid


def parse_sn(text: str) -> SnBounds:
    """Read ``_sn``: ``a..b``, ``a..``, ``..b`` or ``a`` (RFC, "The ReliabilityCache").

    Raises ValueError, never to be retried, for anything else, a bare ``..`` included.
    """
    remedy = "write _sn=a..b, a.., ..b or a, with whole numbers"
    match = re.fullmatch(r"([0-9]{0,20})(\.\.)?([0-9]{0,20})", text[:PARAMETER_LENGTH_MAX])
    if match is None or len(text) > PARAMETER_LENGTH_MAX:
        raise ValueError(f"_sn={text[:40]!r}: {remedy}")
    first, dots, last = match.groups()
    if not dots:
        if not first:
            raise ValueError(f"_sn={text!r}: {remedy}")
        return SnBounds(_number(first), _number(first))
    if not first and not last:
        raise ValueError(f"_sn={text!r}: name at least one end; leave _sn out to ask for all")
    bounds = SnBounds(_number(first) if first else None, _number(last) if last else None)
    if bounds.first is not None and bounds.last is not None and bounds.first > bounds.last:
        raise ValueError(f"_sn={text!r}: the range ends before it begins")
    return bounds


def _number(text: str) -> int:
    number = int(text)
    if number > UNNUMBERED_SN_MAX:
        raise ValueError(f"_sn: {text} is above {UNNUMBERED_SN_MAX}, the largest number there is")
    return number


def parse_max(text: str, name: str = "_max") -> int:
    """Read ``_max`` or the like, a positive whole number; ValueError otherwise."""
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) == 0:
        raise ValueError(f"{name}={text[:40]!r}: write a whole number above 0")
    return int(text)


_UNITS_NS = {
    "u": 1_000,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
    "": 1_000_000_000,
}
_DURATION = re.compile(r"(-?)([0-9]{1,12}(?:\.[0-9]{1,12})?)(us|ms|[usmhdw]|)")


def parse_time(text: str, now_ns: int) -> TimeBounds:
    """Read ``_time`` as Zenoh writes it: ``[a..b]``, ``]a..b[``, ``[a;duration]``.

    `a` and `b` are RFC 3339 times, ``now()`` or ``now(-1h)``, or empty; a reversed bracket leaves
    its end out. A nanosecond is in or out as a whole, all NTP64 numbers within it together.
    `now_ns` is Unix nanoseconds. Raises ValueError, never to be retried.
    """
    remedy = "write _time=[start..end], with RFC 3339 times or now(-1h), and ] [ to leave ends out"
    match = re.fullmatch(r"([\[\]])(.*)([\[\]])", text[:PARAMETER_LENGTH_MAX], re.DOTALL)
    if match is None or len(text) > PARAMETER_LENGTH_MAX:
        raise ValueError(f"_time={text[:60]!r}: {remedy}")
    opening, inner, closing = match.groups()
    if ".." in inner:
        start, _, end = inner.partition("..")
        first = _moment(start, now_ns, text) if start else None
        last = _moment(end, now_ns, text) if end else None
    elif ";" in inner:
        start, _, length = inner.partition(";")
        if not start:
            raise ValueError(f"_time={text!r}: a duration needs a start; {remedy}")
        first = _moment(start, now_ns, text)
        last = first + _duration(length, text)
    else:
        raise ValueError(f"_time={text!r}: {remedy}")
    low = 0 if first is None else ntp64_at(first + (opening == "]"))
    high = NTP64_MAX if last is None else ntp64_at(last + (closing == "]")) - 1
    if low > NTP64_MAX or high < 0:
        return NO_TIME
    return TimeBounds(max(0, low), min(high, NTP64_MAX))


def _moment(text: str, now_ns: int, whole: str) -> int:
    match = re.fullmatch(r"now\((.*)\)", text.strip())
    if match is None:
        return parse_rfc3339_ns(text)
    return now_ns + (_duration(match[1], whole) if match[1] else 0)


def _duration(text: str, whole: str) -> int:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"_time={whole!r}: {text!r} is no duration; write 30s, 5m, 1.5h, 2d or 1w")
    sign, amount, unit = match.groups()
    length = round(Fraction(amount) * _UNITS_NS[unit])
    return -length if sign else length

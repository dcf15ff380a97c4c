"""How zenoh's samples and stamps become ours, many at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import zenoh
from zenoh import Session

from durable_cache.model.key_expression import is_too_long
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.model.unnumbered import is_unnumbered

__all__ = [
    "Decoder",
    "NO_SOURCE",
    "build_timestamp",
    "new_timestamp",
    "raw_timestamp",
]

NO_SOURCE = SourceId("0", 0)
"""Stands in a sample that came without source_info; no storage ever holds it."""


_CACHED_MAX = 65_536


PUT = zenoh.SampleKind.PUT
_number = cast("Callable[[object], int]", int)
"""Zenoh's enums are numbers at run time, which their type stubs do not say."""
_NTP_SECONDS_MAX = (1 << 32) - 1


class Decoder:
    """Turns zenoh's samples into ours, many at a time; owned by one thread.

    Reading a field of a zenoh sample costs about 0.1 microsecond, so each is read once and what
    repeats (sources, encodings) is looked up. At most 65,536 names are remembered of each.
    """

    def __init__(self, own_zid: str, payload_bytes_max: int) -> None:
        self._own_zid = own_zid
        self._payload_bytes_max = payload_bytes_max
        self._sources: dict[str, SourceId] = {}
        self.without_source = 0
        self.oversized = 0

    def decode(
        self,
        samples: list[zenoh.Sample],
        received_ns: int,
        *,
        keep_plain: bool = False,
        left_out: list[Sample] | None = None,
    ) -> list[Sample]:
        """Return our samples, epoch 0; those without source_info only with `keep_plain`.

        One whose payload is over the bound is counted in `oversized` and left out; where it has a
        number it is added to `left_out`, without its payload and attachment. So is one on a key
        that no answer could bear, unless it has no number and nobody stores it.
        """
        decoded: list[Sample] = []
        for sample in samples:
            info = sample.source_info
            source = NO_SOURCE if info is None else self._source(str(info.source_id))
            if info is None or is_unnumbered(source):
                self.without_source += 1
                if not keep_plain:
                    continue
                source, sn = NO_SOURCE, 0
            else:
                sn = info.source_sn
            payload = sample.payload
            key = str(sample.key_expr)
            whole = len(payload) <= self._payload_bytes_max
            if is_too_long(key) and (left_out is None or info is not None):
                whole = False
            if not whole:
                self.oversized += 1
                if left_out is None or info is None:
                    continue
            attachment = sample.attachment if whole else None
            stamp = sample.timestamp
            if stamp is not None:
                raw, _, stamp_id = str(stamp).partition("/")
                ntp64, stamped = int(raw), False
            else:
                ntp64, stamp_id, stamped = ntp64_from_ns(received_ns), self._own_zid, True
            (decoded if whole or left_out is None else left_out).append(
                Sample(
                    key,
                    source,
                    0,
                    sn,
                    payload.to_bytes() if whole else b"",
                    Kind.PUT if sample.kind == PUT else Kind.DELETE,
                    str(sample.encoding),
                    None if attachment is None else attachment.to_bytes(),
                    ntp64,
                    stamp_id,
                    stamped,
                    _number(sample.priority)
                    | _number(sample.congestion_control) << 3
                    | sample.express << 5,
                    received_ns,
                )
            )
        return decoded

    def _source(self, text: str) -> SourceId:
        source = self._sources.get(text)
        if source is None:
            # EntityGlobalId { zid: 4f2a, eid: 7 }: one call for both, where two cost four times.
            zid, _, eid = text.removeprefix("EntityGlobalId { zid: ").partition(", eid: ")
            source = SourceId(zid, int(eid.removesuffix(" }")))
            if len(self._sources) >= _CACHED_MAX:
                self._sources.clear()
            self._sources[text] = source
        return source


def new_timestamp(session: Session) -> zenoh.Timestamp:
    """Return a stamp of the session's hybrid logical clock."""
    return session.new_timestamp()


def raw_timestamp(stamp: zenoh.Timestamp) -> tuple[int, str]:
    """Return a stamp as (NTP64, id)."""
    raw, _, stamp_id = str(stamp).partition("/")
    return int(raw), stamp_id


def build_timestamp(ntp64: int, stamp_id: str) -> zenoh.Timestamp | None:
    """Return zenoh's form of a stamp; None where zenoh cannot hold it.

    Zenoh's Python makes stamps of whole nanoseconds: up to one too late. Our envelope is exact.
    """
    seconds, fraction = ntp64 >> 32, ntp64 & 0xFFFFFFFF
    nanoseconds = -(-fraction * 1_000_000_000 >> 32)
    if seconds >= _NTP_SECONDS_MAX or nanoseconds > 999_999_999 or not stamp_id:
        return None
    number = int(stamp_id, 16)
    identifier = number.to_bytes(max(1, (number.bit_length() + 7) // 8), "little")
    if not 0 < len(identifier) <= 16 or number == 0:
        return None
    return zenoh.Timestamp(zenoh.NTP64(seconds, nanoseconds), zenoh.TimestampId(identifier))

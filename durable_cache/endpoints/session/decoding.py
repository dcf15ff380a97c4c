"""How zenoh's samples and stamps become ours, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import zenoh
from zenoh import Session

from durable_cache.endpoints.session.columns import decode_ordinary, number_of
from durable_cache.endpoints.session.declared_keys import DeclaredKeys
from durable_cache.model.key_expression import is_too_long
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.model.unnumbered import UNNUMBERED_EID

NO_SOURCE = SourceId("0", 0)
"""Stands in a sample that came without source_info; no storage ever holds it."""


_CACHED_MAX = 65_536
_COLUMNS_MIN = 16
"""From so many samples on it costs less to read them field by field."""


PUT = zenoh.SampleKind.PUT
_PUT, _DELETE = Kind.PUT, Kind.DELETE
_NTP_SECONDS_MAX = (1 << 32) - 1


@dataclass(slots=True)
class _Last:
    """What the last sample was published with, as zenoh has it, and as we do."""

    key: zenoh.KeyExpr
    key_text: str
    key_too_long: bool
    encoding: zenoh.Encoding
    encoding_text: str
    priority: zenoh.Priority
    congestion: zenoh.CongestionControl
    qos: int

    @classmethod
    def of(cls, sample: zenoh.Sample) -> _Last:
        key, encoding = sample.key_expr, sample.encoding
        priority, congestion = sample.priority, sample.congestion_control
        qos = number_of(priority) | number_of(congestion) << 3
        text = str(key)
        long = is_too_long(text)
        return cls(key, text, long, encoding, str(encoding), priority, congestion, qos)


class Decoder:
    """Turns zenoh's samples into ours, many at a time; owned by one thread.

    Every field of a zenoh sample that is looked at is an object made for that, and words cost most:
    0.2 to 0.4 microseconds each. So each is read once, and what repeats (sources, keys, encodings)
    is compared with what it was before, which costs less than to write it out. Many samples are
    read field by field, as what holds for a whole column is said once (ADR 0225). At most 65,536
    sources are remembered.
    """

    def __init__(
        self, own_zid: str, payload_bytes_max: int, keys: DeclaredKeys | None = None
    ) -> None:
        """`keys` is told which ones come."""
        self._own_zid = own_zid
        self._payload_bytes_max = payload_bytes_max
        self._keys = keys
        self._sources: dict[SourceId, SourceId] = {}
        self._by_eid: dict[int, tuple[zenoh.ZenohId, SourceId]] = {}
        """The source that bore each entity number last, and its session as zenoh has it."""
        self._last: _Last | None = None
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
        if not samples:
            return []
        if len(samples) >= _COLUMNS_MIN:
            bytes_max = self._payload_bytes_max
            decoded = decode_ordinary(samples, received_ns, bytes_max, self._source, self._meet)
            if decoded is not None:
                return decoded
        return self._one_by_one(samples, received_ns, keep_plain, left_out)

    def _one_by_one(
        self,
        samples: list[zenoh.Sample],
        received_ns: int,
        keep_plain: bool,
        left_out: list[Sample] | None,
    ) -> list[Sample]:
        decoded: list[Sample] = []
        payload_bytes_max = self._payload_bytes_max
        if self._last is None:
            # Not None to compare with: that is what zenoh's own encoding equals.
            self._last = _Last.of(samples[0])
            self._meet((self._last.key_text,))
        last = self._last
        for sample in samples:
            info = sample.source_info
            source = NO_SOURCE if info is None else self._source(info.source_id)
            if info is None or source.eid == UNNUMBERED_EID:
                self.without_source += 1
                if not keep_plain:
                    continue
                source, sn = NO_SOURCE, 0
            else:
                sn = info.source_sn
            payload = sample.payload
            key = sample.key_expr
            if key != last.key:
                last.key, last.key_text = key, str(key)
                last.key_too_long = is_too_long(last.key_text)
                self._meet((last.key_text,))
            size = len(payload)
            whole = size <= payload_bytes_max
            if last.key_too_long and (left_out is None or info is not None):
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
            encoding, priority = sample.encoding, sample.priority
            congestion = sample.congestion_control
            if encoding != last.encoding:
                last.encoding, last.encoding_text = encoding, str(encoding)
            if priority != last.priority or congestion != last.congestion:
                last.priority, last.congestion = priority, congestion
                last.qos = number_of(priority) | number_of(congestion) << 3
            (decoded if whole or left_out is None else left_out).append(
                Sample(
                    last.key_text,
                    source,
                    EPOCH_UNKNOWN,
                    sn,
                    payload.to_bytes() if whole else b"",
                    _PUT if size or sample.kind == PUT else _DELETE,  # a delete has no payload
                    last.encoding_text,
                    None if attachment is None else attachment.to_bytes(),
                    ntp64,
                    stamp_id,
                    stamped,
                    last.qos | sample.express << 5,
                    received_ns,
                )
            )
        return decoded

    def _meet(self, keys: Sequence[str]) -> None:
        if self._keys is not None:
            self._keys.meet(keys)

    def _source(self, told: zenoh.EntityGlobalId) -> SourceId:
        zid, eid = told.zid, told.eid
        known = self._by_eid.get(eid)
        if known is not None and known[0] == zid:
            return known[1]
        if len(self._sources) >= _CACHED_MAX:
            self._sources.clear()
            self._by_eid.clear()
        source = SourceId(str(zid), eid)
        source = self._sources.setdefault(source, source)
        self._by_eid[eid] = zid, source
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
    identifier = build_timestamp_id(stamp_id)
    if identifier is None:
        return None
    return zenoh.Timestamp(zenoh.NTP64(seconds, nanoseconds), identifier)


def build_timestamp_id(stamp_id: str) -> zenoh.TimestampId | None:
    """Return zenoh's form of an id in hex; None where it is none."""
    number = int(stamp_id, 16)
    identifier = number.to_bytes(max(1, (number.bit_length() + 7) // 8), "little")
    if not 0 < len(identifier) <= 16 or number == 0:
        return None
    return zenoh.TimestampId(identifier)

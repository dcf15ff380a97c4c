"""Which columns a frame of history has, and how the samples of a page become them.

They are the columns of the Spark view `samples`, with its types where Arrow has no better one:
unsigned 64-bit numbers are unsigned 64-bit numbers. What a page has once, such as its source, is
written once and repeated by Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from durable_cache.errors import ConfigError
from durable_cache.frame.decoding import PayloadDecoder, numbers, texts, values
from durable_cache.model.sample import Kind, Sample, SourceId

_MICROSECONDS = pa.timestamp("us", tz="UTC")
_INT64_MAX = (1 << 63) - 1
_PACKED = pa.uint64()
_STRING = pa.string()
_THREE, _SEVEN = pa.scalar(3, pa.int32()), pa.scalar(7, pa.int32())

ValueT = TypeVar("ValueT")


class _Page:
    """The fields of a page's samples, each as a list; the columns that others are made of."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        # A list for each field: one tuple for each sample would have the collector walk them all.
        self.keys = [s.key for s in samples]
        self.sources = [s.source for s in samples]
        self.epochs = [s.epoch for s in samples]
        self.sns = [s.sn for s in samples]
        self.payloads = [s.payload for s in samples]
        self.kinds = [s.kind for s in samples]
        self.encodings = [s.encoding for s in samples]
        self.attachments = [s.attachment for s in samples]
        self.ntp64s = [s.ntp64 for s in samples]
        self.timestamp_ids = [s.timestamp_id for s in samples]
        self.stamped = [s.stamped for s in samples]
        self.qos = [s.qos for s in samples]
        self.received_ns = [s.received_ns for s in samples]

    @cached_property
    def distinct_sources(self) -> _Distinct[SourceId]:
        return _Distinct(self.sources)

    @cached_property
    def payload(self) -> pa.Array:
        return pa.array(self.payloads, pa.binary())

    @cached_property
    def epoch(self) -> pa.Array:
        return _column(self.epochs, pa.int64())

    @cached_property
    def sn(self) -> pa.Array:
        return pa.array(self.sns, pa.int64())

    @cached_property
    def ntp64(self) -> pa.Array:
        # Arrow reads signed numbers four times as fast; they are large enough until 2038.
        if max(self.ntp64s) <= _INT64_MAX:
            return pa.array(self.ntp64s, pa.int64()).cast(_PACKED)
        return pa.array(self.ntp64s, _PACKED)

    @cached_property
    def received(self) -> pa.Array:
        return pa.array(self.received_ns, pa.int64())

    @cached_property
    def packed_qos(self) -> pa.Array:
        return _column(self.qos, pa.int32())

    @cached_property
    def text(self) -> pa.Array:
        return texts(self.payload, self.encodings)

    def value(self, decoder: PayloadDecoder) -> pa.Array:
        deleted = Kind.DELETE in self.kinds
        payloads: Sequence[bytes | None] = self.payloads
        if deleted:
            pairs = zip(self.payloads, self.kinds, strict=True)
            payloads = [None if kind is Kind.DELETE else payload for payload, kind in pairs]
        return values(payloads, self.encodings, decoder)


def _column(found: Sequence[object], kind: pa.DataType) -> pa.Array:
    if found.count(found[0]) == len(found):
        return pa.repeat(pa.scalar(found[0], kind), len(found))
    return pa.array(found, kind)


class _Distinct(Generic[ValueT]):
    """The distinct ones of some values, and where each stands: most pages have few."""

    def __init__(self, found: Sequence[ValueT]) -> None:
        self._length = len(found)
        if found.count(found[0]) == len(found):
            self._values, self._places = [found[0]], None
            return
        places: dict[ValueT, int] = {}
        at = [places.setdefault(value, len(places)) for value in found]
        self._values, self._places = [*places], pa.array(at, pa.int32())

    def told(self, tell: Callable[[ValueT], object], kind: pa.DataType = _STRING) -> pa.Array:
        """Tell something of each distinct value once."""
        told = [tell(value) for value in self._values]
        if self._places is None:
            return pa.repeat(pa.scalar(told[0], kind), self._length)
        return pc.take(pa.array(told, kind), self._places)


def _encoding_schema(encoding: str) -> str | None:
    _, found, schema = encoding.partition(";")
    return schema if found else None


def _sequence(page: _Page) -> pa.Array:
    high = pc.shift_left(page.epoch.cast(_PACKED), pa.scalar(35, _PACKED))
    return pc.add(pc.add(page.sn.cast(_PACKED), pa.scalar(1, _PACKED)), high)


def _timestamp(page: _Page) -> pa.Array:
    million, word = pa.scalar(1_000_000, _PACKED), pa.scalar(32, _PACKED)
    seconds = pc.multiply(pc.shift_right(page.ntp64, word), million)
    fraction = pc.bit_wise_and(page.ntp64, pa.scalar(0xFFFFFFFF, _PACKED))
    below = pc.shift_right(pc.multiply(fraction, million), word)
    return pc.add(seconds, below).cast(pa.int64()).cast(_MICROSECONDS)


def _received_at(page: _Page) -> pa.Array:
    return pc.divide(page.received, pa.scalar(1000, pa.int64())).cast(_MICROSECONDS)


def _congestion(page: _Page) -> pa.Array:
    return pc.bit_wise_and(pc.shift_right(page.packed_qos, _THREE), _THREE)


class _Column(NamedTuple):
    kind: pa.DataType
    make: Callable[[_Page], pa.Array]


_MAKERS: Mapping[str, _Column] = {
    "key_expr": _Column(_STRING, lambda page: _column(page.keys, pa.string())),
    "source": _Column(_STRING, lambda page: page.distinct_sources.told(str)),
    "source_zid": _Column(_STRING, lambda page: page.distinct_sources.told(attrgetter("zid"))),
    "source_eid": _Column(
        pa.int64(), lambda page: page.distinct_sources.told(attrgetter("eid"), pa.int64())
    ),
    "epoch": _Column(pa.int64(), lambda page: page.epoch),
    "sn": _Column(pa.int64(), lambda page: page.sn),
    "sequence": _Column(_PACKED, _sequence),
    "kind": _Column(_STRING, lambda page: _Distinct(page.kinds).told(attrgetter("name"))),
    "payload": _Column(pa.binary(), lambda page: page.payload),
    "text": _Column(_STRING, lambda page: page.text),
    "number": _Column(pa.float64(), lambda page: numbers(page.payload, page.encodings, page.text)),
    "encoding": _Column(_STRING, lambda page: _column(page.encodings, pa.string())),
    "encoding_schema": _Column(
        _STRING, lambda page: _Distinct(page.encodings).told(_encoding_schema)
    ),
    "attachment": _Column(pa.binary(), lambda page: _column(page.attachments, pa.binary())),
    "ntp64": _Column(_PACKED, lambda page: page.ntp64),
    "timestamp_id": _Column(_STRING, lambda page: _column(page.timestamp_ids, pa.string())),
    "timestamp": _Column(_MICROSECONDS, _timestamp),
    "stamped": _Column(pa.bool_(), lambda page: _column(page.stamped, pa.bool_())),
    "received_at": _Column(_MICROSECONDS, _received_at),
    "received_ns": _Column(pa.int64(), lambda page: page.received),
    "priority": _Column(pa.int32(), lambda page: pc.bit_wise_and(page.packed_qos, _SEVEN)),
    "congestion_control": _Column(pa.int32(), _congestion),
    "express": _Column(pa.bool_(), lambda page: pc.greater_equal(page.packed_qos, 1 << 5)),
    "payload_bytes": _Column(
        pa.int64(), lambda page: pc.binary_length(page.payload).cast(pa.int64())
    ),
}
VALUE = "value"

COLUMNS: tuple[str, ...] = tuple(_MAKERS)
"""The columns of a frame, in order; `value` comes last where a decoder is given."""


def schema_of(names: Sequence[str], decoder: PayloadDecoder | None) -> pa.Schema:
    """Return the schema of a frame. Raises ConfigError for a column that is none."""
    unknown = [name for name in names if name not in _MAKERS]
    if unknown:
        raise ConfigError(f"columns: {unknown[0]!r} is no column; known: {', '.join(COLUMNS)}")
    if not names:
        raise ConfigError(f"columns: name at least one of {', '.join(COLUMNS)}")
    fields = [pa.field(name, _MAKERS[name].kind) for name in dict.fromkeys(names)]
    return pa.schema(fields + ([pa.field(VALUE, decoder.returns)] if decoder else []))


def batch_of(
    samples: Sequence[Sample], schema: pa.Schema, decoder: PayloadDecoder | None
) -> pa.RecordBatch:
    """Return the samples of a page, at least one, as `schema_of` says."""
    page = _Page(samples)
    columns = [_MAKERS[name].make(page) for name in schema.names if name != VALUE]
    if decoder is not None:
        columns.append(page.value(decoder))
    return pa.RecordBatch.from_arrays(columns, schema=schema)

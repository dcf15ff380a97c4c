"""How do the samples of a batch become Arrow columns?

Each field is read once, in the order of the batch, which is the order of memory; Arrow puts the
rows into the order of the table. What a stream has once is written once and spread over its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from durable_cache.model.sample import Kind, Sample, Stream
from durable_cache_delta.rows import storable_numbers, storable_texts
from durable_cache_delta.schema import SAMPLES_IN_FILES, encoding_schema

_THREE = pa.scalar(3, pa.int32())
_SEVEN = pa.scalar(7, pa.int32())
_PACKED = pa.uint64()
_TEXTS = pa.dictionary(pa.int32(), pa.string())
_BYTES = ("payload", "attachment")
_INT64_MAX = (1 << 63) - 1


class StreamPlaces(NamedTuple):
    """Where in a batch the rows of a stream are, by rising sn."""

    stream: Stream
    places: Sequence[int]


class Columns:
    """The fields of a batch's samples, in the order of the batch; immutable."""

    def __init__(self, samples: Sequence[Sample], digests: Sequence[bytes]) -> None:
        self._samples = samples
        self._digests = digests
        self.sns = [s.sn for s in samples]
        self.ntp64 = [s.ntp64 for s in samples]
        self.received_ns = [s.received_ns for s in samples]
        self._qos = [s.qos for s in samples]
        self._encodings = [s.encoding for s in samples]
        self._timestamp_ids = [s.timestamp_id for s in samples]
        self._rows: pa.Table | None = None

    def __len__(self) -> int:
        return len(self._samples)

    def storable(self) -> bool:
        """Tell whether a table can hold every sample, its stream aside."""
        return (
            storable_numbers(self.sns, self.received_ns, self.ntp64, set(self._qos))
            and storable_texts(set(self._encodings))
            and storable_texts(set(self._timestamp_ids))
        )

    @property
    def sizes(self) -> list[int]:
        """Payload and attachment bytes of each sample."""
        return [len(s.payload) + len(s.attachment or b"") for s in self._samples]

    @property
    def stored_bytes(self) -> int:
        """Payload and attachment bytes of all."""
        lengths = (pc.sum(pc.binary_length(self.rows.column(name))).as_py() for name in _BYTES)
        return sum(length or 0 for length in lengths)

    @property
    def rows(self) -> pa.Table:
        """What each sample has of its own; made once. The samples must be storable."""
        if self._rows is None:
            self._rows = self._make()
        return self._rows

    def _make(self) -> pa.Table:
        samples = self._samples
        return pa.table(
            {
                "sn": pa.array(self.sns, pa.int64()),
                "kind": _constant([s.kind for s in samples], pa.int8()),
                "payload": pa.array([s.payload for s in samples], pa.binary()),
                "encoding": _texts(self._encodings),
                "attachment": pa.array([s.attachment for s in samples], pa.binary()),
                "ntp64": _unsigned(self.ntp64),
                "timestamp_id": _texts(self._timestamp_ids),
                "stamped": _constant([s.stamped for s in samples], pa.bool_()),
                "received_ns": pa.array(self.received_ns, pa.int64()),
                "qos": _constant(self._qos, pa.int32()),
                "payload_digest": pa.array(self._digests, pa.binary()),
            }
        )


def table_of(columns: Columns, streams: Sequence[StreamPlaces]) -> pa.Table:
    """Return the rows of some streams, in the order given, with the columns that files hold.

    Texts that repeat are dictionaries, which Parquet stores as they are.
    """
    order = pa.array([at for _, places in streams for at in places], pa.int32())
    rows = columns.rows.take(order)
    ends = list(accumulate(len(places) for _, places in streams))
    own = [stream for stream, _ in streams]
    sources = [stream.source for stream in own]
    epoch = _spread([stream.epoch for stream in own], pa.int64(), ends)
    values = {name: rows.column(name) for name in rows.column_names}
    qos, ntp64, payload = values.pop("qos"), values["ntp64"], values["payload"]
    values |= {
        "key_expr": _spread_texts([stream.key for stream in own], ends),
        "source_zid": _spread_texts([source.zid for source in sources], ends),
        "source_eid": _spread([source.eid for source in sources], pa.int64(), ends),
        "epoch": epoch,
        "sequence": _sequences(epoch, values["sn"]),
        "kind": _kinds(values["kind"]),
        "encoding_schema": _encoding_schemas(values["encoding"]),
        "ntp64": ntp64.cast(pa.decimal128(20, 0)),
        "timestamp": _timestamps(ntp64),
        "received_at": _microseconds(pc.divide(values["received_ns"], 1000)),
        "priority": pc.bit_wise_and(qos, _SEVEN),
        "congestion_control": pc.bit_wise_and(pc.shift_right(qos, _THREE), _THREE),
        "express": pc.greater_equal(qos, 1 << 5),
        "payload_bytes": pc.binary_length(payload).cast(pa.int64()),
    }
    fields = [field.with_type(values[field.name].type) for field in SAMPLES_IN_FILES]
    return pa.table([values[field.name] for field in fields], schema=pa.schema(fields))


def _constant(values: list[int], kind: pa.DataType) -> pa.Array:
    if values and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    return pa.array(values, kind)


def _texts(values: list[str]) -> pa.Array:
    if values and values.count(values[0]) == len(values):
        codes = pa.repeat(pa.scalar(0, pa.int32()), len(values))
        return pa.DictionaryArray.from_arrays(codes, pa.array(values[:1], pa.string()))
    return pa.array(values, pa.string()).dictionary_encode()


def _unsigned(values: list[int]) -> pa.Array:
    """Go by the signed numbers, which Arrow reads four times as fast, while they are large enough.

    They are until 2038.
    """
    if max(values, default=0) <= _INT64_MAX:
        return pa.array(values, pa.int64()).cast(_PACKED)
    return pa.array(values, _PACKED)


def _spread(values: Iterable[int], kind: pa.DataType, ends: list[int]) -> pa.Array:
    """Repeat one value for each stream over the stream's rows."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values, kind))
    return pc.run_end_decode(runs)


def _spread_texts(values: list[str], ends: list[int]) -> pa.Array:
    coded = pa.array(values, pa.string()).dictionary_encode()
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), coded.indices)
    return pa.DictionaryArray.from_arrays(pc.run_end_decode(runs), coded.dictionary)


def _kinds(kinds: pa.ChunkedArray) -> pa.ChunkedArray:
    codes = kinds.cast(pa.int32())
    names = pa.array([kind.name for kind in sorted(Kind)], pa.string())
    return pa.chunked_array(
        [pa.DictionaryArray.from_arrays(chunk, names) for chunk in codes.chunks], _TEXTS
    )


def _encoding_schemas(encodings: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cut the schema out of each distinct encoding once."""
    return pa.chunked_array([_schemas_of(chunk) for chunk in encodings.chunks], _TEXTS)


def _schemas_of(coded: pa.DictionaryArray) -> pa.DictionaryArray:
    schemas = [encoding_schema(text) for text in coded.dictionary.to_pylist()]
    distinct = pa.array(schemas, pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(coded.indices), distinct.dictionary)


def _sequences(epoch: pa.Array, sn: pa.ChunkedArray) -> pa.ChunkedArray:
    high = pc.shift_left(epoch.cast(_PACKED), pa.scalar(35, _PACKED))
    low = pc.add(sn.cast(_PACKED), pa.scalar(1, _PACKED))
    return pc.add(low, high).cast(pa.decimal128(20, 0))


def _timestamps(ntp64: pa.ChunkedArray) -> pa.ChunkedArray:
    million = pa.scalar(1_000_000, _PACKED)
    word = pa.scalar(32, _PACKED)
    seconds = pc.multiply(pc.shift_right(ntp64, word), million)
    fraction = pc.bit_wise_and(ntp64, pa.scalar(0xFFFFFFFF, _PACKED))
    below = pc.shift_right(pc.multiply(fraction, million), word)
    return _microseconds(pc.add(seconds, below).cast(pa.int64()))


def _microseconds(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    return numbers.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))

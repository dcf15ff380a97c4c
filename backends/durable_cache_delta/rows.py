"""How do samples become Arrow columns, and Arrow columns samples again?

Column by column, never row by row: a dictionary per row would cost more than the rest of a commit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache_delta.schema import SAMPLES_IN_FILES, encoding_schema

__all__ = ["DAY_NS", "IDENTITY", "refusal", "samples_of", "storable", "table_of", "unsigned"]

DAY_NS = 86_400 * 10**9
IDENTITY = ("key_expr", "source_zid", "source_eid", "epoch", "sn")
READ_COLUMNS = (
    *IDENTITY,
    "payload",
    "kind",
    "encoding",
    "attachment",
    "ntp64",
    "timestamp_id",
    "stamped",
    "priority",
    "congestion_control",
    "express",
    "received_ns",
)
"""What a `Sample` is rebuilt from; the other columns are for people and for other engines."""

_SN_MAX = (1 << 35) - 2
_EPOCH_MAX = (1 << 29) - 1
_INT64_MAX = (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1
_KIND_NAMES = (Kind.DELETE.name, Kind.PUT.name)
_THREE = pa.scalar(3, pa.int32())
_SEVEN = pa.scalar(7, pa.int32())
_PACKED = pa.uint64()


def refusal(sample: Sample) -> str | None:
    """Return why no table can ever hold `sample`, or None when it can."""
    if not 0 <= sample.sn <= _SN_MAX:
        return f"sn {sample.sn} is not between 0 and {_SN_MAX}"
    if not 0 <= sample.epoch <= _EPOCH_MAX:
        return f"epoch {sample.epoch} is not between 0 and {_EPOCH_MAX}"
    if not 0 <= sample.source.eid < 1 << 32:
        return f"the source's eid {sample.source.eid} is no unsigned 32-bit number"
    if not 0 <= sample.received_ns <= _INT64_MAX or not 0 <= sample.ntp64 <= _UINT64_MAX:
        return "a time is outside of what 64 bits hold"
    if not 0 <= sample.qos < 1 << 6:
        return f"QoS {sample.qos} is not one that Zenoh has"
    texts = (sample.key, sample.source.zid, sample.encoding, sample.timestamp_id)
    if not all(map(_is_utf8, texts)):
        return "a text of it is not valid Unicode, which every text in Zenoh is"
    return None


@lru_cache(maxsize=65536)
def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def table_of(samples: Sequence[Sample], digests: Sequence[bytes]) -> pa.Table:
    """Return the rows of `samples`, in their order, with the columns that files hold."""
    sources = [s.source for s in samples]
    epoch = pa.array([s.epoch for s in samples], pa.int64())
    sn = pa.array([s.sn for s in samples], pa.int64())
    received_ns = pa.array([s.received_ns for s in samples], pa.int64())
    ntp64 = pa.array([s.ntp64 for s in samples], pa.uint64())
    qos = pa.array([s.qos for s in samples], pa.int32())
    payload = pa.array([s.payload for s in samples], pa.binary())
    encoding = pa.array([s.encoding for s in samples], pa.string())
    columns = {
        "key_expr": pa.array([s.key for s in samples], pa.string()),
        "source_zid": pa.array([source.zid for source in sources], pa.string()),
        "source_eid": pa.array([source.eid for source in sources], pa.int64()),
        "epoch": epoch,
        "sn": sn,
        "sequence": _sequences(epoch, sn),
        "kind": pc.if_else(
            pc.equal(pa.array([s.kind for s in samples], pa.int8()), 1), *_KIND_NAMES
        ),
        "payload": payload,
        "encoding": encoding,
        "encoding_schema": _encoding_schemas(encoding),
        "attachment": pa.array([s.attachment for s in samples], pa.binary()),
        "ntp64": ntp64.cast(pa.decimal128(20, 0)),
        "timestamp_id": pa.array([s.timestamp_id for s in samples], pa.string()),
        "timestamp": _timestamps(ntp64),
        "stamped": pa.array([s.stamped for s in samples], pa.bool_()),
        "received_at": _microseconds(pc.divide(received_ns, 1000)),
        "received_ns": received_ns,
        "priority": pc.bit_wise_and(qos, _SEVEN),
        "congestion_control": pc.bit_wise_and(pc.shift_right(qos, _THREE), _THREE),
        "express": pc.greater_equal(qos, 1 << 5),
        "payload_digest": pa.array(digests, pa.binary()),
        "payload_bytes": pc.binary_length(payload).cast(pa.int64()),
    }
    return pa.table([columns[name] for name in SAMPLES_IN_FILES.names], schema=SAMPLES_IN_FILES)


def _encoding_schemas(encodings: pa.Array) -> pa.Array:
    """Cut the schema out of each distinct encoding once."""
    coded = encodings.dictionary_encode()
    schemas = [encoding_schema(text) for text in coded.dictionary.to_pylist()]
    return pa.array(schemas, pa.string()).take(coded.indices)


def _sequences(epoch: pa.Array, sn: pa.Array) -> pa.Array:
    high = pc.shift_left(epoch.cast(_PACKED), pa.scalar(35, _PACKED))
    low = pc.add(sn.cast(_PACKED), pa.scalar(1, _PACKED))
    return pc.add(high, low).cast(pa.decimal128(20, 0))


def _timestamps(ntp64: pa.Array) -> pa.Array:
    million = pa.scalar(1_000_000, _PACKED)
    word = pa.scalar(32, _PACKED)
    seconds = pc.multiply(pc.shift_right(ntp64, word), million)
    fraction = pc.bit_wise_and(ntp64, pa.scalar(0xFFFFFFFF, _PACKED))
    below = pc.shift_right(pc.multiply(fraction, million), word)
    return _microseconds(pc.add(seconds, below).cast(pa.int64()))


def _microseconds(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))


def unsigned(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a decimal(20, 0) column as unsigned 64-bit numbers."""
    return column.cast(_PACKED)


def samples_of(table: pa.Table) -> list[Sample]:
    """Return the samples of rows that have `READ_COLUMNS`, in their order."""
    columns = [
        (unsigned(table.column(name)) if name == "ntp64" else table.column(name)).to_pylist()
        for name in READ_COLUMNS
    ]
    return [
        Sample(
            key,
            _source(zid, eid),
            epoch,
            sn,
            payload,
            _KINDS[kind],
            encoding,
            attachment,
            ntp64,
            timestamp_id,
            stamped,
            priority | congestion << 3 | express << 5,
            received_ns,
        )
        for (
            key,
            zid,
            eid,
            epoch,
            sn,
            payload,
            kind,
            encoding,
            attachment,
            ntp64,
            timestamp_id,
            stamped,
            priority,
            congestion,
            express,
            received_ns,
        ) in zip(*columns, strict=True)
    ]


_KINDS = {kind.name: kind for kind in Kind}


@lru_cache(maxsize=65536)
def _source(zid: str, eid: int) -> SourceId:
    return SourceId(zid, eid)


def storable(samples: Sequence[Sample]) -> bool:
    """Tell quickly whether a table can hold all of `samples`; `refusal` says why not."""
    if not samples:
        return True
    sources = {s.source for s in samples}
    return (
        _between([s.sn for s in samples], _SN_MAX)
        and _between([s.epoch for s in samples], _EPOCH_MAX)
        and _between([s.received_ns for s in samples], _INT64_MAX)
        and _between([s.ntp64 for s in samples], _UINT64_MAX)
        and _between({s.qos for s in samples}, (1 << 6) - 1)
        and _between({source.eid for source in sources}, (1 << 32) - 1)
        and all(map(_is_utf8, {source.zid for source in sources}))
        and all(map(_is_utf8, {s.key for s in samples}))
        and all(map(_is_utf8, {s.encoding for s in samples}))
        and all(map(_is_utf8, {s.timestamp_id for s in samples}))
    )


def _between(numbers: Collection[int], last: int) -> bool:
    return min(numbers) >= 0 and max(numbers) <= last

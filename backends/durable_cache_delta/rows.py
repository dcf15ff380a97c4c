"""Which samples can a table hold, and how do its rows become samples again?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

import pyarrow as pa  # type: ignore[import-untyped]

from durable_cache.model.sample import Kind, Sample, SourceId, Stream
from durable_cache.model.sequence import SN_MAX
from durable_cache.model.unnumbered import sn_max

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

_EPOCH_MAX = (1 << 29) - 1
_INT64_MAX = (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1
_PACKED = pa.uint64()


def refusal(sample: Sample) -> str | None:
    """Return why no table can ever hold `sample`, or None when it can."""
    if not 0 <= sample.sn <= sn_max(sample.source):
        return f"sn {sample.sn} is not between 0 and {sn_max(sample.source)}"
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


def storable_numbers(
    sns: Sequence[int], received_ns: Sequence[int], ntp64: Sequence[int], qos: Collection[int]
) -> bool:
    """Tell quickly whether every number is one that a table can hold; `refusal` says why not."""
    return (
        _between(sns, SN_MAX)
        and _between(received_ns, _INT64_MAX)
        and _between(ntp64, _UINT64_MAX)
        and _between(qos, (1 << 6) - 1)
    )


def storable_texts(texts: Collection[str]) -> bool:
    """Tell quickly whether every text is one that a table can hold."""
    return all(map(_is_utf8, texts))


def storable_streams(streams: Iterable[Stream]) -> bool:
    """Tell quickly whether a table can hold samples of these streams."""
    return all(
        0 <= epoch <= _EPOCH_MAX
        and 0 <= source.eid < 1 << 32
        and _is_utf8(key)
        and _is_utf8(source.zid)
        for key, source, epoch in streams
    )


def _between(numbers: Collection[int], last: int) -> bool:
    return not numbers or (min(numbers) >= 0 and max(numbers) <= last)

"""How a publisher's spool writes one sample: what all its rows have in common is left out.

A row of a cache's journal says of each sample whose it is, by a name of 32 digits, and by which
clock it was stamped, mostly the same 32 again. Of a small sample that is a third of the row, and
a spool has one row for each (ADR 0327). Its numberings are few, and kept once beside its rows:
there a numbering is known by its incarnation and epoch.

What the numbering is not known of, or comes with others, is written as a journal writes it; both
are read.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.run_name import RunName
from durable_cache.model.sample import Kind, Sample, SampleBatch, Skip, SourceId
from durable_cache.protocol.wire import (
    PACKED_BYTES_MAX,
    Content,
    decode_journal,
    encode_journal,
    seal,
    unseal,
)

_ENCODING = "zenoh/bytes"
"""Zenoh's default."""
_NAMES_IT = "-"


class SpoolRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sample; its source is that of the numbering of this incarnation and epoch."""

    incarnation: int
    epoch: int
    sn: int
    key: str
    payload: bytes
    kind: Kind
    encoding: str
    """Empty where it is Zenoh's default."""
    attachment: bytes | None
    ntp64: int
    timestamp_id: str | None
    """`_NAMES_IT`: it names the numbering. None, of earlier versions: the source's session."""
    stamped: bool
    qos: int
    received_ns: int


_rows = msgspec.msgpack.Decoder(SpoolRow)


class SpoolRows:
    """Writes and reads a spool's rows; for one thread at a time."""

    def __init__(self) -> None:
        self.short = True
        """False in a spool that an earlier version must be able to read."""
        self._names: dict[tuple[SourceId, int], str] = {}
        self._sources: dict[tuple[str, int], SourceId] = {}

    @property
    def names(self) -> Mapping[tuple[SourceId, int], str]:
        """The incarnation of each numbering that is known, by source and epoch."""
        return self._names

    def know(self, source: SourceId, epoch: int, incarnation: str) -> None:
        """Know a numbering, which is kept beside the rows. Idempotent."""
        self._names[source, epoch] = incarnation
        self._sources[incarnation, epoch] = source

    def write(self, batch: SampleBatch, skips: tuple[Skip, ...]) -> bytes:
        """Return the row of what is committed together."""
        if self.short and len(batch) == 1 and not skips:
            (one,) = batch
            name = self._names.get((one.source, one.epoch))
            if name is not None:
                return encode_spooled(one, name)
        return encode_journal(batch, skips)

    def read(self, frame: bytes) -> tuple[SampleBatch, tuple[Skip, ...]]:
        """Read a row; RemoteProtocolError, never to be retried, where it is damaged."""
        if frame[1:2] != bytes((Content.SPOOLED,)):
            return decode_journal(frame)
        return SampleBatch((decode_spooled(frame, self._sources),)), ()


def encode_spooled(sample: Sample, incarnation: str) -> bytes:
    """Return the row of a sample of a numbering that the spool knows."""
    named = RunName(sample.epoch, incarnation)
    fields = (
        int(incarnation, 16),
        sample.epoch,
        sample.sn,
        sample.key,
        sample.payload,
        sample.kind,
        "" if sample.encoding == _ENCODING else sample.encoding,
        sample.attachment,
        sample.ntp64,
        _NAMES_IT if sample.timestamp_id == named.timestamp_id else sample.timestamp_id,
        sample.stamped,
        sample.qos,
        sample.received_ns,
    )
    return seal(Content.SPOOLED, fields)


def decode_spooled(frame: bytes, sources: Mapping[tuple[str, int], SourceId]) -> Sample:
    """Read a row; RemoteProtocolError, never to be retried, where it is damaged.

    `sources` are those of the numberings that are known, by incarnation and epoch.
    """
    row = unseal(frame, Content.SPOOLED, _rows, PACKED_BYTES_MAX)
    source = sources.get((f"{row.incarnation:08x}", row.epoch))
    if source is None:
        raise RemoteProtocolError(
            f"a sample of numbering {row.incarnation:08x}, which was never begun"
        )
    return Sample(
        row.key,
        source,
        row.epoch,
        row.sn,
        row.payload,
        row.kind,
        row.encoding or _ENCODING,
        row.attachment,
        row.ntp64,
        _timestamp_id(row, source),
        row.stamped,
        row.qos,
        row.received_ns,
    )


def _timestamp_id(row: SpoolRow, source: SourceId) -> str:
    if row.timestamp_id is None:
        return source.zid
    if row.timestamp_id == _NAMES_IT:
        return RunName(row.epoch, f"{row.incarnation:08x}").timestamp_id
    return row.timestamp_id

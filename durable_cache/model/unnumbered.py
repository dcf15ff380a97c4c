"""What identifies a sample that came without a number: its key and its timestamp (ADR 0160).

The timestamp becomes a source and a number, so that whatever stores, reads, aligns or removes
samples needs no second identity. The source is ``<timestamp id>:0``: Zenoh reserves the entity 0
for its routing core, so no publisher ever has it. The number is the NTP64 itself. Nothing is
awaited between two such numbers, and nobody is told that one is stored.
"""

from __future__ import annotations

import msgspec

from durable_cache.model.sample import Sample, SourceId, is_zid
from durable_cache.model.sequence import FAR_EPOCH, FAR_SHIFT, SN_MAX, UNNUMBERED_SN_MAX

UNNUMBERED_EID = 0
_LOW = (1 << FAR_SHIFT) - 1


def is_unnumbered(source: SourceId) -> bool:
    """Tell whether a source stands for a timestamp's id, and its numbers for timestamps."""
    return source.eid == UNNUMBERED_EID


def sn_max(source: SourceId) -> int:
    """Return the largest number that a sample of this source can have."""
    return UNNUMBERED_SN_MAX if source.eid == UNNUMBERED_EID else SN_MAX


def identity_of(ntp64: int, timestamp_id: str) -> tuple[SourceId, int, int] | None:
    """Return the source, epoch and number that stand for a timestamp.

    None where there are none: it has no id, or is the last unit of an era (2038, 2106).
    """
    era, sn = ntp64 >> FAR_SHIFT, ntp64 & _LOW
    if not is_zid(timestamp_id) or sn > UNNUMBERED_SN_MAX:
        return None
    return SourceId(timestamp_id, UNNUMBERED_EID), era * FAR_EPOCH, sn


def identified(sample: Sample) -> Sample | None:
    """Return a sample under the identity that its key and timestamp give it, alike everywhere.

    None where the timestamp gives none.
    """
    timestamp_id = sample.timestamp_id.lower().lstrip("0")
    identity = identity_of(sample.ntp64, timestamp_id)
    if identity is None:
        return None
    source, epoch, sn = identity
    return msgspec.structs.replace(
        sample, source=source, epoch=epoch, sn=sn, timestamp_id=timestamp_id
    )

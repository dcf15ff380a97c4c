"""Samples that a publisher sends once more, to one cache alone, and what that cache says of them.

A resend is a query on the cache's own key with a `RESEND` frame, answered by a `RESENT` frame as
soon as the cache has judged it. The answer says only what the cache will not take: that a sample is
durable is said by an acknowledgement, after its commit, as for any other sample.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.sample import Sample, SampleBatch, SourceId, is_zid
from durable_cache.protocol.checks import check_identity, check_samples
from durable_cache.protocol.wire import (
    SN_LIMIT,
    Content,
    is_incarnation,
    seal,
    unseal,
)

RESEND_BYTES_MAX = 64 << 20
"""One sample of the largest payload a cache takes by default, eight times over."""
RESEND_SAMPLES_MAX = 10_000
RESENT_BYTES_MAX = 64 * 1024
REFUSALS_MAX = 1000
_PROOF_BYTES_MAX = 256


class RefusalReason(IntEnum):
    """Why a cache does not take a sample that was sent to it."""

    LATER = 0
    """It could not be judged now; send it again."""
    CLAIMED = 1
    """Another session's live token says that it is this source."""
    NOT_STORED = 2
    """The cache does not store that key, or not that source."""
    CONFLICT = 3
    """Another sample is stored under the number."""
    REMOVED = 4
    """Retention or a purge removed the number."""
    EPOCH_TAKEN = 5
    """The epoch belongs to another numbering of the source."""
    FULL = 6
    """A limit of the cache keeps new streams out."""
    FENCED = 7
    """It is the position of a consumer whose source another member has by now."""
    TOO_LARGE = 8
    """Its payload is above the cache's limit, or its key is longer than an answer can bear."""


FOR_GOOD = frozenset(
    {
        *(RefusalReason.NOT_STORED, RefusalReason.CONFLICT),
        *(RefusalReason.REMOVED, RefusalReason.EPOCH_TAKEN, RefusalReason.FENCED),
        RefusalReason.TOO_LARGE,
    }
)
"""Refusals that sending again does not change. A token outlives the link of its session for a
while: a source that is claimed now may be free soon."""


def in_words(reason: int) -> str:
    """Return a reason for people, also one of a later version."""
    known = reason in RefusalReason.__members__.values()
    return RefusalReason(reason).name.lower().replace("_", " ") if known else f"reason {reason}"


class ResendRefusal(NamedTuple):
    """These numbers of a resend were not taken."""

    first: int
    last: int
    reason: int
    """A `RefusalReason`, or one of a later version, which is read as `LATER`."""


class ResendRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Samples of one numbering for one cache."""

    sender: str
    """The zid of the session that sends: another than the source's where a spool was taken over."""
    source: SourceId
    epoch: int
    incarnation: str
    samples: tuple[Sample, ...]
    proof: bytes = b""
    """The place for what a secret of the domain will say of the sender; empty until there is one.
    Until then `sender` is a claim, as a source_id is."""


class ResendReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a cache says of a resend."""

    cache_id: str
    refused: tuple[ResendRefusal, ...] = ()


_resends = msgspec.msgpack.Decoder(ResendRequest)
_resents = msgspec.msgpack.Decoder(ResendReply)


def encode_resend(resend: ResendRequest) -> bytes:
    """Return the payload of a resend."""
    return seal(Content.RESEND, resend)


def decode_resend(frame: bytes) -> tuple[ResendRequest, SampleBatch]:
    """Read a resend and the samples in it that can be taken.

    Raises RemoteProtocolError where it is none, or where a sample is of another numbering than the
    resend says.
    """
    resend = unseal(frame, Content.RESEND, _resends, RESEND_BYTES_MAX)
    check_identity(resend.source, resend.epoch, 0, 0)
    if not is_zid(resend.sender):
        raise RemoteProtocolError(f"{resend.sender[:40]!r} is no zid")
    if not is_incarnation(resend.incarnation):
        raise RemoteProtocolError(f"{resend.incarnation[:40]!r} is no incarnation")
    if len(resend.proof) > _PROOF_BYTES_MAX:
        raise RemoteProtocolError(f"a proof of {len(resend.proof)} bytes")
    named = (resend.source, resend.epoch)
    if any((sample.source, sample.epoch) != named for sample in resend.samples):
        raise RemoteProtocolError("a resend with samples of another numbering than it names")
    return resend, check_samples(resend.samples, RESEND_SAMPLES_MAX, [])


def encode_resent(resent: ResendReply) -> bytes:
    """Return the answer to a resend; of more than 1,000 refusals the first."""
    return seal(Content.RESENT, (resent.cache_id, resent.refused[:REFUSALS_MAX]))


def decode_resent(frame: bytes) -> ResendReply:
    """Read the answer to a resend."""
    resent = unseal(frame, Content.RESENT, _resents, RESENT_BYTES_MAX)
    if len(resent.refused) > REFUSALS_MAX:
        raise RemoteProtocolError(f"{len(resent.refused)} refusals; {REFUSALS_MAX} are allowed")
    if any(not 0 <= run.first <= run.last < SN_LIMIT for run in resent.refused):
        raise RemoteProtocolError("refusals whose numbers are out of range")
    return resent

"""Which epochs of a publisher's source caches know: an earlier run may have had its zid."""

from __future__ import annotations

import logging

from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.session import Decoder, Session, ZError, ask, zid_of
from durable_cache.errors import DurableCacheError, RemoteProtocolError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import SourceId
from durable_cache.protocol.publisher.events import EpochsKnown, EpochsUnknown
from durable_cache.protocol.wire import decode_packed

_log = logging.getLogger(__name__)
_ANSWER_BYTES_MAX = 16 << 20


def ask_epochs(
    session: Session, source: SourceId, key_expr: KeyExpression, timeout_seconds: float
) -> EpochsKnown | EpochsUnknown:
    """Ask caches for the highest epoch they know of a source, and say what came of it."""
    highest = _ask_highest(session, source, key_expr, timeout_seconds)
    return EpochsUnknown(moment_now()) if highest is None else EpochsKnown(highest, moment_now())


def _ask_highest(
    session: Session, source: SourceId, key_expr: KeyExpression, timeout_seconds: float
) -> int | None:
    """Return the highest epoch that caches know of a source, 0 for none; None where asking failed.

    Number 0 stands for a whole numbering: where it is not held, its absence is named.
    """
    highest = 0
    selector = f"{source}/{key_expr}?_sn=0;_pack=1"
    decoder = Decoder(zid_of(session), _ANSWER_BYTES_MAX)
    try:
        for reply in ask(session, selector, timeout_seconds=timeout_seconds, decoder=decoder):
            if reply.sample is not None:
                highest = max(highest, _highest_epoch(reply.sample.payload, source))
    except (DurableCacheError, ZError):
        _log.debug("asking for the epochs of %s failed", source, exc_info=True)
        return None
    return highest


def _highest_epoch(payload: bytes, source: SourceId) -> int:
    """Return the highest epoch of a source that a packed answer names; 0 for none."""
    try:
        found = decode_packed(payload)
    except RemoteProtocolError:
        return 0  # whatever answered, it is no cache of ours
    epochs = [sample.epoch for sample in found.samples if sample.source == source]
    epochs += [run.epoch for run in found.absent if run.source == source]
    epochs += [named.epoch for named in found.incarnations if named.source == source]
    return max(epochs, default=0)

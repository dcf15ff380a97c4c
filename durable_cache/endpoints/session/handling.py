"""What of zenoh's own handlers can be read, so that ours can stand for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zenoh
from zenoh import Locality, Session, handlers

_COUNTED_ON = "durable_cache/ring_capacity"
_COUNTED_MAX = 1 << 17


def is_fifo(handler: object) -> bool:
    """Tell whether it is a channel of zenoh's that keeps every item.

    Its capacity cannot be read, and need not be: it only says when delivery waits.
    """
    return isinstance(handler, (handlers.FifoChannel, handlers.DefaultHandler))


def ring_capacity(session: Session, handler: object) -> int | None:
    """Return how many items a ring channel of zenoh's keeps; None where it is no such channel.

    Zenoh tells nobody: a ring is filled within the session until it drops something. One of more
    than 131,072 items counts as one of so many.
    """
    if not isinstance(handler, handlers.RingChannel):
        return None
    channel: handlers.RingChannel[zenoh.Sample] = handler
    counting = session.declare_subscriber(
        _COUNTED_ON, channel, allowed_origin=Locality.SESSION_LOCAL
    )
    kept = put = 1
    while kept == put and put < _COUNTED_MAX:
        put *= 2
        for _ in range(put):
            session.put(_COUNTED_ON, b"", allowed_destination=Locality.SESSION_LOCAL)
        kept = 0
        while counting.try_recv() is not None:
            kept += 1
    counting.undeclare()  # type: ignore[no-untyped-call]
    return kept


def read_callback(handler: object) -> tuple[Callable[[Any], object], Callable[[], object]] | None:
    """Return the function of a callback of zenoh's and what to call when nothing more will come.

    None where it is no such callback.
    """
    if not isinstance(handler, handlers.Callback):
        return None
    callback: handlers.Callback[Any] = handler
    return callback.callback, callback.drop or _nothing


def _nothing() -> None:
    """Do what a callback without `drop` does at its end."""

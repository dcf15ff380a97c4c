"""Whether another cache is known to know of some streams what this one knows, no more and no less.

Nothing is asked for it: equal roots say it of all streams that no known difference is about.
"""

from __future__ import annotations

from collections.abc import Iterable

from durable_cache.model.sample import Stream
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.peer import Peer
from durable_cache.protocol.alignment.wire import Lane


def agrees(ledger: Ledger, peer: Peer | None, streams: Iterable[Stream]) -> bool:
    """Tell whether a peer that is in reach knows of each stream exactly what this cache knows.

    Streams that the two do not have in common concern it not. False where that is not known yet.
    """
    if peer is None or not peer.live or peer.hello is None or peer.refused:
        return False
    view = peer.view
    if view is None:
        return True
    shared = [stream for stream in streams if view.scope.holds(stream.key)]
    if not shared:
        return True
    if not view.ready or ledger.applying:
        return False
    known = peer.known_differences[Lane.KNOWLEDGE]
    slots = [ledger.counted_since(view, stream) for stream in shared]
    counted = [slot for slot in slots if slot is not None]
    if len(counted) < len(slots) or any(ledger.place(stream) in known for stream in shared):
        return False
    return peer.equal_since(view, max(counted))

"""When a cache says what its roots are, and how it stands with others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from durable_cache.protocol.alignment.events import AlignerOptions, CacheProfile, PublishRoot
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.peer import Peer
from durable_cache.protocol.alignment.view import View
from durable_cache.protocol.alignment.wire import Lane, Root, encode_root

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """How this cache stands with another, for people."""

    cache_id: str
    live: bool
    refused: str
    equal: bool | None
    """None when that is not known yet."""
    streams: int
    """In common, here."""
    streams_there: int
    samples: int
    samples_there: int
    known_differences: int
    """Streams that differ without remedy: conflicts, samples the storage does not take."""
    complete: bool
    """Everything it had at the last comparison is here."""
    in_common: bool = True
    """Whether both keep some of the same keys, as far as that is known."""


class _Announcement:
    """What was published of a view, and when it is due again."""

    __slots__ = ("due_ns", "repeats", "root")

    def __init__(self) -> None:
        self.root: tuple[int, int, bool] | None = None
        self.repeats = 0
        self.due_ns = 0


class Announcements:
    """What was published of each view; a root that changed is published at once, and repeated."""

    def __init__(self, ledger: Ledger, options: AlignerOptions, profile: CacheProfile) -> None:
        self._ledger, self._options, self._profile = ledger, options, profile
        self._said: dict[int, _Announcement] = {}

    def renew(self, view: View) -> None:
        """Publish a view's root anew: somebody came who may not have heard it."""
        self._said.pop(view.name, None)

    def due(self, views: Iterable[View], now_ns: int) -> list[PublishRoot]:
        """Return what is to be published now."""
        outputs = []
        pauses = self._options.announce_seconds
        for view in views:
            if not view.ready:
                continue
            said = self._said.setdefault(view.name, _Announcement())
            node = view.tree.root
            root = (node.knowledge, node.content, self._ledger.counted)
            if root != said.root:
                said.root, said.repeats = root, 0
            elif said.repeats > len(pauses) or now_ns < said.due_ns:
                continue
            if said.repeats < len(pauses):
                said.due_ns = now_ns + round(pauses[said.repeats] * _SECOND_NS)
            said.repeats += 1
            outputs.append(PublishRoot(f"{view.name:016x}", self._root(view)))
        return outputs

    def _root(self, view: View) -> bytes:
        node = view.tree.root
        return encode_root(
            Root(
                self._profile.cache_id,
                self._profile.incarnation,
                view.name,
                self._ledger.slot,
                node.knowledge.to_bytes(16, "little"),
                node.content,
                node.streams,
                max(0, view.samples),
                self._ledger.counted,
            )
        )


def status_of(peers: Iterable[Peer], slot: int) -> tuple[PeerStatus, ...]:
    """Return how a cache stands with each peer it knows, as of a slot."""
    found = []
    for peer in peers:
        view, root = peer.view, peer.root
        known = view is not None and root is not None and view.ready
        found.append(
            PeerStatus(
                peer.cache_id,
                peer.live,
                peer.refused,
                not peer.unequal(Lane.KNOWLEDGE, slot) if known else None,
                view.tree.root.streams if view else 0,
                root.streams if root else 0,
                view.samples if view else 0,
                root.samples if root else 0,
                len(peer.known_differences[Lane.KNOWLEDGE])
                + len(peer.known_differences[Lane.CONTENT]),
                peer.complete,
                peer.hello is None or view is not None,
            )
        )
    return tuple(found)

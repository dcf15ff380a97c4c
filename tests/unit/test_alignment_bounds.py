"""The aligner's collections end at their bounds."""

from __future__ import annotations

from durable_cache.protocol.alignment import AlignerOptions
from durable_cache.protocol.alignment.peer import KnownDifferences, Peer, Peers
from durable_cache.protocol.alignment.scope import Scope
from durable_cache.protocol.alignment.view import View
from durable_cache.protocol.alignment.wire import Lane, Root


def root(view: int, slot: int = 1, content: int = 0) -> Root:
    return Root("peer", "1", view, slot, bytes(16), content, 0, 0, True)


def test_peers_beyond_the_bound_take_the_place_of_one_that_is_gone() -> None:
    peers = Peers(AlignerOptions(peers_max=2), "own")
    first, second = peers.seen("a", "1"), peers.seen("b", "1")
    assert first is not None
    assert second is not None
    assert peers.seen("c", "1") is None, "both are in reach"
    first.live = False
    assert peers.seen("c", "1") is not None
    assert [peer.cache_id for peer in peers] == ["b", "c"]


def test_roots_of_a_peer_are_kept_for_as_many_views_as_there_may_be() -> None:
    options = AlignerOptions(views_max=3)
    peer = Peer("peer", options.known_differences_max)
    for view in range(5):
        peer.announced(root(view), 0, options.views_max)
    assert list(peer.roots) == [2, 3, 4]


def test_known_differences_beyond_the_bound_make_room_for_newer_ones() -> None:
    options = AlignerOptions(known_differences_max=2)
    known = KnownDifferences(options.known_differences_max)
    for place in range(4):
        known.add(place, 1, 2)
    assert len(known) == 2


def test_roots_are_remembered_for_as_many_changes_as_allowed() -> None:
    options = AlignerOptions(ring_max=3)
    view = View(Scope.of(("**",)), 1, options.ring_max)
    for slot in range(1, 6):
        view.tree._add(slot, slot, slot, 1)
        view.remember(slot)
    assert [remembered[0] for remembered in view.ring] == [3, 4, 5]


def test_what_is_announced_again_is_judged_as_of_the_slot_it_was_said_of_first() -> None:
    """A cache whose clock is behind would wait for every repetition's slot anew."""
    peer = Peer("peer", 8)
    view = peer.view = View(Scope.of(("**",)), 1, 12)
    view.ready = True
    view.tree._add(1, 1, 1, 1)
    peer.announced(root(view.name, slot=10), 0, 8)
    peer.announced(root(view.name, slot=14), 0, 8)
    assert not peer.unequal(Lane.KNOWLEDGE, 9)
    assert peer.unequal(Lane.KNOWLEDGE, 10)
    peer.announced(root(view.name, slot=18, content=7), 0, 8)
    assert not peer.unequal(Lane.KNOWLEDGE, 11), "it says something else since slot 18"

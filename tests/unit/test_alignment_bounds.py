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
        peer.announced(root(view), 0, options)
    assert list(peer.roots) == [2, 3, 4]


def test_of_a_view_as_many_roots_are_kept_as_a_peer_may_be_ahead_and_one_more() -> None:
    options = AlignerOptions(ring_max=3)
    peer = Peer("peer", options.known_differences_max)
    for slot in range(10):
        peer.announced(root(1, slot, content=slot), 0, options)
    assert [announced.since_slot for announced in peer.roots[1]] == [6, 7, 8, 9]


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


def behind() -> tuple[Peer, View]:
    """Return a peer whose clock is ahead of ours, and a tree that is not its tree."""
    peer = Peer("peer", 8)
    view = peer.view = View(Scope.of(("**",)), 1, 12)
    view.ready = True
    view.tree._add(1, 1, 1, 1)
    return peer, view


def test_what_is_announced_again_is_judged_as_of_the_slot_it_was_said_of_first() -> None:
    """A cache whose clock is behind would wait for every repetition's slot anew."""
    peer, view = behind()
    peer.announced(root(view.name, slot=10), 0, AlignerOptions())
    peer.announced(root(view.name, slot=14), 0, AlignerOptions())
    assert not peer.unequal(Lane.KNOWLEDGE, 9)
    assert peer.unequal(Lane.KNOWLEDGE, 10)


def test_a_peer_ahead_that_changes_all_the_time_is_compared_all_the_same() -> None:
    peer, view = behind()
    for slot in range(10, 20):
        peer.announced(root(view.name, slot=slot, content=slot), 0, AlignerOptions())
    assert not peer.unequal(Lane.KNOWLEDGE, 9)
    assert peer.unequal(Lane.KNOWLEDGE, 11)
    assert peer.is_ahead(11)
    assert not peer.is_ahead(17), "the next two slots are waited for"


def test_who_has_what_a_peer_ahead_announced_last_does_not_compare_what_was_before() -> None:
    """What the peer has since was pulled before our own slot of it."""
    peer, view = behind()
    peer.announced(root(view.name, slot=10, content=9), 0, AlignerOptions())
    same = view.tree.root.knowledge.to_bytes(16, "little")
    newest = Root("peer", "1", view.name, 14, same, view.tree.root.content, 0, 0, True)
    peer.announced(newest, 0, AlignerOptions())
    assert not any(peer.unequal(lane, 11) for lane in Lane)


def test_a_peer_whose_clock_was_set_back_is_heard_at_once() -> None:
    """Its ledger counts anew from a slot that is over; it took minutes or hours (seed 164551)."""
    peer, view = behind()
    same = view.tree.root.knowledge.to_bytes(16, "little")
    equal = Root("peer", "1", view.name, 1000, same, view.tree.root.content, 0, 0, True)
    peer.announced(equal, 0, AlignerOptions())
    peer.announced(root(view.name, slot=999), 0, AlignerOptions())
    assert not peer.unequal(Lane.KNOWLEDGE, 1000), "the other overtook it on the way"
    peer.announced(root(view.name, slot=700), 0, AlignerOptions())
    assert peer.unequal(Lane.KNOWLEDGE, 1000)
    peer.announced(root(view.name, slot=701), 0, AlignerOptions())
    assert [announced.root.slot for announced in peer.roots[view.name]] == [701]

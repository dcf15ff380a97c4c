"""Members of one consumer: never two that process one source, and one that does at last."""

from __future__ import annotations

import random
from collections import deque
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_cache.model.sample import SourceId
from durable_cache.protocol.members import (
    Sharing,
    View,
    member_token,
    owner_of,
    read_member_token,
)

MEMBERS_MAX = 6
SOURCES = [SourceId("5", number) for number in range(1, 13)]


def member(number: int) -> SourceId:
    return SourceId("a", number)


class _Member:
    """A member as its shell drives it: stops when it is let, shows, begins."""

    def __init__(self, own: SourceId) -> None:
        self.own = own
        self.sharing = Sharing(own)
        self.processes: set[SourceId] = set()
        """What it is at work on: it goes on with what it lost until it is let stop."""
        self.shows: View | None = None
        self.told: dict[SourceId, deque[tuple[View, bool]]] = {}
        """What is on its way here, from each other member in order."""


class Network:
    """Tokens that come late, each member's in order, and members that come, leave and die."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.live: dict[SourceId, _Member] = {}
        self._ids = count(1)
        self._dead: set[SourceId] = set()

    def join(self) -> None:
        new = _Member(member(next(self._ids)))
        for other in self.live.values():
            if other.shows is not None:
                new.told[other.own] = deque([(other.shows, True)])
        self.live[new.own] = new
        while any(new.told.values()):  # it looks for certain before it begins
            self.deliver(new)
        # What others are about to show comes behind this; what they show comes to them as well.
        self.stop(new)

    def leave(self) -> None:
        if self.live:
            gone = self.live.pop(self.chance.choice(sorted(self.live)))
            if gone.shows is not None:
                self.tell(gone.own, gone.shows, alive=False)

    def tell(self, own: SourceId, view: View, *, alive: bool) -> None:
        for other in self.live.values():
            if other.own != own:
                other.told.setdefault(own, deque()).append((view, alive))

    def deliver(self, to: _Member) -> None:
        waiting = sorted(own for own, told in to.told.items() if told)
        if waiting:
            own = self.chance.choice(waiting)
            view, alive = to.told[own].popleft()
            to.sharing.see(own, view, alive=alive)

    def stop(self, one: _Member) -> None:
        """What is lost ends, and only then the token changes, new before old."""
        if one.sharing.must_stop:
            one.processes = {source for source in one.processes if one.sharing.owns(source)}
            one.sharing.stopped()
        shown = one.sharing.shown
        if shown != one.shows:
            self.tell(one.own, shown, alive=True)
            if one.shows is not None:
                self.tell(one.own, one.shows, alive=False)
            one.shows = shown

    def begin(self, one: _Member) -> None:
        if one.sharing.agreed and one.shows == one.sharing.shown:
            one.sharing.begin()
            one.processes = {source for source in SOURCES if one.sharing.owns(source)}

    def step(self) -> None:
        if not self.live:
            self.join()
            return
        one = self.live[self.chance.choice(sorted(self.live))]
        self.chance.choice((self.deliver, self.deliver, self.stop, self.begin))(one)

    def check(self) -> None:
        """Of members that know of each other, no two process one source."""
        members = list(self.live.values())
        for at, one in enumerate(members):
            for other in members[at + 1 :]:
                if self.know(one, other):
                    assert not one.processes & other.processes, (one.own, other.own)

    def know(self, one: _Member, other: _Member) -> bool:
        return other.own in one.sharing.members and one.own in other.sharing.members

    def settle(self) -> None:
        for _ in range(100):
            if not any(any(one.told.values()) for one in self.live.values()) and all(
                one.sharing.has_begun and one.shows == one.sharing.shown
                for one in self.live.values()
            ):
                return
            for one in list(self.live.values()):
                while any(one.told.values()):
                    self.deliver(one)
                self.stop(one)
                self.begin(one)
        raise AssertionError("members never came to agree")


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_no_two_members_process_one_source_and_all_are_processed_at_last(
    seed: int, changes: int
) -> None:
    network = Network(seed)
    for _ in range(changes):
        join = len(network.live) < MEMBERS_MAX and network.chance.random() < 0.6
        (network.join if join else network.leave)()
        network.check()
        for _ in range(network.chance.randrange(30)):
            network.step()
            network.check()
    network.join()
    network.settle()
    owners = [source for one in network.live.values() for source in one.processes]
    assert sorted(owners) == SOURCES, "each source has one owner"


def test_who_joins_takes_sources_and_moves_none_between_the_others() -> None:
    few, more = [member(1), member(2)], [member(1), member(2), member(3)]
    for number in range(500):
        source = SourceId("5", number)
        before, after = owner_of(source, few), owner_of(source, more)
        assert after in (before, member(3))
    owners = [owner_of(SourceId("5", number), more) for number in range(3000)]
    assert all(owners.count(one) > 800 for one in more), "about a third each"
    assert owner_of(SOURCES[0], []) is None


def test_what_a_member_loses_is_stopped_before_its_token_says_so() -> None:
    own, other = Sharing(member(1)), Sharing(member(2))
    own.stopped()
    assert own.agreed
    own.begin()
    assert all(own.owns(source) for source in SOURCES)
    other.see(member(1), own.shown, alive=True)
    other.stopped()
    joining = other.shown
    own.see(member(2), joining, alive=True)
    assert own.must_stop
    assert not own.agreed
    mine = [source for source in SOURCES if own.owns(source)]
    assert 0 < len(mine) < len(SOURCES), "it goes on with what stays its own"
    assert not other.agreed, "the first one has not stopped yet"
    own.stopped()
    other.see(member(1), own.shown, alive=True)
    assert other.agreed
    other.begin()
    assert [source for source in SOURCES if not other.owns(source)] == mine
    own.see(member(2), other.shown, alive=True)
    assert own.agreed
    assert not own.gains
    own.begin()
    for view in {joining, other.shown}:
        own.see(member(2), view, alive=False)
    assert own.members == {member(1)}
    assert not own.agreed, "alone again, and what it had to stop before is not said to be stopped"


def test_a_set_of_members_that_comes_again_is_another_view() -> None:
    """Its members may have acted by a third one's views meanwhile."""
    sharing = Sharing(member(1))
    before = View(1, "0" * 16)
    sharing.see(member(2), before, alive=True)
    sharing.stopped()
    two = sharing.shown
    sharing.see(member(3), before, alive=True)
    sharing.see(member(3), before, alive=False)
    sharing.stopped()
    assert sharing.members == {member(1), member(2)}
    assert sharing.shown.digest != two.digest


def test_who_shared_and_comes_back_was_not_dead() -> None:
    sharing, view = Sharing(member(1)), View(1, "0" * 16)
    sharing.stopped()
    sharing.begin()
    sharing.see(member(2), view, alive=True)
    sharing.see(member(2), view, alive=False)
    sharing.see(member(2), view, alive=True)
    assert not sharing.returned, "it had nothing yet"
    sharing.stopped()
    same = View(1, sharing.shown.digest)
    sharing.see(member(2), same, alive=True)
    assert sharing.agreed
    sharing.begin()
    sharing.see(member(2), view, alive=False)
    sharing.see(member(2), same, alive=False)
    for other in range(3, 6):
        sharing.see(member(other), view, alive=True)
    assert (sharing.returned, list(sharing.gone)) == (set(), [member(2)])
    sharing.see(member(2), view, alive=True)
    assert sharing.returned == {member(2)}
    sharing.forget(member(2))
    assert not sharing.returned
    assert not sharing.gone


def test_a_token_says_who_and_which_view() -> None:
    view = View(7, "0123456789abcdef")
    key = member_token("default", "bill", member(1), view)
    assert read_member_token(key) == (member(1), view)


@pytest.mark.parametrize("rest", ["a:1", "a:1/7", "a:1/7-xyz", "nobody/7-0123456789abcdef", ""])
def test_what_is_no_token_of_a_member_is_passed_over(rest: str) -> None:
    assert read_member_token(f"@durable/v1/default/consumer/bill/{rest}") is None


def test_contenders_beyond_the_bound_stop_everything_until_all_agree() -> None:
    sharing = Sharing(member(1))
    sharing.stopped()
    sharing.begin()
    for number in range(2, 300):
        sharing.see(member(number), View(1, "0" * 16), alive=True)
        sharing.see(member(number), View(1, "0" * 16), alive=False)
    assert not any(sharing.owns(source) for source in SOURCES)
    sharing.stopped()
    assert sharing.agreed
    sharing.begin()
    assert all(sharing.owns(source) for source in SOURCES)

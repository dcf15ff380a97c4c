"""What a member says of sources that it took over, or that were taken from it.

What is confirmed stays confirmed, whoever takes whom for dead (ADR 0201).
"""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.sample import SourceId
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.members import NO_VIEW, Sharing, View, owner_of
from durable_cache.protocol.subscriber.positions import Point, rewound
from durable_cache.protocol.takeovers import Takeovers, Twice

SOURCES = [SourceId("5", number) for number in range(1, 40)]
OWN, OTHER, THIRD = (SourceId("a", number) for number in (1, 2, 3))
SHOWN = View(1, "0" * 16)


def position(source: SourceId, reached: int, *still_open: tuple[int, int]) -> Position:
    return Position("k", source, 1, "", reached, still_open)


def begun_with(*others: SourceId) -> tuple[Sharing, dict[SourceId, View]]:
    """Return what is shared among members that all act by one set of them, and what others show."""
    sharing = Sharing(OWN)
    for other in others:
        sharing.see(other, NO_VIEW, alive=True)
        sharing.see(other, SHOWN, alive=True)
    sharing.stopped()
    views = {other: View(1, sharing.shown.digest) for other in others}
    for other, view in views.items():
        sharing.see(other, view, alive=True)
        for before in (NO_VIEW, SHOWN):
            sharing.see(other, before, alive=False)
    assert sharing.agreed
    sharing.begin()
    return sharing, views


def owned_by(member: SourceId, *members: SourceId) -> SourceId:
    return next(source for source in SOURCES if owner_of(source, members) == member)


def take_over(sharing: Sharing, takeovers: Takeovers, *gained: Position) -> None:
    sharing.stopped()
    takeovers.note(sharing, gained)
    sharing.begin()


def test_what_a_rewind_took_back_is_told_too_when_an_owner_returns() -> None:
    """Confirmed before the takeover, by that owner, and here once more since."""
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    before = [position(source, 6)]
    takeovers.rewound(before, rewound(before, {source: Point(1, 2)}))
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, [position(source, 9)]) == [Twice(OTHER, source, 2, 9)]


def test_what_was_confirmed_before_a_rewind_is_told_though_nothing_is_since() -> None:
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    before = [position(source, 6)]
    stands = rewound(before, {source: Point(1, 3)})
    takeovers.rewound(before, stands)
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, stands) == [Twice(OTHER, source, 3, 6)]


def test_what_somebody_else_took_back_is_told_too_when_an_owner_returns() -> None:
    """An operator who saw no member rewound; this one is refused and begins everything anew."""
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    takeovers.give_up([position(source, 6)])
    sharing.lapse()
    take_over(sharing, takeovers, *rewound([position(source, 6)], {source: Point(1, 2)}))
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, [position(source, 9)]) == [Twice(OTHER, source, 2, 9)]


def test_a_rewind_that_was_given_up_hides_nothing_of_what_was_confirmed() -> None:
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    takeovers.give_up(rewound([position(source, 6)], {source: Point(1, 5)}))
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, [position(source, 9)]) == [Twice(OTHER, source, 5, 9)]


def test_what_was_confirmed_since_an_owner_was_taken_for_dead_is_told_when_it_returns() -> None:
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    assert takeovers.compare(sharing, [position(source, 6)]) == [], "nobody is back"
    sharing.see(OTHER, views[OTHER], alive=True)
    stands = [position(source, 9, (8, 8)), position(owned_by(OWN, OWN, OTHER), 3)]
    told = [Twice(OTHER, source, 5, 7), Twice(OTHER, source, 9, 9)]
    assert takeovers.compare(sharing, stands) == told, "also behind what is open still"
    assert takeovers.compare(sharing, stands) == [], "it is told once"


def test_a_source_was_the_one_members_though_another_one_was_about_to_have_it() -> None:
    """Who joined since, and had begun nothing, had it not."""
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = next(
        one
        for one in SOURCES
        if owner_of(one, (OWN, OTHER)) == OTHER and owner_of(one, (OWN, OTHER, THIRD)) == THIRD
    )
    sharing.see(THIRD, NO_VIEW, alive=True)
    sharing.see(THIRD, NO_VIEW, alive=False)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, -1))
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, [position(source, 2)]) == [Twice(OTHER, source, 0, 2)]


@pytest.mark.parametrize("lapses", [True, False])
def test_what_went_to_another_one_meanwhile_is_told_all_the_same(lapses: bool) -> None:
    """It was taken over, confirmed, and given up again before its owner is back."""
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    if lapses:
        takeovers.give_up([position(source, 6)])
    else:
        assert takeovers.compare(sharing, [position(source, 6)]) == []
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, []) == [Twice(OTHER, source, 5, 6)]


def test_what_a_third_one_left_to_who_was_out_of_reach_is_told() -> None:
    """Both were parted from here; the one processed what was the other's, which then ended."""
    (sharing, views), takeovers = begun_with(OTHER, THIRD), Takeovers()
    source = owned_by(THIRD, OWN, OTHER, THIRD)
    for member in (OTHER, THIRD):
        sharing.see(member, views[member], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, [position(source, 6)]) == [Twice(OTHER, source, 5, 6)]


def test_what_a_third_one_had_who_is_back_as_well_is_told_once() -> None:
    (sharing, views), takeovers = begun_with(OTHER, THIRD), Takeovers()
    source = owned_by(THIRD, OWN, OTHER, THIRD)
    for alive in (False, True):
        for member in (OTHER, THIRD):
            sharing.see(member, views[member], alive=alive)
        if not alive:
            take_over(sharing, takeovers, position(source, 4))
    assert takeovers.compare(sharing, [position(source, 6)]) == [Twice(THIRD, source, 5, 6)]


def test_what_was_taken_over_before_one_went_out_of_reach_is_not_told_of_it() -> None:
    """That one knew who has it; what it took over when it was parted, it tells itself."""
    (sharing, views), takeovers = begun_with(OTHER, THIRD), Takeovers()
    source = next(
        one
        for one in SOURCES
        if owner_of(one, (OWN, OTHER, THIRD)) == THIRD and owner_of(one, (OWN, OTHER)) == OWN
    )
    sharing.see(THIRD, views[THIRD], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers)
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, [position(source, 6)]) == []


def test_who_returns_twice_is_found_twice() -> None:
    """It was back for so short that nothing was compared."""
    sharing, views = begun_with(OTHER)
    takeovers = Takeovers()
    for alive in (False, True, False):
        sharing.see(OTHER, views[OTHER], alive=alive)
    source = owned_by(OTHER, OWN, OTHER)
    assert takeovers.compare(sharing, []) == []
    take_over(sharing, takeovers, position(source, 4))
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, [position(source, 5)]) == [Twice(OTHER, source, 5, 5)]


def test_who_goes_again_before_all_agreed_is_found_once_more() -> None:
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    for reached in (4, 6):
        sharing.see(OTHER, views[OTHER], alive=False)
        take_over(sharing, takeovers, position(source, reached))
        sharing.see(OTHER, views[OTHER], alive=True)
        told = [Twice(OTHER, source, reached + 1, reached + 2)]
        assert takeovers.compare(sharing, [position(source, reached + 2)]) == told


def test_what_is_taken_over_once_more_is_told_from_the_first_time_on() -> None:
    """The owner was seen for a moment, and nobody began anything with it."""
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    sharing.see(OTHER, views[OTHER], alive=True)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 6))
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, [position(source, 9)]) == [Twice(OTHER, source, 5, 9)]


def test_what_had_no_position_at_the_first_time_is_told_from_its_beginning() -> None:
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers)
    sharing.see(OTHER, views[OTHER], alive=True)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 2))
    sharing.see(OTHER, views[OTHER], alive=True)
    assert takeovers.compare(sharing, [position(source, 5)]) == [Twice(OTHER, source, 0, 5)]


def test_what_was_confirmed_before_all_was_given_up_is_told_where_it_comes_again() -> None:
    (sharing, _), takeovers = begun_with(OTHER), Takeovers()
    own, other = owned_by(OWN, OWN, OTHER), owned_by(OTHER, OWN, OTHER)
    takeovers.give_up([position(own, 9, (5, 5)), position(other, 9, (3, 3), (7, 8))])
    read = [position(own, 4), position(other, 5, (4, 4))]
    sharing.lapse()
    told = [Twice(OTHER, other, 4, 4), Twice(OTHER, other, 6, 6), Twice(OTHER, other, 9, 9)]
    assert takeovers.unread(sharing, read) == told, "these come again at the other one"
    assert takeovers.unread(sharing, read) == []


def test_what_another_one_hid_is_written_anew() -> None:
    (sharing, _), takeovers = begun_with(OTHER), Takeovers()
    hidden, known, rewound = (position(source, 9, (8, 8)) for source in SOURCES[:3])
    rewound = msgspec.structs.replace(rewound, rewinds=1)
    read = [
        position(hidden.source, 12, (3, 12)),
        position(known.source, 12),
        position(rewound.source, 12),
    ]
    stands = [hidden, known, rewound, position(SOURCES[3], 0)]
    assert takeovers.unsaid(sharing, stands, read) == [hidden, rewound, stands[3]]
    assert not takeovers.unsaid(sharing, stands)


def test_everything_is_written_anew_once_somebody_was_out_of_reach() -> None:
    """What it wrote may come later, and hide what this member wrote; who is new wrote nothing."""
    (sharing, _), takeovers = begun_with(OTHER), Takeovers()
    stands = [position(SOURCES[0], 9)]
    sharing.see(THIRD, NO_VIEW, alive=True)
    sharing.see(THIRD, SHOWN, alive=True)
    assert not takeovers.unsaid(sharing, stands), "it is new"
    sharing.see(SourceId("a", 4), SHOWN, alive=True)
    assert takeovers.unsaid(sharing, stands) == stands
    sharing.stopped()
    sharing.begin()
    assert not takeovers.unsaid(sharing, stands)


def test_nothing_is_told_where_claims_decide() -> None:
    (sharing, views), takeovers = begun_with(OTHER), Takeovers()
    source = owned_by(OTHER, OWN, OTHER)
    sharing.see(OTHER, views[OTHER], alive=False)
    take_over(sharing, takeovers, position(source, 4))
    takeovers.give_up([position(source, 9)])
    sharing.see(OTHER, views[OTHER], alive=True)
    takeovers.forget(sharing)
    assert not sharing.returned
    assert takeovers.compare(sharing, [position(source, 9)]) == []

"""Where a durable consumer stands. The model is the plain set of numbers that were confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.errors import ConfigError, Fenced, LocalProtocolError, RemoteProtocolError
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.unnumbered import identified
from durable_cache.protocol import consumers
from durable_cache.protocol.consumers import (
    DeadLetter,
    Position,
    check_consumer,
    decode_dead_letter,
    decode_position,
    encode_dead_letter,
    encode_position,
    next_fence,
)
from durable_cache.protocol.subscriber.positions import (
    Point,
    Positions,
    join_positions,
    resumed_from,
    rewound,
)

SOURCE, OTHER = SourceId("ab12", 7), SourceId("cd", 1)
NAME, NEXT = "00000001", "00000002"
LIMIT = (1 << 35) - 2


def sample(sn: int, epoch: int = 5, source: SourceId = SOURCE) -> Sample:
    return Sample("a/b", source, epoch, sn, b"")


def position(
    reached: int, *still_open: tuple[int, int], epoch: int = 5, name: str = "", key: str = "a/**"
) -> Position:
    return Position(key, SOURCE, epoch, name, reached, still_open)


def confirmed(of: Position) -> set[int]:
    """What a position says is confirmed, by the words of its definition."""
    still_open = {sn for first, last in of.open for sn in range(first, last + 1)}
    return set(range(of.reached + 1)) - still_open


@dataclass
class Life:
    """A consumer from its start to its crash, and what of it is written."""

    known: Sequence[Position] = ()
    handed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.positions = Positions("a/**", self.known)

    def read_on(self, until: int) -> list[int]:
        """Hand out, in order, what a subscriber brings that begins behind what is confirmed."""
        (before,) = self.known or (position(-1),)
        fresh = []
        for sn in range(before.confirmed_to + 1, until):
            if not self.positions.is_confirmed(sample(sn)):
                self.positions.hand_out(sample(sn))
                fresh.append(sn)
        self.handed.update(fresh)
        return fresh


lives = st.lists(
    st.tuples(st.integers(1, 12), st.lists(st.integers(0, 60), max_size=20), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(lives)
def test_each_number_is_handed_out_until_it_is_confirmed_and_never_after_that(
    lives: list[tuple[int, list[int], bool]],
) -> None:
    written: list[Position] = []
    model, stored, top = set[int](), set[int](), 0
    for more, confirms, is_written in lives:
        life, top = Life(written), top + more
        assert life.read_on(top) == sorted(set(range(top)) - stored)
        model = set(stored)
        for sn in confirms:
            if sn in life.handed:
                assert life.positions.confirm(sample(sn)) == (sn not in model)
                model.add(sn)
            else:
                try:
                    assert not life.positions.confirm(sample(sn))  # in an earlier life
                    assert sn in stored
                except LocalProtocolError:
                    assert sn >= top
        assert life.positions.in_hand == top - len(model)
        if is_written:
            written, stored = join_positions([*written, *life.positions.take()]), model
            assert confirmed(written[0]) == stored
            assert decode_position(encode_position(written[0])) == written[0]


batches = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from([SOURCE, OTHER])), max_size=12),
    max_size=6,
)


@given(st.booleans(), batches, batches)
def test_a_batch_does_what_its_samples_do_one_by_one(
    goes_on: bool,
    handed: list[list[tuple[int, SourceId]]],
    confirms: list[list[tuple[int, SourceId]]],
) -> None:
    known = [position(9, (2, 3), (6, 6))] if goes_on else []
    at_once, singly = Positions("a/**", known), Positions("a/**", known)
    for some, done in zip_longest(handed, confirms, fillvalue=list[tuple[int, SourceId]]()):
        batch = [sample(sn, source=source) for sn, source in some]
        fresh = at_once.hand_out(*batch)
        assert list(fresh) == [one for each in batch for one in singly.hand_out(each)]
        batch = [sample(sn, source=source) for sn, source in done]
        assert confirm_all(at_once, [batch]) == confirm_all(singly, [[one] for one in batch])
        assert at_once.all() == singly.all()
        assert at_once.in_hand == singly.in_hand
        assert at_once.changed == singly.changed


def confirm_all(positions: Positions, batches: Sequence[Sequence[Sample]]) -> bool:
    """Confirm up to what was never handed out; tell whether all was."""
    try:
        for batch in batches:
            positions.confirm(*batch)
    except LocalProtocolError:
        return False
    return True


@st.composite
def any_positions(draw: st.DrawFn) -> Position:
    reached = draw(st.integers(0, 30))
    numbers = draw(st.sets(st.integers(0, reached), max_size=10))
    positions = Positions("a/**")
    for sn in range(reached + 1):
        positions.hand_out(sample(sn))
        if sn not in numbers:
            positions.confirm(sample(sn))
    return positions.take()[0]


@given(st.lists(any_positions(), min_size=1, max_size=4))
def test_what_any_position_says_is_confirmed_is_whatever_their_order(
    found: list[Position],
) -> None:
    (joined,) = join_positions(found)
    assert confirmed(joined) == set[int]().union(*map(confirmed, found))
    assert join_positions(found[::-1]) == [joined]
    assert join_positions([joined, *found]) == [joined]


@given(any_positions(), st.integers(1, 4))
def test_too_many_open_runs_are_written_as_fewer_and_claim_no_more(
    of: Position, runs_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for module in ("durable_cache.protocol.subscriber.positions", consumers.__name__):
            patched.setattr(f"{module}.OPEN_RUNS_MAX", runs_max)
        (written,) = Positions("a/**", [of]).all()
    assert len(written.open) <= runs_max
    assert confirmed(written) <= confirmed(of)
    assert written.confirmed_to == of.confirmed_to


def test_a_run_is_one_whatever_epoch_caches_come_to_call_it_by() -> None:
    positions = Positions("a/**", [position(4, (2, 2), name=NAME)])
    positions.call(SOURCE, 9, (9, NAME))
    assert positions.is_confirmed(sample(1, epoch=9))
    assert not positions.is_confirmed(sample(2, epoch=9))
    positions.hand_out(sample(2, epoch=9))
    assert positions.confirm(sample(2, epoch=9))
    assert positions.take() == [position(4, name=NAME)]


def test_a_run_whose_token_comes_late_is_written_under_its_name() -> None:
    positions = Positions("a/**")
    positions.call(SOURCE, 0, (0, ""))
    positions.handled(sample(3, epoch=0))
    assert positions.take() == [position(3, epoch=0)]
    positions.call(SOURCE, 0, (5, NAME))
    positions.handled(sample(4, epoch=0))
    assert positions.take() == [position(4, name=NAME)]
    both = [position(3, (1, 1), epoch=0), position(4, name=NAME)]
    assert join_positions(both) == [position(4, name=NAME)], "the named one knows better"


def test_another_run_under_an_epoch_that_was_taken_stands_for_itself() -> None:
    positions = Positions("a/**", [position(9, name=NAME)])
    positions.call(SOURCE, 5, (5, NEXT))
    assert not positions.is_confirmed(sample(3))
    positions.handled(sample(0))
    assert positions.take() == [position(0, name=NEXT)]


def test_what_was_lost_is_passed_over_and_reported_unless_it_was_confirmed() -> None:
    positions = Positions("a/**", [position(9, (2, 3), (6, 6))])
    assert positions.pass_over(SOURCE, 5, 0, 3) == [(2, 3)]
    assert positions.take() == [position(9, (6, 6))]
    assert positions.pass_over(SOURCE, 5, 8, 12) == [(10, 12)]
    assert positions.take() == [position(12, (6, 6))]
    assert positions.pass_over(OTHER, 1, 4, 4) == [(4, 4)]


def test_a_position_that_could_not_be_written_is_written_as_it_stands_later() -> None:
    positions = Positions("a/**")
    positions.handled(sample(0))
    (first,) = positions.take()
    assert positions.take() == []
    positions.put_back([first])
    positions.handled(sample(1))
    assert positions.changed == 1
    assert positions.take() == [position(1)]


def test_of_more_runs_than_may_be_one_with_nothing_open_is_forgotten() -> None:
    positions = Positions("a/**", runs_max=2)
    positions.hand_out(sample(0, epoch=1))
    positions.handled(sample(0, epoch=2))
    positions.take()
    positions.handled(sample(0, epoch=3))
    assert [one.epoch for one in positions.all()] == [1, 3]
    assert positions.confirm(sample(0, epoch=1))


def test_a_sample_that_was_never_delivered_cannot_be_confirmed() -> None:
    positions = Positions("a/**", [position(5, (4, 4))])
    for sn, source in ((6, SOURCE), (4, SOURCE), (0, OTHER)):
        with pytest.raises(LocalProtocolError, match=f"sample {sn} of {source}"):
            positions.confirm(sample(sn, source=source))


def test_samples_without_a_number_have_no_position() -> None:
    plain = identified(Sample("a", SourceId("", 0), 0, 0, b"", ntp64=1 << 40, timestamp_id="ab"))
    assert plain is not None
    positions = Positions("a/**")
    positions.hand_out(plain)
    positions.handled(plain)
    assert not positions.confirm(plain)
    assert positions.take() == []
    assert positions.in_hand == 0


def test_a_source_is_gone_on_with_from_its_first_run_with_something_open() -> None:
    one, two, three = position(9, epoch=1), position(7, (3, 3), epoch=2), position(4, epoch=3)
    assert resumed_from([three, one, two]) == {SOURCE: [two, three]}
    assert resumed_from([one, three]) == {SOURCE: [three]}


@pytest.mark.parametrize(
    "wrong",
    [
        position(5, (3, 2)),
        position(5, (3, 6)),
        position(5, (3, 3), (3, 4)),
        position(-2),
        position(-1, (0, 0)),
        Position("a/**", SOURCE, 5, "", 3, (), -1),
        position(LIMIT + 5),
        position(5, name="no name"),
        position(9000, *((2 * at, 2 * at) for at in range(1001))),
    ],
)
def test_a_position_that_is_none_is_refused(wrong: Position) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_position(encode_position(wrong))


@pytest.mark.parametrize("name", ["", "a/b", "*", "@a", "a$*", "-a", "a" * 65, None, 3])
def test_a_name_that_is_no_chunk_of_a_key_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="consumer"):
        check_consumer(name)


def test_a_rewind_outweighs_whatever_was_confirmed_before_it() -> None:
    before = position(9, name=NAME)
    (moved,) = rewound([before], {SOURCE: Point(5, 4)})
    assert (moved.reached, moved.open, moved.rewinds) == (9, ((4, 9),), 1)
    later = position(20, name=NAME)
    for order in ([later, moved], [moved, later]):
        assert join_positions(order) == [moved]
    (whole,) = rewound([moved], None)
    assert join_positions([moved, whole, later]) == [whole]
    assert resumed_from([whole]) == {}, "followed as one that is met for the first time"
    assert decode_position(encode_position(whole)) == whole


def test_an_exclusive_rewind_that_the_next_owner_did_not_read_counts_no_more() -> None:
    """A majority held none of it, or the next owner had read it (ADR 0236)."""
    alone = partial(msgspec.structs.replace, exclusive=True)
    stray = alone(position(4, (2, 4), name=NAME), rewinds=1, fence=1)
    owner = alone(position(9, name=NAME), fence=2)
    for order in ([stray, owner], [owner, stray]):
        assert join_positions(order) == [owner]
    went_on = alone(stray, fence=3)
    assert join_positions([owner, went_on]) == [went_on], "who has the source rewound it"


def test_a_source_that_went_to_another_member_is_not_rewound_in_silence() -> None:
    positions = Positions("a/**", [position(9, name=NAME)])
    with pytest.raises(Fenced, match=f"nothing was rewound: {OTHER} went to another member"):
        positions.rewind({SOURCE: Point(5, 7), OTHER: Point(5, 1)}, shared=True)
    assert positions.is_confirmed(sample(7))
    assert positions.take() == []


def test_where_nobody_shares_a_source_of_which_nothing_was_held_comes_whole() -> None:
    positions = Positions("a/**", [position(9, name=NAME)])
    positions.rewind({SOURCE: Point(5, 7), OTHER: Point(5, 1)})
    assert not positions.is_confirmed(sample(7))
    assert not positions.is_confirmed(msgspec.structs.replace(sample(1), source=OTHER))


@pytest.mark.parametrize(("refused", "fence"), [(0, 4), (1, 5), (2, 7), (99, 3 + 65536)])
def test_a_fence_that_is_refused_is_followed_by_one_further_above(refused: int, fence: int) -> None:
    """A cache knows a later fence, which a position of a later stamp hides from who reads."""
    read = [msgspec.structs.replace(position(1), fence=fence) for fence in (3, 1)]
    assert next_fence(read, refused) == fence
    assert next_fence([], 0) == 1


def test_a_rewind_takes_back_later_runs_whole_and_no_other_source() -> None:
    runs = [position(9, epoch=epoch, name=name) for epoch, name in ((3, "1" * 8), (5, NAME))]
    others = [position(4, epoch=7, name=NEXT), Position("a/**", OTHER, 5, NAME, 9)]
    moved = rewound([*runs, *others], {SOURCE: Point(5, 8)})
    assert [(one.epoch, one.open) for one in moved] == [(5, ((8, 9),)), (7, ((0, 4),))]
    assert rewound(others, {SOURCE: Point(9, 0)}) == []


def test_a_consumer_that_was_rewound_hands_out_again_and_writes_what_moved() -> None:
    positions = Positions("a/**", [position(9, name=NAME)])
    assert positions.rewind({SOURCE: Point(5, 7)})[0].open == ((7, 9),)
    assert not positions.is_confirmed(sample(7))
    assert positions.is_confirmed(sample(6))
    (written,) = positions.take()
    assert written.rewinds == 1
    positions.hand_out(sample(7))
    positions.confirm(sample(7))
    assert positions.take()[0].open == ((8, 9),)


def test_a_dead_letter_holds_the_sample_whole_and_the_beginning_of_a_long_reason() -> None:
    dead = Sample("a/b", SOURCE, 5, 9, b"x", Kind.DELETE, "text/plain", b"why", 1 << 60, "ab", True)
    letter = decode_dead_letter(encode_dead_letter(DeadLetter("no" * 1000, 3, dead)))
    assert (letter.sample, letter.attempts, letter.reason) == (dead, 3, "no" * 500)


@pytest.mark.parametrize(
    "wrong", [DeadLetter("no", 0, sample(1)), DeadLetter("no", 1, sample(1 << 40))]
)
def test_a_dead_letter_that_is_none_is_refused(wrong: DeadLetter) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_dead_letter(encode_dead_letter(wrong))

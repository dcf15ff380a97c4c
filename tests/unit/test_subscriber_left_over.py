"""Whose the last numbers of a run are that come behind the token of the next one."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.events import (
    Answer,
    AnswerPart,
    Fetched,
    HeartbeatReceived,
    TokenGone,
)
from durable_cache.protocol.wire import AbsenceReason, Incarnation
from tests.unit.subscriber_reader import EPOCH, FRESH, SOURCE, Reader, absent, sample

NAMES = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))


def received(one: Sample, reader: Reader) -> Sample:
    """Return a sample as it comes to a reader now."""
    return msgspec.structs.replace(one, received_ns=reader.now.unix_ns)


def test_the_last_of_a_run_that_nobody_has_is_no_number_of_the_next() -> None:
    """It came behind the next run's token, and no answer names its run."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1))
    reader.declared(FRESH, "0000000b")
    reader.live(sample(3))
    reader.answer(sample(2, EPOCH), names=names)
    reader.live(sample(0, at=9))
    for _ in range(60):
        reader.wait(1)
        if reader.fetches:
            reader.answer(names=names)
    assert reader.story == [0, 1, 2, 0, (3, 3)]
    reader.live(sample(1, at=9.1))
    assert reader.story == [0, 1, 2, 0, (3, 3), 1]


@pytest.mark.parametrize(
    ("stamped_at", "of_the_next"),
    [(0.003, False), (-60, False), (5, True)],
    ids=["with the last", "before the next run", "later"],
)
def test_what_was_missed_at_the_end_of_a_run_is_no_number_of_the_next(
    stamped_at: float, of_the_next: bool
) -> None:
    """A slow program: the token is looked at first, and the number is told by then (100330)."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1))
    late = received(sample(3, at=stamped_at), reader)
    reader.handle(HeartbeatReceived(SOURCE, 3, reader.now))
    reader.answer(absent=(absent(2, 3, AbsenceReason.TRIMMED, EPOCH),), names=names)
    reader.declared(FRESH, "0000000b")
    reader.live(late)
    for sn in (None, 0, 1, 2, 3):
        if sn is not None:
            reader.live(sample(sn, at=9 + sn / 10))
        for _ in range(60):
            if reader.fetches:
                reader.answer(names=names)
            reader.wait(1)
    told = [(0, 2), 3] if of_the_next else [0, 1, 2, 3]
    assert reader.story == [0, 1, (2, 3), *told]


def test_the_first_that_comes_long_after_its_token_is_of_its_run_though_nobody_has_it() -> None:
    """The publisher's clock was set back: it publishes as if it had not restarted (seed 7682)."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0))
    reader.declared(FRESH, "0000000b")
    reader.wait(8)
    reader.live(received(sample(2), reader))
    for _ in range(60):
        if reader.fetches:
            reader.answer(names=names)
        reader.wait(1)
    assert reader.story == [0, (0, 1), 2]


def test_a_number_that_came_behind_the_next_token_fills_the_hole_that_it_lies_in() -> None:
    """A slow program: the token is looked at first, and nobody has the sample (seed 7767)."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1), sample(3))
    late = received(sample(2), reader)
    reader.wait(1)
    reader.answer(names=names)
    reader.declared(FRESH, "0000000b")
    reader.live(late)
    reader.live(sample(0, at=9))
    for _ in range(60):
        if reader.fetches:
            reader.answer(names=names)
        reader.wait(1)
    assert reader.story == [0, 1, 2, 3, 0]
    reader.live(sample(1, at=9.1))
    assert reader.story == [0, 1, 2, 3, 0, 1]


def test_what_an_answerer_names_as_of_its_run_fills_no_hole_of_the_one_before() -> None:
    """Its program gave the time of each sample, and two runs began at once (seed 104462)."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(received(sample(0, at=0), reader), received(sample(2, at=0.2), reader))
    reader.declared(FRESH, "0000000b")
    reader.live(*(received(sample(sn, at=0.05 * sn), reader) for sn in range(3)))
    first = AnswerPart([sample(sn, FRESH, at=0.05 * sn) for sn in range(3)], (), NAMES)
    for _ in range(60):
        if reader.fetches:
            reader.answer_of(first, AnswerPart([], (), NAMES))
        reader.wait(1)
    assert reader.story == [0, (1, 1), 2, 0, 1, 2]


def test_a_number_of_a_run_that_began_fills_no_hole_of_the_one_before() -> None:
    """By its time it does not lie between those that are held of that."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(2))
    reader.declared(FRESH, "0000000b")
    reader.live(sample(0, at=0.01), sample(1, at=0.011))
    for _ in range(60):
        if reader.fetches:
            reader.answer(names=names)
        reader.wait(1)
    assert reader.story == [0, (1, 1), 2, 0, 1]


def test_what_was_published_between_two_runs_is_the_last_of_the_first() -> None:
    """A slow program looked at the token first; a second lay between the last two (300697)."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1))
    late = received(sample(3, at=1), reader)
    reader.declared(FRESH, "0000000b")
    reader.live(late)
    for sn in range(3):
        reader.live(sample(sn, at=9 + sn / 10))
        for _ in range(60):
            if reader.fetches:
                reader.answer(names=names)
            reader.wait(1)
    assert reader.story == [0, 1, 0, (2, 3), 1, 2]


def test_what_one_answerer_calls_otherwise_stays_where_another_has_it() -> None:
    """One cache took the first of a run for the rest of the one before (seed 40004)."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1))
    reader.declared(FRESH, "0000000b")
    begun = [sample(sn, at=9 + sn / 10) for sn in range(4)]
    reader.live(begun[0])
    reader.answer(names=names)
    reader.live(begun[3])
    errs = AnswerPart([sample(sn, EPOCH, at=9 + sn / 10) for sn in (2, 3)], (), names)
    right = AnswerPart([sample(sn, FRESH, at=9 + sn / 10) for sn in (1, 2, 3)], (), names)
    fetch = reader.fetches.pop(0)
    reader.handle(Fetched(fetch.fetch_id, Answer((errs, right), 2), reader.now))
    assert reader.story == [0, 1, 0, 1, 2, 3]


def test_an_answer_that_names_much_that_is_held_is_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, names_of = [], AnswerPart.names

    def names(part: AnswerPart) -> Mapping[tuple[SourceId, int], str]:
        looks.append(part)
        return names_of(part)

    monkeypatch.setattr(AnswerPart, "names", names)
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0))
    reader.declared(FRESH, "0000000b")
    reader.live(*[sample(sn) for sn in range(2, 300)])
    named = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader.answer(*[sample(sn, EPOCH) for sn in range(1, 300)], names=named)
    assert reader.story == [*range(300)]
    assert len(looks) < 30


def left_over(reader: Reader, numbers: int = 1) -> None:
    """Let the last of a run come behind the token of the next one; no answer names its run."""
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0))
    late = [received(sample(sn), reader) for sn in range(1, 1 + numbers)]
    reader.declared(FRESH, "0000000b")
    reader.live(*late)
    for _ in range(5):
        if reader.fetches:
            reader.answer(names=NAMES)
        reader.wait(1)


def test_the_last_of_a_run_gives_way_to_the_numbers_of_the_next_one() -> None:
    """They come seconds later, also where the first of them closes the gap before it (1015)."""
    reader = Reader()
    left_over(reader, 2)
    reader.live(received(sample(0, at=9), reader))
    reader.live(received(sample(1, at=9.1), reader))
    assert reader.story == [0, (1, 2), 0, 1]


def test_it_gives_way_also_where_they_overtake_each_other_and_a_clock_was_set_back() -> None:
    reader = Reader()
    left_over(reader)
    begun = [received(sample(sn, at=sn / 10 - 60), reader) for sn in range(2)]
    reader.live(*reversed(begun))
    assert reader.story == [0, (1, 1), 0, 1]


def test_it_gives_way_to_what_an_answer_names() -> None:
    reader = Reader()
    left_over(reader)
    begun = [sample(sn, FRESH, at=9 + sn / 10) for sn in range(3)]
    reader.live(received(sample(2, at=9.2), reader))
    while reader.fetches:
        reader.answer(*begun, names=NAMES)
    assert reader.story == [0, (1, 1), 0, 1, 2]


def test_what_came_with_the_token_of_its_run_gives_way_to_no_repeat() -> None:
    """The first of a run was slow; what came before it goes on where the run before ended not."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0))
    reader.declared(FRESH, "0000000b")
    begun = [received(sample(sn, at=9 + sn / 10), reader) for sn in range(3)]
    reader.live(*begun[1:])
    for _ in range(5):
        if reader.fetches:
            reader.answer(names=NAMES)
        reader.wait(1)
    reader.live(received(begun[0], reader), received(begun[1], reader))
    assert reader.story == [0, 0, 1, 2]


def test_what_overtook_the_first_of_its_run_is_of_it() -> None:
    """The publisher restarted within a second, and goes on with the numbers of the run before."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0, at=0.1))
    reader.declared(FRESH, "0000000b")
    reader.live(received(sample(1, at=0.18), reader))
    while reader.fetches:
        reader.answer(names=NAMES)
    reader.wait(0.05)
    reader.live(received(sample(0, at=0.15), reader))
    assert reader.story == [0, 0, 1]


def test_what_a_cache_has_under_two_names_is_of_the_later_run() -> None:
    """It was faster than its token; the cache took it for the last of the run before (457)."""
    names = (Incarnation(SOURCE, FRESH, "0000000a"), Incarnation(SOURCE, FRESH + 1, "0000000b"))
    reader = Reader()
    reader.declared(FRESH, "0000000a")
    reader.handle(TokenGone(SOURCE, "0000000a", reader.now))
    begun = [sample(sn, FRESH + 1, at=9 + sn / 10) for sn in range(3)]
    reader.live(received(sample(2, at=9.2), reader))
    reader.declared(FRESH + 1, "0000000b")
    reader.live(*[received(sample(sn, at=9 + sn / 10), reader) for sn in range(2)])
    for _ in range(60):
        while reader.fetches:
            reader.answer(sample(2, FRESH, at=9.2), *begun, names=names)
        reader.wait(1)
    assert reader.story == [0, 1, 2]
    assert {one.epoch for one in reader.delivered_samples} == {FRESH + 1}


def test_what_a_cache_has_without_a_name_is_not_given_again_as_of_the_next_run() -> None:
    """It did not hear the token of the run; the next one began soon after (seed 2520)."""
    names = (Incarnation(SOURCE, FRESH, "0000000a"), Incarnation(SOURCE, FRESH + 1, "0000000b"))
    reader = Reader()
    reader.declared(FRESH, "0000000a")
    reader.live(*[sample(sn, at=sn / 10) for sn in range(4)])
    reader.declared(FRESH + 1, "0000000b")
    reader.live(sample(2, at=9.2))
    while reader.fetches:
        nameless = [sample(sn, at=sn / 10) for sn in range(2)]
        fetch = reader.fetches.pop(0)
        parts = AnswerPart(nameless, (), ()), AnswerPart([], (), names)
        reader.handle(Fetched(fetch.fetch_id, Answer(parts, 2), reader.now))
    assert reader.story == [0, 1, 2, 3]
    while len(reader.story) == 4:
        reader.wait(1)
        reader.answer(*[sample(sn, FRESH + 1, at=9 + sn / 10) for sn in range(2)], names=names)
    assert reader.story == [0, 1, 2, 3, 0, 1, 2]


def test_a_token_that_overtook_the_last_samples_before_it_takes_no_number_of_its_run() -> None:
    """The program took its time: what came before the token is looked at when it is there."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1))
    reader.declared(FRESH, "0000000b")
    reader.live(sample(3, at=1))
    reader.live(*(sample(sn, at=9 + sn) for sn in range(5)))
    while reader.wanted:
        reader.answer(names=(Incarnation(SOURCE, FRESH, "0000000b"),))
        reader.wait(3)
    assert [one.ntp64 for one in reader.delivered_samples[-5:]] == [
        sample(sn, at=9 + sn).ntp64 for sn in range(5)
    ]
    assert reader.story == [0, 1, (2, 2), 3, 0, 1, 2, 3, 4]


def test_what_an_answer_names_as_the_next_run_is_no_rest_of_one_without_a_name() -> None:
    """Of the run before, a cache that lost its index has one number, and no name (seed 36759)."""
    reader = Reader(history=True)
    reader.declared(FRESH, "0000000b")
    reader.page([sample(1, EPOCH)])
    begun = [sample(sn, at=9 + sn / 10) for sn in range(5)]
    reader.live(begun[4], begun[0], *begun[1:4])
    given = [msgspec.structs.replace(one, epoch=FRESH) for one in begun[2:]]
    while reader.wanted:
        reader.answer(*given, names=NAMES[1:])
        reader.wait(1)
    assert reader.story == [1, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("at", [0.2, 9.2], ids=["before", "of it"])
def test_a_repeat_of_what_was_passed_on_is_no_number_of_the_next_run(at: float) -> None:
    """It came behind the next run's token, and a cache lost what it had of its run (seed 72680)."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(*[sample(sn, at=sn / 10) for sn in range(4)])
    reader.declared(FRESH, "0000000b")
    reader.live(received(sample(2, at=at), reader))
    reader.answer(names=NAMES)
    reader.live(*[received(sample(sn, at=9 + sn / 10), reader) for sn in range(3)])
    assert reader.story == [0, 1, 2, 3, 0, 1, 2]
    assert reader.delivered_samples[-1].ntp64 == sample(2, at=9.2).ntp64


def test_a_repeat_behind_the_first_of_the_next_run_shows_no_numbers_below_it() -> None:
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(*[sample(sn, at=sn / 10) for sn in range(4)])
    reader.declared(FRESH, "0000000b")
    reader.live(received(sample(0, at=9), reader), received(sample(3, at=0.3), reader))
    for _ in range(60):
        if reader.fetches:
            reader.answer(names=NAMES)
        reader.wait(1)
    assert reader.story == [0, 1, 2, 3, 0]


def test_the_last_of_a_run_is_reported_with_it_though_another_came_and_went_since() -> None:
    """Of the one between nothing was published (seed 80690)."""
    third = FRESH + 1
    names = (*NAMES, Incarnation(SOURCE, third, "0000000c"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1, at=0.1))
    reader.declared(FRESH, "0000000b")
    reader.declared(third, "0000000c")
    reader.live(received(sample(4, at=1), reader))
    for _ in range(5):
        while reader.fetches:
            reader.answer(names=names)
        reader.wait(1)
    reader.live(received(sample(0, at=9), reader), received(sample(1, at=9.1), reader))
    assert reader.story == [0, 1, 0, (2, 4), 1]
    assert [(one.epoch, one.first) for one in reader.missed] == [(EPOCH, 2)]


@pytest.mark.parametrize("at", [1, -30], ids=["in order", "a clock that went back"])
def test_what_is_left_over_is_no_number_behind_those_that_came(at: float) -> None:
    """The first numbers of the run are lost; those that came are later, and lower (seed 80924)."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(*[sample(sn, at=sn / 10) for sn in range(6)])
    reader.declared(FRESH, "0000000b")
    late = [received(sample(6, at=at), reader), received(sample(7, at=1.1), reader)]
    begun = [sample(sn, at=3 + sn / 10) for sn in (2, 3)]
    reader.live(*late, *begun)
    for _ in range(60):
        while reader.fetches:
            reader.answer(names=NAMES)
        reader.wait(1)
    assert reader.story == [*range(6), (6, 7), (0, 1), 2, 3]
    assert [one.epoch for one in reader.missed] == [EPOCH, FRESH]


@pytest.mark.parametrize(("at", "given"), [(0.0, [5, 0, 1]), (9.3, [5, 0, 1, 2])])
def test_what_was_published_before_what_came_between_the_tokens_is_none_of_that_run(
    at: float, given: list[int]
) -> None:
    """A late joiner heard 5 first, whose own time went back; 2 came behind it (seed 137837)."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(5, at=-60), sample(2, at=at))
    reader.handle(TokenGone(SOURCE, "0000000a", reader.now))
    reader.live(sample(1, at=9.1), sample(0, at=9))
    reader.declared(FRESH, "0000000b")
    for _ in range(5):
        if reader.fetches:
            reader.answer(names=NAMES)
        reader.wait(1)
    assert reader.story == given


@pytest.mark.parametrize("back_seconds", [0, 60], ids=["a copy", "a clock that was set back"])
def test_what_was_passed_on_and_comes_once_more_behind_the_next_token_is_not_given_again(
    back_seconds: float,
) -> None:
    """A slow program: the token is looked at first. The next run's own is asked for (128842)."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(*(sample(sn, at=sn / 10) for sn in range(3)))
    copy = received(sample(0), reader)
    reader.wait(1)
    reader.declared(FRESH, "0000000b")
    reader.live(copy)
    begun = [sample(sn, FRESH, at=9 + sn / 10 - back_seconds) for sn in range(3)]
    reader.live(msgspec.structs.replace(begun[2], epoch=0))
    for _ in range(9):
        reader.wait(1)
        if reader.fetches:
            reader.answer(*begun, names=NAMES)
    assert reader.story == [0, 1, 2, 0, 1, 2]
    assert [one.ntp64 for one in reader.delivered_samples[3:]] == [one.ntp64 for one in begun]

"""How a subscriber goes on where an earlier life of it stood."""

from __future__ import annotations

import pytest

from durable_cache.model.sample import SourceId
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.resuming import ResumingEngine
from durable_cache.protocol.wire import AbsenceReason, Incarnation
from tests.unit.subscriber_reader import EPOCH, OTHER, SOURCE, Reader, absent, sample

NAME, NEXT = "00000001", "00000002"
NAMES = (Incarnation(SOURCE, EPOCH, NAME),)


class Resumed(Reader):
    """A reader whose engine knows where an earlier life stood."""

    def __init__(self, *positions: Position, options: DeliveryOptions | None = None) -> None:
        super().__init__(options, history=True)
        self.asked.clear()
        self.resumed = ResumingEngine(options, positions)
        self.engine = self.resumed
        self.take(self.engine.start(self.now))
        if positions and positions[-1].incarnation:
            self.declared(positions[-1].epoch, positions[-1].incarnation)  # its publisher lives


def stood(
    reached: int,
    *still_open: tuple[int, int],
    epoch: int = EPOCH,
    name: str = NAME,
    source: SourceId = SOURCE,
) -> Position:
    return Position("k", source, epoch, name, reached, still_open)


def test_history_goes_on_behind_what_is_confirmed_and_what_is_live_behind_history() -> None:
    reader = Resumed(stood(3))
    reader.live(sample(8))
    reader.page([sample(sn, EPOCH) for sn in range(8)], names=NAMES)
    assert reader.story == [4, 5, 6, 7, 8]
    reader.live(sample(9))
    assert reader.story[-1] == 9
    assert {one.epoch for one in reader.delivered_samples} == {EPOCH}, "all by one name"
    assert reader.resumed.run_of(SOURCE, EPOCH) == (EPOCH, NAME)


def test_history_of_many_pages_goes_on_behind_what_is_confirmed() -> None:
    reader = Resumed(stood(5))
    samples = [sample(sn, EPOCH) for sn in range(12)]
    for begin in range(0, 12, 3):
        page = samples[begin : begin + 3]
        reader.page(page, names=NAMES, cut_after=page[-1] if begin < 9 else None)
    assert reader.story == [6, 7, 8, 9, 10, 11]


def test_what_is_open_comes_again_with_all_behind_it() -> None:
    """The shell passes over what lies between and is confirmed."""
    reader = Resumed(stood(9, (4, 4), (7, 8)))
    reader.page([sample(sn, EPOCH) for sn in range(11)], names=NAMES)
    assert reader.story == [4, 5, 6, 7, 8, 9, 10]


def test_what_caches_removed_meanwhile_is_reported_before_what_follows() -> None:
    reader = Resumed(stood(3))
    reader.page([sample(sn, EPOCH) for sn in (7, 8)], names=NAMES)
    assert reader.wanted == [(4, 6)]
    trimmed = absent(4, 6, AbsenceReason.TRIMMED, EPOCH)
    reader.answer(absent=(trimmed,), names=NAMES)
    assert reader.story == [(4, 6), 7, 8]


def test_numbers_of_other_keys_are_passed_over_in_silence() -> None:
    reader = Resumed(stood(3))
    reader.page([sample(7, EPOCH)], names=NAMES)
    reader.answer(absent=(absent(4, 6, AbsenceReason.OTHER_KEY, EPOCH),), names=NAMES)
    assert reader.story == [7]


def test_what_one_cache_removed_is_no_loss_while_another_could_not_answer() -> None:
    reader = Resumed(stood(3))
    reader.page([sample(7, EPOCH)], names=NAMES)
    trimmed = absent(4, 6, AbsenceReason.TRIMMED, EPOCH)
    reader.answer(absent=(trimmed,), names=NAMES, whole=False)
    assert reader.story == []
    reader.wait(1)
    reader.answer(*(sample(sn, EPOCH) for sn in (4, 5, 6)), names=NAMES)
    assert reader.story == [4, 5, 6, 7]


def test_a_tail_that_was_removed_is_reported_though_history_brings_nothing_of_its_source() -> None:
    reader = Resumed(stood(3))
    reader.page([sample(0, 5, source=OTHER)])
    assert reader.wanted == [(4, None)]
    trimmed = absent(4, 9, AbsenceReason.TRIMMED, EPOCH)
    reader.answer(absent=(trimmed,), names=NAMES)
    assert reader.story == [0, (4, 9)]


def test_a_source_that_put_nothing_more_goes_on_live_without_a_report() -> None:
    reader = Resumed(stood(3))
    reader.page([])
    reader.answer(names=NAMES)
    reader.live(sample(4), sample(5))
    assert reader.story == [4, 5]


def test_live_samples_ahead_of_the_position_wait_for_what_lies_between() -> None:
    reader = Resumed(stood(3))
    reader.page([])
    reader.answer(names=NAMES)
    reader.live(sample(6))
    assert reader.story == []
    reader.answer(sample(4, EPOCH), sample(5, EPOCH), names=NAMES)
    assert reader.story == [4, 5, 6]


def test_a_run_that_caches_call_by_another_epoch_meanwhile_is_gone_on_with() -> None:
    reader = Resumed(stood(3))
    later = (Incarnation(SOURCE, EPOCH + 1, NAME),)
    reader.page([sample(sn, EPOCH + 1) for sn in range(6)], names=later)
    assert reader.story == [4, 5]
    assert reader.resumed.run_of(SOURCE, EPOCH + 1) == (EPOCH + 1, NAME)
    reader.live(sample(6))
    assert reader.story == [4, 5, 6]
    live = reader.delivered_samples[-1]
    assert reader.resumed.run_of(SOURCE, live.epoch)[1] == NAME


def test_the_rest_of_a_run_comes_before_the_one_that_began_meanwhile() -> None:
    reader = Resumed(stood(3))
    first = [sample(sn, EPOCH, at=sn / 100) for sn in range(6)]
    second = [sample(sn, EPOCH + 9, at=1 + sn / 100) for sn in range(3)]
    names = (*NAMES, Incarnation(SOURCE, EPOCH + 9, NEXT))
    reader.page(first + second, names=names)
    assert reader.story == [4, 5, 0, 1, 2]
    assert [one.epoch for one in reader.delivered_samples] == [EPOCH] * 2 + [EPOCH + 9] * 3


def test_of_two_runs_both_are_gone_on_with_where_they_stood() -> None:
    reader = Resumed(stood(5, (4, 4)), stood(1, epoch=EPOCH + 9, name=NEXT))
    first = [sample(sn, EPOCH, at=sn / 100) for sn in range(6)]
    second = [sample(sn, EPOCH + 9, at=1 + sn / 100) for sn in range(4)]
    names = (*NAMES, Incarnation(SOURCE, EPOCH + 9, NEXT))
    reader.page(first + second, names=names)
    assert reader.story == [4, 5, 2, 3]


@pytest.mark.parametrize("name", [NAME, ""])
def test_the_publishers_token_makes_no_new_run_of_the_one_that_is_gone_on_with(name: str) -> None:
    reader = Resumed(stood(3, name=name))
    reader.declared(EPOCH, NAME)
    reader.page([sample(sn, EPOCH) for sn in range(6)], names=NAMES)
    reader.live(sample(6))
    assert reader.story == [4, 5, 6]


def test_a_token_that_comes_again_much_later_makes_no_new_run_either() -> None:
    reader = Resumed(stood(3))
    reader.page([])
    reader.answer(names=NAMES)
    reader.seconds += 60
    reader.declared(EPOCH, NAME)
    reader.live(sample(4), sample(5))
    assert reader.story == [4, 5]
    assert reader.resumed.run_of(SOURCE, EPOCH) == (EPOCH, NAME)


def test_of_more_sources_than_are_followed_each_goes_on_where_it_stood() -> None:
    sources = [SourceId("ab", at) for at in range(1, 8)]
    positions = [stood(3, name="", source=source) for source in sources]
    reader = Resumed(*positions, options=DeliveryOptions(sources_max=2))
    reader.page([sample(sn, EPOCH, source=source) for source in sources for sn in range(6)])
    assert sorted(reader.delivered) == sorted([4, 5] * 7)


def test_a_live_run_whose_token_comes_late_keeps_the_epoch_that_its_samples_bear() -> None:
    reader = Resumed()
    reader.page([])
    reader.live(sample(0))
    assert reader.resumed.run_of(SOURCE, 0) == (0, "")
    reader.declared(EPOCH, NAME)
    reader.live(sample(1))
    assert [one.epoch for one in reader.delivered_samples] == [0, 0]
    assert reader.resumed.run_of(SOURCE, 0) == (EPOCH, NAME)


def test_of_more_sources_than_are_followed_each_is_given_its_rest() -> None:
    """One rested while its rest was asked for, and the answer was passed over without a word."""
    sources = [SourceId("ab", eid) for eid in range(1, 6)]
    names = tuple(Incarnation(source, EPOCH, NAME) for source in sources)
    options = DeliveryOptions(sources_max=2)
    reader = Resumed(*(stood(3, source=source) for source in sources), options=options)
    reader.page([])
    assert [fetch.source for fetch in reader.fetches] == sources[:2]
    for source in sources:
        assert reader.fetches[0].source == source
        reader.answer(*(sample(sn, EPOCH, source=source) for sn in (4, 5)), names=names)
    assert not reader.fetches
    given = [(one.source, one.sn) for one in reader.delivered_samples]
    assert given == [(source, sn) for source in sources for sn in (4, 5)]

"""What a subscriber without recovery passes on: runs that begin anew, tokens, heartbeats."""

from __future__ import annotations

import pytest

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.modes import Mode, ModeOptions, Passed
from durable_cache.protocol.subscriber.arriving import ArrivingEngine
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    Declared,
    Deliver,
    DeliveryOptions,
    FetchFailed,
    HeartbeatReceived,
    HistoryFailed,
    Missed,
    Received,
    TimePassed,
    TokenGone,
)
from durable_cache.protocol.wire import incarnation_after
from tests.unit.subscriber_reader import BEGAN_NS, EPOCH, FRESH, OTHER, SOURCE, sample

UNRELIABLE = Mode.of("unreliable")
BY_INDEX = Mode.of("at-most-once")
BY_ID = Mode.of("at-most-once", ModeOptions(deduplication="id"))
ALL = pytest.mark.parametrize("mode", [UNRELIABLE, BY_INDEX, BY_ID], ids=["any", "index", "id"])
NOW = Moment(0, BEGAN_NS)


class Reader:
    """Notes what a subscriber's program would see, and counts as its shell does."""

    def __init__(self, mode: Mode, options: DeliveryOptions | None = None) -> None:
        self.engine = ArrivingEngine(mode, options)
        self.story: list[int | tuple[int, int]] = []
        self.samples: list[Sample] = []
        assert self.engine.start(NOW) == []

    def handle(self, event: Received | Declared | HeartbeatReceived) -> None:
        losses = self.engine.losses
        for output in self.engine.handle(event):
            match output:
                case Deliver(samples, _, passed):
                    losses.passed_on(samples, passed)
                    self.samples += losses.after_misses(samples, unsure=False)
                    self.story += [one.sn for one in samples]
                case Missed(source, _, first, last):
                    losses.lost(source, last - first + 1)
                    self.story.append((first, last))
                case _:
                    raise AssertionError(f"nothing is asked: {output}")

    def live(self, *samples: Sample, oversized: tuple[Sample, ...] = ()) -> None:
        self.handle(Received(samples, NOW, oversized))

    def declared(self, epoch: int, incarnation: str, *, listed: bool = False) -> None:
        self.handle(Declared(SOURCE, epoch, incarnation, NOW, listed))


@ALL
def test_a_gap_is_reported_at_once_and_nothing_waits_for_it(mode: Mode) -> None:
    reader = Reader(mode)
    reader.live(sample(0), sample(3))
    assert reader.story == [0, (1, 2), 3]
    assert [one.missed_before for one in reader.samples] == [0, 2]
    assert reader.engine.wake_ns() is None


def test_what_comes_late_is_passed_on_but_by_index_and_is_lost_no_more() -> None:
    late = [sample(0), sample(3), sample(1), sample(3), sample(4)]
    for mode, story, counts in (
        (UNRELIABLE, [0, (1, 2), 3, 1, 3, 4], (4, 1, 1)),
        (BY_ID, [0, (1, 2), 3, 1, 4], (4, 1, 1)),
        (BY_INDEX, [0, (1, 2), 3, 4], (3, 2, 2)),
    ):
        reader = Reader(mode)
        reader.live(*late)
        assert reader.story == story
        (row,) = reader.engine.losses.rows()
        assert (row.delivered, row.lost, row.repeats) == counts
        assert reader.samples[1].missed_before == 2
        assert reader.samples[-1].missed_before == 0


@ALL
def test_a_run_that_a_token_announces_is_passed_on_from_its_first_number(mode: Mode) -> None:
    reader = Reader(mode)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(*(sample(sn, at=sn / 1000) for sn in range(5)))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(1, at=0.010), sample(2, at=0.011))
    assert reader.story == [0, 1, 2, 3, 4, (0, 0), 1, 2]
    assert [one.epoch for one in reader.samples] == [EPOCH] * 5 + [FRESH] * 2


@ALL
@pytest.mark.parametrize("first", [5, 7])
def test_an_announced_run_whose_first_numbers_are_lost_loses_nothing_of_the_run_before(
    mode: Mode, first: int
) -> None:
    reader = Reader(mode)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(*(sample(sn, at=sn / 1000) for sn in range(5)))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(first, at=1.0), sample(first - 1, at=0.999), sample(first + 1, at=1.001))
    late = [] if mode is BY_INDEX else [first - 1]
    assert reader.story == [0, 1, 2, 3, 4, (0, first - 1), first, *late, first + 1]
    assert {one.epoch for one in reader.samples[5:]} == {FRESH}
    assert reader.samples[5].missed_before == first


@ALL
def test_an_announced_run_behind_one_of_which_nothing_came_has_its_own_epoch(mode: Mode) -> None:
    reader = Reader(mode)
    reader.declared(FRESH, "aaaaaaaa")
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(1))
    assert reader.story == [(0, 0), 1]
    assert [one.epoch for one in reader.samples] == [FRESH + 1]


@ALL
@pytest.mark.parametrize("later_first", [True, False])
def test_a_token_that_an_ended_run_left_behind_begins_none(mode: Mode, later_first: bool) -> None:
    listed = [(EPOCH, "aaaaaaaa"), (EPOCH + 9, "bbbbbbbb")]
    reader = Reader(mode)
    first, second = reversed(listed) if later_first else listed
    reader.declared(*first, listed=True)
    reader.live(sample(50))
    reader.declared(*second, listed=True)
    reader.live(sample(51, at=60.0))
    assert reader.story == [50, 51]
    assert reader.samples[-1].epoch == EPOCH + 9


@ALL
def test_the_last_samples_of_a_run_that_its_successors_token_overtook_are_of_that_run(
    mode: Mode,
) -> None:
    reader = Reader(mode)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(*(sample(sn, at=sn / 1000) for sn in range(5)))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(5, at=0.005), sample(7, at=0.007), sample(0, at=1.0))
    assert reader.story == [0, 1, 2, 3, 4, 5, (6, 6), 7, 0]
    assert [one.epoch for one in reader.samples] == [EPOCH] * 7 + [FRESH]


@ALL
def test_a_run_whose_token_names_the_one_behind_its_wrap_ends_by_its_numbers(mode: Mode) -> None:
    last = SOURCE_SN_MODULUS - 1
    reader = Reader(mode)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(last - 1, at=1.0))
    reader.declared(FRESH, incarnation_after("aaaaaaaa"))
    reader.live(sample(last, at=2.0), sample(0, at=3.0))
    assert reader.story[-3:] == [last - 1, last, 0]
    assert [one.epoch for one in reader.samples] == [EPOCH, EPOCH, FRESH]


@ALL
def test_a_run_that_nothing_announces_is_told_by_its_time(mode: Mode) -> None:
    reader = Reader(mode)
    reader.live(*(sample(sn) for sn in range(5)))
    reader.live(sample(0, at=1.0), sample(1, at=1.001))
    assert reader.story == [0, 1, 2, 3, 4, 0, 1]
    assert reader.samples[-1].epoch > 0


@pytest.mark.parametrize(
    ("mode", "passes"), [(BY_INDEX, False), (BY_ID, False), (UNRELIABLE, True)]
)
def test_a_late_repeat_of_the_run_before_is_no_number_of_the_new_one(
    mode: Mode, passes: bool
) -> None:
    reader = Reader(mode)
    reader.live(*(sample(sn) for sn in range(5)), sample(0, at=1.0), sample(1, at=1.001))
    reader.live(sample(3), sample(2, at=1.002))
    assert reader.story == [0, 1, 2, 3, 4, 0, 1, *([3] if passes else []), 2]


@ALL
def test_the_counter_wraps(mode: Mode) -> None:
    last = SOURCE_SN_MODULUS - 1
    reader = Reader(mode)
    reader.live(sample(last - 1, at=1.0), sample(last, at=1.001), sample(1, at=1.002))
    assert reader.story == [last - 1, last, (0, 0), 1]
    assert reader.samples[-1].missed_before == 1


@ALL
def test_a_repeat_is_no_restart_while_a_heartbeat_is_ahead_of_the_samples(mode: Mode) -> None:
    reader = Reader(mode)
    reader.live(sample(0, at=0))
    reader.handle(HeartbeatReceived(SOURCE, 3, NOW))
    assert reader.story == [0, (1, 3)]
    reader.live(sample(2, at=60), sample(3, at=61))
    assert reader.story == [0, (1, 3), 2, 3]
    (row,) = reader.engine.losses.rows()
    assert (row.delivered, row.lost) == (3, 1)
    assert [one.missed_before for one in reader.samples] == [0, 1, 0]


@ALL
def test_a_heartbeat_of_nobody_or_far_ahead_loses_nothing(mode: Mode) -> None:
    reader = Reader(mode)
    reader.handle(HeartbeatReceived(OTHER, 3, NOW))
    reader.live(sample(0))
    reader.handle(HeartbeatReceived(SOURCE, 1 << 30, NOW))
    assert reader.story == [0]


@ALL
def test_what_is_too_large_is_lost_and_what_follows_comes(mode: Mode) -> None:
    reader = Reader(mode)
    reader.live(sample(0), oversized=(sample(1),))
    reader.live(sample(2), sample(4), oversized=(sample(3),))
    assert reader.story == [0, (1, 1), 2, (3, 3), 4]


@ALL
def test_samples_without_a_number_are_passed_on_as_they_come(mode: Mode) -> None:
    plain = Sample("k", SourceId("ab", 0), 0, 7, b"", ntp64=5 << 32, timestamp_id="ab")
    reader = Reader(mode)
    reader.live(plain, plain)
    assert len(reader.story) == 2
    assert reader.engine.losses.rows() == ()


@ALL
def test_what_nobody_asked_for_changes_nothing(mode: Mode) -> None:
    engine = ArrivingEngine(mode)
    engine.start(NOW)
    for event in (
        *(TokenGone(SOURCE, "a", NOW), AnswererAppeared(NOW), TimePassed(NOW)),
        *(FetchFailed(1, NOW), HistoryFailed(1, "", NOW)),
    ):
        assert engine.handle(event) == []
    assert (engine.history_complete, engine.gaps_open) == (True, 0)


def test_sources_are_bounded_and_one_that_was_forgotten_counts_as_new() -> None:
    reader = Reader(BY_ID, DeliveryOptions(places_max=2))
    sources = [SourceId("ab", at) for at in range(1, 4)]
    reader.live(*(sample(0, source=source) for source in sources))
    reader.live(sample(0, source=sources[2]), sample(0, source=sources[0]))
    assert reader.story == [0, 0, 0, 0]
    assert reader.engine.duplicates == 1


def test_samples_that_come_again_are_told_apart_from_first_ones() -> None:
    engine = ArrivingEngine(UNRELIABLE)
    outputs = engine.handle(Received([sample(0), sample(0), sample(1)], NOW))
    assert [one.passed for one in outputs if isinstance(one, Deliver)] == [
        *(Passed.FIRST, Passed.AGAIN, Passed.FIRST)
    ]
    assert (engine.delivered, engine.missed) == (3, 0)

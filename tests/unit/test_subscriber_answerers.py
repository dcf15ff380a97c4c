"""What a subscriber asks when a cache appears that was never in reach (ADR 0187)."""

from __future__ import annotations

import pytest

from durable_cache.model.sample import SourceId
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache.protocol.standings import FROM_THE_BEGINNING
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    AskBeginning,
    BeginningTold,
    DeliveryOptions,
    Output,
    TimePassed,
)
from durable_cache.protocol.subscriber.run_table import RunTable
from durable_cache.protocol.wire import Absence, AbsenceReason, Incarnation
from tests.unit.subscriber_reader import (
    BEGAN_NS,
    EPOCH,
    FRESH,
    OTHER,
    SECOND,
    SOURCE,
    Reader,
    moment_at,
    sample,
)

NAME, NAMED = "0000000a", (Incarnation(SOURCE, EPOCH, "0000000a"),)
WAIT_SECONDS = DeliveryOptions().token_wait_seconds


class Late(Reader):
    """A reader that was given the history of the caches in reach."""

    def __init__(self, options: DeliveryOptions | None = None, *, history: bool = True) -> None:
        self.probes: list[AskBeginning] = []
        super().__init__(options, history=history)
        if history:
            self.page([sample(sn, EPOCH) for sn in range(3)], names=NAMED)
        self.seconds = 60.0

    def take(self, outputs: list[Output]) -> None:
        self.probes += [one for one in outputs if isinstance(one, AskBeginning)]
        super().take(outputs)

    def appeared(self, *, strange: bool = True, gone_at: float | None = None) -> None:
        self.handle(
            AnswererAppeared(self.now, strange, None if gone_at is None else moment_at(gone_at))
        )

    def told(self, ntp64: int) -> None:
        self.handle(BeginningTold(self.probes.pop(0).question_id, ntp64, self.now))


def test_caches_are_asked_what_they_hold_behind_where_each_source_stands_and_once_more() -> None:
    reader = Late()
    reader.appeared()
    (probe,) = reader.probes
    (standing,) = probe.standings
    assert (standing.source, standing.epoch, standing.following) == (SOURCE, EPOCH, 3)
    assert standing.incarnation == NAME
    reader.told(NTP64_MAX)
    assert not reader.asked
    reader.wait(WAIT_SECONDS)
    assert len(reader.probes) == 1, "a router may not have known how to ask the cache"
    reader.told(NTP64_MAX)
    reader.wait(60)
    assert [*reader.probes, *reader.asked, *reader.fetches] == []


def test_nothing_is_asked_of_a_cache_that_was_in_reach_before_nor_where_no_history_is_wanted() -> (
    None
):
    reader = Late()
    reader.appeared(strange=False)
    assert not reader.probes, "it was there when we began"
    reader = Late(history=False)
    reader.appeared()
    assert not reader.probes
    reader = Late(DeliveryOptions(recovery=False))
    reader.appeared()
    assert not reader.probes


def test_what_the_cache_alone_holds_is_read_and_the_rest_of_known_sources_asked_for() -> None:
    reader = Late()
    reader.appeared()
    at = sample(0, at=30.0).ntp64
    reader.told(at)
    (asked,) = reader.asked
    assert asked.as_wanted
    assert asked.since_ns is not None
    assert 0 < BEGAN_NS + 30 * SECOND - asked.since_ns < SECOND
    late = [sample(sn, EPOCH, at=30.0 + sn, source=OTHER) for sn in (5, 6)]
    reader.page([*late, sample(3, EPOCH, at=40.0)], names=NAMED)
    assert [(one.source, one.sn) for one in reader.delivered_samples[3:]] == [
        (OTHER, 5),
        (OTHER, 6),
    ]
    reader.wait(1)
    assert (SOURCE, 3) in [(fetch.source, fetch.first) for fetch in reader.fetches]
    reader.fetches = [fetch for fetch in reader.fetches if fetch.source == SOURCE]
    reader.answer(sample(3, EPOCH, at=40.0), names=NAMED)
    assert reader.delivered[-1] == 3
    assert reader.engine.missed == 0


@pytest.mark.parametrize("places_max", [DeliveryOptions().places_max, 2])
def test_what_is_given_live_while_a_page_waits_is_not_given_again(places_max: int) -> None:
    """Nothing of a run had come when a page showed it; then its first number did (seed 99822)."""
    reader = Late(DeliveryOptions(places_max=places_max))
    name = "0000000b"
    run = [sample(sn, EPOCH, source=OTHER, at=70.0 + sn) for sn in range(13)]
    names = (Incarnation(OTHER, EPOCH, name),)

    def elsewhere(first: int, last: int) -> Absence:
        return Absence(OTHER, EPOCH, first, last, AbsenceReason.OTHER_KEY)

    reader.declared(EPOCH, name, OTHER)
    reader.live(run[7])
    assert reader.wanted == [(0, 6)]
    reader.appeared()
    reader.told(run[0].ntp64)
    third = [sample(sn, EPOCH, source=SourceId("ef", sn), at=90.0 + sn) for sn in range(3)]
    reader.page([run[4], run[7], run[12], *third], names=names)
    assert reader.wanted == [(0, 6), (5, 11)]
    reader.answer(run[4], absent=(elsewhere(0, 3), elsewhere(5, 6)), names=names)
    for _ in range(20):
        if reader.fetches:
            reader.answer(absent=(elsewhere(5, 6), elsewhere(8, 11)), names=names)
        reader.wait(1)
    given = [one.sn for one in reader.delivered_samples if one.source == OTHER]
    assert given == [4, 7, 12]


def test_known_sources_are_asked_for_also_where_a_page_does_not_show_that_they_have_more() -> None:
    """It holds of each key only as much as history is wanted of."""
    reader = Late()
    reader.appeared()
    reader.told(sample(0, at=30.0).ntp64)
    reader.page([sample(5, EPOCH, at=35.0, source=OTHER)], names=NAMED)
    reader.wait(1)
    assert (SOURCE, 3) in [(fetch.source, fetch.first) for fetch in reader.fetches]


def test_what_came_and_went_behind_a_cut_is_read_from_a_cache_that_is_there_again() -> None:
    reader = Late()
    reader.appeared(strange=False, gone_at=40.0)
    assert len(reader.probes) == 1
    reader.told(sample(0, at=50.0).ntp64)
    (asked,) = reader.asked
    assert asked.since_ns is not None
    assert 0 < BEGAN_NS + 50 * SECOND - asked.since_ns < SECOND
    reader.page([sample(sn, FRESH, at=50.0 + sn, source=OTHER) for sn in range(2)], names=())
    assert [(one.source, one.sn) for one in reader.delivered_samples[3:]] == [
        (OTHER, 0),
        (OTHER, 1),
    ]
    reader.wait(1)
    assert not reader.fetches, "the tokens of known sources went with the cut, or stayed"


def test_nothing_is_read_that_is_older_than_the_cut() -> None:
    reader = Late()
    reader.appeared(strange=False, gone_at=40.0)
    reader.told(FROM_THE_BEGINNING)
    (asked,) = reader.asked
    assert asked.since_ns is not None
    assert 10 < (BEGAN_NS + 40 * SECOND - asked.since_ns) / SECOND < 20


def test_a_cache_that_was_away_when_history_was_read_is_asked_for_all_it_holds() -> None:
    """It was seen before, and took no part (seed 146463)."""
    reader = Late()
    reader.handle(AnswererAppeared(reader.now, False, moment_at(-30.0)))
    reader.told(FROM_THE_BEGINNING)
    (asked,) = reader.asked
    assert asked.since_ns == 0
    reader.page([sample(sn, EPOCH) for sn in range(6)], names=NAMED)
    reader.wait(1)
    assert (SOURCE, 3) in [(fetch.source, fetch.first) for fetch in reader.fetches]


def test_the_earliest_cut_counts_and_a_cache_that_was_never_seen_most() -> None:
    reader = Late()
    reader.appeared(strange=False, gone_at=50.0)
    reader.appeared(strange=False, gone_at=30.0)
    reader.told(FROM_THE_BEGINNING)
    assert reader.asked[0].since_ns is not None
    assert reader.asked[0].since_ns < BEGAN_NS + 30 * SECOND
    reader = Late()
    reader.appeared(strange=False, gone_at=50.0)
    reader.appeared()
    reader.told(FROM_THE_BEGINNING)
    assert reader.asked[0].since_ns == 0


def test_a_cache_that_was_never_seen_is_asked_also_where_all_others_were_away() -> None:
    """What came since the cut is read then, and it holds what is older (seed 126270)."""
    reader = Late()
    reader.handle(AnswerersGone(reader.now))
    reader.wait(10)
    reader.appeared(strange=False, gone_at=60.0)
    assert not reader.probes, "what came since is asked for"
    reader.appeared()
    assert len(reader.probes) == 1
    older = [sample(sn, EPOCH, at=3 + sn, source=OTHER) for sn in (0, 1)]
    reader.told(older[0].ntp64)
    reader.page([])
    assert reader.asked[-1].since_ns is not None
    assert reader.asked[-1].since_ns < BEGAN_NS + 3 * SECOND
    reader.page(older)
    assert reader.story == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("since", [True, False], ids=["after", "before"])
def test_what_was_removed_of_a_run_that_began_before_us_is_a_loss_where_we_were_there(
    since: bool,
) -> None:
    """The link to its publisher was cut (seed 34422)."""
    reader = Late()
    reader.appeared()
    reader.told(FROM_THE_BEGINNING)
    names = (Incarnation(OTHER, EPOCH, NAME),)
    began = 0 if since else -20
    page = [sample(sn, EPOCH, at=began + sn, source=OTHER) for sn in (7, 9)]
    reader.page(page, names=names)
    assert reader.wanted == [(8, 8)], "it may be held somewhere else"
    reader.answer(absent=(Absence(OTHER, EPOCH, 8, 8, AbsenceReason.TRIMMED),), names=names)
    assert reader.story[3:] == ([7, (8, 8), 9] if since else [7, 9])


@pytest.mark.parametrize(
    ("at", "story"),
    [(0.5, [0, (1, 1), 2]), (-0.5, [0, (1, 1), 2]), (-2.5, [0, 2])],
    ids=["after", "perhaps", "before"],
)
def test_what_was_removed_is_missed_where_it_may_have_been_published_since_we_came(
    at: float, story: list[int | tuple[int, int]]
) -> None:
    """What lies behind it tells (seeds 38490, 79436)."""
    reader = Late()
    reader.appeared()
    reader.told(FROM_THE_BEGINNING)
    names = (Incarnation(OTHER, FRESH, NAME),)
    reader.page([sample(sn, FRESH, at=at + sn, source=OTHER) for sn in (0, 2)], names=names)
    reader.answer(absent=(Absence(OTHER, FRESH, 1, 1, AbsenceReason.TRIMMED),), names=names)
    assert reader.story[3:] == story


def test_what_was_removed_of_a_run_that_began_after_us_is_missed() -> None:
    reader = Late()
    reader.appeared()
    reader.told(FROM_THE_BEGINNING)
    names = (Incarnation(OTHER, FRESH + 5, NAME),)
    reader.page([sample(2, FRESH + 5, at=50.0, source=OTHER)], names=names)
    assert reader.wanted == [(0, 1)]
    reader.answer(absent=(Absence(OTHER, FRESH + 5, 0, 1, AbsenceReason.TRIMMED),), names=names)
    assert reader.story[3:] == [(0, 1), 2]


def test_runs_that_may_have_been_followed_and_forgotten_are_not_reported_as_missed() -> None:
    reader = Late()
    for at in range(1, 20):
        reader.declared(EPOCH + at, f"000001{at:02x}")
        reader.live(sample(0, at=60.0 + at))
        for _ in range(3):
            while reader.fetches:
                reader.answer()
            reader.wait(2)
    assert reader.engine.missed == 0
    reader.appeared()
    reader.told(FROM_THE_BEGINNING)
    names = (Incarnation(SOURCE, EPOCH + 1, "00000101"),)
    reader.page([sample(0, EPOCH + 1, at=61.0)], names=names)
    assert reader.engine.missed == 0
    assert reader.delivered == [0, 1, 2, *[0] * 19]


def test_what_was_read_since_is_followed_without_a_look_at_all_that_was_read_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Late()

    def looked(_: object) -> None:
        pytest.fail("it looked at all that was read")

    with monkeypatch.context() as patched:
        patched.setattr(RunTable, "__iter__", looked)
        reader.handle(TimePassed(reader.now))
    reader.live(sample(3, EPOCH))
    reader.wait(2 * WAIT_SECONDS)
    assert reader.story == [0, 1, 2, 3]


@pytest.mark.parametrize("epoch", [EPOCH + 1, FRESH], ids=["before", "since"])
def test_a_run_of_which_nothing_came_is_given_behind_the_one_that_history_brings(
    epoch: int,
) -> None:
    """Both are asked for when the cache appears, and the later run is answered first."""
    names = Incarnation(OTHER, EPOCH, "0000000b"), Incarnation(OTHER, epoch, "0000000c")
    before = [sample(sn, EPOCH, at=20 + sn, source=OTHER) for sn in (0, 1, 2)]
    begun = [sample(sn, epoch, at=30 + sn, source=OTHER) for sn in range(2)]
    reader = Late()
    reader.story.clear()
    reader.declared(epoch, "0000000c", OTHER)
    reader.appeared()
    reader.wait(0)
    reader.told(before[0].ntp64)
    of_run = [one for one in reader.fetches if one.source == OTHER]
    reader.fetches = []
    reader.page([before[0], before[2], *begun], names=names)
    between, reader.fetches = reader.fetches, of_run
    reader.answer(*begun, names=names)
    assert reader.story == []
    reader.fetches += between
    while reader.fetches:
        wanted = reader.fetches[0]
        every = {EPOCH: before, epoch: begun}[wanted.epoch]
        last = wanted.first if wanted.last is None else wanted.last
        found = [one for one in every if wanted.first <= one.sn <= last]
        reader.answer(*found, names=names)
        reader.wait(0.1)
    assert reader.story == [0, 1, 2, 0, 1]
    reader.live(sample(2, at=32, source=OTHER))
    assert reader.story == [0, 1, 2, 0, 1, 2]


def test_it_is_asked_for_again_however_late_it_was_answered_while_history_was_read() -> None:
    """History brings the run before alone."""
    names = Incarnation(OTHER, EPOCH, "0000000b"), Incarnation(OTHER, FRESH, "0000000c")
    before = [sample(sn, EPOCH, at=20 + sn, source=OTHER) for sn in (0, 1, 2)]
    begun = [sample(sn, FRESH, at=30 + sn, source=OTHER) for sn in range(2)]
    reader = Late()
    reader.story.clear()
    reader.declared(FRESH, "0000000c", OTHER)
    reader.appeared(strange=False, gone_at=15)
    reader.wait(0)
    reader.told(before[0].ntp64)
    of_run = [one for one in reader.fetches if one.source == OTHER]
    reader.fetches = []
    reader.page([before[0], before[2]], names=names)
    between, reader.fetches = reader.fetches, of_run
    reader.seconds += 2 * DeliveryOptions().gap_timeout_seconds
    reader.answer(*begun, names=names)
    reader.fetches += between
    reader.answer(before[1], names=names)
    assert reader.story == [0, 1, 2]
    while len(reader.story) < 5 and reader.seconds < 200:
        while reader.fetches:
            is_of_run = reader.fetches[0].epoch == FRESH
            reader.answer(*(begun if is_of_run else ()), names=names)
        reader.wait(1)
    assert reader.story == [0, 1, 2, 0, 1]


def test_what_waits_for_an_answer_that_begins_its_run_is_not_given_by_history_too() -> None:
    """A cache was in reach again: both were asked, and history answered first (seed 144503)."""
    name = Incarnation(OTHER, EPOCH, NAME)
    reader = Late()
    reader.declared(EPOCH, NAME, OTHER)
    reader.appeared(strange=False, gone_at=50)
    reader.wait(0)
    (fetch,) = [fetch for fetch in reader.fetches if fetch.source == OTHER]
    reader.live(*(sample(sn, at=59, source=OTHER) for sn in (3, 4, 2, 1, 5)))
    reader.told(FROM_THE_BEGINNING)
    reader.page([sample(sn, EPOCH, at=59, source=OTHER) for sn in (3, 4, 5)], names=(name,))
    del reader.story[:3]
    assert reader.story == []
    reader.fetches = [fetch]
    reader.answer(*(sample(sn, EPOCH, at=59, source=OTHER) for sn in range(4)), names=(name,))
    assert reader.story == [0, 1, 2, 3, 4, 5]

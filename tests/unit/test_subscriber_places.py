"""How many sources a subscriber follows, and what becomes of the others."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from durable_cache.model.run_name import RunName
from durable_cache.model.sample import SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    DeliveryOptions,
    HeartbeatReceived,
    TokenGone,
)
from durable_cache.protocol.wire import AbsenceReason, Incarnation
from tests.unit.subscriber_reader import EPOCH, FRESH, OTHER, SOURCE, Reader, absent, sample


def of_each(reader: Reader, sources: list[SourceId]) -> list[list[int]]:
    return [[one.sn for one in reader.delivered_samples if one.source == s] for s in sources]


def test_a_source_that_waits_is_not_forgotten_for_one_that_does_not() -> None:
    """K6: by use."""
    reader = Reader(DeliveryOptions(sources_max=3, gap_timeout_seconds=1))
    sources = [SourceId("ab", eid) for eid in range(1, 11)]
    reader.live(sample(0, source=sources[0]), sample(2, source=sources[0]))
    for source in sources[1:]:
        reader.live(sample(0, source=source))
    reader.answer(sample(1, source=sources[0]))
    assert [one.sn for one in reader.delivered_samples if one.source == sources[0]] == [0, 1, 2]


def test_a_source_that_rested_goes_on_where_it_stood() -> None:
    reader = Reader(DeliveryOptions(sources_max=2))
    sources = [SourceId("ab", eid) for eid in range(1, 7)]
    for sn in range(3):
        for source in sources:
            reader.live(sample(sn, source=source), sample(sn, source=source))
    assert of_each(reader, sources) == [[0, 1, 2]] * 6
    assert len(reader.engine._sources.followed) == 2
    reader.live(sample(4, source=sources[0]))
    assert reader.wanted == [(3, 3)]
    reader.answer(sample(3, source=sources[0]))
    assert of_each(reader, sources)[0] == [0, 1, 2, 3, 4]


def test_a_source_that_rested_knows_its_runs() -> None:
    reader = Reader(DeliveryOptions(sources_max=1))
    reader.declared(FRESH, "aaaaaaaa")
    reader.live(sample(0), sample(1))
    reader.live(sample(0, source=OTHER))
    reader.declared(FRESH, "aaaaaaaa")
    reader.live(sample(1), sample(2))
    reader.live(sample(1, source=OTHER))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(0, at=20))
    reader.answer()
    assert of_each(reader, [SOURCE, OTHER]) == [[0, 1, 2, 0], [0, 1]]
    assert reader.engine.missed == 0


def test_a_source_that_rested_lacks_nothing_that_came_before_its_token() -> None:
    reader = Reader(DeliveryOptions(sources_max=1))
    reader.declared(FRESH, "aaaaaaaa")
    reader.live(sample(0), sample(1))
    reader.live(sample(0, at=20), sample(1, at=20.1))
    reader.live(sample(0, source=OTHER))
    reader.declared(FRESH + 2, "bbbbbbbb")
    reader.answer()  # the run before is at its end
    assert reader.wanted == [(0, 1)]
    name = Incarnation(SOURCE, FRESH + 2, "bbbbbbbb")
    reader.answer(*(sample(sn, FRESH + 2, at=20 + sn / 10) for sn in range(2)), names=(name,))
    assert of_each(reader, [SOURCE, OTHER]) == [[0, 1, 0, 1], [0]]


def test_beyond_the_places_the_first_to_rest_counts_as_new() -> None:
    reader = Reader(DeliveryOptions(sources_max=1, places_max=2))
    sources = [SourceId("ab", eid) for eid in range(1, 5)]
    for source in (*sources, sources[1], sources[0]):
        reader.live(sample(7, source=source))
    assert of_each(reader, sources) == [[7, 7], [7], [7], [7]]


def test_where_all_wait_others_wait_for_room_and_lose_nothing() -> None:
    reader = Reader(DeliveryOptions(sources_max=3, gap_timeout_seconds=10))
    sources = [SourceId("ab", eid) for eid in range(1, 7)]
    for source in sources:
        reader.live(*(sample(sn, source=source) for sn in (0, 2, 5, 4)))
    assert len(reader.engine._sources.followed) == 3
    assert of_each(reader, sources) == [[0]] * 3 + [[]] * 3
    while reader.engine.gaps_open:
        reader.wait(1)
        while reader.fetches:
            fetch = reader.fetches[0]
            assert fetch.last is not None
            numbers = range(fetch.first, fetch.last + 1)
            reader.answer(*(sample(sn, source=fetch.source) for sn in numbers))
    assert of_each(reader, sources) == [[0, 1, 2, 3, 4, 5]] * 6
    assert reader.engine.missed == 0
    assert len(reader.engine._sources.followed) == 3


def test_who_waits_for_room_beside_many_others_loses_nothing() -> None:
    """It was reported as missed where more waited than are followed, and delivered later."""
    reader = Reader(DeliveryOptions(sources_max=1, gap_timeout_seconds=10))
    sources = [SourceId("ab", eid) for eid in range(1, 7)]
    for source in sources:
        reader.live(*(sample(sn, source=source) for sn in (0, 1, 3)))
    while reader.engine.gaps_open:
        reader.wait(1)
        while reader.fetches:
            fetch = reader.fetches[0]
            numbers = range(fetch.first, (fetch.last or 0) + 1)
            reader.answer(*(sample(sn, source=fetch.source) for sn in numbers))
    assert of_each(reader, sources) == [[0, 1, 2, 3]] * 6
    assert reader.engine.missed == 0


def test_what_finds_no_room_to_wait_is_reported() -> None:
    reader = Reader(DeliveryOptions(sources_max=2, places_max=2))
    for eid in range(1, 7):
        source = SourceId("ab", eid)
        reader.live(*(sample(sn, source=source) for sn in (0, 2, 3)))
    assert reader.story == [0, 0, (0, 3), (0, 3)]


def test_what_a_source_was_given_that_has_no_room_now_is_not_read_again() -> None:
    """All that are followed lack something when caches are asked what a cut made us miss."""
    reader = Reader(DeliveryOptions(sources_max=1))
    name = Incarnation(SOURCE, EPOCH, "aaaaaaaa")
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0), sample(1))
    reader.live(sample(0, source=OTHER), sample(2, source=OTHER))
    reader.handle(AnswerersGone(reader.now))
    reader.handle(AnswererAppeared(reader.now))
    reader.page([sample(0, EPOCH), sample(1, EPOCH)], names=(name,))
    assert of_each(reader, [SOURCE, OTHER]) == [[0, 1], [0]]


def test_what_finds_no_room_while_history_is_read_is_given_where_history_brings_it() -> None:
    """It was reported at once, and delivered later (seed 22456)."""
    reader = Reader(DeliveryOptions(pending_samples_max=1, sources_max=1), history=True)
    sources = [SourceId("ab", eid) for eid in range(1, 5)]
    for source in sources:
        reader.live(sample(0, source=source), sample(1, source=source))
    assert reader.story == []
    reader.page([sample(sn, EPOCH, source=source) for source in sources for sn in (0, 1)])
    assert of_each(reader, sources) == [[0, 1]] * 4
    assert reader.engine.missed == 0


def test_what_finds_no_room_while_history_is_read_is_asked_for_behind_it() -> None:
    reader = Reader(DeliveryOptions(pending_samples_max=1, sources_max=2), history=True)
    sources = [SourceId("ab", eid) for eid in range(1, 5)]
    for source in sources:
        reader.live(sample(1, source=source), sample(2, source=source))
    reader.page([sample(0, EPOCH, source=source) for source in sources])
    for _ in range(10):
        while reader.fetches:
            asked = reader.fetches[0].source
            reader.answer(*(sample(sn, EPOCH, source=asked) for sn in (0, 1, 2)))
        reader.wait(1)
    assert of_each(reader, sources) == [[0, 1, 2]] * 4
    assert reader.engine.missed == 0


def test_what_finds_no_room_and_is_in_no_history_is_reported_once_that_is_read() -> None:
    reader = Reader(DeliveryOptions(pending_samples_max=1, sources_max=1), history=True)
    sources = [SourceId("ab", eid) for eid in range(1, 4)]
    for source in sources:
        reader.live(sample(3, source=source))
    assert reader.story == []
    reader.page([])
    assert (3, 3) in reader.story
    assert sum(len(given) for given in of_each(reader, sources)) + reader.engine.missed == 3


def test_a_source_that_rested_forgets_in_time_what_came_before_no_token() -> None:
    """A late number of a run was taken for one of the next, much later (seed 9266)."""
    reader = Reader(DeliveryOptions(sources_max=1))
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(18, at=1))
    reader.live(sample(16, at=20))  # its publisher's clock was behind when it sent the other
    reader.live(sample(0, source=OTHER))
    reader.wait(20)
    reader.declared(FRESH + 2, "bbbbbbbb")
    reader.live(sample(0, at=40), sample(1, at=40))
    reader.answer()  # the run before is at its end
    reader.wait(20)
    assert of_each(reader, [SOURCE]) == [[18, 0, 1]]
    assert reader.engine.missed == reader.engine.gaps_open == 0


def test_what_found_no_room_is_nothing_of_a_run_that_history_brought_behind_it() -> None:
    """The last of a run found no room, and the next was taken to reach it (seed 8967)."""
    options = DeliveryOptions(pending_samples_max=1, sources_max=1)
    reader = Reader(options, history=True)
    reader.live(sample(0, source=OTHER))
    reader.live(sample(26, at=20), sample(27, at=21))
    reader.live(sample(3, source=SourceId("ef", 1)))
    names = (
        Incarnation(SOURCE, EPOCH, "aaaaaaaa"),
        Incarnation(SOURCE, EPOCH + 9, "bbbbbbbb"),
    )
    given = [sample(26, EPOCH, at=20), *(sample(sn, EPOCH + 9, at=40 + sn) for sn in range(3))]
    reader.page(given, names=names)
    reader.wait(20)
    assert of_each(reader, [SOURCE]) == [[26, 0, 1, 2]]
    lost = [one for one in reader.missed if one.source == SOURCE]
    assert [(one.epoch, one.first, one.last) for one in lost] == [(EPOCH, 27, 27)]
    assert not reader.engine.gaps_open


def test_nor_of_a_run_whose_token_alone_came_behind_it() -> None:
    """A repeat of the run before was taken for a number of the next (seed 22281)."""
    options = DeliveryOptions(pending_samples_max=1, sources_max=1)
    reader = Reader(options, history=True)
    reader.live(sample(0, source=OTHER))
    reader.live(sample(1, at=20), sample(2, at=21))
    reader.live(sample(3, source=SourceId("ef", 1)))
    reader.declared(FRESH + 2, "bbbbbbbb")
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"),)
    reader.page([sample(sn, EPOCH, at=19 + sn) for sn in range(3)], names=names)
    while reader.seconds < 100:
        while reader.fetches:
            reader.answer(names=names)
        reader.wait(20)
    assert of_each(reader, [SOURCE]) == [[0, 1, 2]]
    assert not [one for one in reader.missed if one.source == SOURCE]


@pytest.mark.parametrize("of_the_next", [False, True])
def test_nor_of_a_run_behind_one_that_awaits_it(of_the_next: bool) -> None:
    """It was too late to be kept, and the next run was told to miss it (seed 100654)."""
    reader = Reader(DeliveryOptions(pending_samples_max=2, sources_max=1), history=True)
    reader.declared(FRESH + 1, "aaaaaaaa")
    reader.live(sample(2, at=21), sample(0, source=OTHER))
    reader.live(sample(1, at=20))
    reader.live(sample(3, source=SourceId("ef", 1)))
    reader.declared(FRESH + 2, "bbbbbbbb")
    reader.page([])
    named = Incarnation(SOURCE, FRESH + 1, "aaaaaaaa"), Incarnation(SOURCE, FRESH + 2, "bbbbbbbb")
    runs = [(FRESH + 1, 20, 3), *([(FRESH + 2, 30, 2)] if of_the_next else [])]
    stored = [sample(sn, epoch, at=at + sn) for epoch, at, until in runs for sn in range(until)]
    while reader.seconds < 100:
        while reader.fetches:
            asked = reader.fetches[0]
            last = 1 << 40 if asked.last is None else asked.last
            reader.answer(*(one for one in stored if asked.first <= one.sn <= last), names=named)
        reader.wait(20)
    assert of_each(reader, [SOURCE]) == [[0, 1, 2, 0, 1] if of_the_next else [0, 1, 2]]
    assert not [one for one in reader.missed if one.source == SOURCE]


def test_what_waited_for_room_when_a_token_went_is_not_of_the_next_run() -> None:
    """It waited for the next token and was given as of that run, or was lost (seed 9004)."""
    reader = Reader(DeliveryOptions(sources_max=1))
    reader.declared(FRESH, "aaaaaaaa")
    reader.live(sample(0))
    reader.live(sample(0, source=OTHER), sample(2, source=OTHER))
    reader.live(sample(1))
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.answer(sample(1, source=OTHER))  # now there is room
    reader.declared(FRESH + 1, "bbbbbbbb")
    reader.live(sample(0, at=20))
    while reader.fetches:
        reader.answer()
    assert of_each(reader, [SOURCE]) == [[0, 1, 0]]
    assert reader.engine.missed == 0


def test_a_source_that_rested_is_given_to_its_end_from_where_it_stood() -> None:
    """Its next run is on a page that has the newest of each key alone (seed 74039)."""
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    options = DeliveryOptions(sources_max=1, history_timeout_seconds=1, gap_timeout_seconds=600)
    reader = Reader(options, history=True, newest=3)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.page([sample(sn, EPOCH) for sn in range(3)], names=names[:1], whole=False)
    while not reader.story:
        reader.wait(1)
        reader.asked.clear()
    reader.live(*[sample(sn) for sn in range(3, 8)])
    reader.live(sample(0, source=OTHER), sample(2, source=OTHER))
    reader.fetches.clear()  # the other source goes on waiting
    reader.handle(AnswererAppeared(reader.now))
    begun = [sample(sn, FRESH, at=20 + sn / 10) for sn in range(3)]
    reader.page(begun, names=names)
    assert reader.wanted == [(8, None)]
    reader.answer(sample(8, EPOCH), *begun, names=names)
    assert of_each(reader, [SOURCE]) == [[*range(9), 0, 1, 2]]
    reader.live(sample(1, source=OTHER))  # now there is room
    copy = replace(sample(8), timestamp_id=RunName(EPOCH, "aaaaaaaa").timestamp_id)
    reader.live(copy)  # it is known to be one (seed 602605)
    assert not reader.missed


@pytest.mark.parametrize("came_to", [1, 3])
def test_what_history_brought_of_a_source_there_is_no_room_for_is_not_reported(
    came_to: int,
) -> None:
    """Those that are followed wait; what is not in history is given later (seed 127112)."""
    reader = Reader(DeliveryOptions(pending_samples_max=2, sources_max=2), history=True)
    sources = [SourceId("ab", eid) for eid in range(1, 6)]
    one, two, three = sources[:3]
    reader.live(sample(2, source=one), sample(2, source=two))
    for sn in range(came_to + 1):
        reader.live(sample(sn, source=three))
    for source in sources[3:]:
        reader.live(sample(0, source=source))
    brought = [sample(sn, EPOCH, source=three) for sn in (0, 1)]
    reader.page([*brought, sample(0, EPOCH, source=one), sample(0, EPOCH, source=two)])
    assert of_each(reader, sources) == [[0], [0], [0, 1], [], []]
    assert reader.engine.missed == 0
    for _ in range(3):  # now there is room
        for fetch in list(reader.fetches):
            sns = range(fetch.first, (fetch.last or 3) + 1)
            reader.answer(*(sample(sn, EPOCH, source=fetch.source) for sn in sns))
    assert of_each(reader, sources[:3]) == [[0, 1, 2], [0, 1, 2], [*range(came_to + 1)]]
    assert reader.engine.missed == 0


def read_in_part(options: DeliveryOptions, names: tuple[Incarnation, ...]) -> Reader:
    """Return one that was given three samples of a source, and one of another, and reads on."""
    reader = Reader(options, history=True)
    begun = [sample(sn, EPOCH) for sn in range(3)]
    reader.page([*begun, sample(0, EPOCH, source=OTHER)], names=names, whole=False)
    while not reader.story:
        reader.wait(1)
        reader.asked.clear()
    assert of_each(reader, [SOURCE, OTHER]) == [[0, 1, 2], [0]]
    return reader


def test_what_history_brings_of_a_source_that_rests_for_another_on_its_page_is_given() -> None:
    """It was passed over without a word (seed 38069)."""
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(OTHER, EPOCH, "bbbbbbbb"))
    reader = read_in_part(DeliveryOptions(sources_max=1, history_timeout_seconds=1), names)
    reader.handle(AnswererAppeared(reader.now))
    one, other = ([sample(sn, EPOCH, source=s) for sn in range(6)] for s in (SOURCE, OTHER))
    reader.page([*one, *other], names=names)
    assert of_each(reader, [SOURCE, OTHER]) == [[*range(6)], [*range(6)]]
    assert reader.engine.missed == 0


def test_what_history_brings_of_a_source_that_rests_is_given_where_there_is_no_room() -> None:
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(OTHER, EPOCH, "bbbbbbbb"))
    options = DeliveryOptions(sources_max=1, history_timeout_seconds=1, gap_timeout_seconds=600)
    reader = read_in_part(options, names)
    reader.declared(EPOCH, "bbbbbbbb", OTHER)
    reader.live(sample(2, source=OTHER))  # it waits, and the other one rests
    reader.handle(AnswererAppeared(reader.now))
    reader.page([sample(sn, EPOCH) for sn in (*range(5), 6)], names=names)
    assert of_each(reader, [SOURCE, OTHER]) == [[*range(5)], [0]]
    reader.answer(sample(1, EPOCH, source=OTHER))
    reader.wait(2)
    assert [(fetch.source, fetch.first) for fetch in reader.fetches] == [(SOURCE, 5)]
    reader.answer(sample(5, EPOCH))
    assert of_each(reader, [SOURCE, OTHER]) == [[*range(7)], [0, 1, 2]]
    assert reader.engine.missed == 0


def test_where_few_are_followed_each_source_in_doubt_is_asked_for_once() -> None:
    """Those that were asked for pushed each other out, and most tails were lost without a word."""
    reader = Reader(DeliveryOptions(sources_max=2))
    sources = [SourceId("ab", eid) for eid in range(1, 21)]
    names = tuple(Incarnation(source, EPOCH, f"{source.eid:08x}") for source in sources)
    for source, epoch, name in names:
        reader.declared(epoch, name, source)
        reader.live(sample(0, source=source))
    for source, _, name in names:
        reader.handle(TokenGone(source, name, reader.now))
    asked: list[SourceId] = []
    while len(asked) < 2 * len(sources) and (reader.fetches or reader.engine.wake_ns()):
        reader.wait(3)
        reader.seconds += 1.5  # a slow cache
        while reader.fetches:
            source = reader.fetches[0].source
            asked.append(source)
            reader.answer(*(sample(sn, EPOCH, source=source) for sn in (1, 2)), names=names)
    assert of_each(reader, sources) == [[0, 1, 2]] * len(sources)
    assert sorted(asked) == sources


def test_a_heartbeat_of_a_source_there_is_no_room_for_is_gone_after_once_there_is() -> None:
    """It went without effect, and no other may follow."""
    reader = Reader(DeliveryOptions(sources_max=1, gap_timeout_seconds=600))
    reader.live(sample(0))
    reader.live(sample(0, source=OTHER), sample(2, source=OTHER))
    reader.handle(HeartbeatReceived(SOURCE, 2, reader.now))
    reader.answer(sample(1, EPOCH, source=OTHER))
    reader.wait(5)
    assert [(fetch.source, fetch.first) for fetch in reader.fetches] == [(SOURCE, 1)]
    reader.answer(sample(1, EPOCH), sample(2, EPOCH))
    assert of_each(reader, [SOURCE, OTHER]) == [[0, 1, 2], [0, 1, 2]]


def test_a_source_there_is_no_room_for_stands_where_it_stood_behind_a_run_that_came_late() -> None:
    """It was forgotten, and given again what it had been given (seed 602589)."""
    names = (
        *(Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb")),
        Incarnation(OTHER, EPOCH, "cccccccc"),
    )
    options = DeliveryOptions(sources_max=1, history_timeout_seconds=1, gap_timeout_seconds=600)
    reader = Reader(options, history=True)
    reader.declared(FRESH, "bbbbbbbb")
    reader.declared(EPOCH, "cccccccc", OTHER)
    begun = [sample(sn, FRESH, at=20 + sn) for sn in range(3)]
    reader.page([*begun, sample(0, EPOCH, source=OTHER)], names=names[1:], whole=False)
    while not reader.story:
        reader.wait(1)
        reader.asked.clear()
    reader.live(sample(3, at=23))
    reader.live(sample(2, source=OTHER))  # it waits, and the other one rests
    reader.handle(AnswererAppeared(reader.now))
    reader.page([sample(sn, EPOCH) for sn in range(2)], names=names)
    assert [(miss.first, miss.last) for miss in reader.missed] == [(0, 1)]
    reader.answer(sample(1, EPOCH, source=OTHER))
    reader.live(sample(3, at=23), sample(4, at=24))
    assert of_each(reader, [SOURCE, OTHER]) == [[*range(5)], [0, 1, 2]]


def test_what_history_gave_of_a_run_before_it_brought_the_next_is_not_reported() -> None:
    """Its last number found no room meanwhile, and a later page repeated it (seed 603494)."""
    names = (
        *(Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb")),
        Incarnation(OTHER, EPOCH, "cccccccc"),
    )
    reader = Reader(DeliveryOptions(pending_samples_max=2, sources_max=1), history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.declared(EPOCH, "cccccccc", OTHER)  # the first one rests
    reader.live(sample(0, source=OTHER), sample(1, at=11), sample(2, at=12))
    reader.live(sample(3, source=SourceId("ef", 1)))
    reader.declared(FRESH, "bbbbbbbb")
    first = [sample(sn, EPOCH, at=10 + sn) for sn in range(3)]
    then = [sample(sn, FRESH, at=20 + sn) for sn in range(3)]
    reader.page(first, names=names, cut_after=first[-1])
    reader.page(then[:2], names=names, cut_after=then[1])
    reader.page([sample(0, EPOCH, source=OTHER), first[1], then[2]], names=names)
    assert of_each(reader, [SOURCE]) == [[0, 1, 2, 0, 1, 2]]
    assert not [one for one in reader.missed if one.source == SOURCE]


def test_a_run_that_began_and_ended_while_there_was_no_room_is_given_or_reported() -> None:
    """Its token was forgotten for the next one's, and its first numbers with it (seed 601040)."""
    names = Incarnation(SOURCE, FRESH, "aaaaaaaa"), Incarnation(SOURCE, FRESH + 1, "bbbbbbbb")
    reader = Reader(DeliveryOptions(sources_max=1, gap_timeout_seconds=600))
    reader.live(sample(0, source=OTHER), sample(2, source=OTHER))
    reader.declared(FRESH, "aaaaaaaa")
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(FRESH + 1, "bbbbbbbb")
    reader.live(sample(0, at=20))
    reader.answer(sample(1, source=OTHER))  # now there is room
    while reader.fetches:
        of_first = reader.fetches[0].epoch == FRESH
        gone = (absent(0, 1, AbsenceReason.TRIMMED, FRESH),) if of_first else ()
        given = [sample(2, FRESH, at=10)] if of_first else []
        reader.answer(*given, absent=gone, names=names)
    assert of_each(reader, [SOURCE]) == [[2, 0]]
    assert [(miss.epoch, miss.first, miss.last) for miss in reader.missed] == [(FRESH, 0, 1)]


def test_a_run_that_began_while_there_was_no_room_lacks_what_was_removed_before_it_is_read() -> (
    None
):
    """Its token waited for room, and history began with the first that is left (seed 601040)."""
    names = (Incarnation(SOURCE, FRESH, "aaaaaaaa"),)
    reader = Reader(DeliveryOptions(sources_max=1, gap_timeout_seconds=600))
    reader.live(sample(0, source=OTHER), sample(2, source=OTHER))
    reader.declared(FRESH, "aaaaaaaa")
    reader.handle(AnswerersGone(reader.now))
    reader.handle(AnswererAppeared(reader.now))
    stored = [sample(2, FRESH, at=10), sample(3, FRESH, at=11)]
    reader.page(stored, names=names)
    reader.answer(sample(1, source=OTHER))  # now there is room
    while reader.seconds < 20:
        while reader.fetches:
            reader.answer(
                *stored, absent=(absent(0, 1, AbsenceReason.TRIMMED, FRESH),), names=names
            )
        reader.wait(5)
    assert of_each(reader, [SOURCE]) == [[2, 3]]
    assert [(miss.epoch, miss.first, miss.last) for miss in reader.missed] == [(FRESH, 0, 1)]


def test_behind_a_wrap_the_highest_number_that_waits_for_room_is_kept() -> None:
    """Those before the wrap counted as higher, and the last number was lost (seed 610371)."""
    reader = Reader(DeliveryOptions(sources_max=1, gap_timeout_seconds=600))
    last = SOURCE_SN_MODULUS - 1
    reader.live(sample(last - 1, at=1))
    reader.live(sample(0, source=OTHER), sample(2, source=OTHER))
    reader.live(sample(last, at=2), sample(1, at=4))
    reader.live(sample(0, at=3))
    reader.answer(sample(1, source=OTHER))  # now there is room
    assert of_each(reader, [SOURCE]) == [[last - 1, last, 0, 1]]


def test_a_heartbeat_of_a_publisher_nobody_may_have_heard_is_gone_after_once_there_is_room() -> (
    None
):
    """It says from which number on, and went without effect."""
    reader = Reader(DeliveryOptions(sources_max=1, gap_timeout_seconds=600))
    reader.live(sample(0, source=OTHER), sample(2, source=OTHER))
    reader.handle(HeartbeatReceived(SOURCE, 2, reader.now, first_sn=0))
    reader.answer(sample(1, EPOCH, source=OTHER))
    reader.wait(5)
    assert [(fetch.source, fetch.first) for fetch in reader.fetches] == [(SOURCE, 0)]
    reader.answer(*(sample(sn, EPOCH) for sn in range(3)))
    assert of_each(reader, [SOURCE, OTHER]) == [[0, 1, 2], [0, 1, 2]]

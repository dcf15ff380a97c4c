"""A subscriber that goes on reads from the seam on, and delivers what it would have from all.

Caches are real storages that answer by hand: their samples' clocks go back, and runs restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import filterfalse
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_cache.endpoints.behind import beginning_behind
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.standings import FROM_THE_BEGINNING, Standing, Standings
from durable_cache.protocol.subscriber.events import (
    Answer,
    AnswerPart,
    AskHistory,
    DeliveryOptions,
    Fetch,
    Fetched,
    HistoryPage,
)
from durable_cache.protocol.subscriber.positions import (
    Point,
    Positions,
    join_positions,
    rewound,
    standings_of,
)
from durable_cache.protocol.subscriber.resuming import ResumingEngine
from durable_cache.storage.journaled.journal import Journal
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from tests.unit.subscriber_reader import OTHER, SOURCE, Reader
from tests.unit.subscriber_reader import sample as at_time

KEYS = KeyExpression("k/**")
NAMES = {5: "00000005", 9: "00000009"}
PATIENT = DeliveryOptions(history_page_samples=7, history_timeout_seconds=600)


def sample(sn: int, at: float, epoch: int = 5, source: SourceId = SOURCE) -> Sample:
    return at_time(sn, epoch, at, source, key=f"k/{sn % 2}")


@contextmanager
def caches(*contents: Sequence[Sample]) -> Iterator[list[JournaledStorage]]:
    """Open storages that hold these."""
    stores = [JournaledStorage(MemoryStorage(), None) for _ in contents]
    for store, samples in zip(stores, contents, strict=True):
        for source, epoch in {(one.source, one.epoch) for one in samples}:
            if epoch:
                store.index.declare(source, epoch, NAMES[epoch])
        if samples:
            store.commit(SampleBatch(samples))
    try:
        yield stores
    finally:
        for store in stores:
            store.close()


class Resuming(Reader):
    """A reader that goes on, and whose questions caches answer."""

    def __init__(
        self,
        stores: Sequence[JournaledStorage],
        positions: Sequence[Position],
        begun: ResumingEngine | None = None,
    ) -> None:
        super().__init__(PATIENT, history=True)
        self.asked.clear()
        self.stores = stores
        self.places: list[Sample | None] = []
        engine = begun or ResumingEngine(PATIENT, positions)
        self.engine = engine
        told = [beginning_behind(one, KEYS, Standings(standings_of(positions))) for one in stores]
        if positions and engine.may_begin_later:
            engine.begin_at(min(told), len(told))
        self.take(engine.start(self.now))
        for _ in range(1000):
            if self.asked:
                self._answer_page(self.asked.pop(0))
            elif self.fetches:
                self._answer(self.fetches.pop(0))
            elif engine.reads_history or engine.gaps_open:
                self.wait(1)
            else:
                return
        raise AssertionError("the engine comes to no end")

    @property
    def began_later(self) -> bool:
        return None not in self.places

    def _answer_page(self, asked: AskHistory) -> None:
        self.places.append(asked.after)
        chosen = Selection(KEYS, order=Order.TIME)
        cursor = None if asked.after is None else chosen.place(asked.after)
        pages = [store.read(chosen, asked.samples_max, cursor) for store in self.stores]
        cuts = [page.samples.samples[-1] for page in pages if page.cursor is not None]
        parts = tuple(
            part(store, page.samples.samples)
            for store, page in zip(self.stores, pages, strict=True)
        )
        cut = min(cuts, key=lambda one: one.time_order, default=None)
        answer = Answer(parts, len(parts), True, cut)
        self.handle(HistoryPage(asked.question_id, answer, self.now))

    def _answer(self, fetch: Fetch) -> None:
        source = fetch.source
        chosen = Selection(KEYS, source.zid, source.eid, sns=SnBounds(fetch.first, fetch.last))
        parts = []
        for store in self.stores:
            found = part(store, store.read(chosen, 10_000).samples.samples, source)
            parts.append(replace(found, absent=store.absences(chosen)))
        self.handle(Fetched(fetch.fetch_id, Answer(tuple(parts), len(parts)), self.now))


def part(store: JournaledStorage, samples: Sequence[Sample], *asked: SourceId) -> AnswerPart:
    sources = {*asked, *(one.source for one in samples)}
    return AnswerPart(samples, (), tuple(store.index.incarnations(sources)))


def stood(*samples: Sample) -> Position:
    """Where a consumer stands that handled these, of one run."""
    positions = Positions("k/**")
    for one in samples:
        positions.handled(one)
        positions.call(one.source, one.epoch, (one.epoch, NAMES.get(one.epoch, "")))
    (position,) = positions.all()
    return position


FORWARD, BACK = [0.5, 1, 1, 1, 9], [0.5, 1, 1, 1, 9, -1, -30]


@st.composite
def sources(draw: st.DrawFn, source: SourceId) -> tuple[list[list[Sample]], list[int]]:
    """The runs of a source, and how many samples of each were handled.

    A clock goes back only where a run is followed that has a name and no other beside it: of one
    that is met the first sample by time is the first one, of two time tells the order, and one
    without a name goes by its clock.
    """
    runs: list[list[Sample]] = []
    done: list[int] = []
    seconds = draw(st.floats(0, 100))
    epochs = draw(st.sampled_from([(0,), (5,), (5,), (5, 9)]))
    for epoch in epochs:
        count = draw(st.integers(0, 25))
        begun = not done or done[-1] == len(runs[-1])
        done.append(draw(st.integers(0, count)) if begun else 0)
        run, latest = [], seconds
        for sn in range(count):
            seconds += draw(st.sampled_from(BACK if done[-1] and epochs == (5,) else FORWARD))
            latest = max(latest, seconds)
            run.append(sample(sn, max(0.0, seconds), epoch, source))
        runs.append(run)
        seconds = latest + 1
    return runs, done


@given(st.data())
@settings(max_examples=max(60, settings().max_examples), deadline=None)
def test_all_behind_the_positions_is_delivered_once_and_in_order(data: st.DataObject) -> None:
    every: list[Sample] = []
    positions: list[Position] = []
    expected: dict[SourceId, list[tuple[int, int]]] = {}
    for number in range(data.draw(st.integers(1, 4))):
        source = SourceId("ab", number + 1)
        for run, done in zip(*data.draw(sources(source)), strict=True):
            every += run
            positions += [stood(*run[:done])] if done else []
            expected.setdefault(source, []).extend((one.epoch, one.sn) for one in run[done:])
    some_cache = st.sampled_from([1, 2, 3])
    holders = data.draw(st.lists(some_cache, min_size=len(every), max_size=len(every)))
    kept = [
        [one for one, holder in zip(every, holders, strict=True) if holder & cache]
        for cache in (1, 2)
    ]
    with caches(*kept) as stores:
        reader = Resuming(stores, positions)
    assert reader.story == reader.delivered, "nothing is reported as lost"
    delivered: dict[SourceId, list[tuple[int, int]]] = {}
    before = Positions("k/**", positions)
    for one in filterfalse(before.is_confirmed, reader.delivered_samples):
        delivered.setdefault(one.source, []).append((one.epoch, one.sn))
    assert delivered == {source: sns for source, sns in expected.items() if sns}


def test_what_was_handled_is_not_read_again() -> None:
    run = [sample(sn, sn) for sn in range(20)]
    idle = [sample(sn, sn / 100, source=OTHER) for sn in range(3)]
    with caches([*idle, *run]) as stores:
        reader = Resuming(stores, [stood(*run[:15]), stood(*idle)])
    assert reader.story == [15, 16, 17, 18, 19]
    (place,) = reader.places
    assert place is not None
    assert run[14].ntp64 <= place.ntp64 < run[15].ntp64, "the idle source holds nothing up"


def test_a_stranger_with_an_older_clock_is_read_from_its_beginning() -> None:
    run = [sample(sn, 50 + sn) for sn in range(20)]
    stranger = [sample(sn, 20 + sn / 10, source=OTHER) for sn in range(3)]
    with caches([*stranger, *run]) as stores:
        reader = Resuming(stores, [stood(*run[:15])])
    assert reader.story == [0, 1, 2, 15, 16, 17, 18, 19]
    assert reader.began_later


def test_what_a_clock_that_went_back_hides_is_found_by_number() -> None:
    times = [50, 51, 52, 10, 53, 11, 12]
    run = [sample(sn, at) for sn, at in enumerate(times)]
    with caches(run) as stores:
        reader = Resuming(stores, [stood(*run[:2])])
    assert reader.story == [2, 3, 4, 5, 6]
    assert reader.began_later


def test_a_run_that_began_meanwhile_comes_behind_the_rest_of_the_one_before() -> None:
    run = [sample(sn, sn) for sn in range(10)]
    later = [sample(sn, 20 + sn, epoch=9) for sn in range(3)]
    with caches([*run, *later]) as stores:
        reader = Resuming(stores, [stood(*run[:5])])
    assert reader.story == [5, 6, 7, 8, 9, 0, 1, 2]
    assert not reader.began_later, "time does not tell the order of two runs"


def test_what_was_confirmed_is_no_loss_where_history_is_read_anew() -> None:
    ended, run = [sample(0, 0)], [sample(sn, 2 + sn / 2, epoch=9) for sn in range(8)]
    other = [sample(sn, 6 + sn / 2, source=OTHER) for sn in range(2)]
    others_run = [sample(0, 8, epoch=9, source=OTHER)]
    positions = [stood(*ended), stood(run[0]), stood(*other), stood(*others_run)]
    with caches([*ended, *run, *other, *others_run]) as stores:
        reader = Resuming(stores, positions)
    assert None in reader.places[1:], "a page from the seam showed another run of a known source"
    assert [one for one in reader.story if isinstance(one, tuple)] == [], "nothing is lost"
    assert reader.delivered_samples == run[1:]


def test_a_run_that_begins_after_caches_answered_comes_behind_the_rest_too() -> None:
    run = [sample(sn, at) for sn, at in enumerate([50, 51, 52, 10])]
    later = [sample(sn, 60 + sn, epoch=9) for sn in range(3)]
    position = stood(*run[:2])
    with caches(run) as stores:
        engine = ResumingEngine(PATIENT, [position])
        engine.begin_at(beginning_behind(stores[0], KEYS, Standings(standings_of([position]))), 1)
        stores[0].index.declare(SOURCE, 9, NAMES[9])
        stores[0].commit(SampleBatch(later))
        reader = Resuming(stores, [], engine)
    assert reader.story == [2, 3, 0, 1, 2]


def test_what_is_on_its_way_to_the_backend_counts(tmp_path: Path) -> None:
    run = [sample(sn, 10 + sn) for sn in range(4)]
    stranger = sample(0, 5, source=OTHER)
    stored = MemoryStorage()
    with (
        closing(Journal(tmp_path / "journal.db")) as journal,
        closing(JournaledStorage(stored, tmp_path, journal=journal)) as store,
    ):
        store.commit(SampleBatch([*run, stranger]))
        assert store.backlog.samples == 5
        nobody, known = Standings(()), Standing(SOURCE, 5, "", 2, run[1].ntp64)
        assert beginning_behind(store, KEYS, nobody) == stranger.ntp64
        both = Standings([known, Standing(OTHER, 5, "", 1, stranger.ntp64)])
        assert beginning_behind(store, KEYS, both) == run[2].ntp64
        renamed = Standings([Standing(SOURCE, 9, "", 4, run[3].ntp64)])
        assert beginning_behind(store, KEYS, renamed) == FROM_THE_BEGINNING


def test_of_two_positions_of_a_run_the_later_time_counts_and_a_rewind_clears_it() -> None:
    run = [sample(sn, 10 + sn) for sn in range(4)]
    one, other = stood(*run[:2]), stood(*run[:4])
    (joined,) = join_positions([one, other])
    assert joined.ntp64 == run[3].ntp64
    (whole,) = rewound([joined], None)
    (back,) = rewound([joined], {SOURCE: Point(5, 2)})
    assert (whole.ntp64, back.ntp64) == (0, 0)


def test_a_position_that_tells_no_time_goes_on_all_the_same() -> None:
    run = [sample(sn, sn) for sn in range(10)]
    before = Position("k/**", SOURCE, 5, NAMES[5], 4)
    with caches(run) as stores:
        reader = Resuming(stores, [before])
    assert reader.story == [5, 6, 7, 8, 9]


def test_a_cache_that_was_not_asked_makes_history_be_read_from_its_beginning() -> None:
    run = [sample(sn, 50 + sn) for sn in range(10)]
    stranger = [sample(sn, sn, source=OTHER) for sn in range(3)]
    with caches(run, stranger) as stores:
        told = beginning_behind(stores[0], KEYS, Standings(standings_of([stood(*run[:5])])))
        engine = ResumingEngine(PATIENT, [stood(*run[:5])])
        engine.begin_at(told, 1)
        reader = Resuming(stores, [], engine)
    assert reader.story == [0, 1, 2, 5, 6, 7, 8, 9]
    assert not reader.began_later


def test_where_much_was_published_before_the_seam_history_is_read_page_by_page() -> None:
    times = [50, 51, *range(10, 40), 52]
    run = [sample(sn, at) for sn, at in enumerate(times)]
    with caches(run) as stores:
        reader = Resuming(stores, [stood(*run[:2])])
    assert reader.story == [*range(2, 33)]
    assert not reader.began_later


def test_only_what_the_asker_consumes_counts() -> None:
    run = [sample(sn, sn) for sn in range(3)]
    other_keys = KeyExpression("other/**")
    with caches(run) as (store,):
        assert beginning_behind(store, KEYS, Standings(())) == run[0].ntp64
        assert beginning_behind(store, other_keys, Standings(())) == NTP64_MAX
        moved = Standings([Standing(SOURCE, 9, NAMES[9], 3, run[2].ntp64)])
        assert beginning_behind(store, KEYS, moved) == FROM_THE_BEGINNING


@pytest.mark.parametrize("handled", [(), (0,), (0, 1), (1,), (0, 2), (0, 1, 2, 3)])
def test_a_position_tells_when_what_is_not_confirmed_was_published_at_the_earliest(
    handled: tuple[int, ...],
) -> None:
    run = [sample(sn, 10 + sn) for sn in range(4)]
    positions = Positions("k/**")
    for one in run:
        positions.hand_out(one)
    for sn in handled:
        positions.confirm(run[sn])
    (position,) = positions.take()
    first_open = next((one for one in run if one.sn not in handled), None)
    assert position.ntp64 == (run[3] if first_open is None else first_open).ntp64
    again = Positions("k/**", [position])
    again.handled(sample(4, 14))
    assert again.all()[0].ntp64 == (position.ntp64 if first_open else sample(4, 14).ntp64)

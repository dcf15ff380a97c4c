"""What does a cache say of numbers that it knows and does not give?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.errors import StorageUnavailable
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.model.selection import Selection, SnBounds, TimeBounds
from durable_cache.protocol.cache.events import Alias, NumberingState
from durable_cache.protocol.wire import ABSENCES_MAX, AbsenceReason
from durable_cache.storage.contract import Floor, Retention
from durable_cache.storage.journaled.absences import HeldStream, absences
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.storage import JournaledStorage, JournalOptions
from durable_cache.storage.plugins import open_storage

SOURCE = SourceId("ab", 1)
OTHERS = SourceId("cd", 1)
OTHER, TRIMMED, SKIPPED = AbsenceReason


def asked(key: str = "a/1", first: int | None = 0, last: int | None = None) -> Selection:
    return Selection(KeyExpression(key), "ab", 1, sns=SnBounds(first, last))


def batch(key: str, *sns: int, epoch: int = 3) -> SampleBatch:
    return SampleBatch(Sample(key, SOURCE, epoch, sn, b"x") for sn in sns)


def opened(tmp_path: Path) -> JournaledStorage:
    url = f"sqlite:///{tmp_path}/one.db"
    return JournaledStorage(open_storage("sql", "one", {"url": url}), tmp_path / "state")


def told(
    store: JournaledStorage, selection: Selection, samples_max: int | None = None
) -> list[tuple[int, int, int, AbsenceReason]]:
    found = store.absences(selection, samples_max)
    assert {absence.source for absence in found} <= {SOURCE}
    return [absence[1:] for absence in found]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(3, 4), st.integers(0, 9)), max_size=12),
    st.lists(st.tuples(st.integers(3, 4), st.integers(0, 9), st.integers(0, 3)), max_size=2),
    st.tuples(st.sampled_from(["a", "b", "*"]), st.integers(0, 9), st.integers(0, 3)),
    st.booleans(),
)
def test_an_answer_at_hand_changes_nothing_of_what_is_said(
    stored: list[tuple[str, int, int]],
    skips: list[tuple[int, int, int]],
    question: tuple[str, int, int],
    drained: bool,
) -> None:
    with TemporaryDirectory() as folder:
        store = opened(Path(folder))
        numbers = {(epoch, sn): key for key, epoch, sn in stored}  # one sample a number
        for (epoch, sn), key in numbers.items():
            store.commit(batch(key, sn, epoch=epoch))
        store.commit(
            SampleBatch(), tuple(Skip(SOURCE, at, sn, sn + more) for at, sn, more in skips)
        )
        assert not drained or store.drain_all(10)
        key, first, more = question
        selection = asked(key, first, first + more)
        whole = store.read(selection, 100).samples
        assert store.absences(selection, None, whole) == store.absences(selection)
        store.close()


def test_of_an_only_numbering_that_is_given_whole_nothing_else_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.commit(batch("a/1", *range(10)))
    assert store.drain_all(10)
    asked_of = []
    rows = StreamIndex.rows

    def noted(self: StreamIndex, statement: str, values: Sequence[object] = ()) -> object:
        asked_of.append(statement)
        return rows(self, statement, values)

    monkeypatch.setattr(StreamIndex, "rows", noted)
    chosen = asked(first=2, last=5)
    assert store.absences(chosen, None, batch("a/1", 2, 3, 4, 5)) == ()
    assert len(asked_of) == 1
    assert store.absences(chosen, None, batch("a/1", 2, 3, 5)) == ()
    assert len(asked_of) > 2
    store.close()


def test_other_keys_numbers_are_said_on_their_way_and_in_the_backend(tmp_path: Path) -> None:
    with_both = [(3, 1, 2, OTHER), (3, 4, 5, OTHER)]
    store = opened(tmp_path)
    store.commit(batch("a/1", 0, 3))
    store.commit(batch("a/2", 1, 2, 4, 5))
    assert told(store, asked()) == with_both
    assert store.drain_all(10)
    assert told(store, asked()) == with_both
    assert told(store, asked("a/2")) == [(3, 0, 0, OTHER), (3, 3, 3, OTHER)]
    assert told(store, asked("a/*")) == []
    assert told(store, asked("b")) == [(3, 0, 5, OTHER)]
    assert told(store, asked(first=2, last=4)) == [(3, 2, 2, OTHER), (3, 4, 4, OTHER)]
    assert told(store, asked(first=6, last=9)) == []
    store.close()


def test_what_was_purged_on_its_way_is_no_other_keys_where_the_index_takes_nothing(
    tmp_path: Path,
) -> None:
    """Its numbers are known, no stream has them, and the index has no floor (seed 4159)."""
    few = JournalOptions(tail_bytes_max=1)
    url = {"url": f"sqlite:///{tmp_path}/one.db"}
    store = JournaledStorage(open_storage("sql", "one", url), tmp_path / "state", options=few)
    store.commit(batch("a/1", 0))
    assert store.drain_all(10)
    for sn in (1, 2, 3):
        store.commit(batch("a/1", sn))
    assert told(store, asked("a/2")) == [(3, 0, 3, OTHER)]
    with store.index._lock:
        assert store.index._db is not None
        store.index._db.execute("PRAGMA query_only = 1")
    with pytest.raises(StorageUnavailable):
        store.purge([Floor(Stream("a/1", SOURCE, 3), 3), Floor(Stream("a/1", OTHERS, 3), 4)])
    assert told(store, asked("a/1")) == [(3, 1, 2, TRIMMED)]
    assert {reason for _, _, _, reason in told(store, asked("**"))} == {TRIMMED}
    store.close()


def test_what_nobody_has_is_not_said(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit(batch("a/1", 0, 1, 5))
    assert told(store, asked()) == []
    store.close()


def test_what_was_given_up_is_said_until_it_is_found(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit(batch("a/1", 0, 5), (Skip(SOURCE, 3, 1, 4),))
    assert told(store, asked()) == [(3, 1, 4, SKIPPED)]
    store.drain()
    assert told(store, asked()) == [(3, 1, 4, SKIPPED)]
    store.commit(batch("a/2", 2))
    assert told(store, asked()) == [(3, 1, 1, SKIPPED), (3, 2, 2, OTHER), (3, 3, 4, SKIPPED)]
    store.close()


def test_what_was_removed_is_said_and_told_apart_from_what_other_keys_hold(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit(batch("a/1", 0, 2, 4, 6, 8))
    store.commit(batch("a/2", 1, 3, 5, 7, 9))
    assert store.drain_all(10)
    store.purge([Floor(Stream("a/1", SOURCE, 3), 6)])
    removed = [(3, sn, sn, OTHER if sn % 2 else TRIMMED) for sn in range(6)]
    assert told(store, asked()) == [*removed, (3, 7, 7, OTHER), (3, 9, 9, OTHER)]
    assert told(store, asked("a/*")) == [(3, sn, sn, TRIMMED) for sn in (0, 2, 4)]
    store.trim(Retention(samples_max=1), 0)
    assert told(store, asked("a/2")) == [(3, 0, 7, TRIMMED), (3, 8, 8, OTHER)]
    store.close()


def test_what_a_reader_is_no_more_shown_is_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit(batch("a/1", 0, 1, 2, 4))
    store.commit(batch("a/2", 3))
    assert told(store, asked(), samples_max=2) == [(3, 0, 1, TRIMMED), (3, 3, 3, OTHER)]
    store.close()


def test_only_a_question_for_numbers_of_one_source_is_answered(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit(batch("a/2", 0))
    assert told(store, asked())
    for selection in (
        Selection(KeyExpression("a/1"), "ab", 1),
        Selection(KeyExpression("a/1"), "ab", sns=SnBounds(0, 9)),
        Selection(KeyExpression("a/1"), sns=SnBounds(0, 9)),
        Selection(KeyExpression("a/1"), "ab", 1, sns=SnBounds(0, 9), newest=1),
        Selection(KeyExpression("a/1"), "ab", 1, sns=SnBounds(0, 9), times=TimeBounds(5)),
    ):
        assert told(store, selection) == []
    store.close()


def test_of_very_many_streams_one_key_is_told_apart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for sn in range(0, 5000, 1000):
        samples = (Sample(f"a/{n}", SOURCE, 3, n, b"") for n in range(sn, sn + 1000))
        store.commit(SampleBatch(samples), (Skip(SOURCE, 3, 6000, 6001),))
    assert store.drain_all(10)
    assert told(store, asked()) == [
        (3, 0, 0, OTHER),
        (3, 2, 4999, OTHER),
        (3, 6000, 6001, SKIPPED),
    ]
    assert told(store, asked("a/*")) == [(3, 6000, 6001, SKIPPED)]
    store.close()


def test_a_wildcard_update_may_be_of_the_key_that_is_asked_for() -> None:
    held = RangeSet([(0, 9)])
    states = [NumberingState(3, held, RangeSet())]
    update = HeldStream(Stream("a/**", SOURCE, 3), RangeSet([(0, 9)]))
    assert absences(asked("a/1"), states, (), [update]) == ()
    assert [a.reason for a in absences(asked("b/1"), states, (), [update])] == [OTHER]


def test_epochs_carry_the_names_that_readers_see() -> None:
    states = [
        NumberingState(0, RangeSet([(0, 9)]), RangeSet()),
        NumberingState(3, RangeSet([(12, 12)]), RangeSet([(5, 6), (10, 11)])),
    ]
    streams = [HeldStream(Stream("a/2", SOURCE, 0), RangeSet([(0, 9)]))]
    aliases = [Alias(SOURCE, 0, 4, 3)]
    assert [a[1:] for a in absences(asked(), states, aliases, streams)] == [
        (3, 4, 9, OTHER),
        (3, 10, 11, SKIPPED),
        (3, 12, 12, OTHER),
        (0, 0, 3, OTHER),
    ]


def test_the_newest_epochs_come_first_and_no_more_than_the_bound() -> None:
    every_second = RangeSet((sn, sn) for sn in range(0, 4 * ABSENCES_MAX, 2))
    states = [NumberingState(epoch, every_second, RangeSet()) for epoch in (1, 2)]
    found = absences(asked(), states, (), [])
    assert [(a.epoch, a.first) for a in found] == [(2, sn) for sn in range(0, 2 * ABSENCES_MAX, 2)]


numbers = st.sets(st.integers(0, 20))


@given(numbers, numbers, numbers, numbers, st.integers(0, 20), st.integers(0, 20))
def test_nothing_is_said_of_what_is_given_or_unknown(
    mine: set[int], theirs: set[int], gone: set[int], skipped: set[int], floor: int, first: int
) -> None:
    mine = {sn for sn in mine if sn >= floor} - theirs
    held = RangeSet.of(mine | theirs | {sn for sn in gone if sn < floor})
    states = [NumberingState(3, held, RangeSet.of(skipped))]
    streams = [
        HeldStream(Stream("a/1", SOURCE, 3), RangeSet.of(mine), floor),
        HeldStream(Stream("a/2", SOURCE, 3), RangeSet.of(theirs)),
    ]
    said: dict[int, AbsenceReason] = {}
    for absence in absences(asked(first=first, last=20), states, (), streams):
        for sn in range(absence.first, absence.last + 1):
            assert sn not in said
            said[sn] = absence.reason
    for sn in range(21):
        if sn < first or sn in mine:
            assert sn not in said
        elif sn in theirs:
            assert said[sn] is OTHER
        elif sn in skipped and sn not in held:
            assert said[sn] is SKIPPED
        elif sn < floor:
            assert said[sn] is TRIMMED
        else:
            assert sn not in said

"""Do journal, index and backend find out that they do not belong together, and lose nothing?"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from durable_cache.errors import StorageUnavailable
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.cache.events import Alias
from durable_cache.storage.contract import (
    AppendResult,
    Capabilities,
    Durability,
    Floor,
    Held,
    Page,
    Refusal,
    Retention,
)
from durable_cache.storage.journaled.storage import JournaledStorage, JournalOptions
from durable_cache.storage.memory import MemoryStorage

SOURCE = SourceId("ab", 1)
ONE, TWO = Stream("a/1", SOURCE, 3), Stream("a/2", SOURCE, 3)
OPTIONS = JournalOptions(retry_seconds_max=0.1)


class Backend(MemoryStorage):
    """A backend that outlives its handles, remembers calls, and can be away or picky."""

    def __init__(self) -> None:
        super().__init__()
        self.away = self.tells = False
        self.calls: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False, append_samples=64)

    def check(self, batch: SampleBatch) -> Sequence[Refusal]:
        return [Refusal(s, "it is bad") for s in batch if self.tells and s.payload == b"bad"]

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        if self.away:
            raise StorageUnavailable("away")
        self.calls.append("append")
        bad = [sample for sample in batch if sample.payload == b"bad"]
        result = super().append(SampleBatch(s for s in batch if s.payload != b"bad"), skips)
        return AppendResult(result.new, refused=tuple(Refusal(s, "it is bad") for s in bad))

    def purge(self, floors: Iterable[Floor]) -> int:
        if self.away:
            raise StorageUnavailable("away")
        self.calls.append("purge")
        return super().purge(floors)

    def close(self) -> None:
        """It goes on without us."""


class Unreadable(Backend):
    """A backend that cannot be read either while it is away."""

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        if self.away:
            raise StorageUnavailable("away")
        return super().read(selection, limit, cursor)

    def held(self) -> Iterator[Held]:
        if self.away:
            raise StorageUnavailable("away")
        return super().held()


def opened(
    folder: Path, backend: Backend, options: JournalOptions = OPTIONS
) -> closing[JournaledStorage]:
    return closing(JournaledStorage(backend, folder, options=options))


def batch(stream: Stream, *sns: int, payload: bytes = b"x") -> SampleBatch:
    return SampleBatch(Sample(*stream, sn, payload, ntp64=sn + 1) for sn in sns)


def sns(store: JournaledStorage) -> list[int]:
    return sorted(s.sn for page in store.pages(Selection(), 7) for s in page)


def held(store: JournaledStorage) -> RangeSet:
    states, _ = store.load(SOURCE)
    return next((state.held for state in states if state.epoch == 3), RangeSet())


def away(folder: Path, name: str) -> None:
    for path in folder.glob(f"{name}.db*"):
        path.unlink()


def filled(folder: Path, backend: Backend, count: int = 10) -> None:
    with opened(folder, backend) as store:
        for sn in range(count):
            store.commit(batch(ONE, sn))
            store.drain()


def test_what_belongs_together_is_no_finding(tmp_path: Path) -> None:
    backend = Backend()
    filled(tmp_path, backend)
    with opened(tmp_path, backend) as store:
        store.commit(batch(ONE, 10))
    with opened(tmp_path, backend) as store:
        assert not store.findings
        assert store.backlog.samples == 1
        assert sns(store) == [*range(11)]


def test_a_source_with_samples_that_wait_keeps_the_name_of_its_run(tmp_path: Path) -> None:
    backend = Backend()
    filled(tmp_path, backend)
    with opened(tmp_path, backend) as store:
        store.index.declare(SOURCE, 3, "0a0a0a0a")
        store.commit(batch(ONE, 10))
        ((state,), _) = store.load(SOURCE)
    assert state.incarnation == "0a0a0a0a"
    assert state.held == RangeSet([(0, 10)])


def test_an_index_that_lost_its_last_writes_gets_the_names_of_runs_back(tmp_path: Path) -> None:
    backend = Backend()
    filled(tmp_path, backend)
    older = {path: path.read_bytes() for path in tmp_path.glob("index.db*")}
    with opened(tmp_path, backend) as store:
        store.index.declare(SOURCE, 3, "0a0a0a0a")
    away(tmp_path, "index")
    for path, content in older.items():
        path.write_bytes(content)
    with opened(tmp_path, backend) as store:
        ((state,), _) = store.load(SOURCE)
    assert state.incarnation == "0a0a0a0a"


def test_a_new_journal_is_said_and_drained_from_its_first_entry_on(tmp_path: Path) -> None:
    backend = Backend()
    filled(tmp_path, backend)
    away(tmp_path, "journal")
    with opened(tmp_path, backend) as store:
        assert len(store.findings) == 1
        assert "journal" in store.findings[0]
        store.commit(batch(ONE, 10))
    with opened(tmp_path, backend) as store:
        assert not store.findings
        assert store.drain_all(5)
        assert sns(store) == [*range(11)]


def test_an_older_copy_of_the_journal_is_said_and_drained_again(tmp_path: Path) -> None:
    backend, copy = Backend(), tmp_path / "copy.db"
    folder = tmp_path / "state"
    filled(folder, backend, 2)
    shutil.copy(folder / "journal.db", copy)
    filled(folder, backend, 10)
    away(folder, "journal")
    shutil.copy(copy, folder / "journal.db")
    with opened(folder, backend) as store:
        assert "older copy" in store.findings[0]
        store.commit(batch(ONE, 10))
    with opened(folder, backend) as store:
        assert store.drain_all(5)
        assert sns(store) == [*range(11)]


def test_a_lost_index_comes_back_with_what_no_backend_gives_back(tmp_path: Path) -> None:
    backend = Backend()
    alias, agreement = Alias(SOURCE, 0, 4, 3), Alias(SOURCE, 9, 0, 3)
    with opened(tmp_path, backend) as store:
        cache_id, generation = store.index.cache_id, store.index.generation
        store.commit(batch(ONE, *range(10)))
        assert store.drain_all(5)
        with store.index.transaction() as database:  # as an earlier version left it
            database.execute("INSERT INTO aliases VALUES (?, ?, 0, 4, 3)", SOURCE)
        store.index.agree(agreement)
        store.index.agree(Alias(SOURCE, 8, 0, 3))
        store.index.disagree(Alias(SOURCE, 8, 0, 3))
        store.index.declare(SOURCE, 11, "0123abcd", instead_of=10)
        assert store.purge([Floor(ONE, 4)]) == 4
    with opened(tmp_path, backend):
        pass  # from a start on the journal has a second copy of it
    away(tmp_path, "index")
    with opened(tmp_path, backend) as store:
        assert store.index.cache_id == cache_id
        assert store.index.generation != generation
        assert store.index.aliases() == [alias]
        assert store.index.agreements() == [agreement, Alias(SOURCE, 10, 0, 11)]
        assert store.index.incarnations([SOURCE]) == [(SOURCE, 11, "0123abcd")]
        assert store.index.infos([ONE])[ONE].purged == 4
        assert held(store).clip(4, 99) == RangeSet([(4, 9)])


def test_an_older_backend_is_noticed_where_an_old_entry_was_drained_again(tmp_path: Path) -> None:
    """What was recorded last is in both; what the stream had before that is not."""
    backend = Backend()
    with opened(tmp_path, backend) as store:
        for key in ("a/0/a", "a/0/b", "a/0/c", "a/0/d", "b/a", "b/b", "b/c", "b/d"):
            store.commit(batch(Stream(key, SourceId("cd", 1), 3), 0))
        store.commit(batch(ONE, 0, 1, 2))
        assert store.drain_all(5)
        older = backend.read(Selection(), 99)
        store.commit(batch(ONE, *range(3, 9)))
        assert store.drain_all(5)
        store.commit(batch(ONE, 2))
        assert store.drain_all(5)
    MemoryStorage.purge(backend, [Floor(ONE, 9)])
    backend.append(SampleBatch(older.samples))
    with opened(tmp_path, backend) as store:
        assert "number 8" in store.findings[0]
        assert held(store) == RangeSet([(0, 2)])


def test_an_older_copy_of_the_index_is_read_anew(tmp_path: Path) -> None:
    backend, copy = Backend(), tmp_path / "copy.db"
    folder = tmp_path / "state"
    filled(folder, backend, 2)
    shutil.copy(folder / "index.db", copy)
    filled(folder, backend, 10)
    with opened(folder, backend) as store:
        store.commit(batch(ONE, 10))
        store.drain()
        store.journal.flush()  # type: ignore[union-attr]
    away(folder, "index")
    shutil.copy(copy, folder / "index.db")
    with opened(folder, backend) as store:
        assert "stream index" in store.findings[0]
        assert held(store) == RangeSet([(0, 10)])


def test_an_index_of_before_its_journal_was_replaced_is_read_anew(tmp_path: Path) -> None:
    backend, copy = Backend(), tmp_path / "copy.db"
    folder = tmp_path / "state"
    filled(folder, backend, 2)
    shutil.copy(folder / "index.db", copy)
    filled(folder, backend, 10)
    away(folder, "journal")
    filled(folder, backend, 12)
    away(folder, "index")
    shutil.copy(copy, folder / "index.db")
    with opened(folder, backend) as store:
        assert len(store.findings) == 1
        assert held(store) == RangeSet([(0, 11)])


def test_an_index_of_before_its_backend_was_lost_is_read_anew(tmp_path: Path) -> None:
    backend, copy = Backend(), tmp_path / "copy.db"
    folder = tmp_path / "state"
    filled(folder, backend, 10)
    shutil.copy(folder / "index.db", copy)
    backend = Backend()
    with opened(folder, backend) as store:
        assert store.findings
        store.commit(batch(ONE, 9))
        store.drain()
    away(folder, "index")
    shutil.copy(copy, folder / "index.db")
    with opened(folder, backend) as store:
        assert "stream index" in store.findings[0]
        assert held(store) == RangeSet([(9, 9)])


def test_an_index_put_back_after_its_journal_was_learns_of_new_streams(tmp_path: Path) -> None:
    backend, folder = Backend(), tmp_path / "state"
    filled(folder, backend, 2)
    for name in ("journal", "index"):
        shutil.copy(folder / f"{name}.db", tmp_path / f"{name}.copy")
    with opened(folder, backend) as store:
        store.commit(batch(TWO, *range(10, 15)))
        store.drain()
    for name in ("journal", "index"):
        away(folder, name)
        shutil.copy(tmp_path / f"{name}.copy", folder / f"{name}.db")
        with opened(folder, backend) as store:
            assert held(store) == RangeSet([(0, 1), (10, 14)])


def test_a_state_directory_older_than_its_backend_is_said_and_read_anew(tmp_path: Path) -> None:
    backend, folder, copy = Backend(), tmp_path / "state", tmp_path / "copy"
    filled(folder, backend, 2)
    shutil.copytree(folder, copy)
    filled(folder, backend, 10)
    with opened(copy, backend) as store:
        assert "older" in store.findings[0]
        assert held(store) == RangeSet([(0, 9)])
    with opened(copy, backend) as store:
        assert not store.findings


def test_what_a_crash_left_out_of_the_index_alone_is_no_finding(tmp_path: Path) -> None:
    backend = Backend()
    filled(tmp_path, backend)
    with opened(tmp_path, backend) as store:
        store.commit(batch(ONE, 10))
        backend.append(batch(ONE, 10))  # and then the power went
    with opened(tmp_path, backend) as store:
        assert not store.findings
        assert store.drain_all(5)
        assert held(store) == RangeSet([(0, 10)])


def test_an_older_index_is_read_anew_by_the_first_start_that_reaches_the_backend(
    tmp_path: Path,
) -> None:
    backend, copy = Unreadable(), tmp_path / "copy.db"
    folder = tmp_path / "state"
    filled(folder, backend, 2)
    shutil.copy(folder / "index.db", copy)
    filled(folder, backend, 10)
    away(folder, "journal")
    away(folder, "index")
    shutil.copy(copy, folder / "index.db")
    backend.away = True
    with opened(folder, backend) as store:
        assert store.backend_error
    backend.away = False
    with opened(folder, backend) as store:
        assert held(store) == RangeSet([(0, 9)])


def test_what_a_backend_lost_is_claimed_no_more(tmp_path: Path) -> None:
    backend = Backend()
    with opened(tmp_path, backend) as store:
        store.commit(batch(ONE, *range(10)), (Skip(SOURCE, 3, 20, 21),))
        store.commit(batch(TWO, *range(10, 16)))
        assert store.drain_all(5)
        store.trim(Retention(samples_max=5), 0)
        store.purge([Floor(TWO, 12)])
        store.journal.flush()  # type: ignore[union-attr]
    another = Backend()
    another.append(batch(ONE, 6), ())
    with opened(tmp_path, another) as store:
        assert "backend" in store.findings[0]
        infos = store.index.infos([ONE, TWO])
        assert [(info.held, info.floor, info.purged) for info in infos.values()] == [
            (RangeSet([(6, 6)]), 5, 0),
            (RangeSet(), 12, 12),
        ]
        # What was removed on purpose counts as held: nobody is to give it again.
        assert held(store) == RangeSet([(0, 4), (6, 6), (10, 11)])
        assert store.index.streams == 2
    with opened(tmp_path, another) as store:
        assert not store.findings


def test_what_the_journal_still_has_fills_a_backend_that_lost_it(tmp_path: Path) -> None:
    filled(tmp_path, Backend())
    with opened(tmp_path, Backend()) as store:
        assert store.drain_all(5)
        assert sns(store) == [9]  # the last entry is let go of with the next commit


def test_a_backend_that_is_away_at_the_start_is_compared_before_it_is_drained_to(
    tmp_path: Path,
) -> None:
    filled(tmp_path, Backend())

    backend = Unreadable()
    backend.away = True
    with opened(tmp_path, backend) as store:
        assert store.backend_error
        backend.away = False
        store.commit(batch(ONE, 10))
        store.drain()
        assert "backend" in store.findings[0]
        assert held(store).clip(0, 8) == RangeSet()


def test_a_purge_covers_what_is_on_its_way_and_what_is_spilled(tmp_path: Path) -> None:
    backend = Backend()
    backend.away = True
    options = JournalOptions(tail_bytes_max=2_000)
    with opened(tmp_path, backend, options) as store:
        for sn in range(20):
            store.commit(batch(ONE, sn))
        assert store.backlog.spilled
        with pytest.raises(StorageUnavailable):
            store.purge([Floor(ONE, 12)])
        assert sns(store) == [*range(12, 20)]
        store.commit(batch(ONE, 20))
    with opened(tmp_path, backend, options) as store:
        assert sns(store) == [*range(12, 21)]
        backend.away = False
        assert store.drain_all(5)
        store.drain()
        assert sorted(s.sn for s in backend.read(Selection(), 99).samples) == [*range(12, 21)]


def test_a_purge_that_failed_is_carried_out_by_the_next_drain(tmp_path: Path) -> None:
    backend = Backend()
    filled(tmp_path, backend)
    backend.away = True
    with opened(tmp_path, backend) as store, pytest.raises(StorageUnavailable):
        store.purge([Floor(ONE, 8)])
    backend.away = False
    with opened(tmp_path, backend) as store:
        store.drain()
        assert sns(store) == [8, 9]


def test_a_purge_is_told_when_it_holds_and_not_when_the_backend_has_carried_it_out(
    tmp_path: Path,
) -> None:
    backend = Backend()
    filled(tmp_path, backend)
    with opened(tmp_path, backend) as store:
        told: list[Floor] = []
        store.on_purged.append(told.extend)
        backend.away = True
        with pytest.raises(StorageUnavailable):
            store.purge([Floor(ONE, 8)])
        assert told == [Floor(ONE, 8)]
        assert store.index.infos([ONE])[ONE].purged == 8
        backend.away = False
        store.drain()
        assert told == [Floor(ONE, 8)], "once is enough"


def test_a_purge_that_could_not_be_told_is_told_before_the_backend_removes_anything(
    tmp_path: Path,
) -> None:
    backend = Backend()
    filled(tmp_path, backend)
    with opened(tmp_path, backend) as store:
        told: list[Floor] = []
        is_failing = True

        def tell(floors: Sequence[Floor]) -> None:
            if is_failing:
                raise StorageUnavailable("until when it was cannot be read")
            told.extend(floors)

        store.on_purged.append(tell)
        with pytest.raises(StorageUnavailable):
            store.purge([Floor(ONE, 8)])
        assert "purge" not in backend.calls
        is_failing = False
        store.drain()
        assert told == [Floor(ONE, 8)]
        assert sns(store) == [8, 9]


def test_a_purge_that_the_index_was_not_told_of_is_told_before_the_backend_removes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise StorageUnavailable("no index")

    backend = Backend()
    filled(tmp_path, backend)
    with opened(tmp_path, backend) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store.index, "trimmed", fails)
            with pytest.raises(StorageUnavailable):
                store.purge([Floor(ONE, 8)])
        assert "purge" not in backend.calls
    with opened(tmp_path, backend) as store:
        store.drain()
        assert sns(store) == [8, 9]
        assert [*store.index.infos([ONE])[ONE].held] == [(8, 9)]


def test_a_purge_that_the_backend_lost_is_carried_out_at_the_next_start(tmp_path: Path) -> None:
    """A disk that lies, and then a power cut: every number that the index claims is there."""
    backend = Backend()
    filled(tmp_path, backend)
    with opened(tmp_path, backend) as store:
        before = backend.read(Selection(), 99)
        store.purge([Floor(ONE, 8)])
    backend.append(SampleBatch(before.samples))
    with opened(tmp_path, backend) as store:
        store.drain()
        assert sns(store) == [8, 9]
        store.commit(batch(ONE, 10))
        store.drain()
    backend.calls.clear()
    with opened(tmp_path, backend) as store:
        store.drain()
        assert backend.calls == [], "what was stored since tells of a lost purge"


def test_what_the_backend_never_takes_is_skipped_and_said(tmp_path: Path) -> None:
    backend = Backend()
    with opened(tmp_path, backend) as store:
        store.commit(batch(ONE, 0, 1))
        store.commit(batch(ONE, 2, payload=b"bad"))
        assert store.drain_all(5)
        assert [tuple(skip) for skip in backend.skips()] == [(SOURCE, 3, 2, 2)]
        ((state,), _) = store.load(SOURCE)
        assert (state.held, state.skipped) == (RangeSet([(0, 1)]), RangeSet([(2, 2)]))
        assert store.refused_total == 1
        assert "it is bad" in store.findings[0]
        assert store.journal is not None
        assert store.journal.dead_letters == 1


def test_what_can_be_told_never_to_fit_is_refused_before_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    backend = Backend()
    backend.tells = True
    with opened(tmp_path, backend) as store:
        good, bad = batch(ONE, 0, 1), batch(ONE, 2, payload=b"bad")
        assert store.admit(good) is good
        assert store.admit(SampleBatch([*good, *bad])) == good
        assert store.unstorable_total == 1
        assert "it is bad" in store.findings[0]


def test_a_lookup_that_does_not_find_what_is_claimed_is_a_finding(tmp_path: Path) -> None:
    backend = Backend()
    with opened(tmp_path, backend) as store:
        store.commit(batch(ONE, *range(5)))
        assert store.drain_all(5)
        MemoryStorage.purge(backend, [Floor(ONE, 3)])  # behind our back
        asked = batch(ONE, 2, 4, 7).samples
        found = store.find(asked)
        missing = [sample for sample, stored in found if stored is None]
        assert [sample.sn for sample in store.lost(missing)] == [2]
        assert "number 2" in store.findings[0]
        assert held(store) == RangeSet([(0, 1), (3, 4)])
        assert store.lost(missing) == []


def test_the_index_is_recorded_after_the_backend_and_before_the_journal_is_trimmed(
    tmp_path: Path,
) -> None:
    backend = Backend()
    with opened(tmp_path, backend) as store:
        journal = store.journal
        assert journal is not None
        record, trim = store.index.record, journal.trim
        store.index.record = lambda *given: (backend.calls.append("record"), record(*given))[1]  # type: ignore[method-assign]
        journal.trim = lambda entry_id: (backend.calls.append("trim"), trim(entry_id))[1]  # type: ignore[method-assign]
        store.commit(batch(ONE, 0))
        store.drain()
        assert backend.calls == ["append", "record", "trim"]


def test_what_the_backend_does_not_take_stays_in_the_journal(tmp_path: Path) -> None:
    backend = Backend()
    backend.away = True
    with opened(tmp_path, backend) as store:
        store.commit(batch(ONE, 0))
        with pytest.raises(StorageUnavailable):
            store.drain()
        assert store.index.drained() == 0
        store.commit(batch(ONE, 1))
        assert store.journal is not None
        assert store.journal.entries == 2
        assert not store.drain_all(5)
        assert store.backend_error == "away"
        assert sns(store) == [0, 1]


def test_what_is_held_counts_what_is_on_its_way(tmp_path: Path) -> None:
    with opened(tmp_path, Backend()) as store:
        store.commit(batch(ONE, *range(5)))
        assert store.drain_all(5)
        store.commit(SampleBatch([*batch(ONE, 5), *batch(TWO, 6, 7, 8)]))
        assert store.held([ONE, TWO]) == {ONE: RangeSet([(0, 5)]), TWO: RangeSet([(6, 8)])}


def test_what_is_purged_between_the_door_and_its_commit_is_not_stored(tmp_path: Path) -> None:
    backend = Backend()
    with opened(tmp_path, backend) as store:
        store.commit(batch(ONE, 8))
        assert store.drain_all(5)
        store.purge([Floor(ONE, 2)])
        assert [s.sn for s in store.commit(batch(ONE, 0, 1, 2))] == [2]
        assert sns(store) == [2, 8]
        held = store.load(SOURCE)[0][0].held
        assert [*held] == [(0, 2), (8, 8)], "a repeat that comes late is told to be one"
    with opened(tmp_path, backend) as store:
        assert sns(store) == [2, 8]
        assert store.drain_all(5)
        assert sns(store) == [2, 8]


def test_a_purge_says_nothing_of_another_run_that_gets_its_epoch(tmp_path: Path) -> None:
    with opened(tmp_path, Backend()) as store:
        store.commit(batch(ONE, 0, 1))
        assert store.drain_all(5)
        store.purge([Floor(ONE, 1)])
        store.forget(SOURCE, ONE.epoch)
        store.commit(batch(ONE, 0))
        assert sns(store) == [0]

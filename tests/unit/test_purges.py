"""What a purge removes from what is on its way, how long it counts, and that it outlives us."""

from __future__ import annotations

from pathlib import Path

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.index_rows import StreamInfo
from durable_cache.storage.journaled.journal import Entry, Journal
from durable_cache.storage.journaled.purges import Purges

SOURCE = SourceId("ab", 1)
ONE, TWO = Stream("a/1", SOURCE, 3), Stream("a/2", SOURCE, 3)


def entry(entry_id: int, *streams: Stream) -> Entry:
    """Return an entry with the numbers 0 to 9 of each stream."""
    return Entry(
        entry_id, SampleBatch(Sample(*s, sn, b"x") for s in streams for sn in range(10)), ()
    )


def left(purges: Purges, entry_id: int) -> dict[str, list[int]]:
    kept: dict[str, list[int]] = {"a/1": [], "a/2": []}
    for sample in purges.without(entry(entry_id, ONE, TWO)).batch:
        kept[sample.key].append(sample.sn)
    return kept


def test_entries_up_to_the_purge_lose_what_is_below_and_later_ones_nothing() -> None:
    purges = Purges()
    purges.begin([Floor(ONE, 6)], 3)
    everything = [*range(10)]
    for entry_id in (1, 3):
        assert left(purges, entry_id) == {"a/1": [6, 7, 8, 9], "a/2": everything}
    assert left(purges, 4) == {"a/1": everything, "a/2": everything}
    purges.begin([Floor(TWO, 2)], 9)
    assert left(purges, 4) == {"a/1": everything, "a/2": everything[2:]}


def test_a_lower_purge_takes_nothing_back() -> None:
    purges = Purges()
    purges.begin([Floor(ONE, 6), Floor(ONE, 4)], 3)
    purges.begin([Floor(ONE, 2)], 5)
    assert purges.pending() == purges.every() == [Floor(ONE, 6)]
    assert left(purges, 5)["a/1"] == [6, 7, 8, 9]


def test_a_purge_counts_until_the_backend_has_carried_it_out_and_its_entries_are_gone() -> None:
    purges = Purges()
    purges.begin([Floor(ONE, 6)], 3)
    purges.begin([Floor(TWO, 6)], 5)
    purges.done([Floor(ONE, 6)], 2)
    assert purges.pending() == [Floor(TWO, 6)]
    assert left(purges, 3)["a/1"] == [6, 7, 8, 9], "entry 3 may still be read from the journal"
    purges.done([], 5)
    assert purges.every() == [Floor(TWO, 6)], "what is pending is not forgotten"
    purges.done([Floor(TWO, 6)], 5)
    assert purges.every() == []


def test_purges_outlive_the_process(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    purges = Purges(journal)
    purges.begin([Floor(ONE, 6)], 3)
    purges.begin([Floor(TWO, 4)], 5)
    purges.done([Floor(TWO, 4)], 0)
    purges.outlived(purges.carried_out())
    journal.close()
    journal = Journal(tmp_path / "journal.db")
    for first_entry, read in ((1, 4), (6, 0)):
        again = Purges(journal, first_entry)
        assert again.pending() == [Floor(ONE, 6)]
        assert sorted(again.every()) == [Floor(ONE, 6), Floor(TWO, 4)]
        assert left(again, 3)["a/2"][0] == read, "only entries that are left need it"
    journal.close()


def test_a_purge_is_repeated_at_a_start_until_something_was_stored_since(tmp_path: Path) -> None:
    """A backend that lost its last writes may have lost a purge, and nothing else tells of it."""
    journal = Journal(tmp_path / "journal.db")
    purges = Purges(journal)
    purges.begin([Floor(ONE, 6), Floor(TWO, 6)], 3)
    purges.done([Floor(ONE, 6)], 3)
    before = purges.carried_out()
    purges.done([Floor(TWO, 6)], 3)
    assert purges.pending() == []
    assert sorted(Purges(journal).pending()) == [Floor(ONE, 6), Floor(TWO, 6)]
    purges.outlived(before)
    assert Purges(journal).pending() == [Floor(TWO, 6)]
    purges.begin([Floor(TWO, 8)], 4)
    purges.outlived([TWO])
    assert Purges(journal).pending() == [Floor(TWO, 8)], "this one is under way"
    journal.close()


def test_what_a_start_finds_pending_is_compared_with_what_is_committed(tmp_path: Path) -> None:
    """The index may not know of it yet: the door lets in what is below (seed 6064)."""
    journal = Journal(tmp_path / "journal.db")
    Purges(journal).begin([Floor(ONE, 6)], 3)
    kept, below = Purges(journal).part(entry(4, ONE).batch)
    assert ([s.sn for s in kept], [s.sn for s in below]) == ([6, 7, 8, 9], [*range(6)])
    journal.close()


def test_the_latest_purges_are_compared_with_what_is_committed_and_older_ones_are_let_go() -> None:
    purges = Purges()
    batch = entry(1, ONE, TWO).batch
    assert purges.part(batch) == (batch, SampleBatch())
    purges.watch([Floor(ONE, 6), Floor(ONE, 4)])
    kept, below = purges.part(batch)
    assert [s.sn for s in kept.by_stream[ONE]] == [6, 7, 8, 9]
    assert len(kept.by_stream[TWO]) == 10
    assert [s.sn for s in below] == [*range(6)]
    purges.watch(Floor(Stream(f"b/{at}", SOURCE, 3), 1) for at in range(10_000))
    assert purges.part(batch)[0] is batch


def test_what_was_there_of_other_keys_is_not_counted_as_purged(tmp_path: Path) -> None:
    """A backend that is an older copy may lack it: it is to be asked for again."""
    journal = Journal(tmp_path / "journal.db")
    there = {ONE: StreamInfo(ONE, RangeSet([(1, 1), (3, 4), (7, 9)]), newest_ntp64=5)}
    Purges(journal).begin([Floor(ONE, 8)], 3, [Sample(*ONE, 5, b"", ntp64=6)], there)
    lost = Purges(journal).lost_by(lambda streams: {s: StreamInfo(s, RangeSet()) for s in streams})
    assert lost[ONE].runs == RangeSet([(1, 1), (3, 5), (7, 7)])
    assert lost[ONE].newest_ntp64 == 6
    known = Purges(journal).lost_by(lambda _: {ONE: StreamInfo(ONE, RangeSet(), purged=8)})
    assert known == {}
    journal.close()


def test_a_purge_that_the_journal_forgot_and_the_index_knows_counts_for_what_waits() -> None:
    """The journal's disk lied: the purge was its last write (seed 158367)."""
    purges = Purges()
    purges.begin([Floor(TWO, 2)], 3)
    purges.remember([Floor(ONE, 6), Floor(TWO, 1)], 4)
    everything = [*range(10)]
    assert left(purges, 4) == {"a/1": [6, 7, 8, 9], "a/2": everything}
    assert left(purges, 3) == {"a/1": [6, 7, 8, 9], "a/2": everything[2:]}
    assert left(purges, 5) == {"a/1": everything, "a/2": everything}

"""The backlog answers as a plain list of commits would, whatever comes, goes and is spilled."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from durable_cache.errors import StorageUnavailable
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.journal import Entry

SOURCES = [SourceId("a1", 1), SourceId("a1", 2), SourceId("b2", 1)]
numbers = st.tuples(st.sampled_from("abc"), st.sampled_from(SOURCES), st.integers(0, 9))
commits = st.lists(numbers, min_size=1, max_size=6)
steps = st.lists(st.one_of(commits, st.integers(1, 3)), max_size=30)


def entry_of(entry_id: int, commit: list[tuple[str, SourceId, int]]) -> Entry:
    batch = SampleBatch(
        Sample(key, source, 1, sn, b"x" * 50, ntp64=sn + entry_id) for key, source, sn in commit
    )
    skips = (Skip(commit[0][1], 1, 100 + entry_id, 100 + entry_id),) if entry_id % 2 else ()
    return Entry(entry_id, batch, skips)


@given(steps, st.sampled_from([2000, 5000, 1 << 20]))
def test_it_is_a_queue_that_can_be_asked(
    steps: list[list[tuple[str, SourceId, int]] | int], bytes_max: int
) -> None:
    journal: list[Entry] = []

    def read_back(after: int, limit: int) -> list[Entry]:
        return [entry for entry in journal if entry.entry_id > after][:limit]

    backlog = Backlog(bytes_max, read_back)
    waiting: list[Entry] = []
    for entry_id, step in enumerate(steps, start=1):
        if isinstance(step, list):
            entry = entry_of(entry_id, step)
            journal.append(entry)
            waiting.append(entry)
            backlog.push(entry)
        else:
            gone = backlog.head(step)
            assert gone == waiting[: len(gone)]
            assert bool(gone) == bool(waiting)
            backlog.pop(len(gone))
            del waiting[: len(gone)]
        check(backlog, waiting)


def check(backlog: Backlog, waiting: list[Entry]) -> None:
    assert backlog.samples == sum(len(entry.batch) for entry in waiting)
    samples = [sample for entry in waiting for sample in entry.batch]
    assert sorted(backlog.skips()) == sorted(skip for entry in waiting for skip in entry.skips)
    for source in SOURCES:
        mine = [sample for sample in samples if sample.source == source]
        found = backlog.numbers_of(source)
        runs = found[1].runs if found else RangeSet()
        newest = found[1].newest_ntp64 if found else 0
        gone = runs.difference(RangeSet.of(s.sn for s in mine))
        assert not RangeSet.of(s.sn for s in mine).difference(runs)
        assert newest >= max((s.ntp64 for s in mine), default=0)
        if not backlog.spilled:  # of what was spilled, numbers are remembered until all is back
            assert not gone
            assert newest == max((s.ntp64 for s in mine), default=0)
        named = Selection(zid=source.zid, eid=source.eid, sns=SnBounds(3, 7))
        assert sorted(s.sn for s in backlog.matching(named)) == sorted(
            s.sn for s in mine if 3 <= s.sn <= 7
        )
    keyed = Selection(key_expr=KeyExpression("a"), zid="a1")
    assert sorted((s.source, s.sn) for s in backlog.matching(keyed)) == sorted(
        (s.source, s.sn) for s in samples if s.key == "a" and s.source.zid == "a1"
    )
    assert sum(runs.count for runs in backlog.runs(Selection()).values()) == len(
        {sample.identity for sample in samples}
    )


def test_the_ends_of_an_entry_belong_to_it() -> None:
    backlog = Backlog(1 << 20)
    backlog.push(Entry(1, SampleBatch(Sample("a", SOURCES[0], 1, sn, b"") for sn in (3, 5, 9)), ()))
    for first, last, expected in [(9, 9, [9]), (3, 3, [3]), (10, None, []), (None, 2, [])]:
        named = Selection(sns=SnBounds(first, last))
        assert [sample.sn for sample in backlog.matching(named)] == expected


def test_what_was_spilled_is_read_back_once_the_journal_can_be_read_again() -> None:
    journal = [entry_of(at, [("a", SOURCES[0], at)]) for at in range(1, 6)]
    away = True

    def read_back(after: int, limit: int) -> list[Entry]:
        if away:
            raise StorageUnavailable("the journal cannot be read")
        return [entry for entry in journal if entry.entry_id > after][:limit]

    backlog = Backlog(1, read_back)
    for entry in journal:
        backlog.push(entry)
    drained: list[int] = []
    for attempt in range(20):
        away = attempt < 5
        with suppress(StorageUnavailable):
            if entries := backlog.head(1):
                drained += [entry.entry_id for entry in entries]
                backlog.pop(len(entries))
    assert drained == [1, 2, 3, 4, 5]
    assert not backlog.spilled

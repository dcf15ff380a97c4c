"""Is what a stream index knows of very many runs what it was told, and each row small?"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from durable_cache.errors import StorageCorrupt
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.model.selection import SnBounds
from durable_cache.protocol.cache.questions import Standing
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.index_blocks import BLOCK_RUNS, TAIL_RUNS_MAX

SOURCE, EPOCH, KEYS = SourceId("ab12", 7), 5, 3
STREAMS = [Stream(f"a/{at}", SOURCE, EPOCH) for at in range(KEYS)]


def samples(sns: Iterable[int]) -> SampleBatch:
    """Return samples of one publisher that writes its keys in turn."""
    return SampleBatch(
        Sample(f"a/{sn % KEYS}", SOURCE, EPOCH, sn, b"x", ntp64=sn, timestamp_id="ab12")
        for sn in sns
    )


def longest_rows(path: Path) -> dict[str, int]:
    """Return how many runs the longest row of each table has."""
    with closing(sqlite3.connect(path)) as database:
        return {
            f"{table}.{column}": max(
                len(json.loads(text))
                for (text,) in database.execute(f"SELECT {column} FROM {table}")
            )
            for table, column in (
                ("streams", "held"),
                ("blocks", "runs"),
                ("numberings", "held"),
                ("numberings", "skipped"),
            )
        }


class Told:
    """What an index was told, kept plainly beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = StreamIndex(path)
        self.held: set[int] = set()
        self.of_numbering: set[int] = set()
        self.skipped: set[int] = set()
        self.floors = dict.fromkeys(STREAMS, 0)

    def record(self, sns: Iterable[int], skip: tuple[int, int] | None = None) -> None:
        sns = [sn for sn in sns if sn >= self.floors[STREAMS[sn % KEYS]]]
        self.index.record(samples(sns), [Skip(SOURCE, EPOCH, *skip)] if skip else [])
        self.held.update(sns)
        self.of_numbering.update(sns)
        self.skipped.update(range(skip[0], skip[1] + 1) if skip else ())
        self.skipped -= self.of_numbering

    def trim(self, at: int, sn: int) -> None:
        self.index.trimmed([Floor(STREAMS[at], sn)])
        self.floors[STREAMS[at]] = max(sn, self.floors[STREAMS[at]])
        self.held -= {it for it in self.held if it % KEYS == at and it < sn}

    def disclaim(self, sns: Iterable[int]) -> None:
        gone = [sn for sn in sns if sn in self.held]
        self.index.disclaim(samples(gone))
        self.held.difference_update(gone)
        self.of_numbering.difference_update(gone)

    def reopen(self) -> None:
        self.index.close()
        self.index = StreamIndex(self.path)

    def check(self, chance: Random) -> None:
        of_stream = {
            stream: RangeSet.of(sn for sn in self.held if sn % KEYS == at)
            for at, stream in enumerate(STREAMS)
        }
        infos = self.index.infos(STREAMS)
        assert {stream: infos[stream].held for stream in STREAMS} == of_stream
        assert {stream: infos[stream].floor for stream in STREAMS} == self.floors
        found = {info.stream: info.held for info in self.index.all_infos()}
        assert {stream: found.get(stream, RangeSet()) for stream in STREAMS} == of_stream
        asked = [chance.randrange(max(self.of_numbering, default=0) + 5) for _ in range(50)]
        for sn, standing in zip(asked, self.index.standings(samples(asked).samples), strict=True):
            removed = sn < self.floors[STREAMS[sn % KEYS]]
            known = Standing.HELD if sn in self.held else Standing.NEW
            assert standing == (Standing.REMOVED if removed else known), sn
        for sn in asked[:10]:
            of_source = self.index.infos_of_source(SOURCE, KEYS, SnBounds(sn, sn + 100)) or ()
            found = {info.stream: info.held.clip(sn, sn + 100) for info in of_source}
            assert {stream: found.get(stream, RangeSet()) for stream in STREAMS} == {
                stream: held.clip(sn, sn + 100) for stream, held in of_stream.items()
            }
        states, _ = self.index.load(SOURCE)
        for state in states:
            assert state.held == RangeSet.of(self.of_numbering)
            assert state.skipped == RangeSet.of(self.skipped)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_in_whatever_order_is_what_was_told(tmp_path: Path, seed: int) -> None:
    """Batches that go on, skip some, come late or fall between; trims, losses and restarts."""
    chance = Random(seed)
    told, top = Told(tmp_path / "index.db"), 0
    for _ in range(80):
        match chance.randrange(9):
            case 0 | 1 | 2 | 3:  # goes on, with holes
                upper = top + chance.randrange(1, 900)
                some = [sn for sn in range(top, upper) if chance.random() < 0.6]
                skip = (top, chance.randrange(top, upper)) if chance.random() < 0.2 else None
                told.record(some, skip)
                top = upper
            case 4 | 5 if top:  # late
                first = chance.randrange(top)
                skip = (first, first + 60) if chance.random() < 0.3 else None
                told.record(range(first, min(top, first + chance.randrange(1, 400)), 2), skip)
            case 6 if top:
                told.trim(chance.randrange(KEYS), chance.randrange(top))
            case 7 if top:
                first = chance.randrange(top)
                told.disclaim(range(first, first + chance.randrange(1, 60)))
            case _:
                told.reopen()
        if chance.random() < 0.15:
            told.check(chance)
    told.check(chance)
    told.reopen()
    told.check(chance)
    told.index.close()
    rows = longest_rows(tmp_path / "index.db")
    assert all(runs <= TAIL_RUNS_MAX for runs in rows.values())
    assert rows["blocks.runs"] > BLOCK_RUNS // 2


def test_what_one_batch_more_costs_does_not_grow_with_what_is_there(tmp_path: Path) -> None:
    """Each batch writes tails: of a publisher of many keys no row has a run for each sample."""
    path = tmp_path / "index.db"
    with closing(StreamIndex(path)) as index:
        for first in range(0, 60_000, 1_000):
            index.record(samples(sn for sn in range(first, first + 1_000) if sn % 7))
            if first == 30_000:
                early = max(longest_rows(path).values())
        assert max(longest_rows(path).values()) <= max(early, TAIL_RUNS_MAX)
        held = index.infos(STREAMS)
        every = [sn for sn in range(60_000) if sn % 7]
        assert sum(info.held.count for info in held.values()) == len(every)
        (state,), _ = index.load(SOURCE)
        assert state.held == RangeSet.of(every)


def test_what_is_there_again_after_all_was_lost_is_not_what_was_there_before(
    tmp_path: Path,
) -> None:
    with closing(StreamIndex(tmp_path / "index.db")) as index:
        index.record(samples(range(0, 3_000, 2)))
        index.disclaim(samples(range(0, 3_000, 2)))
        index.record(samples(range(1, 3_000, 4)))
        (state,), _ = index.load(SOURCE)
        assert state.held == RangeSet.of(range(1, 3_000, 4))
        index.forget(SOURCE, EPOCH)
        index.record(samples([1]))
        (state,), _ = index.load(SOURCE)
        assert state.held == RangeSet.of([1])
        assert index.infos(STREAMS)[STREAMS[1]].held == RangeSet.of([1])


def test_who_asks_for_some_numbers_is_answered_however_many_there_are(tmp_path: Path) -> None:
    """Of very many runs those that were asked for are read; all at once would be too many."""
    with closing(StreamIndex(tmp_path / "index.db")) as index:
        index.record(samples(range(200_000)))
        assert index.infos_of_source(SOURCE, KEYS) is None
        assert index.infos_of_source(SOURCE, KEYS - 1, SnBounds(5, 9)) is None
        for first in (0, 100_000, 199_900):
            found = index.infos_of_source(SOURCE, KEYS, SnBounds(first, first + 99))
            assert found is not None
            held = [info.held.clip(first, first + 99) for info in found]
            assert sum(runs.count for runs in held) == 100
            assert sum(len(info.held) for info in found) < 1_000


EARLIER = """
CREATE TABLE numberings (
  zid TEXT, eid INTEGER, epoch INTEGER, held TEXT, skipped TEXT, newest TEXT,
  PRIMARY KEY (zid, eid, epoch)) WITHOUT ROWID;
CREATE TABLE streams (
  key TEXT, zid TEXT, eid INTEGER, epoch INTEGER, held TEXT, floor INTEGER, purged INTEGER,
  newest TEXT, received INTEGER, PRIMARY KEY (key, zid, eid, epoch)) WITHOUT ROWID;
CREATE VIEW known AS SELECT * FROM streams;
"""


def test_an_index_of_an_earlier_version_is_read_and_goes_on_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    runs = [[sn, sn] for sn in range(0, 900, 3)]
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(EARLIER)
        stream = ("a/0", *SOURCE, EPOCH, json.dumps(runs), 2, 1, "897", 0)
        database.execute(f"INSERT INTO streams VALUES ({','.join('?' * 9)})", stream)
        numbering = (*SOURCE, EPOCH, json.dumps(runs), "[]", "897")
        database.execute(f"INSERT INTO numberings VALUES ({','.join('?' * 6)})", numbering)
    for sn in (900, 903):  # what is made anew is there the second time
        with closing(StreamIndex(path)) as index:
            assert index.infos(STREAMS)[STREAMS[0]].held == RangeSet.of(range(0, sn, 3))
            index.record(samples([sn]))
    with closing(StreamIndex(path)) as index:
        every = RangeSet.of([*range(0, 900, 3), 900, 903])
        info = index.infos(STREAMS)[STREAMS[0]]
        assert (info.held, info.floor, info.purged, info.newest_ntp64) == (every, 2, 1, 903)
        (state,), _ = index.load(SOURCE)
        assert state.held == every
    assert max(longest_rows(path).values()) <= TAIL_RUNS_MAX
    with closing(sqlite3.connect(path)) as database, pytest.raises(sqlite3.Error, match="columns"):
        database.execute("INSERT INTO streams SELECT 1, 2, 3, 4, 5, 6, 7, 8, 9")  # as it would


def test_an_index_of_a_later_version_is_refused_by_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    StreamIndex(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 3")
    before = path.read_bytes()
    with pytest.raises(
        StorageCorrupt, match=rf"^stream index {path}: it is of format 3, this is format 2; use "
    ):
        StreamIndex(path)
    assert path.read_bytes() == before

"""Does what an earlier commit wrote open, with everything that was in it?

Each archive was written by that commit's own code: two keys, samples of an epoch that was learned
later, skips, a purge, a trim, and entries that only the journal has; and the spool of a publisher
that was closed, went on and was killed.
"""

from __future__ import annotations

import tarfile
from contextlib import closing
from pathlib import Path

from durable_cache.endpoints.publisher.spool import Spool
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Kind, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.protocol.cache.events import Alias
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.plugins import open_storage

DATA = Path(__file__).parents[1] / "regressions" / "data"
ARCHIVE = DATA / "a7952e0-sqlite.tar.gz"
SOURCE = SourceId("ab12", 7)
CACHE_ID = "a6483a63dcecbb7c"
FIRST = Stream("a/1", SOURCE, 5)


def opened(folder: Path) -> closing[JournaledStorage]:
    url = f"sqlite:///{folder}/history.db"
    return closing(JournaledStorage(open_storage("sql", "history", {"url": url}), folder / "state"))


def check(store: JournaledStorage) -> None:
    samples = store.read(Selection(), 1000).samples
    numbers: dict[tuple[str, int], list[int]] = {}
    for sample in samples:
        assert sample.payload == b"payload %d" % sample.sn
        assert sample.kind is (Kind.DELETE if sample.sn == 7 else Kind.PUT)
        assert sample.attachment == (b"meta" if sample.sn % 2 else None)
        assert (sample.ntp64, sample.qos) == ((1 << 62) + sample.sn, 13)
        numbers.setdefault((sample.key, sample.epoch), []).append(sample.sn)
    assert numbers == {
        ("a/1", 5): [*range(16, 40, 2), 42],
        ("a/2", 5): [*range(17, 40, 2), 41],
        ("a/3", 0): [0, 1],
    }
    assert store.index.cache_id == CACHE_ID
    assert store.index.aliases() == [Alias(SOURCE, 0, 0, 5)]
    assert store.index.agreements() == [Alias(SOURCE, 9, 0, 5)]
    assert store.index.infos([FIRST])[FIRST].purged == 10


def test_state_and_history_of_a7952e0_open(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "a7952e0"
    with opened(folder) as store:
        assert not store.findings
        assert store.backlog.samples == 2
        check(store)
        states, _ = store.load(SOURCE)
        (state,) = (state for state in states if state.epoch == 5)
        assert state.held == RangeSet([(0, 39), (41, 42)])
        assert state.skipped == RangeSet([(43, 44), (100, 104)])
        assert store.index.infos([FIRST])[FIRST].floor == 16
        assert store.drain_all(10)
    with opened(folder) as store:
        assert not store.findings
        assert store.backlog.samples == 0
        check(store)
    for path in (folder / "state").glob("index.db*"):
        path.unlink()
    with opened(folder) as store:
        assert len(store.findings) == 1
        check(store)


def test_a_spool_of_d03b1b2_opens_and_its_numbering_goes_on(tmp_path: Path) -> None:
    with tarfile.open(DATA / "d03b1b2-spool.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    for _ in range(2):
        spool = Spool(tmp_path / "spool", "default", "a/**", bytes_max=1 << 20)
        spool.close()
        (left,) = spool.spooled
        assert (left.source, left.epoch, left.incarnation) == (SOURCE, 5, "0000aaaa")
        assert [sample.payload for sample in left.samples] == [b"payload %d" % n for n in range(8)]
        assert (left.next_sn, left.goes_on) == (8, True)

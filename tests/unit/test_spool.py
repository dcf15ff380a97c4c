"""Is what was put into a spool there after its process, and nobody else's?"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from durable_cache.endpoints.publisher.options import PublisherOptions
from durable_cache.endpoints.publisher.spool import Spool
from durable_cache.errors import (
    ConfigError,
    StorageCorrupt,
    StorageFull,
    StorageLocked,
    StorageUnavailable,
)
from durable_cache.model.run_name import RunName, run_of_id
from durable_cache.model.sample import Kind, Sample, SampleBatch, SourceId
from durable_cache.protocol.publisher.events import Standing
from durable_cache.storage.journaled.journal import Journal

ONE, TWO = SourceId("ab12", 7), SourceId("cd34", 7)
LAST = "does not say which numbering is its last"
NAMES = {ONE: "0000aaaa", TWO: "0000bbbb"}


def opened(
    directory: Path, key_expr: str = "a/**", domain: str = "d", room: int = 1 << 20
) -> Spool:
    return Spool(directory, domain, key_expr, bytes_max=room)


def sample(sn: int, source: SourceId = ONE, payload: bytes = b"x") -> Sample:
    return Sample("a/b", source, 5, sn, payload, attachment=b"\0", ntp64=9, timestamp_id="ab12")


def fill(spool: Spool, first: int, last: int, source: SourceId = ONE) -> None:
    spool.begin(source, 5, NAMES[source])
    for sn in range(first, last + 1):
        spool.append(sample(sn, source), NAMES[source])


def settle(spool: Spool, *sns: int, source: SourceId = ONE) -> None:
    spool.settle([Standing(NAMES[source], sn) for sn in sns])


def left(directory: Path) -> list[tuple[SourceId, list[int], int]]:
    spool = opened(directory)
    spool.close()
    return [(s.source, [one.sn for one in s.samples], s.next_sn) for s in spool.spooled]


def test_what_was_put_is_there_as_it_was_in_order(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    assert spool.spooled == ()
    fill(spool, 0, 9)
    spool.close()
    (again,) = opened(tmp_path).spooled
    assert again.samples == tuple(map(sample, range(10)))
    assert (again.source, again.epoch, again.incarnation, again.next_sn) == (ONE, 5, NAMES[ONE], 10)


@pytest.mark.parametrize(
    "clock",
    [RunName(1 << 30, "0000aaaa").timestamp_id, "cd34" * 8, ""],
    ids=["of-the-run", "given", "none"],
)
@pytest.mark.parametrize("encoding", ["zenoh/bytes", "text/plain;utf-8"])
def test_a_row_takes_little_more_than_key_and_payload_and_gives_every_field_back(
    tmp_path: Path, clock: str, encoding: str
) -> None:
    payload, source = bytes(256), SourceId("ab12" * 8, 7)
    put = Sample(
        *("a/b", source, 1 << 30, 1_000_000, payload, Kind.DELETE, encoding),
        *(None, 7 << 60, clock, True, 45, 1_700_000_000_000_000_000),
    )
    spool = opened(tmp_path)
    spool.begin(source, 1 << 30, "0000aaaa")
    spool.append(put, "0000aaaa")
    spool.close()
    again = opened(tmp_path)
    again.close()
    assert again.spooled[0].samples == (put,)
    with closing(sqlite3.connect(tmp_path / "spool.db")) as database:
        ((size,),) = database.execute("SELECT length(data) FROM entries").fetchall()
    own = len("a/b") + len(payload)
    common = 0 if run_of_id(clock) else len(clock)
    assert size <= own + 50 + common + (0 if encoding == "zenoh/bytes" else len(encoding))


def test_the_log_beside_a_spool_is_written_into_it_now_and_then(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, 0, 2_000)
    log = (tmp_path / "spool.db-wal").stat().st_size
    spool.close()
    assert 1 << 20 < log < 9 << 20


def test_a_spool_with_rows_of_an_earlier_version_goes_on_and_is_of_this_one_then(
    tmp_path: Path,
) -> None:
    spool = opened(tmp_path)
    spool.begin(ONE, 5, NAMES[ONE])
    spool.close()
    facts = {"format": "2", "domain": "d", "key_expr": "a/**"}
    total = f"{crc32(' '.join(facts.values()).encode()):08x}"
    with closing(Journal(tmp_path / "spool.db")) as journal:
        journal.keep("spool", {**facts, "sum": total})
        for sn in range(3):
            journal.commit(SampleBatch((sample(sn),)))
    spool = opened(tmp_path)
    fill(spool, 3, 5)
    spool.close()
    spool = opened(tmp_path)
    assert spool.spooled[0].samples == tuple(map(sample, range(6)))
    settle(spool, *range(6))
    spool.close()
    assert left(tmp_path) == [(ONE, [5], 6)]
    with closing(Journal(tmp_path / "spool.db")) as journal:
        assert journal.kept("spool")["format"] == "3"
        with pytest.raises(StorageCorrupt, match="content 13 where 5 belongs"):
            list(journal.replay())


def test_a_row_of_a_numbering_that_was_never_begun_is_damage(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, 0, 2)
    spool.close()
    with closing(sqlite3.connect(tmp_path / "spool.db")) as database, database:
        database.execute("DELETE FROM kept WHERE kind LIKE 'numbering%'")
    with pytest.raises(StorageCorrupt, match=r"numbering 0000aaaa, which was never begun; move"):
        opened(tmp_path)


def test_what_caches_hold_is_let_go_and_the_next_number_is_known_for_ever(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, 0, 9)
    settle(spool, *range(2, 10))
    settle(spool, 0)
    spool.close()
    assert left(tmp_path) == [(ONE, [*range(1, 10)], 10)]
    spool = opened(tmp_path)
    settle(spool, *range(1, 10))
    spool.close()
    assert left(tmp_path) == [(ONE, [9], 10)]


def test_several_numberings_are_told_apart_the_newest_last(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, 0, 3)
    fill(spool, 0, 1, TWO)
    settle(spool, 0, source=TWO)
    spool.close()
    assert left(tmp_path) == [(ONE, [0, 1, 2, 3], 4), (TWO, [0, 1], 2)]
    spool = opened(tmp_path)
    settle(spool, 0, 1, 2, 3)
    settle(spool, 0, 1, source=TWO)
    spool.close()
    assert left(tmp_path) == [(TWO, [1], 2)]


def test_of_two_rows_for_a_number_the_later_counts_and_both_are_let_go(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, 0, 0)
    spool.append(sample(1, payload=b"raised"), NAMES[ONE])
    spool.append(sample(1, payload=b"sent"), NAMES[ONE])
    fill(spool, 2, 3)
    spool.close()
    spool = opened(tmp_path)
    assert [one.payload for one in spool.spooled[0].samples] == [b"x", b"sent", b"x", b"x"]
    settle(spool, 0, 1, 2)
    spool.close()
    assert left(tmp_path) == [(ONE, [3], 4)]


@pytest.mark.parametrize(
    ("key_expr", "domain", "named"), [("b/**", "d", "key_expr"), ("a/**", "e", "domain")]
)
def test_another_publishers_spool_is_refused_by_name(
    tmp_path: Path, key_expr: str, domain: str, named: str
) -> None:
    opened(tmp_path).close()
    with pytest.raises(ConfigError, match=f"{tmp_path} is not this publisher's: its {named}"):
        opened(tmp_path, key_expr, domain)
    opened(tmp_path).close()  # and left alone


def test_a_spool_in_use_is_refused(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    with pytest.raises(
        StorageLocked,
        match=r"^spool .* in use by .*choose another spool_dir: two publishers need two spools$",
    ):
        opened(tmp_path)
    spool.close()
    spool.close()
    opened(tmp_path).close()


def test_a_damaged_spool_is_refused_by_name(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, 0, 50)
    spool.close()
    file = tmp_path / "spool.db"
    whole = file.read_bytes()
    at = whole.rindex(b"a/b")
    file.write_bytes(whole[:at] + b"\xff\xff\xff" + whole[at + 3 :])
    with pytest.raises(StorageCorrupt, match="spool"):
        opened(tmp_path)
    file.write_bytes(whole)
    opened(tmp_path).close()


def test_what_says_whose_it_is_and_how_it_counts_has_a_checksum(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, 0, 5)
    spool.close()
    for change, said in (
        ("value = 'e' WHERE name = 'domain'", "does not say whose it is"),
        ("value = '0000cccc' WHERE kind = 'numbering'", "numbering 'ab12:7/5' fails its check"),
        ("value = 'nonsense' WHERE kind = 'numbering'", "fails its check|incarnation"),
        ("name = 'ab12:7/6' WHERE kind = 'numbering'", "fails its check"),
        ("name = 'sun' WHERE name = 'sum'", "does not say whose it is"),
        ("value = 'ab12:7/4' WHERE name = 'current'", LAST),
        ("name = 'burrent' WHERE name = 'current'", LAST),
        ("value = '0123456789abcdef' WHERE kind = 'spool' AND name = 'mark'", LAST),
        ("name = 'marc' WHERE kind = 'spool' AND name = 'mark'", LAST),
        ("name = 'lasu_sum' WHERE name = 'last_sum'", LAST),
    ):
        with closing(sqlite3.connect(tmp_path / "spool.db")) as database:
            with database:
                before = database.execute("SELECT * FROM kept").fetchall()
                assert database.execute(f"UPDATE kept SET {change}").rowcount == 1
            with pytest.raises(StorageCorrupt, match=f"spool {tmp_path} is damaged: .*({said})"):
                opened(tmp_path)
            with database:
                database.execute("DELETE FROM kept")
                database.executemany("INSERT INTO kept VALUES (?, ?, ?)", before)
    assert left(tmp_path) == [(ONE, [*range(6)], 6)]


def test_a_spool_whose_power_went_before_its_first_sample_is_as_good_as_new(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "spool.db")) as database, database:
        empty = database.execute("SELECT * FROM kept").fetchall()
    spool = opened(tmp_path)
    spool.begin(ONE, 5, NAMES[ONE])
    spool.close()
    with closing(sqlite3.connect(tmp_path / "spool.db")) as database, database:
        kept = database.execute("SELECT * FROM kept WHERE kind LIKE 'numbering%'").fetchall()
        database.execute("DELETE FROM kept")
        database.executemany("INSERT INTO kept VALUES (?, ?, ?)", [*empty, *kept])
    assert left(tmp_path) == []
    fill(opened(tmp_path), 0, 5)


def test_a_spool_that_lost_its_end_is_refused(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, 0, 3)
    spool.close()
    older = (tmp_path / "spool.db").read_bytes()
    spool = opened(tmp_path)
    fill(spool, 4, 5)
    spool.close()
    (tmp_path / "spool.db").write_bytes(older)
    with pytest.raises(
        StorageCorrupt,
        match=rf"^spool {tmp_path} is damaged: .*ends at entry 4, and entry 6 was .*; delete "
        rf"{tmp_path}/spool.mark to hand over what is left and begin a new numbering, or move",
    ):
        opened(tmp_path)
    (tmp_path / "spool.mark").unlink()
    spool = opened(tmp_path)
    spool.close()
    assert [(s.next_sn, s.goes_on) for s in spool.spooled] == [(4, False)]


def test_a_spool_whose_mark_was_deleted_numbers_anew_until_it_has_begun_again(
    tmp_path: Path,
) -> None:
    def goes_on() -> list[bool]:
        spool = opened(tmp_path)
        spool.close()
        return [s.goes_on for s in spool.spooled]

    spool = opened(tmp_path)
    fill(spool, 0, 3)
    fill(spool, 0, 3, TWO)
    spool.close()
    assert goes_on() == [False, True]  # it was at the other one last
    (tmp_path / "spool.mark").unlink()
    assert goes_on() == [False, False]
    assert goes_on() == [False, False]  # killed before it began: nothing is known any better
    spool = opened(tmp_path)
    spool.begin(TWO, 6, "0000dddd")
    spool.close()
    assert goes_on() == [False, False, True]


def test_a_spool_of_an_earlier_version_is_watched_from_its_first_numbering_on(
    tmp_path: Path,
) -> None:
    spool = opened(tmp_path)
    fill(spool, 0, 3)
    spool.close()
    (tmp_path / "spool.mark").unlink()
    with closing(sqlite3.connect(tmp_path / "spool.db")) as database, database:
        database.execute("DELETE FROM kept WHERE name IN ('mark', 'sum', 'last_sum')")
        database.execute("DELETE FROM kept WHERE kind = 'numbering_sum'")
        database.execute("UPDATE kept SET value = '1' WHERE name = 'format'")
    spool = opened(tmp_path)
    assert spool.spooled[0].goes_on
    spool.begin(ONE, 5, NAMES[ONE])  # it goes on
    spool.close()
    (tmp_path / "spool.mark").unlink()
    spool = opened(tmp_path)
    spool.close()
    assert not spool.spooled[0].goes_on


def test_a_full_spool_says_so_and_has_room_again_when_caches_hold_some(tmp_path: Path) -> None:
    spool = opened(tmp_path, room=4000)
    spool.begin(ONE, 5, NAMES[ONE])
    for sn in range(3):
        spool.append(sample(sn, payload=bytes(1000)), NAMES[ONE])
    with pytest.raises(
        StorageFull, match=r"3 wait for acknowledgements \(spool_bytes_max = 4000\)"
    ):
        spool.append(sample(3, payload=bytes(1000)), NAMES[ONE])
    settle(spool, 0, 1)
    spool.append(sample(3, payload=bytes(1000)), NAMES[ONE])
    spool.close()
    assert left(tmp_path) == [(ONE, [2, 3], 4)]


def test_a_spool_without_acknowledgements_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing would ever leave it"):
        PublisherOptions(spool_dir=tmp_path).checked()
    with pytest.raises(ConfigError, match="spool_bytes_max"):
        PublisherOptions(spool_dir=tmp_path, acknowledgements=1, spool_bytes_max=0).checked()


def test_a_folder_that_cannot_be_a_spool_is_named_as_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StorageUnavailable, match=r"^spool .*file; choose another spool_dir"):
        opened(file)
    with pytest.raises(StorageUnavailable, match=r"^spool /proc/no: .*choose a spool_dir where"):
        opened(Path("/proc/no"))
    with pytest.raises(ConfigError, match=r"^spool 'a\\x00b': .*choose another spool_dir"):
        opened(Path("a\0b"))
    with pytest.raises(ConfigError, match=r'^spool_dir: an empty text .*write "\."'):
        PublisherOptions(acknowledgements=1, spool_dir="").checked()

"""What do other engines see, what of theirs is borne, and what is refused with a reason?"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from durable_cache.errors import StorageFull, StorageLocked
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Skip
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Retention
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import HOSTILE_KEYS, SOURCE, START_NS, batch, filled, run, sample
from durable_cache_delta import DeltaBackend, DeltaOptions
from durable_cache_delta.columns import Columns, StreamPlaces, table_of
from durable_cache_delta.files import add_action
from durable_cache_delta.maintenance import optimize, status, vacuum
from durable_cache_delta.schema import SAMPLES, SKIPS
from tests.servers.delta import lake, opened, write

pytestmark = pytest.mark.delta
DAY_NS = 86_400 * 10**9


def samples_table(path: Path) -> DeltaTable:
    return DeltaTable(str(path / "fleet" / "samples"))


def test_another_engine_reads_every_documented_column(tmp_path: Path) -> None:
    one = filled(7)
    write(tmp_path, [one], [Skip(SOURCE, 1, 0, 6)])
    table = samples_table(tmp_path).to_pyarrow_table()
    assert set(table.column_names) == set(SAMPLES.names)
    (row,) = table.to_pylist()
    assert row["key_expr"] == one.key
    assert (row["source_zid"], row["source_eid"]) == (SOURCE.zid, SOURCE.eid)
    assert (row["epoch"], row["sn"], int(row["sequence"])) == (1, 7, one.sequence)
    assert (row["kind"], row["payload"], row["attachment"]) == (
        "DELETE",
        one.payload,
        one.attachment,
    )
    assert (row["encoding"], row["encoding_schema"]) == (one.encoding, "schema=é;v=1")
    assert (int(row["ntp64"]), row["timestamp_id"]) == (one.ntp64, one.timestamp_id)
    assert row["timestamp"] == datetime.fromtimestamp(START_NS / 10**9, UTC).replace(
        microsecond=7000
    )
    assert (row["received_ns"], row["received_at"]) == (one.received_ns, row["timestamp"])
    assert (row["priority"], row["congestion_control"], row["express"]) == (1, 2, True)
    assert (row["stamped"], row["payload_bytes"]) == (True, len(one.payload))
    assert row["day"] == date(2026, 9, 21)
    (skip,) = DeltaTable(str(tmp_path / "fleet" / "skips")).to_pyarrow_table().to_pylist()
    assert (skip["first_sn"], skip["last_sn"]) == (0, 6)


def test_the_schema_is_as_documented(tmp_path: Path) -> None:
    write(tmp_path, [sample(1)])
    for kind, schema in (("samples", SAMPLES), ("skips", SKIPS)):
        table = DeltaTable(str(tmp_path / "fleet" / kind))
        assert table.metadata().configuration["durable_cache.schema_version"] == "1"
        found = json.loads(table.schema().to_json())["fields"]
        assert [field["name"] for field in found] == schema.names
        assert all(field["metadata"]["comment"] for field in found)
        protocol = table.protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_statistics_bound_what_files_hold(tmp_path: Path) -> None:
    write(tmp_path, [sample(sn, key) for sn, key in enumerate(HOSTILE_KEYS)])
    rows = pa.table(samples_table(tmp_path).get_add_actions(flatten=True)).to_pylist()
    held = samples_table(tmp_path).to_pyarrow_table()
    for name in ("key_expr", "source_zid", "sn", "ntp64", "timestamp", "received_ns"):
        values = held.column(name).to_pylist()
        assert rows[0][f"min.{name}"] <= min(values)
        assert rows[0][f"max.{name}"] >= max(values)


@pytest.mark.parametrize("tail", ["\U0010ffff", "\U0010ffff" * 300, "z", "\U0010ffffz"])
def test_the_greatest_key_is_an_upper_bound_however_long(tail: str) -> None:
    long = "k" * 255 + tail
    one = sample(1, long)
    rows = table_of(Columns([one], [b"d"]), [StreamPlaces(one.stream, [0])])
    stats = json.loads(add_action("p", 1, None, rows, new=True).stats)
    assert stats["minValues"]["key_expr"] <= long <= stats["maxValues"]["key_expr"]


def test_sql_of_another_engine_skips_files(tmp_path: Path) -> None:
    for day in range(3):
        write(tmp_path, [sample(day, received_ns=START_NS + day * DAY_NS)])
    engine = QueryBuilder().register("samples", samples_table(tmp_path))
    found = pa.table(engine.execute("select sn from samples where sn = 1").read_all())
    assert found.column("sn").to_pylist() == [1]


def test_a_merged_day_reads_the_same_and_tells_streams_of_no_change(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        for first in range(0, 50, 10):
            storage.append(batch(run(first, first + 9), run(first, first + 9, "suite/b")))
        before = read_all(storage)
        held = list(storage.held())
    report = optimize(lake(tmp_path), "fleet")
    assert (report.files_before, report.files_after) == (5, 1)
    commit = tmp_path / "fleet" / "samples" / "_delta_log" / f"{report.version:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    changes = [a[kind]["dataChange"] for a in actions for kind in ("add", "remove") if kind in a]
    assert changes == [False] * 6
    (merged,) = samples_table(tmp_path).file_uris()
    rows = pq.read_table(merged, columns=["key_expr", "sn"]).to_pydict()
    pairs = list(zip(rows["key_expr"], rows["sn"], strict=True))
    assert pairs == sorted(pairs)
    with opened(tmp_path) as storage:
        assert read_all(storage) == before
        assert list(storage.held()) == held
        assert storage.append(batch(before)).new == 0


def test_a_second_optimize_has_nothing_to_do(tmp_path: Path) -> None:
    for first in range(3):
        write(tmp_path, [sample(first)])
    first_report = optimize(lake(tmp_path), "fleet")
    again = optimize(lake(tmp_path), "fleet")
    assert (again.files_before, again.version) == (1, first_report.version)


def test_a_reader_that_began_before_a_merge_ends_well(tmp_path: Path) -> None:
    for first in range(0, 30, 10):
        write(tmp_path, run(first, first + 9))
    with opened(tmp_path, writer=False) as reader:
        page = reader.read(Selection(), 5)
        optimize(lake(tmp_path), "fleet")
        rest = reader.read(Selection(), 100, page.cursor)
    assert [*page.samples, *rest.samples] == run(0, 29)


def test_vacuum_removes_what_no_version_names(tmp_path: Path) -> None:
    for first in range(3):
        write(tmp_path, [sample(first)])
    optimize(lake(tmp_path), "fleet")
    kept = vacuum(lake(tmp_path), "fleet")
    would = vacuum(lake(tmp_path), "fleet", 0, dry_run=True)
    gone = vacuum(lake(tmp_path), "fleet", 0)
    assert kept.paths == ()
    assert len(would.paths) == len(gone.paths) == 3
    assert len(list((tmp_path / "fleet" / "samples").glob("day=*/*.parquet"))) == 1
    with opened(tmp_path) as storage:
        assert read_all(storage) == run(0, 2)


def test_upkeep_beside_a_writer_is_refused_and_says_what_the_writer_does(tmp_path: Path) -> None:
    options = lake(tmp_path, maintenance_interval_seconds=3600, compact_files_min=7)
    with DeltaBackend().open("fleet", options) as storage:
        storage.append(batch(run(0, 3)))
        for work in (optimize, vacuum):
            with pytest.raises(StorageLocked, match=rf"process {os.getpid()};.* today from 7 on"):
                work(options, "fleet")
        with pytest.raises(StorageLocked, match="maintenance_interval_seconds is 0"):
            optimize(lake(tmp_path), "fleet")
        assert status(options, "fleet").rows == 4
        assert storage.append(batch(run(4, 5))).new == 2


def test_status_counts(tmp_path: Path) -> None:
    for day in range(2):
        write(
            tmp_path,
            [sample(day, received_ns=START_NS + day * DAY_NS), sample(day, "b")],
            [Skip(SOURCE, 1, 50, 59)],
        )
    found = status(lake(tmp_path), "fleet")
    assert (found.rows, found.streams, found.skips, found.days) == (4, 2, 1, 2)
    assert (found.first_day, found.last_day) == ("2026-09-21", "2026-09-22")
    assert found.files == found.small_files


def test_the_background_merges_and_writes_checkpoints_beside_the_ingest(tmp_path: Path) -> None:
    options = lake(
        tmp_path, compact_files_min=4, checkpoint_commits=5, maintenance_interval_seconds=0.01
    )
    log = tmp_path / "fleet" / "samples" / "_delta_log"
    with DeltaBackend().open("fleet", options) as storage:
        for first in range(0, 300, 10):
            storage.append(batch(run(first, first + 9)))
            assert len(read_all(storage)) == first + 10
        deadline = time.monotonic() + 60
        while len(storage.files()) > 8 or not list(log.glob("*.checkpoint.parquet")):
            assert time.monotonic() < deadline, "the background did nothing"
            time.sleep(0.02)
        assert read_all(storage) == run(0, 299)
    with opened(tmp_path) as again:
        assert read_all(again) == run(0, 299)
    assert samples_table(tmp_path).to_pyarrow_table(columns=["sn"]).num_rows == 300


def test_retention_by_age_drops_whole_days_and_rewrites_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        for day in range(3):
            first = day * 10
            moment = START_NS + day * DAY_NS
            storage.append(batch(sample(n, received_ns=moment) for n in range(first, first + 10)))
        before = {file.path for file in storage.files()}
        storage.trim(Retention(age_seconds_max=86_400), START_NS + 2 * DAY_NS)
        assert {file.path for file in storage.files()} < before
        assert [s.sn for s in read_all(storage)] == list(range(10, 30))


def test_an_operators_merge_is_adopted(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        for first in range(3):
            storage.append(batch(sample(first)))
        samples_table(tmp_path).optimize.compact()
        assert storage.append(batch(run(0, 4))).new == 2
        assert read_all(storage) == run(0, 4)
    with opened(tmp_path) as again:
        assert read_all(again) == run(0, 4)


def test_an_operators_delete_is_adopted(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.append(batch(run(0, 9)))
        samples_table(tmp_path).delete("sn < 4")
        assert read_all(storage) == run(4, 9)
        assert storage.append(batch(run(0, 9))).new == 4


def test_secrets_of_an_object_store_are_not_described() -> None:
    options = DeltaOptions(path="s3://b/f", storage_options={"AWS_SECRET_ACCESS_KEY": "hunter2"})
    assert "hunter2" not in DeltaBackend().describe(options)


def test_too_many_streams_are_refused_whole(tmp_path: Path) -> None:
    with DeltaBackend().open("fleet", lake(tmp_path, streams_max=2)) as storage:
        storage.append(batch(sample(1, "a")))
        with pytest.raises(StorageFull, match="streams_max"):
            storage.append(batch(sample(1, "b"), sample(1, "c")))
        assert storage.append(batch(sample(1, "b"))).new == 1


def test_keys_become_no_paths(tmp_path: Path) -> None:
    write(tmp_path, [sample(1, key) for key in HOSTILE_KEYS])
    names = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert names == {"fleet"}
    folders = [path.name for path in (tmp_path / "fleet" / "samples").iterdir()]
    assert sorted(folders) == ["_delta_log", "day=2026-09-21"]


def test_reads_open_only_files_that_can_hold_something(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.append(batch(run(0, 9, "a")))
        storage.append(batch(run(0, 9, "b")))
        (damaged,) = [file for file in storage.files() if file.keys == ("b", "b")]
        (tmp_path / "fleet" / "samples" / damaged.path).unlink()
        assert read_all(storage, Selection(KeyExpression("a"))) == run(0, 9, "a")


def test_a_lost_cache_file_only_costs_time(tmp_path: Path) -> None:
    write(tmp_path, run(0, 9), [Skip(SOURCE, 1, 20, 29)])
    cache = tmp_path / "fleet" / "index.cache"
    with opened(tmp_path) as storage:
        held = list(storage.held())
    for damage in (b"", b"\x00" * 100, cache.read_bytes()[:-1]):
        cache.write_bytes(damage)
        with opened(tmp_path) as storage:
            assert list(storage.held()) == held
            assert read_all(storage) == run(0, 9)

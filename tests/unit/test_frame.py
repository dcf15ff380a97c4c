"""Does a frame say what was published, and refuse what it cannot read?"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

pytest.importorskip("pyarrow")

import pyarrow as pa

import durable_cache as dc
from durable_cache.errors import BackendNotInstalled, ConfigError, StorageUnavailable
from durable_cache.frame import COLUMNS, HistoryFrame, cdr_values, decoded_by, json_values
from durable_cache.frame.times import read_times
from durable_cache.model.sample import Kind, Qos, Sample, SourceId
from durable_cache.model.selection import Cursor, Selection, TimeBounds
from durable_cache.model.timestamp import NTP64_MAX, ntp64_at, ntp64_to_ns
from durable_cache.model.unnumbered import identified
from durable_cache.storage.contract import Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.samples import START_NS, batch, filled, run, sample
from durable_cache.testing.strategies import samples as any_samples

SECOND_NS = 1_000_000_000


def stored(*samples: Any) -> MemoryStorage:
    storage = MemoryStorage()
    storage.append(batch(*samples))
    return storage


def payloads_as(column: str, *payloads: tuple[bytes, str]) -> list[Any]:
    """Return what a column says of some payloads of some encodings."""
    given = [
        replace(sample(at, payload=payload), encoding=encoding)
        for at, (payload, encoding) in enumerate(payloads)
    ]
    return dc.read(stored(given), columns=[column]).to_arrow()[column].to_pylist()


@given(any_samples)
def test_a_row_is_the_sample_field_by_field(published: Sample) -> None:
    (row,) = HistoryFrame(lambda: iter([[published]])).to_arrow().to_pylist()
    qos = Qos.unpack(published.qos)
    assert (row["key_expr"], row["source"]) == (published.key, str(published.source))
    assert (row["source_zid"], row["source_eid"]) == published.source
    assert (row["epoch"], row["sn"], row["sequence"]) == (
        published.epoch,
        published.sn,
        published.sequence,
    )
    assert row["kind"] == published.kind.name
    assert (row["payload"], row["attachment"]) == (published.payload, published.attachment)
    assert row["payload_bytes"] == len(published.payload)
    assert row["encoding"] == published.encoding
    assert (row["encoding_schema"] or "") == published.encoding.partition(";")[2]
    assert (row["ntp64"], row["timestamp_id"]) == (published.ntp64, published.timestamp_id)
    assert row["timestamp"] == moment(ntp64_to_ns(published.ntp64))
    assert (row["stamped"], row["received_ns"]) == (published.stamped, published.received_ns)
    assert row["received_at"] == moment(published.received_ns)
    assert (row["priority"], row["congestion_control"], row["express"]) == qos


def moment(unix_ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=unix_ns // 1000)


def test_rows_that_differ_in_everything_stay_apart() -> None:
    given = [filled(1), sample(2, "b", SourceId("c", 9), 3, b"x"), sample(3, "b")]
    rows = dc.read(stored(given)).to_arrow().to_pylist()
    assert {row["sn"]: row["source"] for row in rows} == {1: "4f2a:7", 2: "c:9", 3: "4f2a:7"}
    assert {row["sn"]: row["encoding_schema"] for row in rows} == {
        1: "schema=é;v=1",
        2: None,
        3: None,
    }


def test_what_came_without_a_number_is_a_row_as_well() -> None:
    published = identified(replace(sample(0), timestamp_id="ab12"))
    assert published is not None
    (row,) = dc.read(stored(published)).to_arrow().to_pylist()
    assert (row["source"], row["sn"]) == ("ab12:0", published.sn)
    assert (row["ntp64"], row["sequence"]) == (published.ntp64, published.ntp64 + 1)


def test_text_is_text_only_where_the_encoding_says_so() -> None:
    assert payloads_as(
        "text",
        ("grüß".encode(), "zenoh/string"),
        (b"plain", "text/plain;utf-8"),
        (b'{"a": 1}', "application/json"),
        (b"\xff\xfe", "text/plain"),
        (b"bytes", "zenoh/bytes"),
    ) == ["grüß", "plain", '{"a": 1}', None, None]


def test_numbers_by_encoding_are_those_that_spark_reads() -> None:
    assert payloads_as(
        "number",
        (b"42", "text/plain"),
        (b" -1.5e3 ", "application/json"),
        (b"+7", "text/plain"),
        (b".5", "text/plain"),
        (b"words", "text/plain"),
        (b"1 2", "text/plain"),
        (b"\xff", "text/plain"),
        (b"42", "zenoh/bytes"),
        (struct.pack("<i", -7), "zenoh/serialized;i32"),
        (struct.pack("<b", -128), "zenoh/bytes;i8"),
        (struct.pack("<h", 3), "zenoh/bytes;i32"),
        (struct.pack("<Q", 2**64 - 1), "zenoh/serialized;u64"),
        (struct.pack("<d", math.pi), "zenoh/serialized;f64"),
        (struct.pack("<f", 0.5), "x/y;f32;more"),
        (b"", "zenoh/serialized;u8"),
    ) == [
        *(42.0, -1500.0, 7.0, 0.5, None, None, None, None, -7.0, -128.0, None),
        *(float(2**64 - 1), math.pi, 0.5, None),
    ]


def test_numbers_beyond_a_double_cost_their_neighbours_nothing() -> None:
    assert payloads_as("number", (b"1e999", "text/plain"), (b"2", "text/plain")) == [math.inf, 2.0]


def test_json_becomes_a_struct_and_what_is_none_becomes_null() -> None:
    given = [
        replace(sample(at, payload=payload), encoding=encoding)
        for at, (payload, encoding) in enumerate(
            [
                (b'{"x": 1.5, "more": true}', "application/json"),
                (b"{}", "application/json"),
                (b"{", "application/json"),
                (b'{"x": "no number"}', "application/json"),
                (b'{"x": 1.5}', "zenoh/bytes"),
            ]
        )
    ]
    value = json_values(pa.struct({"x": pa.float64()}))
    frame = dc.read(stored(given), columns=["sn"], value=value)
    assert frame.schema.names == ["sn", "value"]
    assert frame.to_arrow()["value"].to_pylist() == [{"x": 1.5}, {"x": None}, None, None, None]


def test_cdr_becomes_a_struct_in_arrows_own_types() -> None:
    message = b"\x00\x01\x00\x00" + struct.pack("<Qd", 2**64 - 1, 0.5)
    fields = "uint64 id; float64 x"
    table = dc.read(stored(sample(0, payload=message)), value=cdr_values(fields)).to_arrow()
    assert table["value"].to_pylist() == [{"id": 2**64 - 1, "x": 0.5}]
    broken = stored(sample(0, payload=message), sample(1, payload=b"none"))
    with pytest.raises(ValueError, match="no CDR header") as raised:
        dc.read(broken, value=cdr_values(fields)).to_arrow()
    assert "b'none'" in raised.value.__notes__[0]
    table = dc.read(broken, value=cdr_values(fields, errors="null")).to_arrow()
    assert [row is None for row in table["value"].to_pylist()] == [False, True]


def test_a_function_of_ones_own_decodes_puts_alone() -> None:
    given = [sample(0, payload=b"7"), replace(sample(1, payload=b""), kind=Kind.DELETE)]
    frame = dc.read(stored(given), value=decoded_by(int, pa.int64()))
    assert frame.to_arrow()["value"].to_pylist() == [7, None]


def test_a_frame_is_read_anew_each_time() -> None:
    storage = stored(run(0, 9))
    frame = dc.read(storage, columns=["sn"])
    assert frame.to_arrow().num_rows == 10
    storage.append(batch(run(10, 19)))
    assert frame.to_arrow().num_rows == 20
    reader = frame.to_reader()
    assert reader.schema == frame.schema
    assert sum(len(found) for found in reader) == 20


def test_polars_pandas_and_duckdb_take_it() -> None:
    for package in ("polars", "pandas", "duckdb"):
        pytest.importorskip(package)
    frame = dc.read(stored(run(0, 2999)), columns=["sn", "timestamp", "payload"])
    assert frame.to_polars()["sn"].to_list() == list(range(3000))
    assert frame.to_pandas()["sn"].tolist() == list(range(3000))
    relation = frame.duckdb()
    assert relation.count("*").fetchall() == [(3000,)]
    assert relation.query("history", "SELECT max(sn) FROM history").fetchall() == [(2999,)]


def test_nothing_stored_is_a_frame_without_rows() -> None:
    frame = dc.read(stored(), "a/**")
    assert frame.to_arrow().schema.names == list(COLUMNS)
    assert frame.to_arrow().num_rows == 0


@pytest.mark.parametrize(
    ("package", "become"),
    [
        ("polars", HistoryFrame.to_polars),
        ("pandas", HistoryFrame.to_pandas),
        ("duckdb", HistoryFrame.duckdb),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, become: Callable[[HistoryFrame], object]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendNotInstalled, match=rf"'{package}'.*durable-cache\[frame\]"):
        become(dc.read(stored()))


class _Failing(MemoryStorage):
    """Gives one page and then cannot be reached."""

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        if cursor is not None:
            raise StorageUnavailable("the server went away")
        return super().read(selection, limit, cursor)


def test_an_error_on_the_way_ends_in_an_error_whatever_reads() -> None:
    pytest.importorskip("duckdb")
    storage = _Failing()
    storage.append(batch(run(0, 4999)))
    frame = dc.read(storage)
    for become in (HistoryFrame.to_arrow, HistoryFrame.to_polars, HistoryFrame.to_pandas):
        with pytest.raises(StorageUnavailable, match="went away"):
            become(frame)
    with pytest.raises(Exception, match="went away"):
        frame.duckdb().fetchall()


def test_pages_are_bounded_in_bytes() -> None:
    storage = stored(sample(at, payload=bytes(1 << 20)) for at in range(64))
    rows = [found.num_rows for found in dc.read(storage, columns=["payload"])]
    assert sum(rows) == 64
    large = stored(run(0, 40_000))
    assert max(found.num_rows for found in dc.read(large)) <= 10_000


def test_latest_applies_wildcard_updates_and_leaves_deleted_keys_out() -> None:
    gone = replace(sample(8, "a/3"), kind=Kind.DELETE)
    given = [sample(0, "a/1"), sample(1, "a/1"), sample(2, "a/2"), sample(3, "a/3"), gone]
    update = sample(5, "a/*", payload=b"for all")
    later = sample(9, "a/2", payload=b"own")
    frame = dc.read(stored(given, update, later), "a/*", latest=True)
    found = {row["key_expr"]: row["payload"] for row in frame.to_arrow().to_pylist()}
    assert found == {"a/1": b"for all", "a/2": b"own"}


def test_times_and_sources_narrow() -> None:
    other = SourceId("beef", 1)
    storage = stored(run(0, 9), run(0, 9, source=other))
    first = datetime.fromtimestamp(START_NS // SECOND_NS, UTC) + timedelta(milliseconds=3)

    def sns(**asked: Any) -> list[int]:
        return dc.read(storage, columns=["sn"], **asked).to_arrow()["sn"].to_pylist()

    assert sns(source="beef:1", since=first) == list(range(3, 10))
    assert sns(source="beef", until=first) == list(range(4))
    assert sns(source=other, since=first, until=first) == [3]
    assert sns(until="2000-01-01") == []
    assert sns(until="1950-01-01") == []
    assert sns(since="2200-01-01") == []


NOW = 1_800_000_000 * SECOND_NS


def since(when: Any) -> int:
    return read_times(when, None, NOW).first


def test_moments_as_people_write_them() -> None:
    assert since("90s") == ntp64_at(NOW - 90 * SECOND_NS)
    assert since("1h 30m") == since(timedelta(minutes=90)) == ntp64_at(NOW - 5400 * SECOND_NS)
    day = datetime(2026, 11, 22, tzinfo=UTC)
    assert since("2026-11-22") == since("2026-11-22T00:00:00Z") == since(day)
    assert since("2026-11-22T01:00:00+01:00") == since(day)
    assert read_times(None, None, NOW) == TimeBounds(0, NTP64_MAX)
    assert ntp64_to_ns(read_times(None, day, NOW).last) == int(day.timestamp()) * SECOND_NS


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"key_expr": "a//b"}, "key_expr='a//b'"),
        ({"since": "yesterday"}, "since='yesterday'.*how long ago"),
        ({"since": "2026-13-01"}, "since='2026-13-01'.*write a time"),
        ({"until": 12}, "until=12.*write a time"),
        ({"since": datetime(2026, 1, 1)}, "since=.*no time zone"),
        ({"since": timedelta(-1)}, "since=.*negative"),
        ({"since": "2026-02-01", "until": "2026-01-01"}, "until='2026-01-01' is before since="),
        ({"source": "XY"}, "source: 'XY'"),
        ({"columns": ["sn", "keys"]}, "columns: 'keys' is no column; known: key_expr"),
        ({"key_expr": 7}, "key_expr: .*a zenoh.KeyExpr"),
        ({"value": float}, "value: .*make one with json_values"),
        ({"columns": []}, "columns: name at least one"),
        ({"storage": "fleet"}, "storage='fleet': only a configuration"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_remedy(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dc.read(stored(), **asked)


def test_a_history_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="history: int is no history; give a session"):
        dc.read(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="neither a Delta table nor a state directory"):
        dc.read(tmp_path)
    with pytest.raises(ConfigError, match=r"gone\.json5"):
        dc.read(tmp_path / "gone.json5")
    with pytest.raises(ConfigError, match="no Arrow type"):
        json_values("x double")  # type: ignore[arg-type]

"""What does history look like in InfluxDB, and does every byte come back?"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from durable_cache.errors import ConfigError, StorageFull
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.selection import Order, Selection
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.storage.contract import Storage
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import SOURCE, START_NS, batch, run, sample
from durable_cache_influxdb import InfluxDbBackend, InfluxDbOptions
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.flux import Scan, Source
from durable_cache_influxdb.lines import key_id
from durable_cache_influxdb.slots import choose, slots_of
from tests.servers.influxdb import InfluxServer, influx_server

pytestmark = pytest.mark.influxdb


@pytest.fixture
def server() -> InfluxServer:
    return influx_server()


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def storage(server: InfluxServer, name: str) -> Iterator[Storage]:
    with InfluxDbBackend().open(name, server.options()) as storage:
        yield storage


def fields_of(server: InfluxServer, name: str, key: str) -> dict[str, set[str]]:
    """Return what a dashboard sees of a key: field names and values."""
    client = Client(server.options())
    source = Source(server.bucket, name)
    columns = ("_field", "_value")
    query = source.rows(Scan(key_ids=(key_id(key),)), columns=columns)
    found: dict[str, set[str]] = {}
    for field, value in client.rows([query], columns):
        found.setdefault(field, set()).add(value)
    client.close()
    return found


def series_count(server: InfluxServer, name: str) -> int:
    client = Client(server.options())
    query = Source(server.bucket, name).rows(Scan(("sn",)), "last()")
    count = len(list(client.rows([query], ("n",))))
    client.close()
    return count


def typed(sn: int, payload: bytes, encoding: str, key: str = "k") -> Sample:
    return Sample(key, SOURCE, 1, sn, payload, encoding=encoding, ntp64=sample(sn).ntp64)


@pytest.mark.parametrize(
    "payload",
    [bytes([byte]) for byte in range(256)]
    + [b"", b"\r\n", b"\n", b"\r", b"tail\\", b'"', b'\\"', b"a,b=c d", b"\x00" * 9, bytes(256)],
    ids=lambda payload: payload.hex() or "empty",
)
@pytest.mark.filterwarnings("error")
def test_every_byte_comes_back(payload: bytes) -> None:
    from durable_cache_influxdb.lines import line_of, sample_of, series_of

    given = typed(1, payload, "zenoh/string")
    line = line_of(series_of("m", given.stream, InfluxDbOptions()), given, slots_of(0, 1)[0], "")
    fields = dict(part.split("=", 1) for part in line.split(" ", 1)[1].rsplit(" ", 1)[0].split(","))
    read = {field: value.strip('"') for field, value in fields.items()}
    assert sample_of(given.stream, read).payload == payload
    assert "\n" not in line
    assert "\r" not in line


def test_every_byte_comes_back_from_the_server(storage: Storage) -> None:
    payloads = [bytes([byte]) for byte in range(256)]
    payloads += [b"", b"\r\n", b"tail\\", b'"', bytes(range(256)) * 4096, b"\r" * 2_500_000]
    given = [
        typed(sn, payload, encoding, encoding)
        for encoding in ("zenoh/string", "text/plain", "application/json", "zenoh/bytes")
        for sn, payload in enumerate(payloads)
    ]
    storage.append(batch(given))
    assert read_all(storage) == sorted(given, key=lambda s: s.order)


def test_a_missing_bucket_is_not_made_where_that_is_not_wanted(
    server: InfluxServer, name: str
) -> None:
    with pytest.raises(ConfigError, match="create_bucket"):
        InfluxDbBackend().open(name, server.options(bucket=name, create_bucket=False))
    with InfluxDbBackend().open(name, server.options(bucket=name)) as storage:
        storage.append(batch(run(0, 1)))
    options = server.options(bucket=name, create_bucket=False)
    with InfluxDbBackend().open(name, options) as storage:
        assert len(read_all(storage)) == 2


def test_put_then_delete_in_one_second_leaves_the_key_deleted(storage: Storage) -> None:
    put = sample(0, ntp64=ntp64_from_ns(START_NS))
    delete = Sample(
        put.key,
        SOURCE,
        1,
        1,
        b"",
        Kind.DELETE,
        ntp64=ntp64_from_ns(START_NS + 1),
        timestamp_id="4f2a",
    )
    storage.append(batch(put, delete))
    assert read_all(storage, Selection(newest=1)) == [delete]
    assert read_all(storage) == [put, delete]
    same_time = [
        Sample("other", SOURCE, 1, n, b"", Kind(n), ntp64=put.ntp64, timestamp_id="1")
        for n in (0, 1)
    ]
    storage.append(batch(same_time))
    latest = read_all(storage, Selection(KeyExpression("other"), newest=1))
    assert [s.kind for s in latest] == [Kind.DELETE]


def test_one_timestamp_for_everything_costs_few_series(
    server: InfluxServer, storage: Storage, name: str
) -> None:
    for first in range(0, 5000, 1000):
        storage.append(batch(sample(n, ntp64=5) for n in range(first, first + 1000)))
    assert [s.sn for s in read_all(storage)] == list(range(5000))
    assert [s.sn for s in read_all(storage, Selection(order=Order.TIME))] == list(range(5000))
    assert series_count(server, name) <= 4


def test_samples_in_order_of_time_make_one_series(
    server: InfluxServer, storage: Storage, name: str
) -> None:
    storage.append(batch(run(0, 50)))
    storage.append(batch(run(51, 99)))
    assert series_count(server, name) == 1


def test_slots_of_two_samples_of_a_stream_never_meet_under_the_last_ordinal() -> None:
    times = [0, 1, 1 << 35, (1 << 35) - 1, START_NS, START_NS + 1, 4_294_967_295_999_999_999]
    sns = [0, 1, 1023, 1024, (1 << 20) - 1, 1 << 20, (1 << 35) - 2]
    last = [slots_of(time_ns, sn)[-1] for sn in sns for time_ns in times]
    owners = {slots_of(time_ns, sn)[-1]: sn for sn in sns for time_ns in times}
    for at, slot in enumerate(last):
        assert owners[slot] == sns[at // len(times)]
        assert slot.time_ns < 1 << 63
    first = choose(7, 5, {})
    assert (first.ordinal, first.time_ns) == (0, 7)
    assert choose(7, 6, {first: 5}).ordinal == 1
    assert choose(7, 5, {first: 5}) == first


def test_numbers_truths_and_texts_become_fields(
    server: InfluxServer, storage: Storage, name: str
) -> None:
    document = {"pose": {"x": 1, "y": [2.5, True]}, "name": 'quo"te\\', "none": None}
    storage.append(
        batch(
            typed(1, b"21.5", "text/plain", "number"),
            typed(2, (-7).to_bytes(4, "little", signed=True), "zenoh/int32", "packed"),
            typed(3, b"true", "zenoh/bool", "truth"),
            typed(4, b"hello", "zenoh/string", "text"),
            typed(5, json.dumps(document).encode(), "application/json", "json"),
            typed(6, b"21.5", "zenoh/bytes", "bytes"),
        )
    )
    assert fields_of(server, name, "number")["value"] == {"21.5"}
    assert fields_of(server, name, "packed")["value"] == {"-7"}
    assert fields_of(server, name, "truth")["flag"] == {"true"}
    assert fields_of(server, name, "text")["text"] == {"hello"}
    leaves = fields_of(server, name, "json")
    assert leaves["value.pose.x"] == {"1"}
    assert leaves["value.pose.y.0"] == {"2.5"}
    assert leaves["flag.pose.y.1"] == {"true"}
    assert "value" not in fields_of(server, name, "bytes")


def test_typed_fields_keep_their_bounds(server: InfluxServer, name: str) -> None:
    options = server.options(
        field_prefix="p_", fields_per_sample_max=3, field_names_max=4, text_bytes_max=5
    )
    wide = json.dumps({f"leaf{n}": n for n in range(50)}).encode()
    other = json.dumps({f"more{n}": n for n in range(50)}).encode()
    with InfluxDbBackend().open(name, options) as storage:
        samples = [
            typed(1, wide, "application/json", "a"),
            typed(2, other, "application/json", "b"),
            typed(3, b"longer than that", "text/plain", "c"),
        ]
        storage.append(batch(samples))
        assert read_all(storage) == samples
    found = [field for key in "abc" for field in fields_of(server, name, key)]
    assert sorted(field for field in found if field.startswith("p_")) == [
        "p_value.leaf0",
        "p_value.leaf1",
        "p_value.leaf2",
        "p_value.more0",
    ]


def test_streams_are_bounded(server: InfluxServer, name: str) -> None:
    with InfluxDbBackend().open(name, server.options(streams_max=3)) as storage:
        storage.append(batch(sample(1, key) for key in "abc"))
        with pytest.raises(StorageFull, match="streams_max"):
            storage.append(batch(sample(1, "d")))
        assert storage.append(batch(sample(2, "a"))).new == 1


def test_a_batch_larger_than_a_request_goes_in_several(server: InfluxServer, name: str) -> None:
    with InfluxDbBackend().open(name, server.options(batch_lines_max=7)) as storage:
        assert storage.append(batch(run(0, 99))).new == 100
        assert read_all(storage) == run(0, 99)


def test_without_the_readable_tag_keys_still_come_back(server: InfluxServer, name: str) -> None:
    with InfluxDbBackend().open(name, server.options(key_tag=False)) as storage:
        storage.append(batch(sample(1, "a/b"), sample(1, "a/c", SourceId("1", 1))))
    with InfluxDbBackend().open(name, server.options(key_tag=True)) as storage:
        storage.append(batch(sample(2, "a/b")))
        assert [(s.key, s.sn) for s in read_all(storage)] == [("a/b", 1), ("a/b", 2), ("a/c", 1)]


def test_the_token_is_never_shown() -> None:
    options = InfluxDbOptions(token="very-secret")
    shown = repr(options) + str(options) + InfluxDbBackend().describe(options)
    assert "very-secret" not in shown
    with pytest.raises(ConfigError) as caught:
        InfluxDbOptions(url="http://user:very-secret@host:1").check()
    assert "very-secret" not in str(caught.value)


def test_the_token_comes_from_a_file_or_the_environment(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "token"
    file.write_text("from-the-file\n")
    monkeypatch.setenv("DURABLE_CACHE_INFLUXDB_TOKEN", "from-the-environment")
    assert InfluxDbOptions(token_file=str(file)).read_token() == "from-the-file"
    assert InfluxDbOptions().read_token() == "from-the-environment"
    monkeypatch.delenv("DURABLE_CACHE_INFLUXDB_TOKEN")
    with pytest.raises(ConfigError):
        InfluxDbOptions().read_token()

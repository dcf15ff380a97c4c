"""What is lost or doubled when InfluxDB refuses, stalls, vanishes or comes back? Nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import cycle, islice
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from durable_cache.errors import (
    ConfigError,
    StorageCorrupt,
    StorageError,
    StorageLocked,
    StorageUnavailable,
)
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Order, Selection
from durable_cache.storage.contract import AppendResult, Floor, Storage
from durable_cache.testing.conformance.hooks import read_all, runs_of
from durable_cache.testing.samples import batch, run, sample
from durable_cache_influxdb import InfluxDbBackend, InfluxDbOptions
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.errors import InfluxBusy
from tests.servers.influx_proxy import Answer, Fault, Proxy
from tests.servers.influxdb import (
    InfluxProcess,
    InfluxServer,
    find_influxd,
    influx_server,
    set_up,
)

pytestmark = pytest.mark.influxdb

DEADLINE_SECONDS = 60
ROUNDS = 30
STREAMS = 10
LARGE = Random(1).randbytes(10_000)


@pytest.fixture
def server() -> InfluxServer:
    return influx_server()


@pytest.fixture
def proxy(server: InfluxServer) -> Iterator[Proxy]:
    proxy = Proxy(server.url)
    yield proxy
    proxy.close()


def fresh_name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@contextmanager
def opened(options: InfluxDbOptions, name: str | None = None) -> Iterator[Storage]:
    with InfluxDbBackend().open(name or fresh_name(), options) as storage:
        yield storage


def once(matches: Callable[[str, bytes], bool], answer: Answer) -> Fault:
    """Return a fault that strikes the first matching request only."""
    struck = threading.Event()

    def fault(path: str, body: bytes) -> Answer | None:
        if struck.is_set() or not matches(path, body):
            return None
        struck.set()
        return answer

    return fault


def is_write(path: str, body: bytes) -> bool:
    return path.startswith("/api/v2/write")


def append_until_done(
    storage: Storage, samples: SampleBatch, seconds: float = DEADLINE_SECONDS
) -> AppendResult:
    """Do what the journal does: append again until it is done."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return storage.append(samples)
        except StorageUnavailable as error:
            if time.monotonic() > deadline:
                raise
            time.sleep(min(getattr(error, "retry_after_seconds", 0.05), 0.5))


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_carried_and_respected(
    server: InfluxServer, proxy: Proxy, status: int
) -> None:
    with opened(server.options(url=proxy.url)) as storage:
        storage.append(batch(sample(0)))
        proxy.fault = once(is_write, Answer(status, Retry_After="1"))
        with pytest.raises(InfluxBusy) as caught:
            storage.append(batch(sample(1)))
        assert caught.value.retry_after_seconds == 1
        sent = len(proxy.requests)
        with pytest.raises(InfluxBusy) as again:
            storage.append(batch(sample(1)))
        assert 0 < again.value.retry_after_seconds <= 1
        assert len(proxy.requests) == sent, "a request left during the pause"
        append_until_done(storage, batch(sample(1)))
        assert read_all(storage) == run(0, 1)


def test_a_write_that_was_applied_but_not_answered_is_not_doubled(
    server: InfluxServer, proxy: Proxy
) -> None:
    with opened(server.options(url=proxy.url)) as storage:
        storage.append(batch(run(0, 9)))
        proxy.fault = once(is_write, Answer(0, after=True))
        with pytest.raises(StorageUnavailable):
            storage.append(batch(run(10, 19)))
        assert storage.append(batch(run(10, 24))) == AppendResult(5, duplicates=10)
        assert read_all(storage) == run(0, 24)


def test_a_time_out_after_the_write_is_not_doubled_even_when_times_coincide(
    server: InfluxServer, proxy: Proxy
) -> None:
    stall = threading.Event()

    def fault(path: str, body: bytes) -> Answer | None:
        if is_write(path, body) and not stall.is_set():
            stall.set()
            time.sleep(6.0)
        return None

    same_time = batch(sample(n, ntp64=77) for n in range(30))
    with opened(server.options(url=proxy.url, request_timeout_seconds=3.0)) as storage:
        storage.append(batch(sample(40)))
        proxy.fault = fault
        with pytest.raises(StorageUnavailable):
            storage.append(same_time)
        append_until_done(storage, same_time)
        assert read_all(storage) == [*same_time, sample(40)]
        assert runs_of(storage) == {("suite/a", "4f2a:7", 1): [(0, 29), (40, 40)]}
    with opened(server.options(), fresh_name()) as other:
        assert read_all(other) == []


def test_a_bad_line_is_quarantined_and_the_rest_goes_in(
    server: InfluxServer, proxy: Proxy, tmp_path: Path
) -> None:
    letters = tmp_path / "letters.jsonl"
    options = server.options(url=proxy.url, gzip=False, dead_letter=str(letters))

    def fault(path: str, body: bytes) -> Answer | None:
        bad = is_write(path, body) and b" sn=13i " in body.replace(b",sn", b" sn")
        message = json.dumps({"code": "invalid", "message": "unable to parse"}).encode()
        return Answer(400, message, Content_Type="application/json") if bad else None

    with opened(options) as storage:
        proxy.fault = fault
        result = storage.append(batch(run(0, 99)))
        assert result.new == 99
        assert [refusal.sample.sn for refusal in result.refused] == [13]
        assert "unable to parse" in result.refused[0].reason
        assert [s.sn for s in read_all(storage)] == [n for n in range(100) if n != 13]
        assert len([path for path in proxy.requests if "write" in path]) < 40
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert letter["reason"] == "unable to parse"
    assert "sn=13i" in letter["line"]


def test_a_server_that_rejects_everything_is_not_asked_for_ever(
    server: InfluxServer, proxy: Proxy
) -> None:
    with opened(server.options(url=proxy.url)) as storage:
        proxy.fault = lambda path, body: Answer(400) if is_write(path, body) else None
        with pytest.raises(StorageError):
            storage.append(batch(run(0, 999)))
        assert len(proxy.requests) < 1000
        proxy.fault = lambda path, body: None
        assert storage.append(batch(run(0, 999))).new == 1000


def test_a_field_of_another_type_never_costs_a_sample(server: InfluxServer) -> None:
    name = fresh_name()
    with opened(server.options(), name) as storage:
        storage.append(batch(sample(0, payload=b"1.5")))
    foreign(server, f'{name},n=9 value="text" {sample(1).received_ns}')
    samples = [
        Sample(
            f"k/{n}", sample().source, 1, n, b"%d" % n, encoding="text/plain", ntp64=sample(n).ntp64
        )
        for n in range(10)
    ]
    with opened(server.options(), name) as storage:
        assert storage.append(batch(samples)).new == 10
        assert storage.field_conflicts > 0  # type: ignore[attr-defined]
        assert [s for s in read_all(storage) if s.key.startswith("k/")] == samples


def test_a_foreign_type_under_our_own_fields_stops_the_storage(server: InfluxServer) -> None:
    name = fresh_name()
    with opened(server.options(), fresh_name()):
        pass  # there is a bucket, whichever test comes first
    foreign(server, f"{name},n=9 sn=1.5 {sample(1).received_ns}")
    with opened(server.options(), name) as storage:
        with pytest.raises(StorageCorrupt, match="bucket of its own"):
            storage.append(batch(sample(0)))


def test_a_held_sample_that_vanished_is_stored_again(server: InfluxServer) -> None:
    name = fresh_name()
    with opened(server.options(), name) as storage:
        storage.append(batch(run(0, 5)))
        client = Client(server.options())
        client.delete(f'_measurement="{name}"', 0, 1 << 62)
        client.close()
        assert append_until_done(storage, batch(run(0, 5))).new == 6
        assert read_all(storage) == run(0, 5)


@pytest.mark.parametrize("alone", [False, True])
def test_removal_beside_a_snapshot_keeps_what_stays_and_nothing_else(
    tmp_path: Path, alone: bool
) -> None:
    """Each second the server begins to move what it has in memory to disk, in small pieces.

    Streams have a storage together, or each one of its own: with a removed series its measurement
    may go.
    """
    always, slowly = "cache-snapshot-memory-size=1", "compact-throughput-burst=16"
    flags = [f"--storage-{flag}" for flag in (always, slowly)]
    process = InfluxProcess(find_influxd(), tmp_path, *flags)
    process.start()
    try:
        options = set_up(process.url).options()
        for first in range(0, ROUNDS * STREAMS, STREAMS):
            sources = [SourceId("4f2a", first + at) for at in range(STREAMS)]
            with ExitStack() as stack:
                every = [
                    stack.enter_context(opened(options)) for _ in sources[: None if alone else 1]
                ]
                storages = list(islice(cycle(every), STREAMS))
                for storage, source in zip(storages, sources, strict=True):
                    storage.append(
                        batch(sample(sn, source=source, payload=LARGE) for sn in range(20))
                    )
                for at, (storage, source) in enumerate(zip(storages, sources, strict=True)):
                    floor = 20 if at % 2 else 10
                    storage.purge([Floor(sample(source=source).stream, floor)])
                    if at % 2:  # nothing is left: it begins again
                        storage.append(batch(sample(20, source=source)))
                    expected = [20] if at % 2 else list(range(10, 20))
                    selection = Selection(zid=source.zid, eid=source.eid, order=Order.TIME)
                    assert [one.sn for one in read_all(storage, selection)] == expected
    finally:
        process.remove()


def foreign(server: InfluxServer, line: str) -> None:
    """Write a point as another program would."""
    where = urlsplit(server.url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=10)
    try:
        connection.request(
            "POST",
            f"/api/v2/write?org={server.org}&bucket={server.bucket}&precision=ns",
            line,
            {"Authorization": f"Token {server.token}"},
        )
        assert connection.getresponse().status == 204
    finally:
        connection.close()


def outage(tmp_path: Path, seconds: float) -> None:
    """Kill a server under load, keep it away, and compare what is there with what was given."""
    process = InfluxProcess(find_influxd(), tmp_path)
    process.start()
    try:
        server = set_up(process.url)
        options = server.options(request_timeout_seconds=5.0, connect_timeout_seconds=1.0)
        stop = threading.Event()
        given: list[Sample] = []
        failures: list[BaseException] = []
        with opened(options) as storage:

            def load() -> None:
                first = 0
                try:
                    while not stop.is_set() or first < 2000:
                        part = run(first, first + 99)
                        append_until_done(storage, SampleBatch(part), seconds + 90)
                        given.extend(part)
                        first += 100
                except BaseException as error:
                    failures.append(error)

            writer = threading.Thread(target=load)
            writer.start()
            wait_for(lambda: len(given) >= 500)
            process.kill()
            time.sleep(seconds)
            process.start()
            before = len(given)
            wait_for(lambda: len(given) >= before + 500 or bool(failures))
            stop.set()
            writer.join(DEADLINE_SECONDS)
            assert failures == []
            assert read_all(storage) == given
            assert runs_of(storage) == {("suite/a", "4f2a:7", 1): [(0, len(given) - 1)]}
    finally:
        process.remove()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_short_outage_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    outage(tmp_path, 1.0)


@pytest.mark.slow
def test_a_minute_of_outage_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    outage(tmp_path, 60.0)


def test_an_unreachable_server_is_unavailable_when_opened() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        options = InfluxDbOptions(url=url, token="secret-of-the-test")
        with pytest.raises(StorageUnavailable) as caught:
            InfluxDbBackend().open("any", options)
    assert "secret-of-the-test" not in str(caught.value)


def test_a_wrong_token_is_a_config_error_that_does_not_show_it(server: InfluxServer) -> None:
    with pytest.raises(ConfigError) as caught:
        InfluxDbBackend().open("any", server.options(token="wrong-secret"))
    assert "wrong-secret" not in str(caught.value)
    assert server.options().bucket in str(caught.value)


def test_a_lease_bars_a_writer_of_another_machine_until_it_ends(
    server: InfluxServer, tmp_path: Path
) -> None:
    name = fresh_name()
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    mine = server.options(lock_directory=str(here), lease_seconds=30.0)
    theirs = server.options(lock_directory=str(there), lease_seconds=30.0)
    with opened(mine, name) as storage:
        storage.append(batch(sample(1)))
        with pytest.raises(StorageLocked, match="elsewhere"):
            InfluxDbBackend().open(name, theirs)
        assert storage.append(batch(sample(2))).new == 1
    with opened(theirs, name) as storage:
        assert read_all(storage) == run(1, 2)


def test_a_writer_whose_lease_ran_out_stops_when_another_took_over(
    server: InfluxServer, tmp_path: Path
) -> None:
    name = fresh_name()
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    short = server.options(lock_directory=str(here), lease_seconds=0.2)
    with opened(short, name) as storage:
        storage.append(batch(sample(1)))
        theirs = server.options(lock_directory=str(there), lease_seconds=30.0)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                other = InfluxDbBackend().open(name, theirs)
                break
            except StorageLocked:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        with other:
            other.append(batch(sample(2)))
            with pytest.raises(StorageLocked):
                storage.append(batch(sample(3)))
            assert read_all(other) == run(1, 2)

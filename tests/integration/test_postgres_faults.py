"""Is nothing lost, nothing twice when PostgreSQL fails under a writer that retries?"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

from durable_cache.errors import (
    ConfigError,
    StorageFull,
    StorageLocked,
    StorageUnavailable,
)
from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Durability, Storage
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import run
from durable_cache_sql import SqlBackend, SqlOptions
from tests.servers.postgres import OwnServer, options_for

pytestmark = pytest.mark.postgres
BATCH = 200
DEADLINE_SECONDS = 120
RESTARTS = 20


def appended(storage: Storage, number: int) -> None:
    """Append the `number`-th batch, again and again until the storage says it has it."""
    batch = SampleBatch(run(number * BATCH, number * BATCH + BATCH - 1))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            result = storage.append(batch)
        except (StorageUnavailable, StorageFull):
            assert time.monotonic() < deadline, "the storage does not come back"
        else:
            assert result.new + result.duplicates == BATCH
            return


class Load:
    """A thread that appends until it is told to stop."""

    def __init__(self, storage: Storage) -> None:
        self.batches = 0
        self.failure: BaseException | None = None
        self._storage = storage
        self._stop = Event()
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                appended(self._storage, self.batches)
                self.batches += 1
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_SECONDS)

    def more(self) -> None:
        """Wait until another batch was stored."""
        seen = self.batches
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.batches == seen and self.failure is None:
            assert time.monotonic() < deadline, "nothing is stored any more"
            self._stop.wait(0.005)


def whole(storage: Storage, batches: int) -> None:
    """Check that every batch is there, once."""
    assert [sample.sn for sample in read_all(storage)] == list(range(batches * BATCH))
    (held,) = storage.held()
    assert [tuple(part) for part in held.runs] == [(0, batches * BATCH - 1)]


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    server = OwnServer.make()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.mark.slow
def test_twenty_immediate_stops_under_load_lose_nothing(own_server: OwnServer) -> None:
    with SqlBackend().open("faults", SqlOptions(url=own_server.url)) as storage:
        with Load(storage) as load:
            for _ in range(RESTARTS):
                load.more()
                own_server.stop("immediate")
                own_server.start()
            load.more()
        assert load.failure is None
        whole(storage, load.batches)


def test_connections_terminated_while_they_commit(tmp_path: Path) -> None:
    options = options_for(tmp_path, application_name="durable-cache-terminated")
    with SqlBackend().open("faults", options) as storage:
        with Load(storage) as load, psycopg.connect(options.url, autocommit=True) as other:
            ended = 0
            for _ in range(60):
                load.more()
                row = other.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE application_name = 'durable-cache-terminated'"
                ).fetchone()
                ended += 0 if row is None else row[0]
                if ended >= 20:
                    break
            load.more()
        assert load.failure is None
        assert ended >= 20
        whole(storage, load.batches)


def test_a_locked_table_is_an_error_to_retry(tmp_path: Path) -> None:
    options = options_for(tmp_path, lock_timeout_seconds=0.3)
    with SqlBackend().open("faults", options) as storage:
        appended(storage, 0)
        with psycopg.connect(options.url) as other:
            other.execute("LOCK TABLE dc_samples IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StorageUnavailable, match="lock timeout"):
                storage.append(SampleBatch(run(BATCH, 2 * BATCH - 1)))
            with pytest.raises(StorageUnavailable, match="lock timeout"):
                storage.read(Selection(), 1)
        appended(storage, 1)
        whole(storage, 2)


def test_synchronous_commit_off_is_refused_for_level_disk(tmp_path: Path) -> None:
    options = options_for(tmp_path)
    url = options.url + "%20-csynchronous_commit%3Doff"
    with pytest.raises(ConfigError, match="synchronous_commit is off"):
        SqlBackend().open("faults", SqlOptions(url=url))
    with SqlBackend().open("faults", SqlOptions(url=url, durability="process")) as storage:
        assert storage.capabilities.durability is Durability.PROCESS


def test_the_second_writer_hears_who_the_first_is(tmp_path: Path) -> None:
    first = options_for(tmp_path, application_name="cache-in-hall-7")
    with SqlBackend().open("faults", first):
        with pytest.raises(StorageLocked, match=r"cache-in-hall-7.*server process \d+"):
            SqlBackend().open("faults", options_for(tmp_path))


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    options = SqlOptions(
        url="postgresql://somebody:secret@127.0.0.1:1/none", reconnect_seconds_max=0
    )
    with pytest.raises(StorageUnavailable) as caught:
        SqlBackend().open("faults", options)
    for text in (str(caught.value), repr(options), SqlBackend().describe(options)):
        assert "secret" not in text
    assert "127.0.0.1:1/none" in str(caught.value)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_loses_nothing() -> None:
    place = Path(tempfile.mkdtemp(prefix="durable-cache-full-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m,mode=0755", "tmpfs", str(place)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        place.rmdir()
        pytest.skip("tmpfs cannot be mounted here")
    server = OwnServer.make(
        place,
        "max_wal_size = 32MB\nmin_wal_size = 32MB\nwal_level = minimal\n"
        "max_wal_senders = 0\nshared_buffers = 32MB",
    )
    ballast = place / "ballast"
    try:
        server.start()
        with SqlBackend().open("faults", SqlOptions(url=server.url)) as storage:
            appended(storage, 0)
            free = shutil.disk_usage(place).free
            ballast.write_bytes(bytes(max(0, free - (256 << 10))))
            number, full = 1, False
            while not full and number < 2000:
                try:
                    first = number * BATCH
                    storage.append(SampleBatch(run(first, first + BATCH - 1)))
                    number += 1
                except (StorageFull, StorageUnavailable):
                    full = True
            assert full
            ballast.unlink()
            server.stop("immediate")
            server.start()
            appended(storage, number)
            whole(storage, number + 1)
    finally:
        server.remove()
        subprocess.run(["umount", "-l", str(place)], check=False)
        shutil.rmtree(place, ignore_errors=True)

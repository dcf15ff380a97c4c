"""Does the journal take over while PostgreSQL is away, and is everything there once afterwards?"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

from durable_cache.model.sample import SampleBatch
from durable_cache.storage.contract import Durability
from durable_cache.storage.journaled.storage import JournaledStorage, JournalOptions
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.network import wait_until
from durable_cache.testing.samples import SOURCE, run
from durable_cache_sql import SqlBackend, SqlOptions
from tests.servers.postgres import OwnServer, options_for

pytestmark = pytest.mark.postgres
BATCH = 20
RESTARTS = 20
LOCK_SECONDS = 30
SETTLE_SECONDS = 120
LEFT_BYTES = 256 << 10


class Service:
    """What a service runs around a storage: a thread that commits, and one that drains."""

    def __init__(self, journaled: JournaledStorage) -> None:
        self.journaled = journaled
        self.commits = 0
        self.failure: BaseException | None = None
        self._stop = Event()
        self._threads = [Thread(target=self._commit), Thread(target=journaled.run_drain)]
        for thread in self._threads:
            thread.start()

    def _commit(self) -> None:
        try:
            while not self._stop.wait(0.005):
                first = self.commits * BATCH
                self.journaled.commit(SampleBatch(run(first, first + BATCH - 1)))
                self.commits += 1
        except BaseException as error:
            self.failure = error

    def goes_on(self) -> None:
        """Wait until more was committed, whatever the backend does."""
        seen = self.commits
        wait_until(lambda: self.commits > seen or self.failure is not None, 30, "another commit")

    def drains(self) -> None:
        """Wait until more reached the backend."""
        seen = self.journaled.drained_samples
        wait_until(
            lambda: self.journaled.drained_samples > seen, SETTLE_SECONDS, "the drain to go on"
        )

    def stop(self) -> None:
        self._stop.set()
        self.journaled.stop_drain()
        for thread in self._threads:
            thread.join(SETTLE_SECONDS)


@contextmanager
def service(options: SqlOptions, directory: Path) -> Iterator[Service]:
    """Serve; at the end, check that nothing is lost, nothing twice and the journal empty."""
    storage = SqlBackend().open("faults", options)
    journaled = JournaledStorage(storage, directory, options=JournalOptions(retry_seconds_max=0.5))
    try:
        assert journaled.level is Durability.DISK
        serving = Service(journaled)
        try:
            yield serving
            serving.drains()
        finally:
            serving.stop()
        assert serving.failure is None
        assert journaled.drain_all(SETTLE_SECONDS), journaled.backend_error
        last = serving.commits * BATCH - 1
        assert [sample.sn for sample in read_all(storage)] == list(range(last + 1))
        (held,) = storage.held()
        assert [tuple(part) for part in held.runs] == [(0, last)]
        (state,), _ = journaled.load(SOURCE)
        assert [tuple(part) for part in state.held] == [(0, last)]
        assert journaled.conflicts_total == 0
        assert journaled.journal is not None
        journaled.journal.flush()
        assert journaled.journal.samples == 0
    finally:
        journaled.close()


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    server = OwnServer.make()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.mark.slow
def test_twenty_immediate_stops_under_load(own_server: OwnServer, tmp_path: Path) -> None:
    with service(SqlOptions(url=own_server.url), tmp_path / "state") as serving:
        for _ in range(RESTARTS):
            serving.drains()
            own_server.stop("immediate")
            serving.goes_on()
            own_server.start()
        serving.drains()
        assert serving.journaled.backend_error == ""


def test_a_connection_that_ends_after_the_commit_and_before_its_answer(
    own_server: OwnServer,
) -> None:
    """The commit waits for a standby that never comes: it is done, and its answer is lost."""
    with (
        SqlBackend().open("faults", SqlOptions(url=own_server.url)) as storage,
        psycopg.connect(own_server.url, autocommit=True) as other,
    ):
        assert storage.append(SampleBatch(run(0, 9))).new == 10
        other.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        other.execute("SELECT pg_reload_conf()")
        done = 1
        failures: list[BaseException] = []

        def append() -> None:
            nonlocal done
            try:
                while True:  # the server takes up the setting some time after it was told
                    storage.append(SampleBatch(run(done * 10, done * 10 + 9)))
                    done += 1
            except BaseException as error:
                failures.append(error)

        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'"
        thread = Thread(target=append)
        thread.start()
        wait_until(
            lambda: other.execute(f"SELECT 1 {waiting}").fetchone() is not None, 30, "the COMMIT"
        )
        other.execute("ALTER SYSTEM RESET synchronous_standby_names")
        other.execute(f"SELECT pg_terminate_backend(pid, 5000) {waiting}")
        other.execute("SELECT pg_reload_conf()")
        thread.join(SETTLE_SECONDS)
        assert [type(error).__name__ for error in failures] == ["StorageUnavailable"]
        result = storage.append(SampleBatch(run(done * 10, done * 10 + 19)))
        assert (result.new, result.duplicates, result.conflicts) == (10, 10, ())
        assert [sample.sn for sample in read_all(storage)] == list(range(done * 10 + 20))


def locked_for(options: SqlOptions, serving: Service, seconds: float) -> None:
    """Hold the table, as a careless ALTER does, until the drain has complained and time is over."""
    with psycopg.connect(options.url) as other:
        other.execute("LOCK TABLE dc_samples IN ACCESS EXCLUSIVE MODE")
        begun = time.monotonic()
        wait_until(lambda: "lock timeout" in serving.journaled.backend_error, 60, "the complaint")
        serving.goes_on()
        Event().wait(max(0.0, seconds - (time.monotonic() - begun)))
        assert serving.failure is None


def test_a_locked_table_is_waited_out_in_the_journal(tmp_path: Path) -> None:
    options = options_for(tmp_path, lock_timeout_seconds=0.3)
    with service(options, tmp_path / "state") as serving:
        serving.drains()
        locked_for(options, serving, 0)


@pytest.mark.slow
def test_a_table_locked_for_thirty_seconds(tmp_path: Path) -> None:
    options = options_for(tmp_path)
    with service(options, tmp_path / "state") as serving:
        serving.drains()
        locked_for(options, serving, LOCK_SECONDS)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 160 MB that other users may enter."""
    place = Path(tempfile.mkdtemp(prefix="durable-cache-full-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m,mode=0755", "tmpfs", str(place)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        place.rmdir()
        pytest.skip("tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)
    shutil.rmtree(place, ignore_errors=True)


def filled(ballast: Path) -> None:
    """Takes all but LEFT_BYTES; a server that writes meanwhile takes its part, too."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        file.truncate(max(0, file.tell() - LEFT_BYTES))


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_of_the_server(small_disk: Path, tmp_path: Path) -> None:
    server = OwnServer.make(
        small_disk,
        "max_wal_size = 32MB\nmin_wal_size = 32MB\nwal_level = minimal\n"
        "max_wal_senders = 0\nshared_buffers = 32MB",
    )
    ballast = small_disk / "ballast"
    try:
        server.start()
        with service(SqlOptions(url=server.url), tmp_path / "state") as serving:
            serving.drains()
            filled(ballast)
            wait_until(lambda: serving.journaled.backend_error != "", SETTLE_SECONDS, "a full disk")
            serving.goes_on()
            ballast.unlink()
            server.stop("immediate")
            server.start()
    finally:
        server.remove()

"""Is nothing lost, nothing twice when PostgreSQL fails under a writer that retries?"""

from __future__ import annotations

import time
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


def refused(url: str) -> str:
    """Return what opening a storage there says, which must be at once and about configuration."""
    with pytest.raises(ConfigError) as caught:
        SqlBackend().open("faults", SqlOptions(url=url, reconnect_seconds_max=3600))
    assert "correct user, password, database or grants" in str(caught.value)
    return str(caught.value)


def test_what_a_server_refuses_is_a_configuration_error_and_not_tried_again() -> None:
    server = OwnServer.make()
    rules = server.place / "data" / "pg_hba.conf"
    rules.write_text(f"host all cache 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    place = f"127.0.0.1:{server.port}"
    try:
        server.start()
        with psycopg.connect(server.url, autocommit=True) as other:
            other.execute("CREATE ROLE cache LOGIN PASSWORD 'right'")
        said = refused(f"postgresql://cache:wrong@{place}/postgres")
        assert f'@{place}/postgres: password authentication failed for user "cache"' in said
        assert "wrong" not in said
        assert "no password supplied" in refused(f"postgresql://cache@{place}/postgres")
        assert '"none" does not exist' in refused(f"postgresql://postgres@{place}/none")
        assert '"nobody" does not exist' in refused(f"postgresql://nobody@{place}/postgres")
        assert "permission denied" in refused(f"postgresql://cache:right@{place}/postgres")
    finally:
        server.remove()


def test_grants_that_are_taken_away_are_an_error_to_retry(tmp_path: Path) -> None:
    options = options_for(tmp_path)
    role = f"taken_{tmp_path.parent.name}_{tmp_path.name}"[:60].replace("-", "_")
    with psycopg.connect(options.url, autocommit=True) as other:
        schema = other.execute("SELECT current_schema()").fetchone()
        assert schema is not None
        other.execute(f"CREATE ROLE {role} LOGIN")
        try:
            other.execute(f"GRANT ALL ON SCHEMA {schema[0]} TO {role}")
            url = options.url.replace("postgres@", f"{role}@", 1)
            with SqlBackend().open("faults", SqlOptions(url=url)) as storage:
                appended(storage, 0)
                other.execute("ALTER TABLE dc_samples OWNER TO CURRENT_USER")
                with pytest.raises(StorageUnavailable, match="permission denied"):
                    storage.append(SampleBatch(run(BATCH, BATCH + 9)))
                with pytest.raises(StorageUnavailable, match="permission denied"):
                    storage.read(Selection(), 1)
                other.execute(f"GRANT ALL ON dc_samples TO {role}")
                appended(storage, 1)
                whole(storage, 2)
        finally:
            other.execute(f"DROP OWNED BY {role}")
            other.execute(f"DROP ROLE {role}")


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    options = SqlOptions(
        url="postgresql://somebody:secret@127.0.0.1:1/none", reconnect_seconds_max=0
    )
    with pytest.raises(StorageUnavailable) as caught:
        SqlBackend().open("faults", options)
    for text in (str(caught.value), repr(options), SqlBackend().describe(options)):
        assert "secret" not in text
    assert "127.0.0.1:1/none" in str(caught.value)

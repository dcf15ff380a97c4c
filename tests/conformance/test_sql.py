"""The SQL backend keeps the contract, on SQLite always and on PostgreSQL where there is one."""

import os
import resource
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from durable_cache.errors import (
    BackendNotInstalled,
    ConfigError,
    StorageCorrupt,
    StorageFull,
    StorageLocked,
    StorageUnavailable,
)
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.storage.contract import Storage
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import batch, run, sample
from durable_cache.testing.suite import StorageTests
from durable_cache_sql import SqlBackend, SqlOptions
from tests.servers.postgres import older_postgres_url, options_for

TABLES = ("samples", "skips", "streams", "keys", "zids")
UNSTORABLE = replace(sample(7), timestamp_id="no hexadecimal number")


class TestSqlite(StorageTests):
    def open(self, tmp_path: Path, name: str = "suite", writer: bool = True) -> Storage:
        options = SqlOptions(url=f"sqlite:///{tmp_path}/samples.db")
        return SqlBackend().open(name, options, writer=writer)

    def sabotage(self, tmp_path: Path, name: str, storage: Storage) -> bool:
        with closing(sqlite3.connect(tmp_path / "samples.db")) as database:
            for table in TABLES:
                database.execute(f"ALTER TABLE dc_{table} RENAME TO gone_{table}")
        return True

    def unstorable(self) -> Sample:
        return UNSTORABLE


def test_more_streams_than_are_remembered_come_and_come_again(tmp_path: Path) -> None:
    options = SqlOptions(url=f"sqlite:///{tmp_path}/samples.db", streams_cached_max=1000)
    given = [
        Sample(f"a/{at % 40}", SourceId(f"{0xA00 + at:x}", 7), 1, sn, b"x", timestamp_id="ab12")
        for sn in range(3)
        for at in range(1500)
    ]
    with closing(SqlBackend().open("suite", options)) as storage:
        for begin in range(0, len(given), 400):
            storage.append(SampleBatch(given[begin : begin + 400]))
        assert sorted(read_all(storage), key=lambda one: one.order) == sorted(
            given, key=lambda one: one.order
        )


@pytest.mark.postgres
class TestPostgres(StorageTests):
    def open(self, tmp_path: Path, name: str = "suite", writer: bool = True) -> Storage:
        return SqlBackend().open(name, self.options(tmp_path), writer=writer)

    def options(self, tmp_path: Path) -> SqlOptions:
        return options_for(tmp_path)

    def sabotage(self, tmp_path: Path, name: str, storage: Storage) -> bool:
        with psycopg.connect(self.options(tmp_path).url) as connection:
            for table in TABLES:
                connection.execute(f"ALTER TABLE dc_{table} RENAME TO gone_{table}")
        return True

    def unstorable(self) -> Sample:
        return UNSTORABLE


@pytest.mark.postgres
@pytest.mark.slow
class TestOlderPostgres(TestPostgres):
    """On an older release, the one the distribution has."""

    def options(self, tmp_path: Path) -> SqlOptions:
        return options_for(tmp_path, url=older_postgres_url())


def sqlite_options(path: Path) -> SqlOptions:
    return SqlOptions(url=f"sqlite:///{path}")


def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "samples.db"
    path.write_bytes(b"no database, whoever opens it" * 100)
    with pytest.raises(StorageCorrupt, match=r"samples\.db"):
        SqlBackend().open("suite", sqlite_options(path))
    assert path.read_bytes().startswith(b"no database")


def test_a_place_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageUnavailable, match="check the directory"):
        SqlBackend().open("suite", sqlite_options(tmp_path / "file" / "samples.db"))


def test_the_second_writer_hears_the_process_of_the_first(tmp_path: Path) -> None:
    options = sqlite_options(tmp_path / "samples.db")
    with SqlBackend().open("suite", options):
        with pytest.raises(StorageLocked, match=f"process {os.getpid()}"):
            SqlBackend().open("suite", options)


def test_a_full_file_is_storage_full_and_nothing_of_the_batch_stays(tmp_path: Path) -> None:
    options = sqlite_options(tmp_path / "samples.db")
    with SqlBackend().open("suite", options) as storage:
        storage.append(batch(run(0, 9)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        try:
            with pytest.raises((StorageFull, StorageUnavailable)):
                storage.append(batch(sample(n, payload=bytes(100_000)) for n in range(10, 60)))
        finally:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
        assert read_all(storage) == run(0, 9)
        assert storage.append(batch(run(0, 19))).new == 10


def test_postgres_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BackendNotInstalled, match=r"durable-cache\[postgres\]"):
        SqlBackend().open("suite", SqlOptions(url="postgresql://cache@127.0.0.1/fleet"))


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://a/b", "sqlite://", "sqlite:///:memory:", "sqlite:///a?b=c"]
)
def test_a_url_that_cannot_be_used_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="backend 'sql'"):
        SqlBackend().open("suite", SqlOptions(url=url))


def test_a_password_never_shows(tmp_path: Path) -> None:
    options = SqlOptions(url="postgresql://cache:hunter2@db.example/fleet?sslpassword=hunter2")
    for shown in (repr(options), str(options), SqlBackend().describe(options)):
        assert "hunter2" not in shown
        assert "db.example/fleet" in shown

"""The SQL backend keeps the contract, on SQLite always and on PostgreSQL where there is one."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from durable_cache.model.sample import Sample
from durable_cache.storage.contract import Storage
from durable_cache.testing.samples import sample
from durable_cache.testing.suite import StorageTests
from durable_cache_sql import SqlBackend, SqlOptions
from tests.servers.postgres import options_for

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


@pytest.mark.postgres
class TestPostgres(StorageTests):
    def open(self, tmp_path: Path, name: str = "suite", writer: bool = True) -> Storage:
        return SqlBackend().open(name, options_for(tmp_path), writer=writer)

    def sabotage(self, tmp_path: Path, name: str, storage: Storage) -> bool:
        with psycopg.connect(options_for(tmp_path).url) as connection:
            for table in TABLES:
                connection.execute(f"ALTER TABLE dc_{table} RENAME TO gone_{table}")
        return True

    def unstorable(self) -> Sample:
        return UNSTORABLE

"""Does each bound of a SQL storage do what its description says?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection, Engine, event

from durable_cache.errors import ConfigError, StorageUnavailable
from durable_cache.model.sample import Kind
from durable_cache.storage.contract import Floor
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import batch, run, sample
from durable_cache_sql import SqlBackend, SqlOptions
from durable_cache_sql.options import PASSWORD_VARIABLE, parse_url
from tests.servers.postgres import options_for


def sqlite(folder: Path, **changes: object) -> SqlOptions:
    return SqlOptions(url=f"sqlite:///{folder}/samples.db", **changes)  # type: ignore[arg-type]


@contextmanager
def commits_counted() -> Iterator[list[Connection]]:
    """Collect the connections that commit, of every engine of this process."""
    seen: list[Connection] = []
    note = seen.append
    event.listen(Engine, "commit", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "commit", note)


def test_a_removal_takes_transactions_of_the_size_allowed(tmp_path: Path) -> None:
    options = sqlite(tmp_path, trim_chunk_samples_max=100)
    with SqlBackend().open("fleet", options) as storage:
        storage.append(batch(run(0, 349)))
        with commits_counted() as commits:
            assert storage.purge([Floor(sample(0).stream, 340)]) == 340
        assert len(commits) >= 4
        assert [left.sn for left in read_all(storage)] == list(range(340, 350))


@pytest.mark.parametrize("statement_bytes_max", [1, 100_000, 64 << 20])
def test_many_samples_come_back_as_they_were_however_few_have_an_attachment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement_bytes_max: int
) -> None:
    monkeypatch.setattr("durable_cache_sql.append.STATEMENT_BYTES_MAX", statement_bytes_max)
    given = [
        msgspec.structs.replace(
            one,
            payload=b"x" * (one.sn % 300),
            kind=Kind.DELETE if one.sn % 7 == 0 else Kind.PUT,
            attachment=bytes(one.sn % 3) if one.sn in (5, 3_000, 4_999) else None,
        )
        for one in (*run(0, 2_999), *run(3_000, 4_999, key="suite/b"))
    ]
    with SqlBackend().open("fleet", sqlite(tmp_path)) as storage:
        assert storage.append(batch(given)).new == 5_000
        again = storage.append(batch(given))
        assert (again.new, again.duplicates, again.conflicts) == (0, 5_000, ())
        assert read_all(storage) == given


def test_a_read_beyond_the_pool_waits_for_its_time_and_names_the_option(tmp_path: Path) -> None:
    options = sqlite(tmp_path, pool_size=1, pool_timeout_seconds=0.1)
    with SqlBackend().open("fleet", options) as storage:
        storage.append(batch(run(0, 9)))
        occupied = storage.held()
        next(occupied)
        with pytest.raises(StorageUnavailable, match="pool"):
            read_all(storage)
        list(occupied)
        assert len(read_all(storage)) == 10
    with SqlBackend().open("fleet", sqlite(tmp_path, pool_size=2)) as storage:
        occupied = storage.held()
        next(occupied)
        assert len(read_all(storage)) == 10
        list(occupied)


def test_the_password_is_the_first_line_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "from the environment")
    url = "postgresql://cache:from-the-url@localhost/history"
    (tmp_path / "password").write_text("from the file\nsecond line\n")
    file = str(tmp_path / "password")
    assert parse_url(SqlOptions(url=url, password_file=file)).password == "from the file"
    assert parse_url(SqlOptions(url=url)).password == "from the environment"
    monkeypatch.delenv(PASSWORD_VARIABLE)
    assert parse_url(SqlOptions(url=url)).password == "from-the-url"


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_password_file_without_a_password_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"password_file {file}"):
        parse_url(SqlOptions(url="postgresql://cache@localhost/history", password_file=str(file)))


@pytest.mark.postgres
def test_postgres_ends_a_statement_that_takes_too_long(tmp_path: Path) -> None:
    options = options_for(tmp_path, statement_timeout_seconds=0.2)
    with SqlBackend().open("fleet", options) as storage:
        database = storage._database
        with pytest.raises(StorageUnavailable, match="statement timeout"):
            with database.translated(), database.reading() as connection:
                connection.exec_driver_sql("SELECT pg_sleep(30)")
        storage.append(batch(run(0, 9)))
        assert len(read_all(storage)) == 10

"""Is a migration that was killed resumed, and does a second one wait for the first?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.sql import SQL, Identifier
from sqlalchemy.engine import make_url

from durable_cache.errors import StorageLocked
from durable_cache.testing.network import wait_until
from durable_cache.testing.samples import batch, run
from durable_cache_sql import SqlBackend, SqlOptions
from durable_cache_sql.schema import NEWEST
from tests.integration.test_postgres_schema import reflected
from tests.kit.faults import ModuleProcess
from tests.servers.postgres import postgres_url

pytestmark = pytest.mark.postgres
WAIT_SECONDS = 60
STOPPER = """
CREATE SCHEMA steps;
CREATE SEQUENCE steps.done;
CREATE TABLE steps.wanted AS SELECT 0::bigint AS step;
CREATE FUNCTION steps.stop() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
  IF nextval('steps.done') = (SELECT step FROM steps.wanted) THEN
    PERFORM pg_advisory_xact_lock(77);
  END IF;
END $$;
CREATE EVENT TRIGGER stop_at_a_step ON ddl_command_end EXECUTE FUNCTION steps.stop();
"""
"""Makes the server wait after the n-th statement of a migration that changes the schema."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqlOptions]:
    """A database of its own, empty."""
    name = f"migrated_{tmp_path.name}"[:60]
    with psycopg.connect(postgres_url(), autocommit=True) as server:
        server.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        url = make_url(postgres_url()).set(database=name)
        yield SqlOptions(url=url.render_as_string(hide_password=False), lock_timeout_seconds=1)
        server.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@pytest.fixture
def config(database: SqlOptions, tmp_path: Path) -> Path:
    """The configuration of a service on that database."""
    path = tmp_path / "cache.json5"
    volumes = {"main": {"backend": "sql", "url": database.url}}
    storages = {"fleet": {"key_expr": "fleet/**", "volume": "main"}}
    ours = {"state_dir": str(tmp_path / "state"), "volumes": volumes, "storages": storages}
    path.write_text(json.dumps({"plugins": {"durable_cache": ours}}))
    return path


def command(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "durable_cache.service", *arguments, "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def steps_of(database: SqlOptions) -> int:
    """Return how many statements have changed the schema since the stopper was made."""
    with psycopg.connect(database.url) as connection:
        row = connection.execute("SELECT last_value FROM steps.done").fetchone()
    assert row is not None
    return int(row[0])


def forget_everything(connection: psycopg.Connection[object]) -> None:
    connection.execute("UPDATE steps.wanted SET step = 0")
    connection.execute("DROP SCHEMA public CASCADE")
    connection.execute("CREATE SCHEMA public")
    connection.execute("SELECT setval('steps.done', 1, false)")


def killed_at(step: int, database: SqlOptions, config: Path) -> None:
    """Run ``durable-cache migrate`` and kill it while it is at a step."""
    waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted"
    others = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'durable-cache'"
    )
    with psycopg.connect(database.url, autocommit=True) as connection:
        forget_everything(connection)
        connection.execute("UPDATE steps.wanted SET step = %s", (step,))
        connection.execute("SELECT pg_advisory_lock(77)")
        with ModuleProcess(
            "durable_cache.service", ["migrate", "--config", str(config)]
        ) as process:
            wait_until(
                lambda: connection.execute(waits).fetchone() is not None,
                WAIT_SECONDS,
                f"step {step}",
            )
            process.kill()
            connection.execute("SELECT pg_advisory_unlock(77)")
            wait_until(
                lambda: connection.execute(others).fetchone() is None, 30, "the server to notice"
            )
        connection.execute("UPDATE steps.wanted SET step = 0")


FEW = (1, 6, 13, 14, 18)
"""The mark of versions, a table, the last of the first migration, the first and last view."""


@pytest.mark.parametrize(
    "every",
    [pytest.param(False, id="few"), pytest.param(True, id="every", marks=pytest.mark.nightly)],
)
def test_a_migration_killed_at_a_step_is_resumed(
    database: SqlOptions, config: Path, every: bool
) -> None:
    backend = SqlBackend()
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(STOPPER)
        assert command(config, "migrate").returncode == 0
        steps, fresh = steps_of(database), reflected(database)
        assert steps >= max(FEW)
        for step in range(1, steps + 1) if every else FEW:
            killed_at(step, database, config)
            assert backend.revisions(database)[0] < NEWEST
            assert backend.migrate(database)[1] == NEWEST
            assert reflected(database) == fresh, f"killed at step {step}"
    with backend.open("fleet", database) as storage:
        assert storage.append(batch(run(0, 3))).new == 4


def test_a_second_migration_waits_for_the_first(database: SqlOptions, config: Path) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(STOPPER)
        connection.execute("UPDATE steps.wanted SET step = 5")
        connection.execute("SELECT pg_advisory_lock(77)")
        patient = replace(database, lock_timeout_seconds=WAIT_SECONDS)
        first = replace(patient, application_name="the-first-one")
        threads = [Thread(target=SqlBackend().migrate, args=(one,)) for one in (first, patient)]
        threads[0].start()
        wait_until(lambda: steps_of(database) == 5, WAIT_SECONDS, "the first migration")
        with pytest.raises(StorageLocked, match=r"'the-first-one' .* run the command again"):
            SqlBackend().migrate(database)
        threads[1].start()
        connection.execute("SELECT pg_advisory_unlock(77)")
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert SqlBackend().revisions(database) == (NEWEST, NEWEST)


def test_the_commands_of_a_rolling_upgrade(database: SqlOptions, config: Path) -> None:
    """``--check``, ``--sql``, ``--to``: as an operator types them, with what they answer."""
    empty = command(config, "migrate", "--check")
    assert (empty.returncode, "empty found" in empty.stdout) == (1, True)
    printed = command(config, "migrate", "--sql")
    assert printed.returncode == 0
    assert "CREATE TABLE dc_samples" in printed.stdout
    before = command(config, "migrate", "--to", "0001")
    assert (before.returncode, "empty -> 0001" in before.stdout) == (0, True)
    refused = command(config, "serve")
    assert refused.returncode == 1
    assert "durable-cache migrate" in refused.stderr.splitlines()[-1]
    by_hand = command(config, "migrate", "--sql")
    with psycopg.connect(database.url) as connection:
        connection.execute(by_hand.stdout.encode())
    whole = command(config, "migrate", "--check")
    assert (whole.returncode, f"{NEWEST} found" in whole.stdout) == (0, True)
    unknown = command(config, "migrate", "--to", "0999")
    assert unknown.returncode == 2
    assert "0999" in unknown.stderr

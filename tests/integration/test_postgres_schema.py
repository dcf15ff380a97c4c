"""Do migrations, views and key expressions work on both engines?"""

from __future__ import annotations

import os
import re
from pathlib import Path
from random import Random

import msgspec
import pytest
import zenoh
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import Engine

from durable_cache.errors import ConfigError, SchemaOutdated, StorageCorrupt, StorageUnavailable
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.newest import newest_per_key
from durable_cache.model.sample import Kind, Skip, SourceId
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Migratable
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.conformance.newest import NEWEST_CASES
from durable_cache.testing.conformance.unnumbered import plain
from durable_cache.testing.samples import HOSTILE_KEYS, SOURCE, batch, run, sample
from durable_cache_sql import SqlBackend, SqlOptions
from durable_cache_sql.options import parse_url
from durable_cache_sql.schema import NEEDED, NEWEST, scripts
from durable_cache_sql.tables import METADATA
from tests.servers.postgres import options_for

PATTERNS = 420


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> SqlOptions:
    if request.param == "postgres":
        return options_for(tmp_path)
    return SqlOptions(url=f"sqlite:///{tmp_path}/samples.db")


def engine_of(options: SqlOptions) -> Engine:
    return create_engine(parse_url(options))


def reflected(options: SqlOptions) -> dict[str, object]:
    """Return what a database has, in plain values."""
    engine = engine_of(options)
    seen = inspect(engine)
    found: dict[str, object] = {
        name: (
            [(c["name"], str(c["type"]), c["nullable"]) for c in seen.get_columns(name)],
            seen.get_pk_constraint(name)["constrained_columns"],
            sorted((str(i["name"]), tuple(i["column_names"])) for i in seen.get_indexes(name)),
            sorted(tuple(u["column_names"]) for u in seen.get_unique_constraints(name)),
        )
        for name in sorted(seen.get_table_names())
    }
    found["views"] = sorted(
        (name, seen.get_view_definition(name)) for name in seen.get_view_names()
    )
    engine.dispose()
    return found


@pytest.mark.parametrize("released", ["0001", "0002"])
def test_every_released_schema_migrates_to_what_is_made_fresh(
    options: SqlOptions, tmp_path: Path, released: str
) -> None:
    backend = SqlBackend()
    assert isinstance(backend, Migratable)
    backend.migrate(options, released)
    assert backend.revisions(options) == (released, NEWEST)
    assert backend.migrate(options) == (released, NEWEST)
    assert backend.migrate(options) == (NEWEST, NEWEST)
    fresh = (
        options_for(tmp_path / "fresh")
        if "postgres" in options.url
        else SqlOptions(url=f"sqlite:///{tmp_path}/fresh.db")
    )
    backend.open("suite", fresh).close()
    migrated, made = reflected(options), reflected(fresh)
    assert migrated == made
    with backend.open("suite", options) as storage:
        assert storage.append(batch(run(0, 3))).new == 4


def test_a_service_runs_before_the_post_migrations_and_not_before_the_others(
    options: SqlOptions,
) -> None:
    backend = SqlBackend()
    backend.migrate(options, "0001")
    with pytest.raises(SchemaOutdated, match="durable-cache migrate"):
        backend.open("suite", options)
    backend.migrate(options, NEEDED)
    with backend.open("suite", options) as storage:
        assert storage.append(batch(run(0, 3))).new == 4
        if "postgres" in options.url:
            assert backend.migrate(options) == (NEEDED, NEWEST)
        assert storage.append(batch(run(0, 7))).new == 4


def test_a_schema_of_a_newer_version_is_refused_in_other_words(options: SqlOptions) -> None:
    SqlBackend().migrate(options)
    engine = engine_of(options)
    with engine.begin() as connection:
        connection.execute(text("UPDATE dc_version SET version_num = '0999'"))
    engine.dispose()
    with pytest.raises(SchemaOutdated, match="newer durable-cache has made it: update this one"):
        SqlBackend().open("suite", options)


def test_the_tables_in_code_are_those_the_migrations_make(options: SqlOptions) -> None:
    SqlBackend().open("suite", options).close()
    engine = engine_of(options)
    migrated = reflected(options)
    del migrated["views"], migrated["dc_version"]
    with engine.begin() as connection:
        for view in ("instances", "gaps", "streams", "latest", "samples"):
            connection.execute(text(f"DROP VIEW {view}"))
        METADATA.drop_all(connection)
        METADATA.create_all(connection)
    engine.dispose()
    made = reflected(options)
    del made["views"], made["dc_version"]
    assert made == migrated


def test_a_migration_that_fails_half_way_is_as_if_it_had_not_begun(options: SqlOptions) -> None:
    backend = SqlBackend()
    backend.migrate(options, "0001")
    engine = engine_of(options)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE gaps (blocker INTEGER)"))
    with pytest.raises((StorageUnavailable, StorageCorrupt)):
        backend.migrate(options)
    assert backend.revisions(options) == ("0001", NEWEST)
    assert "samples" not in inspect(engine).get_view_names()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE gaps"))
    engine.dispose()
    assert backend.migrate(options) == ("0001", NEWEST)


def test_a_database_of_somebody_elses_is_not_touched(options: SqlOptions) -> None:
    engine = engine_of(options)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE theirs (id INTEGER)"))
    with pytest.raises(SchemaOutdated):
        SqlBackend().open("suite", options)
    assert inspect(engine).get_table_names() == ["theirs"]
    engine.dispose()


def test_an_unknown_revision_is_a_config_error(options: SqlOptions) -> None:
    with pytest.raises(ConfigError, match="9999"):
        SqlBackend().migrate(options, "9999")


def test_the_statements_can_be_printed(options: SqlOptions) -> None:
    printed = SqlBackend().migration_sql(options)
    assert "CREATE TABLE dc_samples" in printed
    assert "CREATE VIEW latest" in printed
    SqlBackend().migrate(options, "0001")
    assert "CREATE TABLE dc_samples" not in SqlBackend().migration_sql(options)


def test_the_newest_script_is_the_one_the_code_needs() -> None:
    names = sorted(path.name for path in (scripts() / "versions").glob("*.py"))
    assert names[-1].split("_")[0] == NEWEST
    assert all(re.fullmatch(r"\d{4}_(pre|post)_[a-z]+_[a-z_]+\.py", name) for name in names)


def test_the_views_say_what_is_stored(options: SqlOptions) -> None:
    with SqlBackend().open("suite", options) as storage:
        storage.append(batch(run(0, 2), run(5, 6), sample(1, "suite/b")), [Skip(SOURCE, 1, 3, 4)])
    engine = engine_of(options)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT key, sn, time FROM samples ORDER BY key, sn")).all()
        assert [tuple(row[:2]) for row in rows][:3] == [("suite/a", n) for n in range(3)]
        assert str(rows[0][2]).startswith("2026-09-21")
        latest = connection.execute(text("SELECT key, sn FROM latest ORDER BY key")).all()
        assert [tuple(row) for row in latest] == [("suite/a", 6), ("suite/b", 1)]
        streams = connection.execute(
            text("SELECT key, source_id, samples, first_sn, last_sn FROM streams ORDER BY key")
        ).all()
        assert tuple(streams[0]) == ("suite/a", "4f2a:7", 5, 0, 6)
        gaps = connection.execute(text("SELECT first_sn, last_sn, given_up FROM gaps")).all()
        assert [(a, b, bool(up)) for a, b, up in gaps] == [(3, 4, True)]
    engine.dispose()


def test_samples_without_a_number_leave_no_gaps(options: SqlOptions) -> None:
    seconds = [plain((1_790_000_000 + at) << 32) for at in (0, 1, 5)]
    with SqlBackend().open("suite", options) as storage:
        storage.append(batch(seconds, sample(1), sample(3)))
    engine = engine_of(options)
    with engine.connect() as connection:
        gaps = connection.execute(text("SELECT source_id, first_sn, last_sn FROM gaps")).all()
        assert [tuple(row) for row in gaps] == [("4f2a:7", 2, 2)]
        newest = connection.execute(text("SELECT source_id, sn FROM latest")).all()
        assert [tuple(row) for row in newest] == [("c10c:0", seconds[-1].sn)]
    engine.dispose()


def test_latest_is_the_newest_of_all_sources_of_a_key(options: SqlOptions) -> None:
    other = SourceId("a1", 3)
    with SqlBackend().open("suite", options) as storage:
        storage.append(
            batch(
                run(0, 5),
                run(2, 9, "suite/b"),
                sample(8, source=other),
                sample(1, "suite/b", other),
            )
        )
    engine = engine_of(options)
    with engine.connect() as connection:
        latest = connection.execute(text("SELECT key, source_id, sn FROM latest ORDER BY key"))
        found = [tuple(row) for row in latest]
    engine.dispose()
    assert found == [("suite/a", "a1:3", 8), ("suite/b", "4f2a:7", 9)]


def test_latest_names_the_newest_sample_that_every_reader_names(options: SqlOptions) -> None:
    """Wildcard updates stand under their expression there, and are not applied (ADR 0096)."""
    expected = set()
    for case in NEWEST_CASES:
        name = re.sub(r"\W+", "-", case.name)
        with SqlBackend().open(name, options) as storage:
            storage.append(batch(case.samples))
        newest = newest_per_key(case.samples, 1)
        expected |= {(name, one.key, str(one.source), one.epoch, one.sn) for one in newest}
    engine = engine_of(options)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT storage, key, source_id, epoch, sn FROM latest"))
        assert {tuple(row) for row in rows} == expected
    engine.dispose()


def test_instances_are_what_the_one_order_makes_of_them(options: SqlOptions) -> None:
    """At one time the higher source is the later: it deletes what the other one put, and so on."""
    other, at = SourceId("4f2b", 7), 1_790_000_000 << 32
    made = [
        msgspec.structs.replace(sample(1, "suite/a"), ntp64=at, payload=b"put"),
        msgspec.structs.replace(
            sample(1, "suite/a", other), ntp64=at, kind=Kind.DELETE, payload=b""
        ),
        msgspec.structs.replace(
            sample(1, "suite/b", other), ntp64=at, kind=Kind.DELETE, payload=b""
        ),
        msgspec.structs.replace(sample(2, "suite/b"), ntp64=at + 1, payload=b"again"),
    ]
    with SqlBackend().open("suite", options) as storage:
        storage.append(batch(made))
    engine = engine_of(options)
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT key, state, writers, disposed, no_writers, sn FROM instances ORDER BY key")
        ).all()
    engine.dispose()
    assert [tuple(row) for row in rows] == [
        ("suite/a", "NOT_ALIVE_DISPOSED", None, 0, None, 1),
        ("suite/b", "ALIVE", None, 1, None, 2),
    ]


def test_key_expressions_name_the_keys_that_zenoh_says(options: SqlOptions) -> None:
    """At least 16,000 pairs of pattern and hostile key; zenoh's own answer is the oracle."""
    keys = [key for key in HOSTILE_KEYS if len(key) < 1000]
    patterns = hostile_patterns(keys)
    assert len(patterns) * len(keys) >= 16_000
    with SqlBackend().open("suite", options) as storage:
        storage.append(batch([sample(1, key) for key in keys]))
        oracle = {key: zenoh.KeyExpr(key) for key in keys}
        for pattern in patterns:
            theirs = zenoh.KeyExpr(pattern)
            expected = {key for key, expr in oracle.items() if theirs.intersects(expr)}
            found = {one.key for one in read_all(storage, Selection(KeyExpression(pattern)))}
            assert found == expected, f"key expression {pattern!r}"


def hostile_patterns(keys: list[str]) -> list[str]:
    random = Random(int(os.environ.get("DURABLE_CACHE_TEST_SEED", "7")))
    found: set[str] = set()
    while len(found) < PATTERNS + len(keys):
        chunks = random.choice(keys).split("/")
        for _ in range(random.randint(0, 2)):
            at = random.randrange(len(chunks))
            chunk = chunks[at]
            cut = random.randrange(len(chunk) + 1)
            chunks[at] = random.choice(
                ["*", "**", chunk[:cut] + "$*", "$*" + chunk[cut:], chunk[:cut] + "$*" + chunk[-1:]]
            )
        try:
            found.add(KeyExpression("/".join(chunks)).text)
        except ValueError:
            continue
    return sorted(found)

"""Does PostgreSQL answer a short range of a source's numbers as the reference does, and quickly?"""

from __future__ import annotations

from pathlib import Path
from random import Random

import psycopg
import pytest
from msgspec.structs import replace

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.network import wait_until
from durable_cache.testing.samples import batch, filled, run, sample
from durable_cache_sql import SqlBackend
from tests.servers.postgres import options_for

pytestmark = pytest.mark.postgres
KEYS = ("fleet/a", "fleet/a/b", "fleet/\u00e9", "other/'x'", "fleet/@v/x")
SOURCES = (SourceId("4f2a", 7), SourceId("4f2a", 70), SourceId("a4f2", 7))


def history(random: Random) -> list[Sample]:
    """Return samples of a few sources over several keys and epochs, with holes."""
    return [
        replace(
            filled(sn),
            key=random.choice(KEYS),
            source=source,
            epoch=epoch,
            payload=random.randbytes(random.choice((0, 3, 300, 5000))),
            encoding=random.choice(("zenoh/bytes", "text/plain", "application/json;x")),
        )
        for source in SOURCES
        for epoch in (0, 3)
        for sn in random.sample(range(400), 300)
    ]


def test_any_gap_is_answered_as_the_reference_answers_it(tmp_path: Path) -> None:
    random = Random(4)
    samples = history(random)
    reference = MemoryStorage()
    reference.append(batch(samples))
    with SqlBackend().open("reading", options_for(tmp_path)) as storage:
        storage.append(batch(samples))
        for _ in range(150):
            source = random.choice((*SOURCES, SourceId("77", 7)))
            first = random.randrange(420)
            wanted = Selection(
                KeyExpression(random.choice(("**", "fleet/**", "fleet/*", *KEYS, "nothing/**"))),
                zid=source.zid,
                eid=source.eid,
                epoch=random.choice((None, 0, 3, 4)),
                sns=SnBounds(first, first + random.choice((0, 1, 9, 100, 255, 256, 1000))),
            )
            assert read_all(storage, wanted, random.choice((7, 50, 1000))) == read_all(
                reference, wanted
            ), wanted


def test_a_gap_of_large_payloads_comes_in_pages_of_bounded_size(tmp_path: Path) -> None:
    large = [sample(sn, payload=bytes([sn]) * 50_000) for sn in range(20)]
    options = replace(options_for(tmp_path), page_bytes_max=1 << 17)
    with SqlBackend().open("reading", options) as storage:
        storage.append(batch(large))
        wanted = Selection(zid="4f2a", eid=7, epoch=1, sns=SnBounds(0, 19))
        page = storage.read(wanted, 100)
        assert page.cursor is not None
        assert len(page.samples) < 10
        assert read_all(storage, wanted) == large


def connections(storage_url: str, application: str) -> int:
    """Return how many connections the server has from an application."""
    with psycopg.connect(storage_url, autocommit=True) as other:
        row = other.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (application,)
        ).fetchone()
    return 0 if row is None else int(row[0])


def ended(storage_url: str, application: str, state: str = "%") -> int:
    """End the connections of an application, as a restart or a proxy does; returns how many."""
    with psycopg.connect(storage_url, autocommit=True) as other:
        row = other.execute(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
            "WHERE application_name = %s AND state LIKE %s",
            (application, state),
        ).fetchone()
    return 0 if row is None else int(row[0])


def test_reads_go_on_when_every_idle_connection_has_died(tmp_path: Path) -> None:
    options = options_for(tmp_path, application_name="durable-cache-idle")
    gap = Selection(zid="4f2a", eid=7, sns=SnBounds(2, 4))
    with SqlBackend().open("reading", options) as storage:
        storage.append(batch(run(0, 9)))
        for wanted, found in ((gap, run(2, 4)), (Selection(), run(0, 9))):
            beside = storage.held()
            next(beside)  # keeps one connection, so that the read takes a second one
            assert read_all(storage, wanted) == found
            assert next(beside, None) is None
            assert ended(options.url, "durable-cache-idle") >= 2
            assert read_all(storage, wanted) == found


def test_a_read_that_outlives_its_storage_leaves_no_connection_open(tmp_path: Path) -> None:
    options = options_for(tmp_path, application_name="durable-cache-outlived")
    with SqlBackend().open("reading", options) as storage:
        storage.append(batch(run(0, 9)))
        beside = storage.held()
        next(beside)
    assert connections(options.url, "durable-cache-outlived") == 1
    del beside
    wait_until(lambda: not connections(options.url, "durable-cache-outlived"), what="closing")


def test_a_read_that_outlives_a_lost_pool_leaves_no_connection_open(tmp_path: Path) -> None:
    """What it gives back belongs to no pool any more when the pool was made anew meanwhile."""
    options = options_for(tmp_path, application_name="durable-cache-anew")
    with SqlBackend().open("reading", options) as storage:
        storage.append(batch(run(0, 9)))
        early, late = storage.held(), storage.held()
        next(early)
        next(late)
        early.close()  # type: ignore[attr-defined]
        assert ended(options.url, "durable-cache-anew", "idle") >= 1
        assert read_all(storage, Selection()) == run(0, 9)
        late.close()  # type: ignore[attr-defined]
    wait_until(lambda: not connections(options.url, "durable-cache-anew"), what="closing")

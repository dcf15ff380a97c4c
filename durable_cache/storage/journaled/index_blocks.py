"""Runs of numbers that are too many for one row of the stream index (ADR 0328).

Theory of operation. A publisher of fifty keys numbers them all together, so each key holds every
fiftieth number: as many runs as samples. Written as one row, what is held of a key would be
written anew with each batch, and a batch would cost what all before it cost together.

An owner, a stream or one of the two sides of a numbering, has a tail in its own row: its highest
runs, at most `TAIL_RUNS_MAX`. What they become too many for goes into blocks of `BLOCK_RUNS`, a
row each, which lie below the tail and do not overlap. `since` is where the tail begins: 0 where
there are no blocks. So a batch that goes on where the last one ended costs a tail, and one that
comes late costs the blocks it falls into. Runs of two blocks may touch: who reads an owner whole,
through the views of `index_rows`, joins them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from durable_cache.model.ranges import RangeSet

BLOCK_RUNS = 32
TAIL_RUNS_MAX = 2 * BLOCK_RUNS

STREAM, HELD, SKIPPED = 0, 1, 2
"""Kinds of owners: what is held of a stream, and what is held and skipped of a numbering."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS blocks (
  kind INTEGER, key TEXT, zid TEXT, eid INTEGER, epoch INTEGER, first INTEGER, last INTEGER,
  runs TEXT, PRIMARY KEY (kind, key, zid, eid, epoch, first)) WITHOUT ROWID;
"""
_OWNER = "kind = ?1 AND key = ?2 AND zid = ?3 AND eid = ?4 AND epoch = ?5"
_PUT = """INSERT INTO blocks
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
  value ->> 7 FROM json_each(?)"""
_NEAR = f"""SELECT first, runs FROM blocks WHERE {_OWNER} AND first BETWEEN
  coalesce((SELECT max(first) FROM blocks WHERE {_OWNER} AND first <= ?6), 0)
  AND coalesce((SELECT min(first) FROM blocks WHERE {_OWNER} AND first > ?7), ?7)"""  # noqa: S608
"""The blocks that a range of numbers touches, and the next ones on both sides: what falls between
blocks is added to one of them."""
_DROP = f"DELETE FROM blocks WHERE {_OWNER} AND first = ?6"  # noqa: S608
_DROP_WITHIN = f"""DELETE FROM blocks
WHERE {_OWNER} AND first BETWEEN ?6 AND ?7 AND last <= ?7"""  # noqa: S608
_AT = f"""SELECT runs FROM blocks
WHERE {_OWNER} AND first <= ?6 ORDER BY first DESC LIMIT 1"""  # noqa: S608
_runs = msgspec.json.Decoder(list[tuple[int, int]])
_json = msgspec.json.Encoder()

Read = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]


class Owner(NamedTuple):
    """Whose runs these are; the key as the index writes it, empty for a numbering."""

    kind: int
    key: str
    zid: str
    eid: int
    epoch: int


def add(
    database: sqlite3.Connection, owner: Owner, tail: RangeSet, since: int, runs: RangeSet
) -> None:
    """Have an owner hold runs: in its tail, as far as they lie there."""
    first, last = runs.first, runs.last
    if first is None or last is None:
        return
    if first >= since:
        tail.update(runs)
        return
    low = runs.clip(0, since - 1)
    _edit(database, owner, first, low.last or first, lambda near: near.update(low))
    tail.update(runs.clip(since, last))


def remove(
    database: sqlite3.Connection, owner: Owner, tail: RangeSet, since: int, first: int, last: int
) -> None:
    """Have an owner hold `first..last` no more."""
    tail.remove(first, last)
    end = min(last, since - 1)
    if first <= end:
        database.execute(_DROP_WITHIN, (*owner, first, end))
        _edit(database, owner, first, end, lambda near: near.remove(first, end))


def holds(read: Read, owner: Owner, sn: int) -> bool:
    """Tell whether a block of an owner holds a number."""
    return any(sn in RangeSet(_runs.decode(runs)) for (runs,) in read(_AT, (*owner, sn)))


def drop(database: sqlite3.Connection, owner: Owner) -> None:
    """Forget all blocks of an owner."""
    database.execute(f"DELETE FROM blocks WHERE {_OWNER}", owner)  # noqa: S608


def shortened(owner: Owner, tail: RangeSet, since: int, rows: list[tuple[object, ...]]) -> int:
    """Take from a tail what is too much for it; return where it begins then.

    `rows` gets the blocks of that, which are to be `put` before anything else is done here.
    """
    if len(tail) <= TAIL_RUNS_MAX:
        return since
    flat = tail.flat()
    moved = (len(tail) // BLOCK_RUNS - 1) * BLOCK_RUNS
    rows += _blocks(owner, flat[: 2 * moved])
    since = flat[2 * moved - 1] + 1
    tail.remove(0, since - 1)
    return since


def put(database: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> None:
    """Write blocks."""
    if rows:
        database.execute(_PUT, (_json.encode(rows).decode(),))


def _edit(
    database: sqlite3.Connection,
    owner: Owner,
    first: int,
    last: int,
    change: Callable[[RangeSet], None],
) -> None:
    """Change the blocks that `first..last` touches."""
    rows = database.execute(_NEAR, (*owner, first, last)).fetchall()
    near = RangeSet(run for _, runs in rows for run in _runs.decode(runs))
    change(near)
    database.executemany(_DROP, [(*owner, at) for at, _ in rows])
    put(database, _blocks(owner, near.flat()))


def _blocks(owner: Owner, flat: Sequence[int]) -> list[tuple[object, ...]]:
    """Return runs in blocks of nearly the same size, as rows."""
    pairs = [*zip(flat[::2], flat[1::2], strict=True)]
    count = -(-len(pairs) // BLOCK_RUNS) if len(pairs) > TAIL_RUNS_MAX else 1
    size = max(1, -(-len(pairs) // count))
    parts = [pairs[at : at + size] for at in range(0, len(pairs), size)]
    return [(*owner, part[0][0], part[-1][1], part) for part in parts]

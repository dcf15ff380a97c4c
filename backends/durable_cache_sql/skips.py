"""How skips are kept disjoint, maximal and free of held numbers.

They are few: the overlapping ones are read, computed in memory and written back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Select, and_, bindparam, delete, func, insert, select

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SampleBatch, Skip, SourceId
from durable_cache_sql.database import Database
from durable_cache_sql.dictionary import Dictionary
from durable_cache_sql.tables import samples, skips, sources, streams, zids

_Numbering = tuple[int, int]


def write_skips(
    database: Database,
    dictionary: Dictionary,
    connection: Connection,
    storage_id: int,
    stored: SampleBatch,
    given: Sequence[Skip],
) -> None:
    """Add skips where nothing is held, and end those that the stored samples replace."""
    wanted: dict[tuple[SourceId, int], RangeSet] = {}
    for skip in given:
        wanted.setdefault((skip.source, skip.epoch), RangeSet()).add(skip.first, skip.last)
    came: dict[tuple[SourceId, int], list[int]] = {}
    for stream, group in stored.by_stream.items():
        sns = came.setdefault((stream.source, stream.epoch), [])
        sns.extend([sample.sn for sample in group])
    if not came and not wanted:
        return
    by_source = dictionary.add_sources(connection, {source for source, _ in (*came, *wanted)})
    spans: dict[_Numbering, tuple[int, int]] = {}
    for (source, epoch), sns in came.items():
        spans[by_source[source], epoch] = (min(sns), max(sns))
    added: dict[_Numbering, RangeSet] = {}
    for (source, epoch), runs in wanted.items():
        numbering = (by_source[source], epoch)
        added[numbering] = runs
        ends = list(runs)
        first, last = ends[0].first, ends[-1].last
        low, high = spans.get(numbering, (first, last))
        spans[numbering] = (min(low, first - 1), max(high, last + 1))
    stored_runs = {
        (by_source[source], epoch): RangeSet.of(sns) for (source, epoch), sns in came.items()
    }
    before = _overlapping(database, connection, storage_id, spans)
    remove: list[tuple[int, int, int]] = []
    write: list[tuple[int, int, int, int]] = []
    for numbering in {*before, *added}:
        old = before.get(numbering, RangeSet())
        runs = old.copy()
        for first, last in added.get(numbering, RangeSet()):
            runs.add(first, last)
            held = held_between(database, connection, storage_id, numbering, first, last)
            runs = runs.difference(held)
        runs = runs.difference(stored_runs.get(numbering, RangeSet()))
        if runs != old:
            remove += [(*numbering, first) for first, _ in old]
            write += [(*numbering, first, last) for first, last in runs]
    _replace(database, connection, storage_id, remove, write)


def _overlapping(
    database: Database,
    connection: Connection,
    storage_id: int,
    spans: dict[_Numbering, tuple[int, int]],
) -> dict[_Numbering, RangeSet]:
    """Return the skips that touch the given spans."""

    def build() -> Select[tuple[int, int, int, int]]:
        span = database.table("spans", int, int, int, int)
        return select(
            skips.c.source_id, skips.c.epoch, skips.c.first_sn, skips.c.last_sn
        ).join_from(
            span,
            skips,
            and_(
                skips.c.storage_id == bindparam("storage"),
                skips.c.source_id == span.c.c0,
                skips.c.epoch == span.c.c1,
                skips.c.first_sn <= span.c.c3,
                skips.c.last_sn >= span.c.c2,
            ),
        )

    rows = [(*numbering, *span) for numbering, span in spans.items()]
    bound = database.bind("spans", (int,) * 4, list(zip(*rows, strict=True)))
    statement = database.prepare("overlapping skips", build)
    found: dict[_Numbering, RangeSet] = {}
    for source_id, epoch, first, last in database.rows(
        connection, statement, {**bound, "storage": storage_id}
    ):
        found.setdefault((source_id, epoch), RangeSet()).add(first, last)
    return found


def held_between(
    database: Database,
    connection: Connection,
    storage_id: int,
    numbering: _Numbering,
    first: int,
    last: int,
) -> RangeSet:
    """Return the numbers held of a source and epoch under any key, as runs made by the engine."""

    def build() -> Select[tuple[int, int]]:
        found = (
            select(samples.c.sn)
            .join_from(streams, samples, samples.c.stream_id == streams.c.id)
            .where(
                streams.c.storage_id == bindparam("storage"),
                streams.c.source_id == bindparam("source"),
                streams.c.epoch == bindparam("epoch"),
                samples.c.sn.between(bindparam("first"), bindparam("last")),
            )
            .distinct()
            .subquery("found")
        )
        island = (found.c.sn - func.row_number().over(order_by=found.c.sn)).label("island")
        numbered = select(found.c.sn, island).subquery("numbered")
        ends = (func.min(numbered.c.sn), func.max(numbered.c.sn))
        return select(*ends).group_by(numbered.c.island)

    bound = {
        "storage": storage_id,
        "source": numbering[0],
        "epoch": numbering[1],
        "first": first,
        "last": last,
    }
    statement = database.prepare("held between", build)
    return RangeSet(database.rows(connection, statement, bound))


def _replace(
    database: Database,
    connection: Connection,
    storage_id: int,
    remove: Sequence[tuple[int, int, int]],
    write: Sequence[tuple[int, int, int, int]],
) -> None:
    if remove:
        gone = database.table("gone", int, int, int)
        statement = database.prepare(
            "remove skips",
            lambda: delete(skips).where(
                skips.c.storage_id == bindparam("storage"),
                select(gone.c.c0)
                .where(
                    gone.c.c0 == skips.c.source_id,
                    gone.c.c1 == skips.c.epoch,
                    gone.c.c2 == skips.c.first_sn,
                )
                .correlate(skips)
                .exists(),
            ),
        )
        bound = database.bind("gone", (int,) * 3, list(zip(*remove, strict=True)))
        database.run(connection, statement, {**bound, "storage": storage_id})
    if write:
        made = database.table("made", int, int, int, int, int)
        names = ["storage_id", "source_id", "epoch", "first_sn", "last_sn"]
        statement = database.prepare(
            "write skips", lambda: insert(skips).from_select(names, select(*made.c))
        )
        rows = [(storage_id, *row) for row in write]
        bound = database.bind("made", (int,) * 5, list(zip(*rows, strict=True)))
        database.run(connection, statement, bound)


def read_skips(database: Database, connection: Connection, storage_id: int) -> Iterator[Skip]:
    """Yield every skip in the contract's order, page by page of one snapshot."""

    def build() -> Select[tuple[str, int, int, int, int]]:
        order = (zids.c.number, sources.c.eid, skips.c.epoch, skips.c.first_sn)
        return (
            select(zids.c.zid, sources.c.eid, skips.c.epoch, skips.c.first_sn, skips.c.last_sn)
            .join_from(skips, sources, skips.c.source_id == sources.c.id)
            .join(zids, sources.c.zid_id == zids.c.id)
            .where(skips.c.storage_id == bindparam("storage"))
            .order_by(*order)
        )

    statement = database.prepare("skips", build)
    for zid, eid, epoch, first, last in database.rows(
        connection, statement, {"storage": storage_id}
    ):
        yield Skip(SourceId(zid, eid), epoch, first, last)

"""How a few numbers of one source are read by one statement, and when that is enough.

This is what a subscriber asks for that missed something, and what a cache looks up before it
stores a number a second time. On a server every statement is a round trip.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Select, bindparam, case, func, literal_column, select, true

from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.model.selection import Order, Selection
from durable_cache.storage.contract import Page
from durable_cache_sql.database import Database, Row
from durable_cache_sql.dictionary import Dictionary
from durable_cache_sql.snapshot import SAMPLE_PARTS, SN_END, build_samples, c, is_timed
from durable_cache_sql.tables import keys, sources, streams, zids

GAP_MAX = 256
"""Numbers in a gap that is read at once; a longer one is read stream by stream."""


def is_gap(selection: Selection) -> bool:
    """Tell whether a selection is a short range of one source's numbers."""
    first, last = selection.sns.first, selection.sns.last
    return (
        selection.zid is not None
        and selection.eid is not None
        and first is not None
        and last is not None
        and last - first < GAP_MAX
        and last <= SN_END
        and selection.newest is None
        and selection.order is Order.IDENTITY
        and not is_timed(selection)
    )


def read_gap(
    database: Database,
    dictionary: Dictionary,
    storage_id: int,
    selection: Selection,
    limit: int,
    bytes_max: int,
) -> Page | None:
    """Return the whole gap as one page; None when it needs more than this one statement.

    That is when it does not fit the page, or a text of the dictionary was never read before.
    """
    by_epoch = selection.epoch is not None
    statement = database.prepare(("gap", by_epoch), lambda: _gap(by_epoch))
    limit = min(limit, GAP_MAX)
    bound = {
        "storage": storage_id,
        "zid": selection.zid,
        "eid": selection.eid,
        "epoch": selection.epoch,
        "first": selection.sns.first,
        "last": selection.sns.last,
        "n": limit + 1,
        "bytes": bytes_max,
    }
    rows = database.glance(statement, bound)
    if len(rows) > limit or any(row[3] is None for row in rows):
        return None
    return _page(dictionary, selection, rows)


def _page(dictionary: Dictionary, selection: Selection, rows: list[Row]) -> Page | None:
    source = SourceId(str(selection.zid), int(selection.eid or 0))
    places: list[tuple[bytes, int, int, Row]] = []
    named: dict[int, Stream] = {}
    for row in rows:
        key, epoch = bytes(row[-2]), int(row[-1])
        stream = named.get(row[0])
        if stream is None:
            stream = Stream(key.decode("utf-8", "surrogatepass"), source, epoch)
            named[row[0]] = stream
        if selection.key_expr.matches(stream.key):
            places.append((key, epoch, row[1], row[:-2]))
    places.sort(key=lambda place: place[:3])
    chosen = [row for *_, row in places]
    texts = dictionary.known_texts({row[4] for row in chosen}, {row[8] for row in chosen})
    if texts is None:
        return None
    return Page(SampleBatch(build_samples(chosen, named, *texts)), None)


def _gap(by_epoch: bool) -> Select[Any]:
    """The samples of a range, each with its key and epoch; no payloads where they are too large.

    The inner limit keeps the planner to one walk of the primary key for each stream.
    """
    own = (
        select(*SAMPLE_PARTS)
        .where(c.stream_id == streams.c.id, c.sn.between(bindparam("first"), bindparam("last")))
        .order_by(c.sn)
        .limit(literal_column(str(GAP_MAX)))
        .correlate(streams)
        .lateral("own")
    )
    found = (
        select(*own.c, keys.c.key, streams.c.epoch)
        .select_from(zids)
        .join(sources, sources.c.zid_id == zids.c.id)
        .join(streams, streams.c.source_id == sources.c.id)
        .join(keys, keys.c.id == streams.c.key_id)
        .join(own, true())
        .where(
            zids.c.zid == bindparam("zid"),
            sources.c.eid == bindparam("eid"),
            streams.c.storage_id == bindparam("storage"),
        )
        .limit(bindparam("n", type_=BigInteger))
    )
    if by_epoch:
        found = found.where(streams.c.epoch == bindparam("epoch"))
    rows = found.subquery("rows")
    size = func.sum(func.octet_length(rows.c.payload)).over()
    fits = size <= bindparam("bytes", type_=BigInteger)
    return select(
        *(
            case((fits, column)).label("payload") if column.name == "payload" else column
            for column in rows.c
        )
    )

"""How rows become samples, and how the samples of given streams or places are fetched."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

from sqlalchemy import Connection, Select, and_, bindparam, select, tuple_

from durable_cache.model.sample import Kind, Sample, Stream
from durable_cache.model.selection import Selection
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache_sql.database import Columns, Database, Prepared, Row, Values
from durable_cache_sql.dictionary import Dictionary
from durable_cache_sql.streams import StreamRow, find_streams
from durable_cache_sql.tables import samples

SN_END = (1 << 63) - 1
SPREAD_MAX = 100_000
"""Index entries looked at to learn which sns a time range covers."""
_KINDS = {int(kind): kind for kind in Kind}
c = samples.c


def bounds_of(selection: Selection) -> dict[str, object]:
    """Return the values for `filtered`."""
    sns, times = selection.sns, selection.times
    return {
        "first": min(0 if sns.first is None else sns.first, SN_END),
        "last": min(SN_END if sns.last is None else sns.last, SN_END),
        "low_s": times.first >> 32,
        "low_f": times.first & 0xFFFFFFFF,
        "high_s": times.last >> 32,
        "high_f": times.last & 0xFFFFFFFF,
    }


def is_timed(selection: Selection) -> bool:
    """Tell whether the selection bounds the time."""
    return selection.times.first > 0 or selection.times.last < NTP64_MAX


def is_ranged(selection: Selection) -> bool:
    """Tell whether the selection bounds the sn."""
    return selection.sns.first is not None or selection.sns.last is not None


def filtered(statement: Select[Any], timed: bool) -> Select[Any]:
    """Bound the sn, the way to the rows, and the time, which is only looked at (hence the + 0)."""
    statement = statement.where(c.sn.between(bindparam("first"), bindparam("last")))
    return _between(statement, c.seconds + 0, c.fraction) if timed else statement


def filtered_by_time(
    statement: Select[Any], ranged: bool, timed: bool = True, table: Any = c
) -> Select[Any]:
    """Bound the time, the way to the rows, and the sn, which is only looked at."""
    if ranged:
        statement = statement.where((table.sn + 0).between(bindparam("first"), bindparam("last")))
    return _between(statement, table.seconds, table.fraction) if timed else statement


def _between(statement: Select[Any], seconds: Any, fraction: Any) -> Select[Any]:
    time = tuple_(seconds, fraction)
    return statement.where(
        time >= tuple_(bindparam("low_s"), bindparam("low_f")),
        time <= tuple_(bindparam("high_s"), bindparam("high_f")),
    )


SAMPLE_PARTS = (
    c.stream_id,
    c.sn,
    c.kind,
    c.payload,
    c.encoding_id,
    c.attachment,
    c.seconds,
    c.fraction,
    c.stamp_id,
    c.stamped,
    c.qos,
    c.received_ns,
)
"""The columns of a sample, as `build_samples` takes them."""


def _whole() -> Select[Any]:
    return select(*SAMPLE_PARTS)


class Snapshot:
    """One read transaction and what is known beside it; lives as long as one page."""

    def __init__(
        self, database: Database, connection: Connection, dictionary: Dictionary, storage_id: int
    ) -> None:
        self.database = database
        self.connection = connection
        self.dictionary = dictionary
        self.storage_id = storage_id

    def streams(
        self, selection: Selection | None, from_key: bytes = b""
    ) -> Iterator[list[StreamRow]]:
        """Yield the streams of a selection; see `find_streams`."""
        return find_streams(self.database, self.connection, self.storage_id, selection, from_key)

    def rows(self, statement: Prepared, values: Values) -> list[Row]:
        return self.database.rows(self.connection, statement, values)

    def columns(self, statement: Prepared, values: Values) -> Columns:
        return self.database.columns(self.connection, statement, values)

    def of_stream(self, row: StreamRow, bounds: Values, timed: bool, limit: int) -> list[Sample]:
        """Return the first `limit` samples of a stream within bounds, in order of sn."""
        bounds = {**bounds, "stream": row.stream_id, "n": limit}
        if timed and not self._narrow(bounds):
            return []
        statement = self.database.prepare(
            ("of stream", timed),
            lambda: (
                filtered(_whole().where(c.stream_id == bindparam("stream")), timed)
                .order_by(c.sn)
                .limit(bindparam("n"))
            ),
        )
        return self.samples_of(self.columns(statement, bounds), {row.stream_id: row.stream})

    def _narrow(self, bounds: dict[str, object]) -> bool:
        """Learn from the index which sns a time range covers; False when it covers none."""

        def build() -> Select[Any]:
            inner = filtered_by_time(select(c.sn).where(c.stream_id == bindparam("stream")), True)
            return inner.order_by(c.seconds, c.fraction).limit(SPREAD_MAX + 1)

        found = [sn for (sn,) in self.rows(self.database.prepare("spread", build), bounds)]
        if found and len(found) <= SPREAD_MAX:
            bounds["first"], bounds["last"] = min(found), max(found)
        return bool(found)

    def of_streams(self, group: Sequence[StreamRow], bounds: Values, timed: bool) -> list[Sample]:
        """Return every sample of some small streams within bounds, in order."""
        statement = self.database.prepare(
            ("of streams", timed),
            lambda: filtered(
                _whole().where(c.stream_id.in_(select(self.database.table("ids", int).c.c0))),
                timed,
            ).order_by(c.stream_id, c.sn),
        )
        ids = [row.stream_id for row in group]
        bound = {**bounds, **self.database.bind("ids", (int,), [ids])}
        found = self.columns(statement, bound)
        return self.samples_of(in_order(found, ids), {row.stream_id: row.stream for row in group})

    def at_places(
        self, places: Sequence[tuple[int, int]], streams: dict[int, Stream]
    ) -> list[Sample]:
        """Return the samples with the given (stream_id, sn), in that order."""
        if not places:
            return []

        def build() -> Select[Any]:
            table = self.database.table("places", int, int)
            return _whole().join_from(
                table, samples, and_(c.stream_id == table.c.c0, c.sn == table.c.c1)
            )

        statement = self.database.prepare("at places", build)
        stream_ids, sns = zip(*places, strict=True)
        bound = self.database.bind("places", (int, int), [stream_ids, sns])
        found = {(row[0], row[1]): row for row in self.rows(statement, bound)}
        rows = [found[place] for place in places]
        return self._built(rows, [row[4] for row in rows], [row[8] for row in rows], streams)

    def samples_of(self, columns: Columns, streams: dict[int, Stream]) -> list[Sample]:
        """Build the samples of some columns.

        Row by row a page would be so many objects that Python's collector looks at all there are.
        """
        if not columns:
            return []
        return self._built(zip(*columns, strict=True), columns[4], columns[8], streams)

    def _built(
        self,
        rows: Iterable[Row],
        encoding_ids: Iterable[object],
        stamp_ids: Iterable[object],
        streams: dict[int, Stream],
    ) -> list[Sample]:
        encodings = set(cast("Iterable[int]", encoding_ids))
        stamps = set(cast("Iterable[int]", stamp_ids))
        return build_samples(
            rows,
            streams,
            self.dictionary.encoding_texts(self.connection, encodings),
            self.dictionary.zid_texts(self.connection, stamps),
        )


def in_order(columns: Columns, ids: Sequence[int]) -> Columns:
    """Return columns that are in order of their first one in the order of `ids` instead."""
    if not columns or ids == sorted(ids):
        return columns
    first = cast("Sequence[int]", columns[0])
    spans = [(bisect_left(first, one), bisect_right(first, one)) for one in ids]
    return [list(chain.from_iterable(one[at:end] for at, end in spans)) for one in columns]


def build_samples(
    rows: Iterable[Row],
    streams: dict[int, Stream],
    encodings: dict[int, str],
    stamps: dict[int, str],
) -> list[Sample]:
    """Build samples; a tight loop, for it runs once for every sample ever replayed."""
    kinds = _KINDS
    return [
        Sample(
            *streams[stream_id],
            sn,
            payload,
            kinds[kind],
            encodings[encoding_id],
            attachment,
            seconds << 32 | fraction,
            stamps[stamp_id],
            stamped == 1,
            qos,
            received_ns,
        )
        for (
            stream_id,
            sn,
            kind,
            payload,
            encoding_id,
            attachment,
            seconds,
            fraction,
            stamp_id,
            stamped,
            qos,
            received_ns,
        ) in rows
    ]

"""What is known of purges of runs without an epoch, of which numbers alone do not tell the run.

Another cache may call the publisher's next run so. The time of the newest sample that was known as
a run was purged tells the two apart, and stays as the purge does: who heard of a purge passes on
the time that it was told. What was purged here goes on under the name that the run gets; what
another cache told of was purged of that cache's run, and stays with the run without an epoch (ADR
0260).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from durable_cache.model.sample import SourceId, Stream, StreamSummary
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.index_rows import StreamInfo, escape, json_rows, unescape

_PUT = """INSERT INTO purge_times
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
FROM json_each(?) WHERE true
ON CONFLICT (key, zid, eid, epoch) DO UPDATE
SET floor = excluded.floor, here = max(here, excluded.here), ntp64 = excluded.ntp64
WHERE excluded.floor > floor"""
"""A purge that is repeated says nothing new: later samples may be of another run."""
_UNTIL = "SELECT key, zid, eid, epoch, ntp64 FROM purge_times WHERE ntp64 <> '0'"
_HERE = """SELECT floor, here FROM purge_times
WHERE key = ? AND zid = ? AND eid = ? AND epoch = ?"""


class _Index(Protocol):
    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]: ...


def note_told(database: sqlite3.Connection, told: Iterable[tuple[Floor, int]]) -> None:
    """Keep until when what another cache purged was published, 0 where it is not known."""
    _put(database, ((stream, sn, 0, ntp64) for (stream, sn), ntp64 in told))


def note_purges(
    database: sqlite3.Connection,
    infos: Iterable[StreamInfo],
    unrecorded: Mapping[Stream, StreamSummary],
) -> None:
    """Keep what is known of streams as they are purged here, with what the index never had."""
    gone = {stream: new.newest_ntp64 for stream, new in unrecorded.items()}
    known = ((i.stream, i.purged, max(i.newest_ntp64, gone.get(i.stream, 0))) for i in infos)
    _put(database, ((stream, sn, sn, ntp64) for stream, sn, ntp64 in known))


def _put(database: sqlite3.Connection, known: Iterable[tuple[Stream, int, int, int]]) -> None:
    rows = [
        (escape(stream.key), *stream.source, stream.epoch, floor, here, str(ntp64))
        for stream, floor, here, ntp64 in known
        if stream.epoch == EPOCH_UNKNOWN and not is_unnumbered(stream.source)
    ]
    if rows:
        database.execute(_PUT, (json_rows(rows),))


def purged_until(index: _Index) -> dict[Stream, int]:
    """Return until when what was purged of runs without an epoch was published."""
    found = {}
    for key, zid, eid, epoch, ntp64 in index.rows(_UNTIL):
        found[Stream(unescape(key), SourceId(zid, int(eid)), int(epoch))] = int(ntp64)
    return found


def purged_here(index: _Index, infos: Iterable[StreamInfo]) -> list[Floor]:
    """Return the purges of streams that concern the run that is here, not another cache's."""
    found = []
    for info in infos:
        key, source, epoch = info.stream
        here = info.purged
        for floor, own in index.rows(_HERE, (escape(key), *source, epoch)):
            here = int(own) if int(floor) >= here else here
        if here:
            found.append(Floor(info.stream, here))
    return found

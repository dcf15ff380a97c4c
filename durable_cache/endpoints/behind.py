"""From when on a cache holds something behind what an asker stands at (ADR 0155).

The index tells which runs go on behind their standing, and which ones the asker does not know; one
sample of each is read, those first whose standing is the oldest, until no other can be older. What
is on its way to the backend is looked at before the index: never in neither of both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, islice

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds, TimeBounds
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache.protocol.standings import FROM_THE_BEGINNING, Standings
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.index_rows import unescape
from durable_cache.storage.journaled.storage import JournaledStorage

_SECONDS_MAX = 1.0
"""What somebody who waits gains by an answer that takes longer is little."""
_KEYS_LOOKED_AT = 100
_LOOKED_AT = 10_000
"""Samples on their way that are looked at between two looks at the clock."""
_RUNS = """SELECT zid, eid, epoch, coalesce(incarnation, ''), held ->> '$[#-1][1]' FROM numberings
LEFT JOIN incarnations USING (zid, eid, epoch) WHERE held <> '[]'"""
_UNNUMBERED = "SELECT DISTINCT zid FROM streams WHERE eid = 0"
_KEYS = "SELECT key FROM streams WHERE zid = ? AND eid = ? AND epoch = ? LIMIT ?"
_NAMES = "SELECT zid, eid, epoch, incarnation FROM incarnations"


def beginning_behind(store: JournaledStorage, key_expr: KeyExpression, standings: Standings) -> int:
    """Return the least NTP64 of what is stored behind standings; NTP64_MAX where there is nothing.

    FROM_THE_BEGINNING where it is not known in time, or where it would not tell the order. Raises
    a StorageError, ask again, where the storage cannot be read.
    """
    deadline = time.monotonic() + _SECONDS_MAX
    on_their_way = _on_their_way(store, key_expr)
    earliest = NTP64_MAX
    while part := [*islice(on_their_way, _LOOKED_AT)]:
        earliest = min(earliest, standings.beginning(part))
        if earliest == FROM_THE_BEGINNING or time.monotonic() > deadline:
            return FROM_THE_BEGINNING
    strangers: list[Selection] = []
    known: list[tuple[int, Selection]] = []
    for source, epoch, incarnation, last in _runs(store.index):
        standing = standings.of(source, epoch, incarnation)
        run = Selection(key_expr, source.zid, source.eid, epoch, order=Order.TIME)
        if standing is None:
            if standings.knows(source):
                return FROM_THE_BEGINNING
            if _may_concern(store.index, key_expr, source, epoch):
                strangers.append(run)
        elif last >= standing.following:
            sns, times = SnBounds(standing.following), TimeBounds(standing.ntp64)
            rest = Selection(key_expr, source.zid, source.eid, epoch, sns, times, order=Order.TIME)
            known.append((standing.ntp64, rest))
    for (zid,) in store.index.rows(_UNNUMBERED):
        strangers.append(Selection(key_expr, str(zid), 0, order=Order.TIME))
    known.sort(key=lambda one: one[0])
    for at_least, selection in chain(((0, one) for one in strangers), known):
        if at_least >= earliest:
            break
        if time.monotonic() > deadline:
            return FROM_THE_BEGINNING
        for sample in store.read(selection, 1).samples:
            earliest = min(earliest, sample.ntp64)
    return earliest


def _on_their_way(store: JournaledStorage, key_expr: KeyExpression) -> Iterator[tuple[Sample, str]]:
    """Yield what is not in the backend yet, with the incarnation of its run."""
    if not store.backlog.samples:
        return
    names = {
        (SourceId(str(zid), int(eid)), int(epoch)): str(name)
        for zid, eid, epoch, name in store.index.rows(_NAMES)
    }
    for sample in store.backlog.matching(Selection(key_expr)):
        yield sample, names.get((sample.source, sample.epoch), "")


def _may_concern(index: StreamIndex, key_expr: KeyExpression, source: SourceId, epoch: int) -> bool:
    """Tell whether a run may have samples under a key expression."""
    keys = [unescape(str(key)) for (key,) in index.rows(_KEYS, (*source, epoch, _KEYS_LOOKED_AT))]
    named = any("*" in key or key_expr.matches(key) for key in keys)
    return named or len(keys) == _KEYS_LOOKED_AT


def _runs(index: StreamIndex) -> Iterator[tuple[SourceId, int, str, int]]:
    """Yield each run with its incarnation and its last number."""
    for zid, eid, epoch, incarnation, last in index.rows(_RUNS):
        yield SourceId(str(zid), int(eid)), int(epoch), str(incarnation), int(last)

"""Do journal, stream index and backend belong together? Compared at every start (ADR 0090).

Each is a file or a table of its own, and any of them may be missing, another's, or an older copy.
The index knows which journal its `drained` counts the entries of, and a journal's entries have ids
without holes: so a stranger, and a journal or an index that is older than the other, show. Whether
the backend is the one that the index tells of shows in a few samples, those recorded last among
them, and in what the backend has of the same streams where the index knows of nothing (ADR 0391):
that is read, which costs the same whatever the backend holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, Stream
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.storage.contract import Held, Storage
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.index_rows import StreamInfo
from durable_cache.storage.journaled.journal import Journal

Waiting = Callable[[], Iterator[Sample]]
_WITNESSES = 4
"""Streams looked at from each end of the index, besides those that were recorded last."""


def journal_finding(journal: Journal, index: StreamIndex) -> str:
    """Let the index count this journal's entries; return what is wrong, else "".

    After a finding every entry that the journal holds is drained again, which changes nothing
    where it was drained before. The index is read anew as well: two parts that do not belong
    together show that one of them is another's or older, and not which.
    """
    first, last = journal.span()
    drained, known = index.drained(), index.journal()
    finding = ""
    if known is not None and known != journal.identity:
        finding = (
            f"journal {journal.path} is not the one that the stream index beside it was written "
            "with: what only that one held is missing here and is asked of other caches; the "
            "index is read anew from the backend"
        )
    elif drained > last:
        finding = (
            f"journal {journal.path} ends at entry {last} and entry {drained} was drained from it: "
            "it is new or an older copy; what only a later one held is asked of other caches, the "
            "stream index is read anew from the backend"
        )
    elif first > drained + 1:
        finding = (
            f"the stream index beside {journal.path} is new or an older copy: it is read anew "
            "from the backend"
        )
    if finding:
        begin_anew(journal, index)
        return finding
    index.adopt(journal.identity, drained, doubted=False)
    if journal.finding:
        return (
            f"{journal.finding}: it is damaged or an older copy; what is missing is asked of other "
            "caches"
        )
    return ""


def begin_anew(journal: Journal, index: StreamIndex) -> None:
    """Have every entry drained again, and the index read anew from the backend, durably.

    The journal takes another identity: an index of before a finding, put back after it, fits
    neither the journal nor the backend, and neither the entries nor a few samples need show that.
    """
    journal.renew()
    index.adopt(journal.identity, journal.span()[0] - 1, doubted=True)


def backend_finding(index: StreamIndex, backend: Storage, waiting: Waiting) -> str:
    """Return what is wrong when the backend is not the one that the index tells of, else "".

    `waiting` yields what is on its way to the backend: that may be there already.
    """
    witnesses = index.witnesses(_WITNESSES)
    if not witnesses:  # it may tell of what was purged, and nothing else
        if not any(_is_beyond(index, held) for held in backend.held()):
            return ""
        return (
            "the stream index holds nothing and the backend does: it is read anew from the backend"
        )
    for stream, sn in witnesses:
        if not _first(backend, stream, SnBounds(sn, sn)):
            return (
                f"the backend does not hold number {sn} of {stream.source} on {stream.key[:80]!r}, "
                "which the stream index says it had: it is new, another one or an older copy; "
                "the stream index is read anew from it, and what is missing is asked of other "
                "caches"
            )
    # Of wildcard updates what others have is read by the key, and found on others.
    streams = {stream: None for stream, _ in witnesses if "*" not in stream.key}
    for stream, info in index.infos([*streams]).items():
        for bounds in _not_held(info):
            found = _first(backend, stream, bounds)
            if found and not any(sample.identity == found[0].identity for sample in waiting()):
                return (
                    f"the backend holds number {found[0].sn} of {stream.source} on "
                    f"{stream.key[:80]!r}, which neither the stream index nor the journal knows: "
                    "they are older copies, or it is; the stream index is read anew from the "
                    "backend"
                )
    return ""


def _not_held(info: StreamInfo) -> Iterator[SnBounds]:
    """Yield where nothing is, as the index says: behind the last, before the first, and in holes.

    Of the holes the first and the last; what is below the floor may be there and does not count.
    """
    runs = [*info.held]
    yield SnBounds(runs[-1].last + 1 if runs else 0, None)
    floor = max(info.floor, info.purged)
    if runs and runs[0].first > floor:
        yield SnBounds(floor, runs[0].first - 1)
    for before, behind in [*pairwise(runs)][:: max(1, len(runs) - 2)]:
        yield SnBounds(before.last + 1, behind.first - 1)


def _is_beyond(index: StreamIndex, held: Held) -> bool:
    """Tell whether something is held that was not removed."""
    info = index.infos([held.stream])[held.stream]
    last = held.runs.last
    return last is not None and last >= max(info.floor, info.purged)


def _first(backend: Storage, stream: Stream, sns: SnBounds) -> tuple[Sample, ...]:
    selection = Selection(
        KeyExpression(stream.key), stream.source.zid, stream.source.eid, stream.epoch, sns
    )
    return tuple(backend.read(selection, 1).samples)

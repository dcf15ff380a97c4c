"""Do journal, stream index and backend belong together? Compared at every start (ADR 0090).

Each is a file or a table of its own, and any of them may be missing, another's, or an older copy.
The index knows which journal its `drained` counts the entries of, and a journal's entries have ids
without holes: so a stranger, and a journal or an index that is older than the other, show. Whether
the backend is the one that the index tells of shows in a few samples, those recorded last among
them: they are read, which costs the same whatever the backend holds.
"""

from __future__ import annotations

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.storage.contract import Storage
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.journal import Journal

__all__ = ["backend_finding", "journal_finding"]

_WITNESSES = 4
"""Streams looked at from each end of the index, besides those that were recorded last."""


def journal_finding(journal: Journal, index: StreamIndex) -> tuple[str, bool]:
    """Let the index count this journal's entries; return what is wrong and whether it is the index.

    After a finding every entry that the journal holds is drained again, which changes nothing
    where it was drained before.
    """
    first, last = journal.span()
    drained, known = index.drained(), index.journal()
    finding, index_is_older = "", False
    if known is not None and known != journal.identity:
        finding = (
            f"journal {journal.path} is not the one that the stream index beside it was written "
            "with: what only that one held is missing here and is asked of other caches"
        )
    elif drained > last:
        finding = (
            f"journal {journal.path} ends at entry {last} and entry {drained} was drained from it: "
            "it is new or an older copy; what only a later one held is asked of other caches"
        )
    elif first > drained + 1:
        index_is_older = True
        finding = (
            f"the stream index beside {journal.path} is new or an older copy: it is read anew "
            "from the backend"
        )
    index.adopt(journal.identity, first - 1 if finding else drained)
    return finding, index_is_older


def backend_finding(index: StreamIndex, backend: Storage) -> str:
    """Return what is wrong when the backend is not the one that the index tells of, else ""."""
    if index.streams == 0:
        if next(iter(backend.held()), None) is None:
            return ""
        return "the stream index is empty and the backend is not: it is read anew from the backend"
    for stream, sn in index.witnesses(_WITNESSES):
        selection = Selection(
            KeyExpression(stream.key),
            stream.source.zid,
            stream.source.eid,
            stream.epoch,
            SnBounds(sn, sn),
        )
        if not len(backend.read(selection, 1).samples):
            return (
                f"the backend does not hold number {sn} of {stream.source} on {stream.key[:80]!r}, "
                "which the stream index says it had: it is new, another one or an older copy; "
                "the stream index is read anew from it, and what is missing is asked of other "
                "caches"
            )
    return ""

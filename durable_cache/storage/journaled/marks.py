"""Which numbers tell that a backend is an older copy: those it was given last (ADR 0330).

A copy of before lacks the last things that were stored. What was stored once more tells nothing: it
may have been there when the copy was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.storage.journaled import index_blocks as blocks
from durable_cache.storage.journaled.index_blocks import Read
from durable_cache.storage.journaled.index_rows import StreamInfo

Mark = tuple[str, SourceId, int, int]
"""A key, a source, an epoch, and a number that the backend was given."""
_MARKS_MAX = 4
_marks = msgspec.json.Decoder(list[Mark])


def marks_of(batch: SampleBatch, known: Mapping[Stream, StreamInfo], read: Read) -> list[Mark]:
    """Return up to four numbers of a batch that the index does not know yet; of a stream one."""
    marks: list[Mark] = []
    for stream, new in batch.summaries.items():
        info = known[stream]
        sn = new.runs.difference(info.held).last
        if sn is None or (sn < info.since and blocks.holds(read, info.owner, sn)):
            continue
        marks.append((*stream, sn))
        if len(marks) == _MARKS_MAX:
            break
    return marks


def write_marks(marks: Iterable[Mark]) -> str:
    """Return marks as they are kept."""
    return msgspec.json.encode(marks).decode()


def read_marks(kept: str | None) -> list[Mark]:
    """Return what was kept; nothing where nothing was."""
    return _marks.decode(kept) if kept else []

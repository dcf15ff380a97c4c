"""How the sums of nodes and the runs of streams are packed, for there are many in a message.

Whatever a peer sends, decoding returns values within the bounds here or raises
`RemoteProtocolError`; what is allocated goes with the bytes received.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from dataclasses import dataclass
from struct import Struct as Layout
from typing import NamedTuple

from durable_cache.errors import RemoteProtocolError
from durable_cache.protocol.alignment.fingerprints import ARITY
from durable_cache.protocol.alignment.knowledge import FlatRuns

NODES_MAX = 4096
ENTRIES_MAX = 4096
RUNS_MAX = 1 << 16
SQUEEZED_BYTES_MAX = 16 << 20
_NUMBER_MAX = 1 << 63
"""Above every number there is: those of unnumbered samples are timestamps."""


def check(right: bool, what: str) -> None:
    """Raise RemoteProtocolError, never to be retried, unless a message is as it may be."""
    if not right:
        raise RemoteProtocolError(f"a message of alignment that is not allowed: {what}")


def check_runs(runs: FlatRuns) -> None:
    """Raise RemoteProtocolError unless flat runs are sorted, disjoint and in range."""
    check(len(runs) % 2 == 0 and len(runs) <= 2 * RUNS_MAX, "runs")
    before = -2
    for first, last in zip(runs[::2], runs[1::2], strict=True):
        check(before + 1 < first <= last < _NUMBER_MAX, "runs out of order")
        before = last


def squeeze(batch: bytes) -> tuple[bytes, int]:
    """Return samples compressed and their size before; as they are, and 0, where that saves little.

    A page that holds one very large sample stays as it is: what comes is never trusted with more
    than 16 MiB.
    """
    if len(batch) > SQUEEZED_BYTES_MAX:
        return batch, 0
    small = zlib.compress(batch, 1)
    return (small, len(batch)) if 10 * len(small) < 9 * len(batch) else (batch, 0)


def unsqueeze(packed: bytes, size: int) -> bytes:
    """Return what `squeeze` was given."""
    if not size:
        return packed
    check(size <= SQUEEZED_BYTES_MAX, "samples of too many bytes")
    stream = zlib.decompressobj()
    try:
        batch = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise RemoteProtocolError("samples that cannot be unpacked") from error
    check(len(batch) == size and stream.eof, "samples of another size")
    return batch


class NodeSums(NamedTuple):
    """A node and the cut sums of those of its children that are there."""

    path: int
    asked: int
    """One bit a child: which are to be compared."""
    sums: dict[int, int]
    """By child; absent children have no sum."""


_NODE = Layout("<IHH")
_DEEP_NODE = Layout("<QHH")


def encode_nodes(nodes: list[NodeSums], level: int) -> bytes:
    """Pack nodes of one level: 8 bytes each, and 2 for each child that is there."""
    parts = []
    layout = _NODE if level <= 8 else _DEEP_NODE
    for path, asked, sums in nodes:
        present = sum(1 << child for child in sums)
        parts.append(layout.pack(path, asked, present))
        parts.append(array("H", [sums[child] for child in sorted(sums)]).tobytes())
    return b"".join(parts)


def decode_nodes(packed: bytes, level: int) -> list[NodeSums]:
    """Read packed nodes of one level, at most 4,096."""
    nodes: list[NodeSums] = []
    at = 0
    layout = _NODE if level <= 8 else _DEEP_NODE
    while at < len(packed):
        check(len(nodes) < NODES_MAX, "too many nodes")
        try:
            path, asked, present = layout.unpack_from(packed, at)
        except struct.error as error:
            raise RemoteProtocolError("nodes that end too soon") from error
        at += layout.size
        children = [child for child in range(ARITY) if present >> child & 1]
        check(path < 1 << 4 * level and at + 2 * len(children) <= len(packed), "nodes")
        values = array("H", packed[at : at + 2 * len(children)])
        at += 2 * len(children)
        nodes.append(NodeSums(path, asked, dict(zip(children, values, strict=True))))
    return nodes


@dataclass(slots=True)
class Entry:
    """What a cache knows of one stream, as of its slot, from `first` up to `next`."""

    place: int
    floor: int
    purge: int
    runs: FlatRuns
    unrecoverable: FlatRuns
    first: int = 0
    next: int = 0
    """Where the rest begins; 0 when this is all."""
    content: int = 0
    """The content fingerprint; 0 in the lane of knowledge."""
    blocks: tuple[int, int] = (0, -1)
    purged_ntp64: int = 0
    """Told beside the entries."""


_PLACE = Layout("<QB")
_CUT, _PURGE, _CONTENT, _UNRECOVERABLE, _ONE = 1, 2, 4, 8, 16


def encode_entries(entries: list[Entry]) -> bytes:
    """Pack entries; about 16 bytes of a stream with one run."""
    out = bytearray()
    for entry in entries:
        one = len(entry.runs) == 2 and entry.runs[0] == entry.floor
        flags = (
            (_CUT if entry.first or entry.next else 0)
            | (_PURGE if entry.purge else 0)
            | (_CONTENT if entry.content else 0)
            | (_UNRECOVERABLE if entry.unrecoverable else 0)
            | (_ONE if one else 0)
        )
        out += _PLACE.pack(entry.place, flags)
        numbers = [entry.floor]
        if entry.purge:
            numbers.append(entry.purge)
        if flags & _CUT:
            numbers += (entry.first, entry.next)
        if flags & _CONTENT:
            numbers += (entry.content, entry.blocks[0], entry.blocks[1] + 1)
        if one:
            numbers.append(entry.runs[1] - entry.runs[0])
        else:
            numbers += _steps(entry.runs)
        if entry.unrecoverable:
            numbers += _steps(entry.unrecoverable)
        _put_numbers(out, numbers)
    return bytes(out)


def _steps(runs: FlatRuns) -> list[int]:
    before, steps = 0, [len(runs) // 2]
    for number in runs:
        steps.append(number - before)
        before = number
    return steps


def _put_numbers(out: bytearray, numbers: list[int]) -> None:
    for number in numbers:
        rest = number
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)


class _Reader:
    """Reads packed numbers; never beyond the end, never above 64 bits."""

    __slots__ = ("at", "packed")

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self.at = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            check(self.at < len(self.packed) and shift < 70, "entries that end too soon")
            byte = self.packed[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def runs(self) -> FlatRuns:
        count = self.number()
        check(count <= RUNS_MAX and 2 * count <= len(self.packed) - self.at, "too many runs")
        before = 0
        numbers = []
        for _ in range(2 * count):
            before += self.number()
            numbers.append(before)
        found = tuple(numbers)
        check_runs(found)
        return found


def decode_entries(packed: bytes) -> list[Entry]:
    """Read packed entries, at most 4,096."""
    reader = _Reader(packed)
    entries: list[Entry] = []
    while reader.at < len(packed):
        check(len(entries) < ENTRIES_MAX, "too many entries")
        check(reader.at + _PLACE.size <= len(packed), "entries that end too soon")
        place, flags = _PLACE.unpack_from(packed, reader.at)
        reader.at += _PLACE.size
        entries.append(_entry(reader, place, flags))
    return entries


def _entry(reader: _Reader, place: int, flags: int) -> Entry:
    entry = Entry(place, reader.number(), 0, (), ())
    if flags & _PURGE:
        entry.purge = reader.number()
    if flags & _CUT:
        entry.first, entry.next = reader.number(), reader.number()
    if flags & _CONTENT:
        entry.content = reader.number()
        entry.blocks = (reader.number(), reader.number() - 1)
    if flags & _ONE:
        entry.runs = (entry.floor, entry.floor + reader.number())
    else:
        entry.runs = reader.runs()
    if flags & _UNRECOVERABLE:
        entry.unrecoverable = reader.runs()
    check(max((entry.floor, entry.purge, *entry.runs[-1:])) < _NUMBER_MAX, "entry out of range")
    return entry

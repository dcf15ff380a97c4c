"""What a cache answers to another's questions; nothing is kept between two questions."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Stream
from durable_cache.protocol.alignment.events import AlignerOptions, ReadSamples, SendReply
from durable_cache.protocol.alignment.fingerprints import (
    ARITY,
    LEVELS_MAX,
    Node,
    short_content,
    short_knowledge,
)
from durable_cache.protocol.alignment.knowledge import (
    FlatRuns,
    StreamKnowledge,
    flat,
    ranges,
)
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.packing import (
    Entry,
    NodeSums,
    decode_nodes,
    encode_entries,
    encode_nodes,
    squeeze,
)
from durable_cache.protocol.alignment.view import View
from durable_cache.protocol.alignment.wire import (
    NAMES_MAX,
    Blocks,
    BlocksReply,
    Diff,
    DiffReply,
    Entries,
    EntriesReply,
    Lane,
    Pull,
    PullReply,
    PurgeTimes,
    Refused,
    Reply,
    WrongSlot,
    encode_reply,
)
from durable_cache.protocol.wire import Incarnation, encode_batch, not_said

_STREAMS_DIRECT = 4
"""So few streams are named at once: their entries are no larger than one node's sums."""
_PARTS = 32
_ENTRY_NUMBERS_MAX = 1 << 15


def child_sums(
    children: list[Node], lane: Lane, salt: int, offsets: dict[int, int]
) -> dict[int, int]:
    """Return the cut sums of children, those that are nothing left out.

    `offsets` adds to a child's sum what the peer is known to have otherwise.
    """
    sums = {}
    for child, node in enumerate(children):
        if lane is Lane.KNOWLEDGE:
            value = node.knowledge + offsets.get(child, 0) & (1 << 128) - 1
            if value:
                sums[child] = short_knowledge(value, salt)
        else:
            value = node.content + offsets.get(child, 0) & (1 << 64) - 1
            if value:
                sums[child] = short_content(value, salt)
    return sums


def answer(
    ledger: Ledger, request: Diff | Entries | Pull | Blocks, handle: int, options: AlignerOptions
) -> SendReply | ReadSamples:
    """Answer one question of another cache."""
    reply: Reply
    view = ledger.views.get(request.view)
    if view is None or not view.ready or ledger.applying:
        reply = Refused("not ready to compare yet", retry=True)
        return SendReply(handle, encode_reply(reply))
    match request:
        case Diff():
            reply = answer_diff(ledger, view, request, options)
        case Entries():
            reply = answer_entries(ledger, view, request, options)
        case Blocks():
            reply = answer_blocks(ledger, view, request)
        case Pull():
            read = answer_pull(ledger, view, request, handle, options)
            return read if read.wanted else SendReply(handle, pull_reply(read))
    return SendReply(handle, encode_reply(reply))


def answer_diff(
    ledger: Ledger, view: View, request: Diff, options: AlignerOptions
) -> DiffReply | WrongSlot:
    """Compare the asker's sums with ours and say more about what differs."""
    changed = max(view.changed, request.changed)
    if request.exact and changed > min(ledger.slot, request.slot):
        return WrongSlot(ledger.slot, view.changed)
    answer = _Answer(ledger, view, request, options)
    for index, asked, theirs in decode_nodes(request.nodes, request.level):
        children = view.tree.children(request.level, index)
        mine = child_sums(children, request.lane, request.salt, {})
        for child in range(ARITY):
            if asked >> child & 1 and mine.get(child) != theirs.get(child):
                absent = child not in theirs
                answer.add(index * ARITY + child, children[child].streams, absent)
    return answer.reply()


class _Answer:
    """One `DiffReply` in the making, within its bounds."""

    def __init__(self, ledger: Ledger, view: View, request: Diff, options: AlignerOptions) -> None:
        self._ledger, self._view, self._request = ledger, view, request
        self._level = request.level + 1
        self._nodes: list[NodeSums] = []
        self._entries: list[Entry] = []
        self._names: list[Stream] = []
        self._leaves: list[int] = []
        self._rest: list[int] = []
        self._room = options.entries_per_reply_max
        self._numbers = _ENTRY_NUMBERS_MAX
        self._nodes_max = options.nodes_per_request_max

    def add(self, index: int, streams: int, absent: bool) -> None:
        """Answer one differing child."""
        empty = not self._entries
        fits = streams <= self._room and self._numbers > 0
        bottom = self._level >= LEVELS_MAX - 1
        if streams <= _STREAMS_DIRECT or bottom or (absent and fits):
            if not (fits or empty):
                self._rest.append(index)
                return
            for record in self._view.tree.leaves(self._level, index):
                self._add_entry(record, absent)
            self._leaves.append(index)
        elif len(self._nodes) < self._nodes_max:
            request = self._request
            children = self._view.tree.children(self._level, index)
            sums = child_sums(children, request.lane, request.salt, {})
            self._nodes.append(NodeSums(index, 0xFFFF, sums))
        else:
            self._rest.append(index)

    def _add_entry(self, record: StreamKnowledge, named: bool) -> None:
        entry = self._ledger.entry(record, self._request.lane)
        self._entries.append(entry)
        self._room -= 1
        self._numbers -= len(entry.runs) + len(entry.unrecoverable)
        if named:
            self._names.append(record.stream)

    def reply(self) -> DiffReply:
        return DiffReply(
            encode_nodes(self._nodes, self._level),
            tuple(self._leaves),
            encode_entries(self._entries),
            tuple(self._rest),
            tuple(self._names),
            _purge_times(self._entries),
        )


def _purge_times(entries: Iterable[Entry]) -> PurgeTimes:
    return tuple((entry.place, entry.purged_ntp64) for entry in entries if entry.purged_ntp64)


def answer_entries(
    ledger: Ledger, view: View, request: Entries, options: AlignerOptions
) -> EntriesReply:
    """Tell about streams by name; those beyond the bound are left out."""
    entries: list[Entry] = []
    names: list[Stream] = []
    numbers = _ENTRY_NUMBERS_MAX
    for place, first in request.items[: options.entries_per_reply_max]:
        record = ledger.records.get(place)
        if record is None or not record.views & view.bit or numbers <= 0:
            continue
        entry = ledger.entry(record, request.lane, first)
        numbers -= len(entry.runs) + len(entry.unrecoverable)
        entries.append(entry)
        names.append(record.stream)
    return EntriesReply(encode_entries(entries), tuple(names), _purge_times(entries))


def answer_blocks(ledger: Ledger, view: View, request: Blocks) -> BlocksReply:
    """Give the content sums of blocks, in parts."""
    parts = []
    for place, first, last in request.items:
        record = ledger.records.get(place)
        if record is None or not record.views & view.bit or last < first:
            continue
        width = -(-(last - first + 1) // _PARTS)
        sums = array(
            "Q",
            [
                record.block_sum(at, min(at + width - 1, last))
                for at in range(first, last + 1, width)
            ],
        )
        parts.append((place, first, last, width, sums.tobytes()))
    return BlocksReply(tuple(parts))


def answer_pull(
    ledger: Ledger, view: View, request: Pull, handle: int, options: AlignerOptions
) -> ReadSamples:
    """Say what to read for a pull, newest first, and what is not retained."""
    left = min(request.samples_max, options.page_samples_max)
    wanted: list[tuple[Stream, FlatRuns]] = []
    places: list[int] = []
    absent: list[tuple[int, FlatRuns]] = []
    for place, runs in request.items:
        record = ledger.records.get(place)
        if record is None or not record.views & view.bit:
            absent.append((place, runs))
            continue
        need = ranges(runs)
        have = need.intersection(ledger.current(record))
        missing = need.difference(have)
        if missing:
            absent.append((place, flat(missing)))
        chosen = _newest(have, left)
        if chosen:
            left -= chosen.count
            wanted.append((record.stream, flat(chosen)))
            places.append(place)
    return ReadSamples(
        handle,
        tuple(wanted),
        tuple(absent),
        tuple(places),
        request.received_after_ns,
        min(request.bytes_max, options.page_bytes_max),
        left,
    )


def _newest(runs: RangeSet, count: int) -> RangeSet:
    chosen = RangeSet()
    for first, last in reversed(list(runs)):
        if count <= 0:
            break
        chosen.add(max(first, last - count + 1), last)
        count -= last - first + 1
    return chosen


def pull_reply(
    read: ReadSamples, samples: Iterable[Sample] = (), names: Sequence[Incarnation] = ()
) -> bytes:
    """Return the reply to a pull; `names`: which runs the epochs of its sources are.

    What the samples that are sent say of their runs themselves is not said again (ADR 0288).

    `samples` are those the storage has of ``read.wanted``, in any order; they are taken until the
    reply is full, so a generator is not read further than needed.
    """
    places = {stream: place for (stream, _), place in zip(read.wanted, read.places, strict=True)}
    chosen: list[Sample] = []
    old: dict[int, RangeSet] = {}
    size = 0
    for sample in samples:
        place = places.get(sample.stream)
        if place is None:
            continue
        if sample.received_ns < read.received_after_ns:
            old.setdefault(place, RangeSet()).add(sample.sn, sample.sn)
            continue
        size += sample.size
        if chosen and size > read.bytes_max:
            break
        chosen.append(sample)
    batch, unpacked = squeeze(encode_batch(SampleBatch(chosen))) if chosen else (b"", 0)
    told_old = tuple((place, flat(runs)) for place, runs in old.items())
    told_names = not_said(names, chosen)[:NAMES_MAX]
    return encode_reply(PullReply(batch, read.absent, told_old, unpacked, told_names))

"""Which samples of a batch are new to the table, which repeat one, which contradict one?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import lt
from typing import NamedTuple

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Stream
from durable_cache.storage.contract import Conflict, Refusal
from durable_cache_delta.columns import Columns, StreamPlaces
from durable_cache_delta.index import StreamIndex, StreamRows, Wanted
from durable_cache_delta.rows import refusal, storable_streams

HeldDigests = Callable[[Sequence[Wanted]], Mapping[tuple[Stream, int], bytes]]
"""Reads the digests of what is held of some streams."""


class Choice(NamedTuple):
    """What is to be stored of a batch, in the order of the table, and what became of the rest."""

    columns: Columns
    streams: list[StreamPlaces]
    """The rows to store."""
    rows: list[StreamRows]
    """What they are to the index."""
    duplicates: int
    conflicts: list[Conflict]
    refused: list[Refusal]

    @property
    def new(self) -> int:
        """How many samples are to be stored."""
        return sum(len(places) for _, places in self.streams)


class _Group(NamedTuple):
    stream: Stream
    places: list[int]
    """Where in the batch the stream's samples are."""
    sns: list[int]
    held: RangeSet
    """What of the span of `sns` the table holds."""


def choose(batch: SampleBatch, index: StreamIndex, held_digests: HeldDigests) -> Choice:
    """Compare a batch with what is held; digests of held samples are read only where they meet."""
    samples, digests = batch.samples, batch.digests
    columns = Columns(samples, digests)
    refused: list[Refusal] = []
    if not (columns.storable() and storable_streams(batch.places)):
        reasons = [refusal(sample) for sample in samples]
        refused = [
            Refusal(samples[at], reason) for at, reason in enumerate(reasons) if reason is not None
        ]
        batch = SampleBatch(samples[at] for at, reason in enumerate(reasons) if reason is None)
        samples, digests = batch.samples, batch.digests
        columns = Columns(samples, digests)
    groups = _groups(columns.sns, batch.places, index)
    meeting = [
        Wanted(group.stream, group.held.first, group.held.last, group.held.count)
        for group in groups
        if group.held.first is not None and group.held.last is not None
    ]
    known = held_digests(meeting) if meeting else {}
    streams: list[StreamPlaces] = []
    contradictions: list[tuple[int, Conflict]] = []
    duplicates = 0
    for group in groups:
        new: Sequence[int] = group.places
        if len(group.held) or not _rises(group.sns):
            new, repeats, against = _settle(group, samples, digests, known)
            duplicates += repeats
            contradictions.extend(against)
        if new:
            streams.append(StreamPlaces(group.stream, new))
    contradictions.sort(key=lambda entry: entry[0])
    return Choice(
        columns,
        streams,
        [_summary(batch, columns, *chosen) for chosen in streams],
        duplicates,
        [conflict for _, conflict in contradictions],
        refused,
    )


def _groups(
    sns: Sequence[int], places: Mapping[Stream, list[int]], index: StreamIndex
) -> list[_Group]:
    """Return the streams of a batch in the order of the table."""
    index.check_room(places)
    groups = []
    for stream in sorted(places, key=lambda stream: stream.order):
        here = places[stream]
        numbers = [sns[at] for at in here]
        state = index.streams.get(stream)
        held = RangeSet() if state is None else state.runs.clip(min(numbers), max(numbers))
        groups.append(_Group(stream, here, numbers, held))
    return groups


def _rises(sns: list[int]) -> bool:
    return all(map(lt, sns, sns[1:]))


def _settle(
    group: _Group,
    samples: Sequence[Sample],
    digests: Sequence[bytes],
    known: Mapping[tuple[Stream, int], bytes],
) -> tuple[list[int], int, list[tuple[int, Conflict]]]:
    """Return the places of the new samples by sn, the repeats, and the conflicts by place."""
    first: dict[int, bytes] = {}
    new: list[int] = []
    repeats = 0
    conflicts = []
    for at, sn in zip(group.places, group.sns, strict=True):
        seen = first.get(sn)
        if seen is None and sn in group.held:
            seen = known[group.stream, sn]
        if seen is None:
            first[sn] = digests[at]
            new.append(at)
        elif seen == digests[at]:
            repeats += 1
        else:
            conflicts.append((at, Conflict(samples[at].identity, seen, digests[at])))
    new.sort(key=lambda at: samples[at].sn)
    return new, repeats, conflicts


def _summary(
    batch: SampleBatch, columns: Columns, stream: Stream, places: Sequence[int]
) -> StreamRows:
    if len(places) == len(batch.places[stream]):
        whole = batch.summaries[stream]
        return StreamRows(stream, whole.runs, whole.newest_ntp64, whole.newest_received_ns)
    return StreamRows(
        stream,
        RangeSet.of([columns.sns[at] for at in places]),
        max([columns.ntp64[at] for at in places]),
        max([columns.received_ns[at] for at in places]),
    )

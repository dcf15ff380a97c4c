"""Which samples of a batch are new to the table, which repeat one, which contradict one?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import lt
from typing import NamedTuple

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.storage.contract import Conflict, Refusal
from durable_cache_delta.rows import refusal, storable
from durable_cache_delta.streams import StreamIndex, StreamRows, Wanted

__all__ = ["Choice", "HeldDigests", "choose"]

HeldDigests = Callable[[Sequence[Wanted]], Mapping[tuple[Stream, int], bytes]]
"""Reads the digests of what is held of some streams."""


class Choice(NamedTuple):
    """What is to be stored of a batch, in the order of the table, and what became of the rest."""

    samples: list[Sample]
    digests: list[bytes]
    rows: list[StreamRows]
    duplicates: int
    conflicts: list[Conflict]
    refused: list[Refusal]


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
    refused: list[Refusal] = []
    taken: Sequence[int] = range(len(samples))
    if not storable(samples):
        reasons = [refusal(sample) for sample in samples]
        refused = [
            Refusal(samples[at], reason) for at, reason in enumerate(reasons) if reason is not None
        ]
        taken = [at for at, reason in enumerate(reasons) if reason is None]
    groups = _groups(samples, taken, index)
    meeting = [
        Wanted(group.stream, group.held.first, group.held.last, group.held.count)
        for group in groups
        if group.held.first is not None and group.held.last is not None
    ]
    known = held_digests(meeting) if meeting else {}
    chosen: list[int] = []
    rows: list[StreamRows] = []
    contradictions: list[tuple[int, Conflict]] = []
    duplicates = 0
    for group in groups:
        new = group.places
        if len(group.held) or not _rises(group.sns):
            new, repeats, against = _settle(group, samples, digests, known)
            duplicates += repeats
            contradictions.extend(against)
        if new:
            chosen.extend(new)
            rows.append(_summary(group.stream, [samples[at] for at in new]))
    contradictions.sort(key=lambda entry: entry[0])
    return Choice(
        [samples[at] for at in chosen],
        [digests[at] for at in chosen],
        rows,
        duplicates,
        [conflict for _, conflict in contradictions],
        refused,
    )


def _groups(samples: Sequence[Sample], taken: Sequence[int], index: StreamIndex) -> list[_Group]:
    """Group the batch by stream, in the order of the table."""
    places: dict[tuple[str, SourceId, int], list[int]] = {}
    for at in taken:
        sample = samples[at]
        stream = (sample.key, sample.source, sample.epoch)
        try:
            places[stream].append(at)
        except KeyError:
            places[stream] = [at]
    groups = []
    for key, held_places in places.items():
        stream_key = Stream(*key)
        sns = [samples[at].sn for at in held_places]
        state = index.streams.get(stream_key)
        held = RangeSet() if state is None else state.runs.clip(min(sns), max(sns))
        groups.append(_Group(stream_key, held_places, sns, held))
    index.check_room(group.stream for group in groups)
    groups.sort(key=lambda group: group.stream.order)
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


def _summary(stream: Stream, samples: list[Sample]) -> StreamRows:
    return StreamRows(
        stream,
        RangeSet.of(sample.sn for sample in samples),
        max([sample.ntp64 for sample in samples]),
        max([sample.received_ns for sample in samples]),
    )

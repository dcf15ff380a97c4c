"""Which prefix of each stream retention lets go, computed from samples in memory."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from durable_cache.model.sample import Sample, Stream
from durable_cache.storage.contract import Floor, Retention


class Weight(NamedTuple):
    """What retention looks at in a sample."""

    sn: int
    received_ns: int
    size: int


def floors_of(
    stored: Mapping[Stream, Sequence[Sample]], retention: Retention, now_ns: int
) -> list[Floor]:
    """Return the floor of every stream that must lose samples; samples come in order of sn."""
    kept: dict[Stream, Sequence[Weight]] = {
        stream: [Weight(s.sn, s.received_ns, stored_bytes(s)) for s in samples]
        for stream, samples in stored.items()
    }
    if retention.samples_max is not None:
        most = retention.samples_max
        kept = {stream: samples[max(0, len(samples) - most) :] for stream, samples in kept.items()}
    if retention.age_seconds_max is not None:
        oldest_ns = now_ns - round(retention.age_seconds_max * 1e9)
        kept = {stream: young(samples, oldest_ns) for stream, samples in kept.items()}
    if retention.bytes_max is not None:
        kept = within(kept, retention.bytes_max)
    return [
        Floor(stream, kept[stream][0].sn if kept[stream] else samples[-1].sn + 1)
        for stream, samples in stored.items()
        if len(kept[stream]) < len(samples)
    ]


def young(samples: Sequence[Weight], oldest_ns: int) -> Sequence[Weight]:
    """Return a stream from the first sample on that is not too old."""
    for at, sample in enumerate(samples):
        if sample.received_ns >= oldest_ns:
            return samples[at:]
    return ()


def within(
    kept: Mapping[Stream, Sequence[Weight]], bytes_max: int
) -> dict[Stream, Sequence[Weight]]:
    """Drop heads of streams, the head received first going first, until the rest fits."""
    total = sum(sample.size for samples in kept.values() for sample in samples)
    heads = [
        (samples[0].received_ns, stream.order, stream)
        for stream, samples in kept.items()
        if samples
    ]
    heapq.heapify(heads)
    start = dict.fromkeys(kept, 0)
    while total > bytes_max and heads:
        _, order, stream = heapq.heappop(heads)
        samples = kept[stream]
        total -= samples[start[stream]].size
        start[stream] += 1
        if start[stream] < len(samples):
            heapq.heappush(heads, (samples[start[stream]].received_ns, order, stream))
    return {stream: samples[start[stream] :] for stream, samples in kept.items()}


def stored_bytes(sample: Sample) -> int:
    """Return the bytes of a sample that `Retention.bytes_max` counts."""
    return len(sample.payload) + len(sample.attachment or b"")

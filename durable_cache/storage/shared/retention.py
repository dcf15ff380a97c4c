"""Which prefix of each stream retention lets go, computed from samples in memory."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from durable_cache.model.sample import Sample, Stream
from durable_cache.storage.contract import Floor, Retention

__all__ = ["floors_of"]


def floors_of(
    stored: Mapping[Stream, Sequence[Sample]], retention: Retention, now_ns: int
) -> list[Floor]:
    """Return the floor of every stream that must lose samples; samples come in order of sn."""
    kept = {stream: list(samples) for stream, samples in stored.items()}
    if retention.samples_max is not None:
        most = retention.samples_max
        kept = {stream: samples[max(0, len(samples) - most) :] for stream, samples in kept.items()}
    if retention.age_seconds_max is not None:
        oldest_ns = now_ns - round(retention.age_seconds_max * 1e9)
        kept = {stream: _young(samples, oldest_ns) for stream, samples in kept.items()}
    if retention.bytes_max is not None:
        kept = _within(kept, retention.bytes_max)
    return [
        Floor(stream, kept[stream][0].sn if kept[stream] else samples[-1].sn + 1)
        for stream, samples in stored.items()
        if len(kept[stream]) < len(samples)
    ]


def _young(samples: list[Sample], oldest_ns: int) -> list[Sample]:
    for at, sample in enumerate(samples):
        if sample.received_ns >= oldest_ns:
            return samples[at:]
    return []


def _within(kept: dict[Stream, list[Sample]], bytes_max: int) -> dict[Stream, list[Sample]]:
    """Drop heads of streams, the head received first going first, until the rest fits."""
    total = sum(stored_bytes(sample) for samples in kept.values() for sample in samples)
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
        total -= stored_bytes(samples[start[stream]])
        start[stream] += 1
        if start[stream] < len(samples):
            heapq.heappush(heads, (samples[start[stream]].received_ns, order, stream))
    return {stream: samples[start[stream] :] for stream, samples in kept.items()}


def stored_bytes(sample: Sample) -> int:
    """Return the bytes of a sample that `Retention.bytes_max` counts."""
    return len(sample.payload) + len(sample.attachment or b"")

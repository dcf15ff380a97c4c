"""The name of the run that a sample is of, as the id of its timestamp (ADR 0366).

A run is one numbering of a publisher from its first number on. Nothing that Zenoh carries beside a
number says of which run that is, but the id of a timestamp is free: nobody orders by it alone. Our
publishers write the name there, so that a sample says of which run it is wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from durable_cache.model.sample import Sample, SampleBatch, SourceId

INCARNATION_DIGITS = 8
"""32 random bits: among the few runs of one source within an epoch, two alike are no event."""
_MARK = "d0c5e9b7a1f3642d"
"""Begins every such id: 64 bits that no other clock has, but once in 2^64."""
_DIGITS = 32
_SOURCE, _TIMESTAMP_ID = attrgetter("source"), attrgetter("timestamp_id")
_HEX = frozenset("0123456789abcdef")
_EPOCH_MAX = (1 << 29) - 1
"""What a packed sequence has room for."""
_EPOCH_DIGITS = _DIGITS - len(_MARK) - INCARNATION_DIGITS


class RunName(NamedTuple):
    """One run of a source: when its publisher says it began, and what it calls it."""

    epoch: int
    """As the publisher declares it; caches may call the run by a later one."""
    incarnation: str

    @property
    def timestamp_id(self) -> str:
        """The id that the timestamps of its samples bear, in hex."""
        return f"{_MARK}{self.epoch:0{_EPOCH_DIGITS}x}{self.incarnation}"


@lru_cache(maxsize=65536)
def run_of_id(timestamp_id: str) -> RunName | None:
    """Return the run that a timestamp's id names; None where it names none that can be."""
    if len(timestamp_id) != _DIGITS or not timestamp_id.startswith(_MARK):
        return None
    if not _HEX.issuperset(timestamp_id):
        return None
    epoch = int(timestamp_id[len(_MARK) : -INCARNATION_DIGITS], 16)
    return RunName(epoch, timestamp_id[-INCARNATION_DIGITS:]) if 0 < epoch <= _EPOCH_MAX else None


def run_of(sample: Sample) -> RunName | None:
    """Return the run that a sample names; None where its publisher names none."""
    return run_of_id(sample.timestamp_id)


def names(sample: Sample, incarnation: str) -> bool:
    """Tell whether a sample says that it is of a run."""
    run = run_of(sample)
    return run is not None and run.incarnation == incarnation


def by_named_run(
    samples: Sequence[Sample],
) -> list[tuple[RunName | None, Sequence[Sample]]]:
    """Part samples by the run that they name, each part in order; nearly always there is one."""
    ids = dict.fromkeys(map(_TIMESTAMP_ID, samples))
    if len(ids) == 1:
        return [(run_of_id(*ids), samples)]
    parts: dict[RunName | None, list[Sample]] = {}
    for sample in samples:
        parts.setdefault(run_of(sample), []).append(sample)
    return [*parts.items()]


def runs_of(batch: SampleBatch) -> set[tuple[SourceId, RunName]]:
    """Return the runs that samples name, each with its source."""
    ids = batch.timestamp_ids
    named = {one: run for one in ids if (run := run_of_id(one))}
    if not named:
        return set()
    if len(ids) == 1:  # nearly always
        (run,) = named.values()
        return {(source, run) for source in batch.sources}
    pairs = set(zip(map(_SOURCE, batch), map(_TIMESTAMP_ID, batch), strict=True))
    return {(source, named[one]) for source, one in pairs if one in named}

"""How one storage's history gets into another, whole, whatever was already there.

Both sides name what they hold in one order, so a copy that was cut off goes on at the first number
that is missing, and its end is verified by comparing the two lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SampleBatch, Skip, Stream, key_bytes, zid_number
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import Held, Refusal, Storage

PAGE_SAMPLES = 10_000
REFUSALS_KEPT_MAX = 100


class Missing(NamedTuple):
    """What the destination lacks of one stream of the source."""

    stream: Stream
    runs: RangeSet

    @property
    def samples(self) -> int:
        """How many samples that is."""
        return sum(last - first + 1 for first, last in self.runs)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What a copy did, and what is still missing after it."""

    samples: int
    new: int
    conflicts: int
    refused: tuple[Refusal, ...]
    """The first of the samples that the destination can never take."""
    missing: int
    """Samples of the source that the destination still lacks; 0 after a good copy."""


def missing_streams(
    source: Storage, destination: Storage, key_expr: KeyExpression
) -> Iterator[Missing]:
    """Yield what the destination lacks, in the order of streams; holds one stream of each."""
    theirs = destination.held()
    other = next(theirs, None)
    for held in source.held():
        while other is not None and other.stream.order < held.stream.order:
            other = next(theirs, None)
        if not key_expr.matches(held.stream.key):
            continue
        runs = _lacking(held, other)
        if runs:
            yield Missing(held.stream, runs)


def _lacking(held: Held, other: Held | None) -> RangeSet:
    if other is None or other.stream != held.stream:
        return held.runs
    return held.runs.difference(other.runs)


def copy_history(
    source: Storage,
    destination: Storage,
    key_expr: KeyExpression,
    progress: Callable[[int], None],
    page_samples: int = PAGE_SAMPLES,
) -> CopyResult:
    """Copy every sample and skip that the destination lacks; repeat it after any error.

    `progress` is told how many samples each page brought. Raises what the storages raise.
    """
    cursor = _before(next(missing_streams(source, destination, key_expr), None))
    samples = new = conflicts = 0
    refused: list[Refusal] = []
    while cursor is not None:
        page = source.read(Selection(key_expr=key_expr), page_samples, cursor)
        if page.samples.samples:
            result = destination.append(page.samples)
            samples += len(page.samples)
            new += result.new
            conflicts += len(result.conflicts)
            refused += result.refused[: REFUSALS_KEPT_MAX - len(refused)]
            progress(len(page.samples))
        cursor = page.cursor
    _copy_skips(source, destination)
    missing = sum(item.samples for item in missing_streams(source, destination, key_expr))
    return CopyResult(samples, new, conflicts, tuple(refused), missing)


def _before(missing: Missing | None) -> Cursor | None:
    """Return the place just before the first missing sample."""
    if missing is None:
        return None
    key, source, epoch = missing.stream
    first, _ = next(iter(missing.runs))
    return (key_bytes(key), zid_number(source.zid), source.eid, epoch, first - 1)


def _copy_skips(source: Storage, destination: Storage) -> None:
    """Copy the skips; where the destination holds the sample, the sample stays."""
    skips: list[Skip] = []
    for skip in source.skips():
        skips.append(skip)
        if len(skips) == PAGE_SAMPLES:
            destination.append(SampleBatch(), skips)
            skips = []
    if skips:
        destination.append(SampleBatch(), skips)

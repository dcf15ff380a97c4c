"""When an aligner asks again for what nobody had."""

from __future__ import annotations

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream
from durable_cache.protocol.alignment import AlignerOptions, CacheProfile
from durable_cache.protocol.alignment.again import Again
from durable_cache.protocol.alignment.ledger import Ledger

STREAM = Stream("a/b", SourceId("1", 1), 1)
SECOND_NS = 10**9


def due_at(again: Again, first: int, last: int) -> list[int]:
    """Return in which seconds it is due."""
    return [second for second in range(first, last) if again.is_due(second * SECOND_NS)]


def test_it_is_asked_for_twice_more_and_then_rests() -> None:
    ledger = Ledger(AlignerOptions(), CacheProfile("one", "1", ("a/**",)))
    again = Again(ledger)
    assert due_at(again, 0, 100) == []
    ledger.add_unrecoverable(STREAM, RangeSet.of([3]))
    begun, *later = due_at(again, 100, 5000)
    assert begun in range(160, 180)
    assert [b - a for a, b in zip([begun, *later], later, strict=False)] == [120]


def test_what_is_called_so_later_is_looked_for_as_often() -> None:
    ledger = Ledger(AlignerOptions(), CacheProfile("one", "1", ("a/**",)))
    again = Again(ledger)
    ledger.add_unrecoverable(STREAM, RangeSet.of([3]))
    assert len(due_at(again, 0, 5000)) == 2
    before = ledger.unrecoverable_serial
    ledger.add_unrecoverable(STREAM, RangeSet.of([4]))
    assert len(due_at(again, 5000, 9000)) == 2
    assert ledger.unrecoverable_serial == before + 3


def test_nothing_is_asked_for_that_has_come() -> None:
    ledger = Ledger(AlignerOptions(), CacheProfile("one", "1", ("a/**",)))
    again = Again(ledger)
    ledger.add_unrecoverable(STREAM, RangeSet.of([3]))
    assert due_at(again, 0, 30) == []
    ledger.unrecoverable_since.clear()
    assert due_at(again, 30, 5000) == []

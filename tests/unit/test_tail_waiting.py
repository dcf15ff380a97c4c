"""When does the drain stop waiting for company?"""

from __future__ import annotations

from durable_cache.storage.journal import Entry
from durable_cache.storage.tail import Tail
from durable_cache.testing.samples import batch, run

LONG_SECONDS = 30.0


def test_enough_samples_end_the_wait() -> None:
    tail = Tail(1 << 20)
    tail.push(Entry(1, batch(run(0, 9)), ()))
    assert tail.wait(10, LONG_SECONDS)


def test_half_of_the_bound_ends_the_wait() -> None:
    some = batch(run(0, 9))
    tail = Tail(2 * some.size - 1)
    tail.push(Entry(1, some, ()))
    assert tail.wait(1000, LONG_SECONDS)


def test_whoever_stops_the_drain_ends_every_wait() -> None:
    tail = Tail(1 << 20)
    tail.wake()
    assert not tail.wait(1000, LONG_SECONDS)


def test_whoever_waits_for_the_backend_ends_one_wait() -> None:
    tail = Tail(1 << 20)
    tail.push(Entry(1, batch(run(0, 9)), ()))
    tail.hurry()
    assert tail.wait(1000, LONG_SECONDS)
    tail.pop(1)
    assert not tail.wait(1000, 0)

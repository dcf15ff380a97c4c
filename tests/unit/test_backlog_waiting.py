"""When does the drain stop waiting for company?"""

from __future__ import annotations

from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.journal import Entry
from durable_cache.testing.samples import batch, run

LONG_SECONDS = 30.0


def test_enough_samples_end_the_wait() -> None:
    backlog = Backlog(1 << 20)
    backlog.push(Entry(1, batch(run(0, 9)), ()))
    assert backlog.wait(10, LONG_SECONDS)


def test_half_of_the_bound_ends_the_wait() -> None:
    some = batch(run(0, 9))
    backlog = Backlog(2 * some.held_bytes - 1)
    backlog.push(Entry(1, some, ()))
    assert backlog.wait(1000, LONG_SECONDS)


def test_whoever_stops_the_drain_ends_every_wait() -> None:
    backlog = Backlog(1 << 20)
    backlog.wake()
    assert not backlog.wait(1000, LONG_SECONDS)


def test_whoever_waits_for_the_backend_ends_one_wait() -> None:
    backlog = Backlog(1 << 20)
    backlog.push(Entry(1, batch(run(0, 9)), ()))
    backlog.flush_soon()
    assert backlog.wait(1000, LONG_SECONDS)
    backlog.pop(1)
    assert not backlog.wait(1000, 0)

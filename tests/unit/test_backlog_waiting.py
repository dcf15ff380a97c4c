"""When does the drain stop waiting for company?"""

from __future__ import annotations

from threading import Thread
from time import monotonic

from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.journal import Entry
from durable_cache.testing.network import wait_until
from durable_cache.testing.samples import batch, run

LONG_SECONDS = 3600.0
ENDS_SECONDS = 10.0


def wait(backlog: Backlog, samples: int) -> bool:
    """Wait for so many samples, or an hour; returns whether some are there."""
    ended: list[bool] = []
    waiting = Thread(target=lambda: ended.append(backlog.wait(samples, LONG_SECONDS)), daemon=True)
    waiting.start()
    waiting.join(ENDS_SECONDS)
    assert ended, "nothing ends the wait"
    return ended[0]


def waits(backlog: Backlog) -> bool:
    """Tell whether a thread waits that nothing has woken."""
    return bool(vars(backlog._changed)["_waiters"])


def test_enough_samples_end_the_wait() -> None:
    backlog = Backlog(1 << 20)
    backlog.push(Entry(1, batch(run(0, 9)), ()))
    assert wait(backlog, 10)


def test_a_wait_under_way_ends_when_enough_has_come() -> None:
    """Commits before that wake nobody."""
    backlog = Backlog(1 << 20)
    ended: list[bool] = []
    waiting = Thread(target=lambda: ended.append(backlog.wait(10, LONG_SECONDS)), daemon=True)
    waiting.start()
    wait_until(lambda: waits(backlog))
    for sn in range(10):
        assert waiting.is_alive()
        backlog.push(Entry(1 + sn, batch(run(sn, sn)), ()))
        assert waits(backlog) == (sn < 9)
    waiting.join(ENDS_SECONDS)
    assert ended == [True]


def test_half_of_the_bound_ends_the_wait() -> None:
    some = batch(run(0, 9))
    backlog = Backlog(2 * some.held_bytes - 1)
    backlog.push(Entry(1, some, ()))
    assert wait(backlog, 1000)


def test_whoever_stops_the_drain_ends_every_wait() -> None:
    backlog = Backlog(1 << 20)
    backlog.wake()
    assert not wait(backlog, 1000)


def test_whoever_waits_for_the_backend_ends_one_wait() -> None:
    backlog = Backlog(1 << 20)
    backlog.push(Entry(1, batch(run(0, 9)), ()))
    backlog.flush_soon()
    assert wait(backlog, 1000)
    began = monotonic()
    assert backlog.wait(1000, 0.1)
    assert monotonic() - began >= 0.1, "the next wait lasts as long as it may"
    backlog.pop(1)
    assert not backlog.wait(1000, 0)


def test_what_was_drained_makes_room_for_what_comes() -> None:
    some = batch(run(0, 9))
    backlog = Backlog(2 * some.held_bytes)
    for entry_id in range(1, 9):
        backlog.push(Entry(entry_id, some, ()))
        assert (backlog.bytes, backlog.spilled) == (some.held_bytes, 0)
        backlog.pop(1)
    assert (backlog.bytes, backlog.samples) == (0, 0)

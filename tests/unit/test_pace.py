"""How large is the next append to the backend?"""

from __future__ import annotations

from durable_cache.storage.journaled.pace import Pace, RetryPause


def test_the_first_append_is_a_small_one_and_a_fast_backend_gets_all_it_asks_for() -> None:
    pace = Pace(20_000)
    assert pace.samples() == 2_500
    pace.took(2_500, 0.1)
    assert pace.samples() == 20_000


def test_an_append_to_a_slow_backend_takes_a_few_seconds_at_most() -> None:
    pace = Pace(20_000)
    pace.took(2_500, 1.25)
    assert pace.samples() == 5_000
    pace.took(5_000, 50.0)
    assert pace.samples() == 2_500  # below, its fixed cost would be most of it


def test_near_a_deadline_half_of_the_time_left_is_used() -> None:
    pace = Pace(20_000)
    assert pace.samples(0.1) == 2_500
    assert pace.samples(0.0) == 0
    pace.took(2_500, 1.25)
    assert pace.samples(100.0) == 5_000
    assert pace.samples(4.0) == 4_000
    assert pace.samples(0.0004) == 0
    assert pace.samples(-1.0) == 0


def test_a_backend_that_fails_is_left_alone_ever_longer() -> None:
    pause = RetryPause(1.0)
    assert [pause.failed() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert pause.failed(7.0) == 7.0
    pause.succeeded()
    assert pause.failed() == 0.1

"""What holds for every test: hypothesis profiles, and no thread left behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

PROFILE_VARIABLE = "DURABLE_CACHE_HYPOTHESIS"
LEAK_SECONDS_MAX = 5.0

_SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile(
    "dev", max_examples=50, deadline=None, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile(
    "ci",
    max_examples=200,
    derandomize=True,  # new examples are looked for by `make nightly`, not by whoever pushes next
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=_SLOW_MACHINE,
)
settings.register_profile(
    "nightly",
    max_examples=5000,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_MACHINE,
)
settings.load_profile(os.environ.get(PROFILE_VARIABLE) or "dev")


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread running which would keep the process from ending.

    Daemon threads of drivers and of servers that a whole run shares are not counted.
    """
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + LEAK_SECONDS_MAX
    while left := _left_since(before):
        if time.monotonic() > deadline:
            names = ", ".join(sorted(thread.name for thread in left))
            pytest.fail(f"threads still running after the test: {names}", pytrace=False)
        time.sleep(0.01)


def _left_since(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.is_alive() and not thread.daemon
    ]

"""What holds for every test: hypothesis profiles, no thread left behind, nothing inherited."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.leaks import left_since
from tests.side_by_side import SideBySide, print_at_end

if TYPE_CHECKING:
    from durable_cache.testing.network import LocalNetwork

__all__ = ["print_at_end"]

PROFILE_VARIABLE = "DURABLE_CACHE_HYPOTHESIS"
LEAK_SECONDS_MAX = 5.0
INHERITED = (
    *("CONFIG", "STATE_DIR", "DOMAIN", "HTTP", "MODE", "LISTEN", "CONNECT", "KEY_EXPR"),
    *("SQL_PASSWORD", "INFLUXDB_TOKEN"),
)
"""What configures a service of whoever runs the suite; tests set their own."""
TALKATIVE = ("RUST_LOG", "ZENOH_CONFIG", "ZENOH_RUNTIME")
SLOW = ("PYTHONDONTWRITEBYTECODE",)
"""With it every process that a test starts compiles what it imports: a service starts half as
fast."""


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


def forget_what_was_inherited() -> None:
    """Make the suite independent of the shell, the terminal and the service around it.

    A signal that is ignored stays ignored in every child, and a shell's child cannot trap it: under
    `nohup` that is SIGHUP, in the background of a script SIGINT. A handler that does nothing
    protects this process as well and is not inherited. What configures the service, makes Zenoh
    talk or Python slow is no business of the tests.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    for name in (*TALKATIVE, *SLOW, *(f"DURABLE_CACHE_{name}" for name in INHERITED)):
        os.environ.pop(name, None)
    os.umask(0o022)


forget_what_was_inherited()


def pytest_configure(config: pytest.Config) -> None:
    """Divide the suite as `tests.side_by_side` says, where several processes run it."""
    config.pluginmanager.register(SideBySide(config))


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    """Run a router of the test's own, whose sessions are closed with it."""
    from durable_cache.testing.network import LocalNetwork  # most tests need no Zenoh

    with LocalNetwork() as network:
        yield network


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread of ours running, or one that keeps the process alive."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + LEAK_SECONDS_MAX
    while left := left_since(before):
        if time.monotonic() > deadline:
            names = ", ".join(sorted(thread.name for thread in left))
            pytest.fail(f"threads still running after the test: {names}", pytrace=False)
        time.sleep(0.01)

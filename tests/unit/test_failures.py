"""Is it said that something fails, and not each time?"""

from __future__ import annotations

import logging

import pytest

from durable_cache.endpoints.failures import Failures


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_each_reason_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = Failures(logging.getLogger("told"), clock)
    for _ in range(5):
        failures.tell("no answer", "the index is full")
        failures.tell("no answer", "the journal is full")
        clock.seconds += 11
    said = [(record.getMessage(), record.__dict__["reason"]) for record in caplog.records]
    assert said == [("no answer", "the index is full"), ("no answer", "the journal is full")]
    clock.seconds += 5
    failures.tell("no answer", "the index is full")
    assert len(caplog.records) == 3


def test_the_reasons_that_are_remembered_have_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(logging.getLogger("told"), Clock())
    for at in [*range(33), *range(1, 33), 0]:
        failures.tell("no answer", f"reason {at}")
    assert len(caplog.records) == 34, "the oldest of 33 alone is forgotten"


def test_what_was_said_again_is_not_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = Failures(logging.getLogger("told"), clock)
    for at in range(32):
        failures.tell("no answer", f"reason {at}")
    clock.seconds += 61
    for at in (0, 32, 0):
        failures.tell("no answer", f"reason {at}")
    assert len(caplog.records) == 34

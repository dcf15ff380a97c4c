"""Does the simulator alone find what once broke the promise, when it is put back?"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.following import Followed, Numbering
from durable_cache.storage.journaled.journal import Entry
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.testing.simulation.history import run_history

HISTORIES_MAX = 400
MUCH = ("wrap", "few sources", "short answers", "clock")


def k4_tail_before_a_restart_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    def at_its_end(_: Any, __: Any, head: Numbering, ___: int) -> None:
        head.ending = head.end_known = True

    patch.setattr(SubscriberEngine, "_look_for_end", at_its_end)


def k14_the_first_samples_are_not_awaited(patch: pytest.MonkeyPatch) -> None:
    declare = Followed.declare

    def not_fresh(self: Any, epoch: int, incarnation: str, **about: bool) -> bool:
        return declare(self, epoch, incarnation, **{**about, "fresh": False})

    patch.setattr(Followed, "declare", not_fresh)


def k20_absences_are_not_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Numbering, "learn_absent", lambda *_, **__: None)


def an_acknowledgement_before_the_journal_has_it(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Any, batch: Any, skips: Any = ()) -> None:
        self.backlog.push(Entry(self.journal.span()[1] + 1, batch, skips))

    patch.setattr(JournaledStorage, "commit", commit)


PUT_BACK: list[tuple[Callable[[pytest.MonkeyPatch], None], str, tuple[str, ...]]] = [
    (k4_tail_before_a_restart_is_not_asked_for, "went on to the next run", MUCH),
    (k14_the_first_samples_are_not_awaited, "neither given nor told", (*MUCH, "pinned")),
    (k20_absences_are_not_heard, "told to miss another key", (*MUCH, "pinned")),
    (an_acknowledgement_before_the_journal_has_it, "cache. ", (*MUCH, "pinned")),
]
"""What is put back, what is to be said of it, and what these histories are spared."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("put_back", "finding", "without"), PUT_BACK, ids=[row[0].__name__ for row in PUT_BACK]
)
def test_an_old_behaviour_is_found(
    put_back: Callable[[pytest.MonkeyPatch], None],
    finding: str,
    without: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for seed in range(HISTORIES_MAX):
        with pytest.MonkeyPatch.context() as patch:
            put_back(patch)
            wrong = [
                found for found in run_history(seed, without=without) if re.search(finding, found)
            ]
        if wrong and not run_history(seed, without=without):
            with capsys.disabled():
                print(f"\n{put_back.__name__}: after {seed + 1} histories: {wrong[0]}")
            return
    pytest.fail(f"{put_back.__name__} is not found in {HISTORIES_MAX} histories")

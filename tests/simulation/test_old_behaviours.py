"""Does the simulator alone find what once broke the promise, when it is put back?"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from durable_cache.testing import histories
from durable_cache.testing.simulation.history import run_history
from tests.simulation import old_behaviours as old

HISTORIES_MAX = 400
NOT_MENDED = ("wrap", "at once", "few sources", "short answers")
"""Kinds of trouble that histories show findings of without anything put back."""
RUNS_APART = (*NOT_MENDED, "pinned")
USUAL = ("pinned foreign", "wrap", "at once")
"""What is spared in every run."""
WITH_EARLY = ("pinned foreign", "wrap")
"""Some publishers put at once, and their first samples come before their token."""
WITH_FOREIGN = ("wrap", "at once")
"""Foreign publishers restart with their Zenoh id."""
WITH_WRAPS = ("pinned foreign", "at once")
"""Numbers wrap."""
_BOUNDS = (
    "small queue",
    "little room",
    "small journal",
    "spill",
    "slow consumer",
    "large payloads",
)
_QUIET = (*_BOUNDS, "network", "crash", "power cut", "leave", "slow commits")
RESTARTS = (*NOT_MENDED, *_QUIET, "join", "medium", "small pending", "times back")
"""What is left makes runs that follow each other within a time frame, and little else."""
JOINS = (*RUNS_APART, *_QUIET, "part", "clock")
"""What is left makes late joiners, some of them while no backend can be read."""
CROWDS = tuple(kind for kind in JOINS if kind != "few sources")
"""The same, beside more sources than a subscriber follows."""

PUT_BACK: list[tuple[Callable[[pytest.MonkeyPatch], None], str, tuple[str, ...]]] = [
    (old.k1_an_append_while_one_is_outstanding, "acknowledged what it has not", RUNS_APART),
    (
        old.k2_the_index_counts_the_entries_of_any_journal,
        r"cache. lost",
        USUAL,
    ),
    (
        old.k3_a_subscriber_restarts_no_declared_numbering,
        "neither given nor told|nothing of",
        RESTARTS,
    ),
    (old.k4_tail_before_a_restart_is_not_asked_for, "went on to the next run", RESTARTS),
    (old.k5_history_is_over_whatever_was_answered, "was not given the history", JOINS),
    (old.k6_the_oldest_source_is_forgotten, "given nor told|out of order", CROWDS),
    (old.k7_a_look_up_that_fails_found_nothing, "acknowledged what it has not", WITH_FOREIGN),
    (old.k8_a_refused_page_is_awaited_like_live_numbers, "missed what never was", USUAL),
    (
        old.k9_the_index_is_believed_whatever_the_backend_holds,
        "cache. lacks what",
        USUAL,
    ),
    (old.k12_what_is_spilled_is_not_read, "leaves out of a whole answer", RUNS_APART),
    (old.k14_the_first_samples_are_not_awaited, "neither given nor told", RUNS_APART),
    (
        old.k17_what_is_on_its_way_is_drained_below_a_purge,
        "has again what was purged",
        USUAL,
    ),
    (old.k18_a_put_that_raises_leaves_its_number, "what nobody published", USUAL),
    (old.k18_receipts_open_at_a_wrap_never_end, "waits for a receipt", WITH_WRAPS),
    (old.k20_absences_are_not_heard, "told to miss another key", RUNS_APART),
    (
        old.k22_what_is_too_large_is_asked_for_again,
        "asks again for what is too large",
        USUAL,
    ),
    (old.k27_history_comes_source_by_source, "out of time", (*JOINS, "medium")),
    (
        old.k30_what_came_before_its_token_stays_where_it_is,
        "under another epoch",
        WITH_EARLY,
    ),
    (old.an_acknowledgement_before_the_journal_has_it, "cache. ", RUNS_APART),
]
"""What is put back, what is to be said of it, and what these histories are spared."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Caches say in the log what their broken media did to them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("put_back", [row[0] for row in PUT_BACK])
def test_what_is_put_back_takes_the_place_of_something(
    put_back: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """Each night finds what the product still decides where it is put back."""
    with pytest.MonkeyPatch.context() as patch:
        put_back(patch)


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
    found = find(put_back, finding, partial(run_history, without=without))
    with capsys.disabled():
        print(f"\n{found}")


@pytest.mark.nightly
def test_an_old_behaviour_of_alignment_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    found = find(old.k31_a_pull_without_effect_is_the_last, "P10", histories.run_history)
    with capsys.disabled():
        print(f"\n{found}")


def find(
    put_back: Callable[[pytest.MonkeyPatch], None],
    finding: str,
    play: Callable[[int], list[str]],
) -> str:
    """Play histories until one shows what was put back, and is clean without it; say how many."""
    for seed in range(HISTORIES_MAX):
        with pytest.MonkeyPatch.context() as patch:
            put_back(patch)
            wrong = [found for found in play(seed) if re.search(finding, found)]
        if wrong and not play(seed):
            return f"{put_back.__name__}: after {seed + 1} histories: {wrong[0]}"
    pytest.fail(f"{put_back.__name__} is not found in {HISTORIES_MAX} histories")

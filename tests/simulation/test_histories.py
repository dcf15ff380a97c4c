"""Do caches come to hold the same samples whatever happens? Seeded histories in virtual time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from durable_cache.testing.histories import run_history
from tests.simulation.playing import nightly_seeds

SMOKE = 200
IN_CI = 600
EACH = 100


def failures(seeds: range) -> dict[int, list[str]]:
    """Play the histories of some seeds and return those that went wrong."""
    found = {}
    for seed in seeds:
        wrong = run_history(seed)
        if wrong:
            found[seed] = wrong[:3]
    return found


def test_two_hundred_histories_end_aligned_and_silent() -> None:
    assert failures(range(SMOKE)) == {}


@pytest.mark.parametrize("seed", [301089, 301437, 301734])
def test_what_nobody_in_reach_had_comes_when_another_has_got_it(seed: int) -> None:
    """Both know it then: nothing else shows that one has what the other lacks (ADR 0364)."""
    assert run_history(seed) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SMOKE, IN_CI, EACH))
def test_histories_end_aligned_and_silent(first: int) -> None:
    assert failures(range(first, first + EACH)) == {}


@pytest.mark.nightly
def test_nightly_histories_end_aligned_and_silent() -> None:
    assert failures(nightly_seeds(IN_CI, 100_000)) == {}


def test_a_seed_is_one_history() -> None:
    from durable_cache.testing.histories import History

    one, two = History(5), History(5)
    assert one.run() == two.run()
    assert one.network.requests == two.network.requests > 0
    assert [cache.store for cache in one.caches] == [cache.store for cache in two.caches]


def test_a_seed_is_one_history_in_whatever_order_sets_are() -> None:
    """Peers were asked in the order of a set of their ids, which each process has for itself."""
    program = (
        "from durable_cache.testing.histories import History\n"
        "history = History(1473)\n"
        "print(history.run(), history.network.requests)"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "17")
    }
    assert len(told) == 1

"""Does each mode pass on what it says, hand over again in time, and count R and UR exactly?

Seeded histories: one seed is one history.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from durable_cache.protocol.modes import Arrivals
from durable_cache.protocol.retries import Due, Retries
from durable_cache.testing.simulation.mode_history import MODE_KINDS, ModeHistory
from tests.simulation.playing import nightly_seeds, play_each

IN_CI = 2_000
"""A history takes 15 ms of a core."""
FOUND_BY = 30
SHARE_MIN = 5.0
"""In percent of the histories."""
play = partial(play_each, ModeHistory, "--modes")


def test_modes_pass_on_what_they_say_and_count_it() -> None:
    occurred: Counter[str] = Counter()
    assert play(range(IN_CI), occurred) == {}
    rare = {kind for kind in MODE_KINDS if 100 * occurred[kind] / IN_CI < SHARE_MIN}
    assert not rare, "nothing is known of what hardly any history shows"


@pytest.mark.nightly
def test_nightly_histories_of_modes() -> None:
    assert play(nightly_seeds(IN_CI, 8_000)) == {}


@pytest.mark.parametrize("passes", [True, False])
def test_a_mode_that_is_wrong_is_found(passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that passes on everything, and one that passes on the next number alone."""
    monkeypatch.setattr(Arrivals, "_passes", lambda *_, **__: passes)
    assert any(ModeHistory(seed).run() for seed in range(FOUND_BY))


def forgetful(retries: Retries, now_ns: int) -> Due:
    """What is due is neither handed over again nor reported."""
    while (due_ns := retries.wake_ns()) is not None and due_ns <= now_ns:
        retries._waiting.popitem(last=False)
    return Due((), ())


@pytest.mark.parametrize(
    ("name", "wrong"), [("confirm", lambda *_: True), ("due", forgetful), ("room", 1_000)]
)
def test_retries_that_are_wrong_are_found(
    name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is confirmed is handed over again, what is due is not, and as many as there are wait."""
    monkeypatch.setattr(Retries, name, wrong)
    assert any(ModeHistory(seed).run() for seed in range(FOUND_BY))

"""Real services, publishers and subscribers while processes are killed and links are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.network import Chaos
from tests.chaos.verdict import Delivered, Place, Seen, Told, judge

RAGE_SECONDS, QUIET_SECONDS = 15.0, 12.0
LONG_RAGE_SECONDS, LONG_QUIET_SECONDS = 60.0, 30.0
SQLITE: dict[str, object] = {"backend": "sql", "url": "sqlite:///{folder}/samples.db"}


def check(chaos: Chaos, seconds: float) -> None:
    with chaos:
        chaos.rage(seconds)
        broken = chaos.verdict()
        assert broken == [], f"after {chaos.faults}"


@pytest.mark.slow
def test_the_promise_holds_while_processes_are_killed_and_links_are_cut(tmp_path: Path) -> None:
    check(Chaos(tmp_path, 1, SQLITE, QUIET_SECONDS), RAGE_SECONDS)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 22))
def test_the_promise_holds_for_longer(tmp_path: Path, seed: int) -> None:
    check(Chaos(tmp_path, seed, SQLITE, LONG_QUIET_SECONDS), LONG_RAGE_SECONDS)


@pytest.mark.nightly
@pytest.mark.delta
@pytest.mark.parametrize("seed", range(22, 26))
def test_the_promise_holds_on_a_delta_table(tmp_path: Path, seed: int) -> None:
    table: dict[str, object] = {"backend": "delta", "path": "{folder}/table"}
    check(Chaos(tmp_path, seed, table, LONG_QUIET_SECONDS), LONG_RAGE_SECONDS)


ONE, TWO, THREE = (Place("a", 1, sn) for sn in range(3))
GIVEN = [Delivered(ONE, "x"), Delivered(TWO, "y"), Delivered(THREE, None)]
HELD = dict(GIVEN)
TOLD = Told(put=dict(GIVEN), acknowledged={ONE, TWO, THREE})


@pytest.mark.parametrize(
    ("held", "seen", "word"),
    [
        (HELD, Seen(GIVEN), None),
        ({ONE: "x", THREE: None}, Seen(GIVEN), "lost what was acknowledged"),
        ({**HELD, TWO: "z"}, Seen(GIVEN), "holds another payload"),
        (HELD, Seen(GIVEN[:2]), "lacks silently"),
        (HELD, Seen([*GIVEN, GIVEN[0]]), "given twice or out of order"),
        (HELD, Seen([GIVEN[1], GIVEN[0], GIVEN[2]]), "given twice or out of order"),
        (HELD, Seen([*GIVEN[:2], Delivered(THREE, "w")]), "given another payload"),
        (HELD, Seen(GIVEN, {TWO}), "given what it misses"),
        (HELD, Seen(GIVEN[1:], {ONE}), "misses what is held"),
    ],
)
def test_the_verdict_sees(held: dict[Place, str | None], seen: Seen, word: str | None) -> None:
    broken = judge(TOLD, {"one": held}, {"it": seen})
    assert not broken if word is None else any(word in what for what in broken)


def test_the_verdict_sees_that_two_caches_differ() -> None:
    held = {"one": HELD, "two": {**HELD, Place("a", 1, 3): "later"}}
    assert any("lacks what others hold" in what for what in judge(TOLD, held, {}))


def test_the_last_line_of_a_log_may_be_cut() -> None:
    told = Told.of(["P a 1 0 x\n", "A a 1 0\n", "P a 1 1 -\n", "P a 1 2"])
    assert told == Told({ONE: "x", TWO: None}, {ONE})

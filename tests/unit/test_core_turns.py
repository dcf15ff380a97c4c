"""What others give, and the live events that came before it: whose runs are called what."""

from __future__ import annotations

import pytest

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import SampleBatch
from durable_cache.model.sequence import frame
from durable_cache.protocol.cache.events import Origin, TokenGone
from durable_cache.protocol.cache.names import under
from durable_cache.protocol.cache.questions import Declaration, Keep
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.effects import Arrived, Ask, Effect
from tests.unit.driven import BEGAN_NS, DrivenCache
from tests.unit.test_core import ONE, TWO, of_run, run_of, token

FIRST, SECOND, THIRD = "0a0a0a0a", "0b0b0b0b", "0c0c0c0c"
EPOCH = frame(BEGAN_NS)
NAMES = (Incarnation(ONE, EPOCH, FIRST), Incarnation(ONE, EPOCH + 1, SECOND))


def give_both_runs(cache: DrivenCache) -> None:
    """Let another cache give the end of the first run and the beginning of the second."""
    given = under(EPOCH, run_of(ONE, 5, 7, run=1)) + under(EPOCH + 1, run_of(ONE, 0, 0, run=2))
    cache.give(Arrived(SampleBatch(given), Origin.ALIGNED, cache.now, NAMES))


def test_a_token_that_waits_for_the_journal_names_its_run_though_others_have_the_next() -> None:
    cache = DrivenCache()
    cache.disk_up = False
    token(cache, ONE, EPOCH, FIRST)
    cache.disk_up = True
    give_both_runs(cache)
    assert cache.core.put_off == 4
    cache.wait(1)
    give_both_runs(cache)
    cache.take(run_of(ONE, 8, 9, run=1))
    assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([SnRange(5, 9)])}
    assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([SnRange(0, 0)])}


def test_what_others_give_of_sources_of_which_nothing_waits_comes_in() -> None:
    cache = DrivenCache()
    cache.disk_up = False
    token(cache, TWO, EPOCH, THIRD)
    cache.disk_up = True
    given = under(EPOCH, run_of(ONE, 5, 7, run=1)) + under(EPOCH + 1, run_of(TWO, 0, 0, run=2))
    cache.give(Arrived(SampleBatch(given), Origin.ALIGNED, cache.now, NAMES))
    assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([SnRange(5, 7)])}
    assert of_run(cache, TWO, 2) == {}


def test_live_samples_are_of_the_run_whose_token_came_with_them_whatever_others_named() -> None:
    """Both waited before they came here, while others gave what followed."""
    cache = DrivenCache()
    give_both_runs(cache)
    token(cache, ONE, EPOCH, FIRST)
    cache.take(run_of(ONE, 8, 9, run=1))
    cache.give(TokenGone(ONE, FIRST, cache.now))
    token(cache, ONE, EPOCH + 1, SECOND)
    cache.take(run_of(ONE, 1, 2, run=2))
    assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([SnRange(5, 9)])}
    assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([SnRange(0, 2)])}


@pytest.mark.parametrize("moved", [True, False])
def test_a_run_whose_token_declares_what_another_was_called_before_its_own_goes_apart(
    moved: bool,
) -> None:
    """The first of its samples came before its token, and showed a restart in a later frame."""
    cache = DrivenCache()
    token(cache, ONE, EPOCH, FIRST)
    cache.take(run_of(ONE, 0, 4, run=1))
    cache.take(run_of(ONE, 0, 1, seconds=20, run=2))
    (called,) = of_run(cache, ONE, 2)
    assert called > EPOCH + 1
    cache.appends = moved
    token(cache, ONE, EPOCH + 1, SECOND)
    while moved and cache.core.moving:
        cache.wait(0.5)
    assert bool(cache.core.moving) is not moved
    token(cache, ONE, called, THIRD)
    cache.take(run_of(ONE, 0, 3, seconds=21, run=3))
    cache.answer_all()
    cache.wait(60)
    assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([SnRange(0, 1)])}
    assert of_run(cache, ONE, 3) == {called + (not moved): RangeSet([SnRange(0, 3)])}


class _KeepsLate(DrivenCache):
    """Answers what a token declares only when it is asked to."""

    late = False

    def _waits(self, effect: Effect) -> bool:
        if self.late and isinstance(effect, Ask) and isinstance(effect.question, Keep):
            return isinstance(effect.question.change, Declaration)
        return super()._waits(effect)


def test_a_run_keeps_the_epoch_that_was_made_durable_though_another_becomes_free_meanwhile() -> (
    None
):
    cache = _KeepsLate()
    token(cache, ONE, EPOCH, FIRST)
    cache.take(run_of(ONE, 0, 4, run=1))
    cache.take(run_of(ONE, 0, 1, seconds=20, run=2))
    (called,) = of_run(cache, ONE, 2)
    cache.appends = False
    token(cache, ONE, EPOCH + 1, SECOND)
    cache.late = True
    token(cache, ONE, called, THIRD)
    (waits,) = [one for one in cache.unanswered if isinstance(one, Ask)]
    cache.unanswered.remove(waits)
    cache.answer_all()
    while cache.core.moving:
        cache.wait(0.5)
    cache.late = False
    cache.unanswered.append(waits)
    cache.answer_all()
    cache.take(run_of(ONE, 0, 3, seconds=21, run=3))
    assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([SnRange(0, 1)])}
    assert of_run(cache, ONE, 3) == {called + 1: RangeSet([SnRange(0, 3)])}
    assert Incarnation(ONE, called + 1, THIRD) in cache.store.index.incarnations([ONE])

"""Are samples handed over again until they are confirmed, as often as the text has it?"""

from __future__ import annotations

import math
import random

import pytest

from durable_cache.model.delivery import DeliveryRates
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.modes import Mode, ModeOptions
from durable_cache.protocol.retries import Retries

SECOND = 1_000_000_000
SOURCE = SourceId("ab12", 7)


def sample(sn: int, source: SourceId = SOURCE) -> Sample:
    return Sample("k", source, 0, sn, b"")


def at_least_once(retries: int, unconfirmed_max: int = 10) -> Mode:
    options = ModeOptions(
        retries=retries, confirm_timeout_seconds=5, unconfirmed_max=unconfirmed_max
    )
    return Mode.of("at-least-once", options)


def test_what_is_not_confirmed_in_time_comes_again_so_often_and_is_then_reported() -> None:
    retries = Retries(at_least_once(2))
    retries.hand_over([sample(0), sample(1)], 0)
    assert retries.confirm(sample(1))
    assert retries.wake_ns() == 5 * SECOND
    assert retries.due(5 * SECOND - 1) == ([], [])
    assert retries.due(5 * SECOND) == ([sample(0)], [])
    assert retries.due(5 * SECOND) == ([], [])
    assert retries.due(10 * SECOND) == ([sample(0)], [])
    assert retries.due(15 * SECOND) == ([], [sample(0)])
    assert (retries.unconfirmed, retries.wake_ns()) == (0, None)


def test_a_confirmation_counts_once_and_after_a_retry_too() -> None:
    retries = Retries(at_least_once(1))
    retries.hand_over([sample(0)], 0)
    assert retries.due(5 * SECOND).again == [sample(0)]
    assert retries.confirm(sample(0))
    assert not retries.confirm(sample(0))
    assert not retries.confirm(sample(9))
    assert retries.due(60 * SECOND) == ([], [])


def test_no_more_is_handed_over_than_may_wait_and_samples_without_a_number_wait_for_nothing() -> (
    None
):
    retries = Retries(at_least_once(1, unconfirmed_max=2))
    retries.hand_over([sample(0), sample(1), sample(3, SourceId("ab", 0))], 0)
    assert (retries.room, retries.unconfirmed) == (0, 2)
    retries.confirm(sample(0))
    assert retries.room == 1


@pytest.mark.parametrize(("retries", "reliability"), [(0, 0.5), (1, 0.75), (2, 0.875)])
def test_the_texts_retries_increase_reliability_and_decrease_uniqueness(
    retries: int, reliability: float
) -> None:
    """Half of what is handed over is confirmed: R is 0.5, 0.75, 0.875 and UR becomes 0.5."""
    chance, count = random.Random(retries), 20_000
    handed_over = Retries(at_least_once(retries, unconfirmed_max=count))
    waiting = [sample(sn) for sn in range(count)]
    handed_over.hand_over(waiting, 0)
    received = confirmed = 0
    for at in range(1, retries + 2):
        received += len(waiting)
        confirmed += sum(handed_over.confirm(one) for one in waiting if chance.random() < 0.5)
        waiting = list(handed_over.due(at * 5 * SECOND).again)
    rates = DeliveryRates.measured(count, received, confirmed)
    five_deviations = 5 * 0.5 / math.sqrt(count)
    predicted = DeliveryRates(0.5, 1.0).retried(retries).reliability
    assert predicted == pytest.approx(reliability)
    assert rates == pytest.approx((predicted, 0.5), abs=five_deviations)

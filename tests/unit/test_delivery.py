"""Does the algebra of delivery modes yield the numbers of Ockam's text, and what a count yields?"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.delivery import DeliveryMode, DeliveryRates

UNRELIABLE = DeliveryMode.UNRELIABLE
AT_MOST_ONCE = DeliveryMode.AT_MOST_ONCE
AT_LEAST_ONCE = DeliveryMode.AT_LEAST_ONCE
EXACTLY_ONCE = DeliveryMode.EXACTLY_ONCE
HALF = DeliveryRates(0.5, 1.0)
RATES = st.builds(DeliveryRates, st.floats(0.01, 1), st.floats(0.01, 1))


@pytest.mark.parametrize(
    ("pipeline", "yields"),
    [
        ((AT_MOST_ONCE, AT_LEAST_ONCE), UNRELIABLE),
        ((EXACTLY_ONCE, AT_LEAST_ONCE), AT_LEAST_ONCE),
        ((EXACTLY_ONCE, AT_MOST_ONCE), AT_MOST_ONCE),
        *[((UNRELIABLE, mode), UNRELIABLE) for mode in DeliveryMode],
        *[((mode, mode), mode) for mode in DeliveryMode],
        ((), EXACTLY_ONCE),
        ((EXACTLY_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE, AT_MOST_ONCE), UNRELIABLE),
    ],
)
def test_the_most_relaxed_mode_of_a_pipeline_dominates(
    pipeline: tuple[DeliveryMode, ...], yields: DeliveryMode
) -> None:
    assert DeliveryMode.over(pipeline) is yields
    assert DeliveryMode.over(reversed(pipeline)) is yields


@pytest.mark.parametrize(
    ("rates", "mode"),
    [
        (DeliveryRates(0.9, 0.9), UNRELIABLE),
        (DeliveryRates(0.9, 1.0), AT_MOST_ONCE),
        (DeliveryRates(1.0, 0.9), AT_LEAST_ONCE),
        (DeliveryRates(1.0, 1.0), EXACTLY_ONCE),
    ],
)
def test_a_mode_says_which_rates_approach_one(rates: DeliveryRates, mode: DeliveryMode) -> None:
    assert DeliveryMode.of(rates) is mode
    assert DeliveryMode.named(mode.words) is mode
    assert DeliveryMode.of(rates, tolerance=0.2) is EXACTLY_ONCE


def test_a_mode_that_is_none_names_the_four() -> None:
    with pytest.raises(ValueError, match="unreliable, at-most-once, at-least-once, exactly-once"):
        DeliveryMode.named("twice")


def test_the_texts_picture_one_of_four_lost_one_of_four_doubled() -> None:
    assert DeliveryRates.measured(sent=4, received=4, unique=3) == (0.75, 0.75)


@pytest.mark.parametrize(("retries", "reliability"), [(0, 0.5), (1, 0.75), (2, 0.875)])
def test_retries_of_the_text(retries: int, reliability: float) -> None:
    assert HALF.retried(retries).reliability == pytest.approx(reliability, abs=1e-12)
    assert HALF.retried(retries).uniqueness == pytest.approx(1.0)


def test_retries_without_end_reach_all_and_lost_confirmations_cost_uniqueness() -> None:
    assert HALF.retried(math.inf, confirmations=0.5) == pytest.approx((1.0, 0.5))
    assert HALF.retried(math.inf) == pytest.approx((1.0, 1.0))
    assert HALF.retried(200, confirmations=0.5) == pytest.approx((1.0, 0.5))


def test_no_confirmation_at_all_repeats_every_send() -> None:
    assert HALF.retried(3, confirmations=0.0) == pytest.approx((0.9375, 0.9375 / 2))
    assert DeliveryRates(0.0, 1.0).retried(math.inf) == (0.0, 1.0)


@given(st.lists(RATES, max_size=5))
def test_rates_of_a_pipeline_multiply(routes: list[DeliveryRates]) -> None:
    whole = DeliveryRates.over(routes)
    assert whole.reliability == pytest.approx(math.prod(route[0] for route in routes))
    assert whole.uniqueness == pytest.approx(math.prod(route[1] for route in routes))


@given(RATES, st.integers(0, 20), st.floats(0, 1))
def test_retries_never_make_fewer_arrive_and_never_undo_a_repeat(
    rates: DeliveryRates, retries: int, confirmations: float
) -> None:
    yields = rates.retried(retries, confirmations)
    assert rates.reliability - 1e-9 <= yields.reliability <= 1
    assert 0 < yields.uniqueness <= rates.uniqueness + 1e-9


@pytest.mark.parametrize("confirmations", [1.0, 0.7])
def test_the_prediction_is_what_a_lossy_route_counts(confirmations: float) -> None:
    chance, messages, retries, reliability = random.Random(14), 40_000, 3, 0.6
    received = unique = 0
    for _ in range(messages):
        arrived = 0
        for _ in range(retries + 1):
            if chance.random() < reliability:
                arrived += 1
                if chance.random() < confirmations:
                    break
        received += arrived
        unique += arrived > 0
    counted = DeliveryRates.measured(messages, received, unique)
    predicted = DeliveryRates(reliability, 1.0).retried(retries, confirmations)
    five_deviations = 5 * 0.5 / math.sqrt(messages)
    assert counted == pytest.approx(predicted, abs=five_deviations)


@pytest.mark.parametrize("counts", [(1, 0, 1), (0, 1, 1), (3, 3, -1), (3, 2, 0)])
def test_counts_that_no_route_can_have_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="sent"):
        DeliveryRates.measured(*counts)


@pytest.mark.parametrize(
    ("rates", "retries", "confirmations"),
    [(HALF, -1, 1.0), (HALF, 1, 1.5), (DeliveryRates(1.1, 1.0), 1, 1.0)],
)
def test_rates_that_are_none_are_refused(
    rates: DeliveryRates, retries: int, confirmations: float
) -> None:
    with pytest.raises(ValueError, match="retried"):
        rates.retried(retries, confirmations)


def test_nothing_sent_contradicts_nothing() -> None:
    assert DeliveryRates.measured(0, 0, 0) == (1.0, 1.0)
    assert DeliveryRates.measured(5, 0, 0) == (0.0, 1.0)

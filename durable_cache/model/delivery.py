"""How well a route delivers, and what a pipeline of routes yields: Ockam's reliability algebra.

Reliability R is unique received / sent, the uniqueness rate UR is unique received / received. Both
are probabilities of independent events along a pipeline, so they multiply; a mode says which of the
two approach one, so modes combine part by part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class DeliveryRates(NamedTuple):
    """What a route delivers: R and UR, each from 0 to 1."""

    reliability: float
    uniqueness: float

    @classmethod
    def measured(cls, sent: int, received: int, unique: int) -> DeliveryRates:
        """Return the rates of a route that was watched.

        Nothing sent, or nothing received, contradicts nothing: that rate is 1. Raises ValueError on
        counts that no route can have.
        """
        if not 0 <= unique <= min(sent, received) or (received > 0 and unique == 0):
            raise ValueError(f"{sent} sent, {received} received, {unique} of them unique")
        return cls(unique / sent if sent else 1.0, unique / received if received else 1.0)

    @classmethod
    def over(cls, routes: Iterable[DeliveryRates]) -> DeliveryRates:
        """Return what a pipeline of routes delivers, one behind the other; {1, 1} for none."""
        passed = tuple(routes)
        return cls(
            math.prod(route.reliability for route in passed),
            math.prod(route.uniqueness for route in passed),
        )

    def retried(self, retries: float, confirmations: float = 1.0) -> DeliveryRates:
        """Return what is delivered when the sender sends again until it sees a confirmation.

        `retries` is how often at most, perhaps `math.inf`; `confirmations` the reliability of their
        way back. A confirmation that is lost costs uniqueness, never reliability. Raises ValueError
        on rates outside 0 to 1 and on fewer than 0 retries.
        """
        rates = (*self, confirmations)
        if not (retries >= 0 and all(0 <= rate <= 1 for rate in rates)):
            raise ValueError(f"{self} retried {retries} times, {confirmations} confirmed")
        sends = retries + 1
        reached = _at_least_once(self.reliability, sends)
        if not reached:
            return self
        # Each send is confirmed with probability R * C; until the first that is, all are repeated.
        confirmed = self.reliability * confirmations
        if confirmed:
            repeats = self.reliability * _at_least_once(confirmed, sends) / confirmed
        else:
            repeats = self.reliability * sends
        return DeliveryRates(reached, self.uniqueness * reached / repeats)


def _at_least_once(probability: float, times: float) -> float:
    """Return the probability that one of so many independent attempts succeeds."""
    if probability in (0.0, 1.0):
        return probability
    return -math.expm1(times * math.log1p(-probability))


class DeliveryMode(Enum):
    """Which of the two rates approach one: (R, UR)."""

    UNRELIABLE = (False, False)
    AT_MOST_ONCE = (False, True)
    AT_LEAST_ONCE = (True, False)
    EXACTLY_ONCE = (True, True)
    """In the relaxed sense: both rates approach one."""

    @property
    def is_reliable(self) -> bool:
        """Whether everything arrives."""
        return self.value[0]

    @property
    def is_unique(self) -> bool:
        """Whether nothing arrives twice."""
        return self.value[1]

    @property
    def words(self) -> str:
        """The mode as people write it: ``at-least-once``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def named(cls, words: str) -> DeliveryMode:
        """Read a mode as people write it; ValueError names the four."""
        for mode in cls:
            if mode.words == words:
                return mode
        known = ", ".join(mode.words for mode in cls)
        raise ValueError(f"delivery mode {words!r}: write one of {known}")

    @classmethod
    def of(cls, rates: DeliveryRates, *, tolerance: float = 0.0) -> DeliveryMode:
        """Return the mode of rates that lie within `tolerance` of one, or do not."""
        return cls((rates.reliability >= 1 - tolerance, rates.uniqueness >= 1 - tolerance))

    @classmethod
    def over(cls, modes: Iterable[DeliveryMode]) -> DeliveryMode:
        """Return the mode of a pipeline: each part as relaxed as the most relaxed one has it."""
        passed = tuple(modes)
        return cls(
            (all(mode.is_reliable for mode in passed), all(mode.is_unique for mode in passed))
        )

"""Where does the median of measured pairs lie?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

TEN = 10
"""From so many on the two outermost are left out."""


def within(found: Sequence[float]) -> tuple[float, float]:
    """Return between which two the median lies: of ten, the 2nd and the 9th, with 98 %."""
    aside = 1 if len(found) >= TEN else 0
    ends = sorted(found)[aside : len(found) - aside]
    return ends[0], ends[-1]


def interval(found: Sequence[float]) -> str:
    """Return the median, and between which two it lies."""
    low, high = within(found)
    return f"{statistics.median(found):.2f} ({low:.2f} to {high:.2f})"

"""Where does the median of measured pairs lie?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

TEN = 10
"""From so many on the two outermost are left out."""


def interval(found: Sequence[float]) -> str:
    """Return the median and, of ten, the 2nd and the 9th: they hold it with 98 % confidence."""
    aside = 1 if len(found) >= TEN else 0
    ends = sorted(found)[aside : len(found) - aside]
    return f"{statistics.median(found):.2f} ({ends[0]:.2f} to {ends[-1]:.2f})"

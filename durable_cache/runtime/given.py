"""What others gave, behind the tokens that a cache heard before it.

A token waits in the shell's queue behind the samples before it, and those for the journal. What
others gave waits for no journal: it would come in first, and by the names in it a later run would
be known before the earlier one, whose token would then be taken for that of a run that follows.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class GivenInTurn(Generic[T]):
    """What others gave, in its order; owned by the shell that queues both.

    Whoever adds bounds it: `samples` is what waits here. What is added last has the last word on a
    fetch, so the end of one is added behind its samples.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, T]] = deque()
        self._heard = self._handed_in = 0
        self.samples = 0
        """How many samples wait here."""

    def __bool__(self) -> bool:
        """Whether the oldest may be handed in."""
        return bool(self._waiting) and self._waiting[0][0] <= self._handed_in

    @property
    def waits(self) -> bool:
        """Whether something is here, its turn or not."""
        return bool(self._waiting)

    def heard(self) -> None:
        """Note that a token, or the end of one, waits to be handed in."""
        self._heard += 1

    def handed_in(self) -> None:
        """Note that the oldest of them was handed in."""
        self._handed_in += 1

    def add(self, given: T, samples: int = 0) -> None:
        """Let something wait for the tokens that were heard by now."""
        self._waiting.append((self._heard, samples, given))
        self.samples += samples

    def take(self) -> T:
        """Return the oldest; its turn has come."""
        _, samples, given = self._waiting.popleft()
        self.samples -= samples
        return given

    def clear(self) -> None:
        """Forget everything, as a process that ends does."""
        self._waiting.clear()
        self._heard = self._handed_in = self.samples = 0

"""What a split-brain policy changed, for people."""

from __future__ import annotations

from typing import NamedTuple


class Corrected(NamedTuple):
    """Counts since the cache was declared."""

    split_brains: int = 0
    """Partitions after which this cache, as the master, corrected what the union said."""
    disposed: int = 0
    """Instances that were disposed."""
    restored: int = 0
    """Instances that were given the value of the master's side."""
    removed: int = 0
    """Samples that were purged; only with `remove_history`."""

    def plus(self, other: Corrected) -> Corrected:
        return Corrected(*(one + two for one, two in zip(self, other, strict=True)))

    def as_about(self) -> dict[str, object]:
        """Return what a line of the log says of it."""
        return {"disposed": self.disposed, "restored": self.restored, "removed": self.removed}

"""What is asked of caches and publishers' own caches on the simulated network."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds

__all__ = ["Question", "holds"]


def holds(key_expr: KeyExpression, key: str) -> bool:
    """Tell whether what is published on `key`, a wildcard update too, concerns an expression."""
    return _holds(key_expr.text, key)


@lru_cache(maxsize=1024)
def _holds(text: str, key: str) -> bool:
    return KeyExpression(text).concerns(key)


@dataclass(frozen=True, slots=True)
class Question:
    """A packed question: ``<source or *>/<key expr>?_sn=first..last;_max=newest``."""

    key_expr: KeyExpression
    source: SourceId | None = None
    first: int | None = None
    last: int | None = None
    newest: int | None = None
    after: Sample | None = None
    """Go on behind this sample."""
    in_time: bool = False
    """In order of time, as history is asked for."""
    samples_max: int = 1 << 30
    """So many at most; the rest is for the next page."""
    native: bool = False
    """It goes to foreign publishers' own caches."""
    selection: Selection = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        source = self.source
        selection = Selection(
            key_expr=self.key_expr,
            zid=None if source is None else source.zid,
            eid=None if source is None else source.eid,
            sns=SnBounds(self.first, self.last),
            newest=self.newest,
            order=Order.TIME if self.in_time else Order.IDENTITY,
        )
        object.__setattr__(self, "selection", selection)  # asked of several, page by page

    def names(self, sample: Sample) -> bool:
        """Tell whether a sample is asked for, `newest` and `after` aside."""
        return (
            (self.source is None or sample.source == self.source)
            and (self.first is None or sample.sn >= self.first)
            and (self.last is None or sample.sn <= self.last)
            and holds(self.key_expr, sample.key)
        )

    def __str__(self) -> str:
        who = "*" if self.source is None else str(self.source)
        return f"{who}/{self.key_expr}?_sn={self.first}..{self.last};_max={self.newest}"

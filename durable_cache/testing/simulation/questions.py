"""What is asked of caches and publishers' own caches on the simulated network, and answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds, TimeBounds
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.wire import PackedAnswer, decode_packed

Answered = tuple[str, bytes]
"""Who answered, and one frame of that."""
Answering = Callable[[], Iterator[Answered]]
"""Answers a question, a frame at a time."""


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
    since_ns: int | None = None
    """Only what bears a timestamp of that Unix time or a later one."""
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
            times=TimeBounds() if self.since_ns is None else TimeBounds(self.since_ntp64),
            newest=self.newest,
            order=Order.TIME if self.in_time else Order.IDENTITY,
        )
        object.__setattr__(self, "selection", selection)  # asked of several, page by page

    @property
    def since_ntp64(self) -> int:
        """The first NTP64 of a timestamp that is asked for."""
        return 0 if self.since_ns is None else ntp64_from_ns(self.since_ns)

    def names(self, sample: Sample) -> bool:
        """Tell whether a sample is asked for, `newest` and `after` aside."""
        return (
            (self.source is None or sample.source == self.source)
            and (self.first is None or sample.sn >= self.first)
            and (self.last is None or sample.sn <= self.last)
            and sample.ntp64 >= self.since_ntp64
            and holds(self.key_expr, sample.key)
        )

    def __str__(self) -> str:
        who = "*" if self.source is None else str(self.source)
        return f"{who}/{self.key_expr}?_sn={self.first}..{self.last};_max={self.newest}"


class Heard:
    """What the answers to one question hold together."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._frames: dict[str, list[PackedAnswer]] = {}
        self.cut_after: Sample | None = None

    @property
    def parts(self) -> list[PackedAnswer]:
        """What each answered: names come with its last frame and are those of all."""
        return [
            PackedAnswer(
                SampleBatch(sample for frame in frames for sample in frame.samples),
                absent=tuple(absence for frame in frames for absence in frame.absent),
                incarnations=tuple(name for frame in frames for name in frame.incarnations),
            )
            for frames in self._frames.values()
        ]

    @property
    def samples(self) -> list[Sample]:
        return [sample for part in self.parts for sample in part.samples]

    def hear(self, answered: Answered) -> None:
        """Take one packed frame."""
        answerer, frame = answered
        answer = decode_packed(frame)
        self._frames.setdefault(answerer, []).append(answer)
        if answer.more and answer.samples:
            last = answer.samples.samples[-1]
            last = msgspec.structs.replace(last, payload=b"", attachment=None)
            place = self._question.selection.place
            if self.cut_after is None or place(last) < place(self.cut_after):
                self.cut_after = last

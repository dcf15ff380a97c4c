"""What a cache's decisions ask of its storage, and the shape of a conversation that asks.

A decision that needs to know what is stored is written as a generator: it yields a question and
goes on with the answer. Whoever drives it may answer at once or much later; where a question cannot
be answered, `Unanswered` is raised at the place that asked, so that no failure looks like an empty
answer.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from durable_cache.errors import LocalProtocolError
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.selection import Cursor
from durable_cache.protocol.cache.events import Alias, Found, NumberingState


class Unanswered(Exception):
    """The storage could not answer a question; nothing is known then."""


@dataclass(frozen=True, slots=True)
class LoadSources:
    """What is stored of these sources? Answered with `SourcesFound`."""

    sources: tuple[SourceId, ...]


@dataclass(frozen=True, slots=True)
class SourcesFound:
    """The numberings of each source; a source that is not stored is left out."""

    states: Mapping[SourceId, tuple[NumberingState, ...]]


@dataclass(frozen=True, slots=True)
class Floors:
    """Below which number were samples of these streams removed? Answered with `FloorsFound`."""

    streams: tuple[Stream, ...]


@dataclass(frozen=True, slots=True)
class FloorsFound:
    """Floors by stream; 0, or a stream left out, where nothing was removed."""

    floors: Mapping[Stream, int]


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is stored under the numbers of these samples? Answered with `NumbersLooked`."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class NumbersLooked:
    """What a `Lookup` found, sample by sample, in its order."""

    found: tuple[Found, ...]


class Standing(Enum):
    """What the stream index knows of one sample."""

    NEW = "new"
    """Nothing, or that it is on its way."""
    HELD = "held"
    REMOVED = "removed"
    """Retention or a purge removed it, or what lies behind it."""


@dataclass(frozen=True, slots=True)
class Standings:
    """How do these samples stand? Answered with `StandingsFound`."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class StandingsFound:
    """What `Standings` found, sample by sample, in its order."""

    standings: tuple[Standing, ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is stored of a numbering's range, every key? Answered with `NumbersFound`."""

    source: SourceId
    epoch: int
    first: int
    last: int
    samples_max: int


@dataclass(frozen=True, slots=True)
class NumbersFound:
    """At most `samples_max` stored samples of a range."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Agreed:
    """Two epochs are one incarnation."""

    alias: Alias


@dataclass(frozen=True, slots=True)
class Disagreed:
    """They are not, after all."""

    alias: Alias


@dataclass(frozen=True, slots=True)
class Declaration:
    """An epoch of a source is this incarnation, and perhaps what was stored before its token."""

    source: SourceId
    epoch: int
    incarnation: str
    instead_of: int | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a change durably, all of it or nothing; answered with `Done`. Idempotent."""

    change: Agreed | Disagreed | Declaration


@dataclass(frozen=True, slots=True)
class ReadToMove:
    """Give the next page of what is stored under an alias's epoch; answered with a `MovedPage`."""

    alias: Alias
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class MovedPage:
    """A page, under the epoch it is stored under, and where the next begins; None at the end."""

    batch: SampleBatch
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class IsMoved:
    """Has the backend everything of an alias under the epoch that stands?"""

    alias: Alias


@dataclass(frozen=True, slots=True)
class MovedSoFar:
    """The answer to `IsMoved`."""

    all: bool


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove what was moved from under its old epoch; answered with `Done`. Idempotent."""

    alias: Alias


@dataclass(frozen=True, slots=True)
class Done:
    """It is durable."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so long; answered with `Done` by whoever drives the conversation, not by a storage."""

    seconds: float


Question = (
    LoadSources | Floors | Lookup | Standings | Numbers | Keep | ReadToMove | IsMoved | Forget
)
Answer = (
    SourcesFound
    | FloorsFound
    | NumbersLooked
    | StandingsFound
    | NumbersFound
    | MovedPage
    | MovedSoFar
    | Done
)
AnswerT = TypeVar("AnswerT", bound=Answer)
ResultT = TypeVar("ResultT")
Conversation = Generator[Question | Pause, Answer, ResultT]
"""Yields questions, is sent their answers, returns what was decided."""


def answer_of(question: Question, kind: type[AnswerT]) -> Conversation[AnswerT]:
    """Ask, and return the answer, which must be of the kind that belongs to the question."""
    answer = yield question
    if not isinstance(answer, kind):
        raise LocalProtocolError(f"{type(question).__name__} was answered with {answer!r:.80}")
    return answer

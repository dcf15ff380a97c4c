"""What goes into a cache's core and what comes out; frozen values, no behaviour.

Every effect that asks for something has an answer and a failure:

| effect | answer | failure |
|---|---|---|
| `Append` | `Appended` | `AppendFailed` |
| `Verify` | `Verified` | `VerifyFailed` |
| `Fetch` | `Arrived` for what came, then `FetchEnded` | `FetchEnded(failed=True)` |
| `Inquire` | `Arrived` for what came, then `Inquired` | `Inquired(failed=True)` |
| `Ask` | `Answered` | `AskFailed` |

The others (`SendAck`, `ReportMiss`, `ReportConflict`, `ReportAbsent`, `ReportEpochs`) need none: an
acknowledgement that is lost is *unknown* to its publisher, as the protocol allows. `AnswerResend`
is itself the answer to a `ResendArrived`; there is one for each, whatever fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.sample import SampleBatch, SourceId
from durable_cache.protocol.cache.events import (
    Alias,
    Append,
    Appended,
    AppendFailed,
    BatchRefused,
    EpochDeclared,
    Fetch,
    FetchEnded,
    HeartbeatReceived,
    Origin,
    ReportAbsent,
    ReportConflict,
    ReportMiss,
    SendAck,
    Tick,
    TokenGone,
    Verified,
    Verify,
    VerifyFailed,
)
from durable_cache.protocol.cache.questions import Answer, Question
from durable_cache.protocol.resends import ResendRefusal
from durable_cache.protocol.wire import Incarnation


@dataclass(frozen=True, slots=True)
class Started:
    """The cache begins: go on recovering what was awaited in these sources when it last ended."""

    sources: tuple[SourceId, ...]
    now: Moment


class Arrived(msgspec.Struct, frozen=True):
    """Samples came in, by whichever way; nothing of them was looked at yet."""

    batch: SampleBatch
    origin: Origin
    now: Moment
    names: tuple[Incarnation, ...] = ()
    """Which runs the epochs of what others gave are, as the giver has it."""


@dataclass(frozen=True, slots=True)
class ResendArrived:
    """A publisher sent samples of one numbering once more, to this cache alone.

    Answered with an `AnswerResend` of the same number.
    """

    number: int
    sender: str
    """The zid that the sender says it has."""
    source: SourceId
    epoch: int
    incarnation: str
    batch: SampleBatch
    claims: frozenset[str] | None
    """The incarnations that live tokens of the source name; None where that is not known."""
    now: Moment
    refused: tuple[ResendRefusal, ...] = ()
    """Numbers that were left out on the way."""
    carriers: frozenset[tuple[str, str]] = frozenset()
    """Which sessions show that they carry which incarnation of the source (ADR 0161)."""


@dataclass(frozen=True, slots=True)
class Inquired:
    """What others hold under other names came in before; or they could not all be asked."""

    inquiry_id: int
    now: Moment
    failed: bool = False
    whole: bool = True
    """All of it came in: nothing found no room."""


@dataclass(frozen=True, slots=True)
class PulledAgain:
    """Another cache pulls again what goes here by an epoch that no token declared (ADR 0355)."""

    source: SourceId
    epoch: int
    now: Moment


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to an `Ask`."""

    ask_id: int
    answer: Answer
    now: Moment


@dataclass(frozen=True, slots=True)
class AskFailed:
    """An `Ask` could not be answered; nothing is known."""

    ask_id: int
    now: Moment


@dataclass(frozen=True, slots=True)
class NamedTwice:
    """Of this source some numbers are here under two names, perhaps of one run.

    As `NameLeft`, a core tells it itself; it waits in turn with what others gave.
    """

    source: SourceId


@dataclass(frozen=True, slots=True)
class NameLeft:
    """Nothing of this source is stored any more under an epoch that a run left."""

    source: SourceId


CoreEvent = (
    Started
    | Arrived
    | Inquired
    | PulledAgain
    | ResendArrived
    | Answered
    | AskFailed
    | BatchRefused
    | EpochDeclared
    | TokenGone
    | HeartbeatReceived
    | FetchEnded
    | Appended
    | AppendFailed
    | Verified
    | VerifyFailed
    | Tick
)


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the storage; `urgent` questions hold up live samples and read no backend."""

    ask_id: int
    question: Question
    urgent: bool


@dataclass(frozen=True, slots=True)
class Inquire:
    """Ask every cache for these numbers, whatever they call the epoch, then say `Inquired`."""

    inquiry_id: int
    source: SourceId
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ReportEpochs:
    """Two epochs of a source were taken for one, or are two after all."""

    alias: Alias
    are_one: bool


@dataclass(frozen=True, slots=True)
class AnswerResend:
    """Say which numbers of a resend were not taken; the others are acknowledged when durable."""

    number: int
    refused: tuple[ResendRefusal, ...]


@dataclass(frozen=True, slots=True)
class Announce:
    """Say on a key expression that a number of a source without a token is durable (ADR 0347)."""

    key_expr: str
    source: SourceId
    epoch: int
    sn: int


Effect = (
    Append
    | AnswerResend
    | Announce
    | SendAck
    | Fetch
    | Verify
    | Ask
    | Inquire
    | ReportMiss
    | ReportConflict
    | ReportAbsent
    | ReportEpochs
)

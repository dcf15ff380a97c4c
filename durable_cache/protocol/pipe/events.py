"""What goes into a pipe's engine and what comes out of it; values, no behaviour.

What is said to and by the caches of the target network is what a publisher's engine says and hears
when it sends once more.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.publisher.events import (
    AckReceived,
    CacheAppeared,
    CacheGone,
    HandedOver,
    Resend,
    ResendFailed,
    Resent,
    Tick,
)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine's bounds and wishes; what it holds is bounded by who hands it samples."""

    acknowledgements: int = 1
    """How many caches of the target network must hold a sample before it is confirmed."""
    level: int = 2
    """At which level each of them must hold it, as `Durability` numbers levels."""
    processed: bool = False
    """Confirm only what a consumer of the target network has confirmed, too."""
    frame_samples_max: int = 2_000
    frame_bytes_max: int = 1 << 20
    """One sample alone always fits."""
    frames_max: int = 4
    """Frames under way to one cache, of different runs; of one run there is one."""
    retry_seconds: float = 1.0
    """How long an acknowledgement is awaited before a frame is sent again; then twice as long."""
    retry_seconds_max: float = 10.0
    runs_max: int = 10_000
    """Runs of sources that are remembered and shown as carried."""
    caches_max: int = 256
    """Caches of which it is remembered what they hold."""
    sends_again: bool = True
    """Send what is not acknowledged again; without it, each sample is sent to each cache once, and
    is lost where no acknowledgement came for `retry_seconds`."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The source network's consumer handed out samples, of each run in its order."""

    samples: tuple[Sample, ...]
    now: Moment


@dataclass(frozen=True, slots=True)
class Claimed:
    """Answers `Claim`: the run is shown as carried, by this name."""

    source: SourceId
    called: int
    epoch: int
    incarnation: str
    now: Moment


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    """Answers `Claim`: not now; it is asked for again."""

    source: SourceId
    called: int
    now: Moment


@dataclass(frozen=True, slots=True)
class Positioned:
    """The consumer that must have processed a sample says where it stands in one run."""

    position: Position


Event = (
    Taken
    | Claimed
    | ClaimFailed
    | Positioned
    | AckReceived
    | CacheAppeared
    | CacheGone
    | Resent
    | ResendFailed
    | Tick
)


@dataclass(frozen=True, slots=True)
class Claim:
    """Learn a run's name and show it as carried, before its first sample.

    Answered by `Claimed` or `ClaimFailed`.
    """

    sample: Sample
    """One of the run, as it was handed out: it names the source and what the run is called."""
    attempt: int
    """0 the first time."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Show a run as carried no more."""

    source: SourceId
    incarnation: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """The pipe is done with samples, as they were handed out: they are confirmed to the source
    network where it awaits that.
    """

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A cache will never take this sample: to be reported. It is confirmed."""

    sample: Sample
    cache_id: str
    reason: int
    """A `RefusalReason`."""


Output = Claim | Withdraw | Resend | Confirm | HandedOver | GaveUp

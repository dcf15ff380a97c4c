"""What a reliable subscriber is told to do, and within which bounds; frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from durable_cache.model.sample import Sample, SourceId

__all__ = ["Deliver", "DeliveryOptions", "Missed", "Output", "Request"]


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """The subscriber's bounds and delays; each default carries its reason."""

    recovery: bool = True
    """Ask for what is missing; without it a gap is reported at once."""
    periodic_queries_seconds: float | None = None
    """How often to ask for missed tails; None asks only on gaps."""
    gap_timeout_seconds: float = 30.0
    """How long later samples are held back for a missing one: a killed cache is back by then."""
    request_samples_max: int = 10_000
    """Numbers that one request spans, holes and what is between them."""
    retry_seconds: float = 0.1
    """The first pause after an answer that left the gap open; doubles up to the next."""
    retry_seconds_max: float = 2.0
    window_size_samples: int = 1 << 17
    """A jump beyond this is confirmed first."""
    pending_samples_max: int = 20_000
    """Samples of one source held back; later ones are dropped and recovered from caches."""
    sources_max: int = 10_000
    """Sources followed; the one silent for longest is forgotten, and counts as new afterwards."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Pass these on, in this order."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Missed:
    """These numbers will not be delivered; comes before what follows them."""

    source: SourceId
    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Request:
    """Ask every cache for these numbers; `last` None asks for all from `first` on."""

    request_id: int
    source: SourceId
    epoch: int
    first: int
    last: int | None


Output = Deliver | Missed | Request

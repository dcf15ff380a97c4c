"""What a reader says of samples it had to drop and of its writers; frozen values."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from durable_cache.model.sample import SourceId


class LostReason(StrEnum):
    """Why a sample did not get into the reader's cache."""

    CONSUMED = "consumed"
    """A newer one of its instance was taken: nobody could see that this one is older."""
    NO_ROOM = "no room"
    """It is older than what is there, and the history or a limit is full."""
    SAMPLES_MAX = "samples_max"
    """`samples_max` is reached, and its own instance has nothing to give up."""
    INSTANCES_MAX = "instances_max"
    """Its key would be one more than `instances_max`."""
    MISSED = "missed"
    """It never came: the wait for its number is over."""


class SampleLost(NamedTuple):
    """Samples that were dropped, as DDS's SampleLostStatus."""

    total: int
    """Since the reader began."""
    change: int
    """Since the last time."""
    reason: LostReason | None
    """Of the last; None where nothing was dropped yet."""
    last: tuple[SourceId, int, int] | None
    """Source, epoch and sn of the last."""
    key: str | None
    """Of the last; None where it never came."""


class LivelinessChanged(NamedTuple):
    """How many writers there are, as DDS's LivelinessChangedStatus."""

    alive: int
    not_alive: int
    """Seen before, and not there now."""
    alive_change: int
    not_alive_change: int
    last: SourceId | None


class SubscriptionMatched(NamedTuple):
    """How many writers write what is read, as DDS's SubscriptionMatchedStatus."""

    current: int
    total: int
    """Since the reader began; one that comes back is counted again."""
    current_change: int
    total_change: int
    last: SourceId | None

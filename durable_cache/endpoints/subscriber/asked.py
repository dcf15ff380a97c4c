"""What a program asks of a durable consumer, as it is said to the threads that see to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from threading import Event as Flag
from typing import Literal, NamedTuple

from durable_cache.endpoints.subscriber.keeping import ConsumerOptions
from durable_cache.errors import Closed, ConfigError, Fenced, OutcomeUnknown
from durable_cache.model.arguments import check_kind, refused
from durable_cache.model.sample import SourceId
from durable_cache.protocol.consumers import check_consumer
from durable_cache.protocol.subscriber.positions import Point

_LOOK_SECONDS = 0.05
"""How often who waits for a rewind looks whether delivery stands still before a full channel."""

Confirm = Literal["auto", "manual"]


class KeptPosition(NamedTuple):
    """Where a run of a source stands, for a program that keeps positions itself."""

    run: str
    """Names the run; of each, the position that was stored last is kept."""
    value: bytes


class ConsumerName(NamedTuple):
    """A consumer's name, and how what bears it works."""

    consumer: str
    confirm: Confirm
    options: ConsumerOptions

    @classmethod
    def of(
        cls, consumer: object, confirm: Confirm, options: object, *, retries: bool = False
    ) -> ConsumerName | None:
        """Read a subscriber's arguments; None where it is no consumer. Raises ConfigError.

        `retries`: its mode confirms, too.
        """
        if confirm not in ("auto", "manual"):
            raise refused("confirm", confirm, '"auto" or "manual"')
        if consumer is None:
            if (confirm != "auto" and not retries) or options is not None:
                raise ConfigError(
                    "confirm, consumer_options: name the consumer they are of, or confirm in "
                    'mode="at-least-once"'
                )
            return None
        given = ConsumerOptions() if options is None else options
        chosen = check_kind("consumer_options", given, ConsumerOptions, "a ConsumerOptions")
        return cls(check_consumer(consumer), confirm, chosen.checked())


class Rewind:
    """A rewind that was asked for; `done` once it is in force."""

    def __init__(self, points: Mapping[SourceId, Point] | None) -> None:
        self.points = points
        self.refused: Fenced | None = None
        """Why nothing was rewound, once it is done."""
        self.lapses = 0
        """How often everything had been given up when it came into force."""
        self.done = Flag()

    def wait(
        self, timeout_seconds: float | None, consumer: str, may_wait: Callable[[], bool]
    ) -> None:
        """Wait until it is in force; raise why it never is, or OutcomeUnknown: not yet."""
        end = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self.done.wait(_LOOK_SECONDS):
            if not may_wait():
                raise Closed(f"consumer {consumer!r} is closed")
            if time.monotonic() >= end:
                raise OutcomeUnknown(
                    f"consumer {consumer!r} is not rewound yet: it is, once its handler returns "
                    "and its sources are begun"
                )
        if self.refused is not None:
            raise self.refused


class Counts(NamedTuple):
    delivered: int = 0
    missed: int = 0
    duplicates: int = 0

"""zenoh.ext's configurations, by the same names and arguments; each is checked when it is made.

Zenoh's own cannot be read from Python, so programs import these in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from durable_cache.endpoints.session import CongestionControl, Priority, read_qos
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_flag, check_kind, check_number, refused
from durable_cache.model.sample import Qos

Seconds: TypeAlias = float | timedelta
"""A period, as zenoh-python's documentation has it and as its code takes it."""

_PERIOD_SECONDS_MIN = 0.1
"""How often the threads of ours look around."""


def _seconds(name: str, value: Seconds, least: float) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= least:
        raise refused(name, value, f"seconds of at least {least:g}, or a timedelta")
    return float(seconds)


@dataclass(frozen=True, slots=True)
class RepliesConfig:
    """How a publisher's own cache would answer; only what it does in any case is taken.

    Answers travel as the question does: Zenoh's defaults for a reply.
    """

    congestion_control: CongestionControl | None = field(default=None, kw_only=True)
    priority: Priority | None = field(default=None, kw_only=True)
    express: bool | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        asked = read_qos(None, self.congestion_control, self.priority, self.express)
        if asked != Qos():
            raise ConfigError(
                f"replies_config: answers have priority {Qos().priority} (data), block and are not "
                f"express, and not {tuple(asked)}; leave it out"
            )


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What a publisher keeps in its own process: its newest `max_samples`, 1 by default."""

    max_samples: int | None = None
    replies_config: RepliesConfig | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.max_samples is not None:
            check_number("max_samples", self.max_samples, 1, whole=True)
        if self.replies_config is not None:
            check_ours("replies_config", self.replies_config, RepliesConfig)

    @property
    def samples(self) -> int:
        """How many samples are kept."""
        return self.max_samples or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MissDetectionConfig:
    """How a lost last sample is noticed: by a heartbeat, or by one for each new number."""

    heartbeat: Seconds | None = None
    sporadic_heartbeat: Seconds | None = None

    def __post_init__(self) -> None:
        for name in ("heartbeat", "sporadic_heartbeat"):
            if (value := getattr(self, name)) is not None:
                _seconds(name, value, _PERIOD_SECONDS_MIN)
        if self.heartbeat is not None and self.sporadic_heartbeat is not None:
            raise ConfigError("heartbeat and sporadic_heartbeat: choose one")

    @property
    def period_seconds(self) -> float | None:
        """How often the last number is told; None for never."""
        for value in (self.heartbeat, self.sporadic_heartbeat):
            if value is not None:
                return _seconds("heartbeat", value, 0)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """What of the past a subscriber asks for: all, or what these bounds leave."""

    detect_late_publishers: bool | None = None
    """Taken in any case: a publisher that appears late is asked for what it keeps."""
    max_samples: int | None = None
    max_age: Seconds | None = None

    def __post_init__(self) -> None:
        if self.detect_late_publishers is not None:
            check_flag("detect_late_publishers", self.detect_late_publishers)
        if self.max_samples is not None:
            check_number("max_samples", self.max_samples, 1, whole=True)
        if self.max_age is not None:
            _seconds("max_age", self.max_age, 0.001)

    @property
    def parameters(self) -> str:
        """Return the bounds as parameters of a query."""
        parts = [] if self.max_samples is None else [f"_max={self.max_samples}"]
        if self.max_age is not None:
            parts.append(f"_time=[now(-{_seconds('max_age', self.max_age, 0):f}s)..]")
        return ";".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """How a subscriber notices a lost last sample; gaps are recovered in any case."""

    periodic_queries: Seconds | None = None
    heartbeat: bool | None = None
    """Heartbeats are heard in any case."""

    def __post_init__(self) -> None:
        if self.periodic_queries is not None:
            _seconds("periodic_queries", self.periodic_queries, _PERIOD_SECONDS_MIN)
        if self.heartbeat is not None:
            check_flag("heartbeat", self.heartbeat)
        if self.heartbeat and self.periodic_queries is not None:
            raise ConfigError("periodic_queries and heartbeat: choose one")

    @property
    def period_seconds(self) -> float | None:
        """How often missed tails are asked for; None for never."""
        asked = self.periodic_queries
        return None if asked is None else _seconds("periodic_queries", asked, 0)


def check_ours(name: str, value: object, kind: type[object]) -> None:
    """Refuse with ConfigError what is no configuration of this module's, as zenoh.ext's own."""
    check_kind(
        name, value, kind, f"a durable_cache.ext.{kind.__name__} (zenoh.ext's cannot be read)"
    )

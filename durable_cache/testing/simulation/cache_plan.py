"""How a simulated cache is set."""

from __future__ import annotations

from dataclasses import dataclass, field

from durable_cache.model.key_expression import KeyExpression
from durable_cache.protocol.cache.events import EngineOptions
from durable_cache.storage.contract import Durability, Retention
from durable_cache.storage.journaled.storage import JournalOptions


@dataclass(frozen=True, slots=True)
class CachePlan:
    """How a cache is set."""

    name: str
    key_expr: KeyExpression = KeyExpression("**")
    engine: EngineOptions = field(default_factory=EngineOptions)
    journal: JournalOptions = field(default_factory=JournalOptions)
    retention: Retention = field(default_factory=Retention)
    retention_seconds: float = 10.0
    queue_samples_max: int = 1 << 30
    """Samples that wait; beyond it they are refused."""
    given_samples_max: int = 10_000
    """Samples that others gave and that wait."""
    resources_limit: int | None = None
    journal_entries_max: int = 1 << 30
    answer_samples_max: int = 64
    """The rest is for the next page."""
    fetch_timeout_seconds: float = 2.0
    align: bool = True
    align_bytes_max: int = 1 << 20
    commit_seconds: float = 0.0
    """How long a commit takes at most, while the core is told of more; 0: it is done at once."""
    level: Durability = Durability.DISK

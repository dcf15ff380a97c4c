"""How a reader keeps and orders samples, in the words of DDS; and what makes it consistent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Self

from durable_cache.errors import ConfigError
from durable_cache.model.arguments import refused, shown


class DurabilityKind(IntEnum):
    """What a late joiner gets of the samples that were published before."""

    VOLATILE = 0
    """Nothing."""
    TRANSIENT_LOCAL = 1
    """What their publishers still keep."""
    TRANSIENT = 2
    """What caches keep; they may keep it in memory."""
    PERSISTENT = 3
    """The same, and a cache that stores it must be in reach when the reader is declared."""


class Reliability(StrEnum):
    """Whether missing samples are recovered."""

    BEST_EFFORT = "best_effort"
    RELIABLE = "reliable"


class DestinationOrder(StrEnum):
    """Which of two samples of an instance is the later one."""

    BY_RECEPTION_TIMESTAMP = "by_reception_timestamp"
    """The one that came later: every reader sees another order."""
    BY_SOURCE_TIMESTAMP = "by_source_timestamp"
    """The one that was published later: `Sample.time_order`, which is total and everywhere one."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A set of qualities of service for one reader; every combination is checked when it is made.

    An instance is a key. Raises ConfigError, never to be retried as is, on a contradiction.
    """

    durability: DurabilityKind = DurabilityKind.VOLATILE
    reliability: Reliability = Reliability.RELIABLE
    depth: int | None = 1
    """KEEP_LAST with so many samples of each instance; None is KEEP_ALL."""
    samples_max: int | None = None
    """Samples of all instances together; None leaves the bound to the other two."""
    samples_max_per_instance: int | None = None
    """Samples of one instance."""
    instances_max: int = 100_000
    """Keys, also those whose samples were taken: what stays of one is about half a kilobyte."""
    destination_order: DestinationOrder = DestinationOrder.BY_RECEPTION_TIMESTAMP
    auto_dispose_unregistered_instances: bool = False
    """Of publishers whose token cannot say: native ones."""
    writers_max: int = 10_000
    """Publishers told apart; further ones count as one that never leaves."""

    def __post_init__(self) -> None:
        for name in ("depth", "samples_max", "samples_max_per_instance"):
            _check_bound(name, getattr(self, name), may_lack=True)
        for name in ("instances_max", "writers_max"):
            _check_bound(name, getattr(self, name), may_lack=False)
        for name, kind in _KINDS.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"profile: {name} is one of {_members(kind)}, not {shown(value)}")
        depth, per_instance = self.depth, self.samples_max_per_instance
        if depth is None and per_instance is None and self.samples_max is None:
            raise ConfigError(
                "profile: KEEP_ALL (depth=None) keeps every sample until it is taken, and memory "
                "is bounded: set samples_max or samples_max_per_instance"
            )
        if depth is not None and per_instance is not None and depth > per_instance:
            raise ConfigError(
                f"profile: depth {depth} is above samples_max_per_instance {per_instance}: so many "
                "samples of an instance may never be kept; lower the one or raise the other"
            )
        if None not in (depth, self.samples_max) and depth > self.samples_max:  # type: ignore[operator]
            raise ConfigError(
                f"profile: depth {depth} is above samples_max {self.samples_max}: so many samples "
                "of an instance may never be kept; lower the one or raise the other"
            )
        if None not in (self.samples_max, per_instance) and self.samples_max < per_instance:  # type: ignore[operator]
            raise ConfigError(
                f"profile: samples_max_per_instance {per_instance} is above samples_max "
                f"{self.samples_max}; lower the one or raise the other"
            )

    @property
    def history(self) -> bool | int:
        """Return what to ask caches for before live samples."""
        if self.durability is DurabilityKind.VOLATILE:
            return False
        return True if self.depth is None else self.depth

    @property
    def per_instance(self) -> int | None:
        """Return how many samples of one instance are kept at most; None leaves it to the whole."""
        return self.samples_max_per_instance if self.depth is None else self.depth

    @property
    def inconsistencies(self) -> tuple[str, ...]:
        """Return why readers of this profile may end in different states; empty where they cannot.

        Periodic updates of every instance make up for the first two, as for any loss.
        """
        return tuple(sentence for lacks, sentence in _CONDITIONS if lacks(self))

    def require_consistent(self) -> Self:
        """Return the profile itself; ConfigError says in words why it is not consistent."""
        if reasons := self.inconsistencies:
            raise ConfigError("this profile cannot be eventually consistent. " + " ".join(reasons))
        return self


_KINDS: Mapping[str, type[DurabilityKind] | type[Reliability] | type[DestinationOrder]] = {
    "durability": DurabilityKind,
    "reliability": Reliability,
    "destination_order": DestinationOrder,
}
_CONDITIONS = (
    (
        lambda profile: profile.reliability is Reliability.BEST_EFFORT,
        "reliability is BEST_EFFORT: a sample that is lost on its way is not recovered, and stays "
        "unknown to this reader until its instance is written again; choose RELIABLE.",
    ),
    (
        lambda profile: profile.durability < DurabilityKind.TRANSIENT,
        "durability is below TRANSIENT: a reader that joins late cannot get what was published "
        "before from publishers that are gone; choose TRANSIENT or PERSISTENT.",
    ),
    (
        lambda profile: profile.destination_order is DestinationOrder.BY_RECEPTION_TIMESTAMP,
        "destination order is BY_RECEPTION_TIMESTAMP: of two publishers' samples each reader takes "
        "for the latest what came to it last; choose BY_SOURCE_TIMESTAMP.",
    ),
)


def _members(kind: type[DurabilityKind] | type[Reliability] | type[DestinationOrder]) -> str:
    return ", ".join(f"{kind.__name__}.{member.name}" for member in kind)


def _check_bound(name: str, value: object, *, may_lack: bool) -> None:
    if value is None and may_lack:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"profile: {name} is a whole number above 0, not {shown(value)}")


_EVENTUALLY_CONSISTENT = Profile(
    durability=DurabilityKind.TRANSIENT,
    destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP,
    auto_dispose_unregistered_instances=True,
)
PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "eventually-consistent": _EVENTUALLY_CONSISTENT,
        "dds-default": Profile(
            reliability=Reliability.BEST_EFFORT, auto_dispose_unregistered_instances=True
        ),
    }
)
"""The profiles that have a name."""


def find_profile(given: Profile | str) -> Profile:
    """Return a profile by its name, or as it is; ConfigError names those there are."""
    if isinstance(given, Profile):
        return given
    if not isinstance(given, str):
        raise refused("profile", given, f"a Profile or one of {', '.join(PROFILES)}")
    if (found := PROFILES.get(given)) is None:
        raise ConfigError(f"profile {given!r}: write a Profile or one of {', '.join(PROFILES)}")
    return found

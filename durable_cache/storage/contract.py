"""What a storage must do, so that every backend gives the same answers.

A backend is a plug-in; it opens storages. A storage is an open handle. The conformance suite in
`durable_cache.testing` has at least one test for every sentence here. No driver is imported here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from durable_cache.errors import ConfigError
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Identity, Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.model.selection import Cursor, Selection


class Durability(IntEnum):
    """What an acknowledged sample survives; a higher level survives what a lower one does."""

    MEMORY = 0
    """Nothing beyond the process."""
    PROCESS = 1
    """SIGKILL of the process."""
    DISK = 2
    """A power cut."""

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a storage claims; the conformance suite verifies each claim."""

    durability: Durability
    """The level that holds when `append` returns."""
    time_resolution_ns: int = 1
    """The step in which the backend itself keeps time; `Sample.ntp64` is exact on every backend."""
    ordered_reads: bool = True
    """The backend's own engine orders pages; False means the storage sorts them itself."""
    exact_age: bool = True
    """Trimming by age removes exactly what is too old; False: up to one partition later."""
    append_samples: int = 20_000
    """How many samples an append best has while many wait, so that its fixed cost is shared."""
    append_linger_seconds: float = 0.2
    """How long few samples best wait in the journal for company; reads see them there."""


class Conflict(NamedTuple):
    """Another payload arrived under an identity that is held; the held one is kept."""

    identity: Identity
    held_digest: bytes
    offered_digest: bytes


class Refusal(NamedTuple):
    """A sample that the backend can never take, with the reason for people."""

    sample: Sample
    reason: str


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What one `append` did; `new` + `duplicates` + conflicts + refused = the samples given."""

    new: int
    duplicates: int = 0
    conflicts: tuple[Conflict, ...] = ()
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a read; `cursor` is None at the end, else where the next page begins."""

    samples: SampleBatch
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class Held:
    """What a storage holds of one stream."""

    stream: Stream
    runs: RangeSet
    """The sns held; owned by the caller."""
    newest_ntp64: int = 0
    newest_received_ns: int = 0


class Floor(NamedTuple):
    """Every sn of `stream` below `sn` was removed."""

    stream: Stream
    sn: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How much may be kept; None is no limit. Only prefixes of a stream are ever trimmed."""

    age_seconds_max: float | None = None
    """By `Sample.received_ns`: a publisher's clock, which may be years off, decides nothing."""
    samples_max: int | None = None
    """Per stream, the highest sns (the specification's `history`)."""
    bytes_max: int | None = None
    """Payload and attachment bytes per storage; the oldest received go first."""

    @property
    def unlimited(self) -> bool:
        return self == Retention()

    def keeps_more_than(self, other: Retention) -> bool:
        """Tell whether there may be a sample that this keeps and `other` removes."""
        pairs = (
            (self.age_seconds_max, other.age_seconds_max),
            (self.samples_max, other.samples_max),
            (self.bytes_max, other.bytes_max),
        )
        return any(theirs is not None and (own is None or own > theirs) for own, theirs in pairs)


class Storage(ABC):
    """An open handle on stored history; one writer, any number of readers, any thread.

    Every method raises only `StorageError` and its kinds, or `Closed`:
    `StorageUnavailable` and `StorageFull` may be retried, the others not.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The claims of this open storage."""

    @abstractmethod
    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        """Store samples and skips; durable at the declared level on return.

        Idempotent: appending twice is appending once. A sample that can never be stored is
        returned with the reason; the rest is all or nothing. An error means the outcome is
        unknown: append again. Within a batch and against what is held, the first of an identity
        wins and another payload is a conflict. A sample replaces the skip that covers its number;
        a skip never hides a held sample.
        """

    def check(self, batch: SampleBatch) -> Sequence[Refusal]:
        """Return the samples of a batch that `append` could never store, as far as can be told now.

        They are refused before anybody is told that they are safe. Cheap: it asks no server.
        """
        return ()

    @abstractmethod
    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return up to `limit` samples after `cursor`, in the selection's order.

        The order is the same on every backend. `limit` is at least 1. A page may be shorter than
        `limit` and still have a cursor; an empty page has none.
        """

    @abstractmethod
    def held(self) -> Iterator[Held]:
        """Yield the unbroken runs of every stream, ordered by `Stream.order`; a scan."""

    @abstractmethod
    def skips(self) -> Iterator[Skip]:
        """Yield the skips that no sample has replaced, disjoint and maximal, per source and epoch,
        in order of zid and eid as numbers, epoch, first.
        """

    @abstractmethod
    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        """Remove what `retention` allows to go, only prefixes of streams; idempotent.

        Returns the floor of every stream that lost samples. A stream's prefix is removable by age
        up to its first sample that is young enough; what a limit of bytes then uncovers as too old
        goes with the next trim.
        """

    @abstractmethod
    def purge(self, floors: Iterable[Floor]) -> int:
        """Remove every sample below the given floors, whatever retention says; idempotent.

        Returns how many samples were removed.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; a second call does nothing. Later calls of others raise `Closed`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class BackendOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of every backend's own options; unknown keys are errors."""


OptionsT = TypeVar("OptionsT", bound=BackendOptions)


class Backend(ABC, Generic[OptionsT]):
    """A plug-in, named in the entry-point group ``durable_cache.backends``.

    It holds no connection itself: `open` does the work.
    """

    name: ClassVar[str]
    options_type: ClassVar[type[BackendOptions]]

    @abstractmethod
    def open(self, storage: str, options: OptionsT, *, writer: bool = True) -> Storage:
        """Open the storage called `storage`, creating what is missing.

        A name is 1 to 64 of ``a-z 0-9 _ -`` and begins with a letter. Raises `StorageLocked` when
        another writer has it, `SchemaOutdated` when it must be migrated first,
        `StorageUnavailable` (retry), `StorageCorrupt`, `ConfigError`. With ``writer=False`` no
        lock is taken, nothing is created and the writing methods raise `StorageLocked`.
        """

    @abstractmethod
    def describe(self, options: OptionsT) -> str:
        """Return where the options point, in one line without secrets."""


@runtime_checkable
class Migratable(Protocol):
    """A backend with a schema of its own to bring up to date."""

    def migrate(self, options: BackendOptions, to: str = "head") -> tuple[str, str]:
        """Bring the schema to revision `to`; returns (found, reached). Resumable, idempotent."""

    def revisions(self, options: BackendOptions) -> tuple[str, str]:
        """Return the revision (found, needed)."""


def check_storage_name(name: str) -> None:
    """Raise ConfigError when `name` is no storage name; every `Backend.open` calls it first."""
    if re.fullmatch("[a-z][a-z0-9_-]{0,63}", name) is None:
        raise ConfigError(
            f"storage name {name[:80]!r}: write 1 to 64 of a-z 0-9 _ -, beginning with a letter"
        )


def source_order(source: SourceId) -> tuple[int, int]:
    """How storages order sources: zid and eid as numbers."""
    return int(source.zid, 16), source.eid

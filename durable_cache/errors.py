"""Which errors the project raises, and whether a caller may try again.

    DurableCacheError
    ├── ConfigError                 correct the configuration; never retry as is
    ├── BackendNotFound             name a backend that is installed
    ├── BackendNotInstalled         install the extra it names
    ├── StorageError
    │   ├── StorageUnavailable      retry: the outcome is unknown, appends are idempotent
    │   ├── StorageFull             retry once there is room
    │   ├── StorageLocked           another writer holds the storage
    │   ├── StorageCorrupt          stop; restore or rebuild from a peer
    │   └── SchemaOutdated          run ``durable-cache migrate``
    ├── ProtocolError
    │   ├── LocalProtocolError      our own caller broke the rules
    │   └── RemoteProtocolError     a peer sent what the protocol does not allow
    ├── Fenced                      another member of the consumer has the source; drop the sample
    ├── Unacknowledged              put again once caches are in reach; nothing was published
    ├── OutcomeUnknown              it may be stored; putting again makes another sample of it
    │   └── NoMajority              an exclusive consumer stops until more of its caches are back
    └── Closed                      the object was closed

Driver errors never appear here: each backend translates its own at its edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

__all__ = [
    "BackendNotFound",
    "BackendNotInstalled",
    "Closed",
    "ConfigError",
    "DurableCacheError",
    "Fenced",
    "LocalProtocolError",
    "NoMajority",
    "OutcomeUnknown",
    "ProtocolError",
    "RemoteProtocolError",
    "SchemaOutdated",
    "StorageCorrupt",
    "StorageError",
    "StorageFull",
    "StorageLocked",
    "StorageUnavailable",
    "Unacknowledged",
    "map_errors",
]


_OURS = "durable-cache"


class DurableCacheError(Exception):
    """Something in durable-cache failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").splitlines()[0])


class ConfigError(DurableCacheError):
    """The configuration is wrong; the message says where and what to write instead."""


class BackendNotFound(DurableCacheError):
    """No installed backend has that name."""

    def __init__(self, name: str, installed: tuple[str, ...] = ()) -> None:
        self.name = name
        self.installed = installed
        known = ", ".join(installed) or "none"
        near = get_close_matches(name, installed, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        super().__init__(f"no backend is called {name!r}; installed: {known}{meant}")


class BackendNotInstalled(DurableCacheError):
    """The backend is known but its driver is not installed."""

    def __init__(self, name: str, extra: str, missing: str, distribution: str = _OURS) -> None:
        self.name = name
        self.extra = extra
        self.missing = missing
        self.distribution = distribution
        remedy = f"{distribution}[{extra}]" if extra else distribution
        clone = f"; in a clone: pip install '.[{extra}]'" if distribution == _OURS and extra else ""
        super().__init__(f"{name!r} needs the package {missing!r}: pip install '{remedy}'{clone}")


class StorageError(DurableCacheError):
    """A storage could not do what was asked."""

    fatal: bool = False
    """Nothing more can be promised: a cache that meets it stops. Damage or a failed fsync of the
    journal."""


class StorageUnavailable(StorageError):
    """The storage cannot be reached now; try again: whether the last write arrived is unknown."""

    retry_after_seconds: float = 0.0
    """How long the storage asked to be left alone; 0 when it said nothing."""


class StorageFull(StorageError):
    """The storage has no room left; make room and try again."""


class StorageLocked(StorageError):
    """Another writer holds this storage."""


class StorageCorrupt(StorageError):
    """The storage holds data that fails its checks; stop and repair it before going on."""


class SchemaOutdated(StorageError):
    """The storage's schema is not the one this version needs."""

    def __init__(self, found: str, needed: str, remedy: str = "run: durable-cache migrate") -> None:
        self.found = found
        self.needed = needed
        super().__init__(f"schema {found} found, {needed} needed; {remedy}")


class ProtocolError(DurableCacheError):
    """A message or call breaks the protocol."""


class LocalProtocolError(ProtocolError):
    """This process asked for something the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """A peer sent something the protocol does not allow."""

    def __init__(self, message: str, peer: str = "") -> None:
        self.peer = peer
        super().__init__(f"{message} (from {peer})" if peer else message)


class Fenced(DurableCacheError):
    """Another member of the consumer has the source now: what is confirmed here counts no more."""


class Unacknowledged(DurableCacheError):
    """Too many samples wait for acknowledgements; nothing was published: put again later."""


class OutcomeUnknown(DurableCacheError):
    """Fewer caches than wanted acknowledged samples in time: whether they are stored is unknown."""


class NoMajority(OutcomeUnknown):
    """An exclusive consumer has too few caches in reach, and stops; it goes on by itself."""


class Closed(DurableCacheError):
    """The object is closed."""


@contextmanager
def map_errors(
    table: Mapping[type[BaseException], type[StorageError]], subject: str
) -> Iterator[None]:
    """Translate the driver errors named in `table`, first match first, into ours.

    `subject` names the thing (a file, a server without its secrets) in the message.
    """
    try:
        yield
    except DurableCacheError:
        raise
    except tuple(table) as error:
        for theirs, ours in table.items():
            if isinstance(error, theirs):
                raise ours(f"{subject}: {error}") from error
        raise

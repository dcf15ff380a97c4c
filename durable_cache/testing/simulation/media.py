"""Disks and servers that fail, lie and forget: what a simulated cache writes to.

A medium keeps the state its process sees, and the states that are not synced yet. While it lies, a
power cut may bring back any state since it began to. A process may end before or after the effect
of any call; a medium that is away raises, with or without having done what was asked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Generic, TypeVar

from durable_cache.errors import StorageFull, StorageUnavailable
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.cache.events import Alias, NumberingState
from durable_cache.storage.contract import (
    AppendResult,
    Capabilities,
    Durability,
    Floor,
    Held,
    Page,
    Retention,
)
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.index_rows import prepare, set_meta
from durable_cache.storage.journaled.journal import Entry, Journal
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.simulation.world import Crash, World

StateT = TypeVar("StateT")
_UNSYNCED_MAX = 64
FAULTS = ("unavailable", "full", "unknown", "unreadable", "unreadable")
"""Drawn from evenly; reads are rare, so that what fails them is there twice."""


class Medium(Generic[StateT]):
    """One durable thing of one cache, with its faults."""

    def __init__(
        self, world: World, name: str, empty: StateT, copied: Callable[[StateT], StateT]
    ) -> None:
        self.world, self.name = world, name
        self._empty, self._copied = empty, copied
        self.state = copied(empty)
        self.fault = ""
        """What every call meets now: "", unavailable, full, unknown (done and an error) or
        unreadable (only reads fail)."""
        self.lying = False
        """Whether writes are said to be synced and are not."""
        self.losses = 0
        """How often a power cut took back what was said to be synced, it was wiped, or an older
        copy was put in place: what was acknowledged before may be gone."""
        self.lost_ns = -1
        """When that was last."""
        self.crash_in: int | None = None
        """A crash comes with this call from now."""
        self.seconds = 0.0
        """How long each call takes now."""
        self._unsynced: list[StateT] = []
        self._copy: StateT | None = None

    def write(self, effect: Callable[[], object]) -> object:
        """Do one writing call, as the faults of this moment have it."""
        self.begin(lambda: self._copied(self.state))
        result = effect()
        self.end()
        return result

    def begin(self, copy: Callable[[], StateT]) -> None:
        """Begin a writing call; `copy` gives the state before it."""
        self._enter(writing=True)
        if self.lying:
            if len(self._unsynced) < _UNSYNCED_MAX:
                self._unsynced.append(copy())
        elif self._unsynced:
            self._unsynced.clear()

    def read(self) -> None:
        """Do one reading call, as far as faults go."""
        self._enter(writing=False)

    def _enter(self, *, writing: bool) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in == 0:
                self.crash_in = None
                raise Crash(f"crash before a call of the {self.kind}")
        match self.fault:
            case "unavailable":
                self.world.occur(f"{self.kind} away")
                raise StorageUnavailable(f"{self.name} is away")
            case "full" if writing:
                self.world.occur(f"{self.kind} full")
                raise StorageFull(f"{self.name} is full")
            case "unreadable" if not writing:
                self.world.occur(f"{self.kind} unreadable")
                raise StorageUnavailable(f"{self.name} cannot be read")

    def end(self) -> None:
        """End a writing call that was done."""
        if self.crash_in == 1:
            self.crash_in = None
            raise Crash(f"crash after a call of the {self.kind}")
        if self.fault == "unknown":
            self.world.occur(f"{self.kind} unknown outcome")
            raise StorageUnavailable(f"{self.name}: no answer")

    @property
    def kind(self) -> str:
        return self.name.rpartition(" ")[2]

    def cut_power(self) -> bool:
        """Lose what is not synced; tell whether that was anything."""
        if not self._unsynced:
            return False
        self.state = self.world.random.choice(self._unsynced)
        self._unsynced.clear()
        self._has_lost()
        return True

    def _has_lost(self) -> None:
        self.losses += 1
        self.lost_ns = self.world.now_ns

    @property
    def backed_up(self) -> bool:
        """Whether a copy was kept."""
        return self._copy is not None

    def back_up(self) -> None:
        """Keep a copy to be put in place later."""
        self._copy = self._copied(self.state)

    def put_back(self) -> None:
        """Put the copy in place; idempotent."""
        assert self._copy is not None
        self.state = self._copied(self._copy)
        self._has_lost()
        self._unsynced.clear()

    def wipe(self) -> None:
        """Lose everything."""
        self.state = self._copied(self._empty)
        self._has_lost()
        self._unsynced.clear()

    def mend(self) -> None:
        """End every fault."""
        self.fault, self.lying, self.crash_in, self.seconds = "", False, None, 0.0
        self._unsynced.clear()


class JournalState:
    """What a journal's file holds."""

    __slots__ = ("dead", "entries", "kept", "last_id")

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.entries: dict[int, Entry] = {}
        self.dead: list[Sample] = []
        self.last_id = 0

    def copy(self) -> JournalState:
        other = JournalState()
        other.entries, other.dead = dict(self.entries), list(self.dead)
        other.last_id, other.kept = self.last_id, dict(self.kept)
        return other


class SimJournal(Journal):
    """A journal in one medium."""

    def __init__(self, medium: Medium[JournalState], *, entries_max: int = 1 << 30) -> None:
        self._medium = medium
        self._entries_max = entries_max
        self._trim_to = 0
        self._counted = set(medium.state.entries)
        """Entries that the bound counts: those whose commit was not known to be done are none."""
        self.path = Path(medium.name)
        self.identity = self.kept("journal").get("identity", "")
        if not self.identity:
            self.identity = f"{medium.world.random.getrandbits(64):016x}"
            self.keep("journal", {"identity": self.identity})
        self._count()

    def renew(self) -> None:
        # Nothing is drawn: the rest of a history stays as it is.
        identity = f"{self.identity[:16]}{self._medium.world.now_ns:x}"
        self.keep("journal", {"identity": identity})
        self.identity = identity

    def _count(self) -> None:
        entries = self._medium.state.entries.values()
        self._counted.intersection_update(self._medium.state.entries)
        self.entries = len(entries)
        self.samples = sum(len(entry.batch) for entry in entries)
        self.dead_letters = len(self._medium.state.dead)

    def span(self) -> tuple[int, int]:
        self._medium.read()
        state = self._medium.state
        return min(state.entries, default=state.last_id + 1), state.last_id

    def kept(self, kind: str) -> dict[str, str]:
        self._medium.read()
        kept = self._medium.state.kept.items()
        return {name: value for (of, name), value in kept if of == kind}

    def keep(self, kind: str, facts: Mapping[str, str], gone: Iterable[str] = ()) -> None:
        def effect() -> None:
            self._let_go()
            kept = self._medium.state.kept
            for name in gone:
                kept.pop((kind, name), None)
            kept.update({(kind, name): value for name, value in facts.items()})

        self._medium.write(effect)
        self._count()

    def commit(self, batch: SampleBatch, skips: tuple[Skip, ...] = ()) -> int:
        state = self._medium.state
        if len(self._counted) >= self._entries_max:
            self.flush()  # what was let go makes room
        if len(self._counted) >= self._entries_max:
            self._medium.world.occur("journal at its bound")
            raise StorageFull(f"{self._medium.name} has reached its bound")

        def effect() -> int:
            state.last_id += 1
            self._let_go()
            state.entries[state.last_id] = Entry(state.last_id, batch, skips)
            return state.last_id

        result = self._medium.write(effect)
        assert isinstance(result, int)
        self._counted.add(result)
        self._count()
        return result

    def entries_after(self, entry_id: int, limit: int = 64) -> list[Entry]:
        self._medium.read()
        state = self._medium.state
        found = sorted(at for at in state.entries if at > entry_id)
        return [state.entries[at] for at in found[:limit]]

    def replay(self) -> Iterator[Entry]:
        last = 0
        while entries := self.entries_after(last):
            yield from entries
            last = entries[-1].entry_id

    def waiting(self) -> list[Entry]:
        """Return the entries this process knows of and has not let go."""
        entries = self._medium.state.entries
        return [entries[at] for at in self._counted if at > self._trim_to and at in entries]

    def trim(self, entry_id: int) -> None:
        self._trim_to = max(self._trim_to, entry_id)

    def flush(self) -> None:
        self._medium.write(self._let_go)
        self._count()

    def _let_go(self) -> None:
        entries = self._medium.state.entries
        for gone in [at for at in entries if at <= self._trim_to]:
            del entries[gone]

    def bury(self, batch: SampleBatch, reason: str) -> None:
        self._medium.write(lambda: self._medium.state.dead.extend(batch.samples))

    def size_bytes(self) -> int:
        return sum(entry.batch.size for entry in self._medium.state.entries.values())

    def close(self) -> None:
        """Nothing is held open."""


class BackendState(MemoryStorage):
    """What a backend holds, copied when a fault may need it."""

    def copy(self) -> BackendState:
        other = BackendState()
        other._streams = {stream: dict(held) for stream, held in self._streams.items()}
        for skip in self._skips:
            other._skips.add(skip, RangeSet())
        return other

    @property
    def streams(self) -> dict[Stream, dict[int, Sample]]:
        """What is held, to be looked at from outside."""
        return self._streams

    def lose(self, stream: Stream, sn: int) -> None:
        """Hold a sample no longer, and say nothing."""
        del self._streams[stream][sn]
        self._sorted.pop(stream, None)
        self._in_time, self._late = None, []


class SimBackend(MemoryStorage):
    """A backend in one medium that claims to be as durable as a disk."""

    def __init__(self, medium: Medium[BackendState]) -> None:
        super().__init__()
        self._medium = medium
        medium.read()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False, append_samples=64)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        medium = self._medium
        result = medium.write(lambda: medium.state.append(batch, skips))
        assert isinstance(result, AppendResult)
        return result

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        self._medium.read()
        return self._medium.state.read(selection, limit, cursor)

    def held(self) -> Iterator[Held]:
        self._medium.read()
        return self._medium.state.held()

    def skips(self) -> Iterator[Skip]:
        self._medium.read()
        return self._medium.state.skips()

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        medium = self._medium
        floors = medium.write(lambda: MemoryStorage.trim(medium.state, retention, now_ns))
        assert isinstance(floors, list)
        return floors

    def purge(self, floors: Iterable[Floor]) -> int:
        medium, listed = self._medium, list(floors)
        removed = medium.write(lambda: MemoryStorage.purge(medium.state, listed))
        assert isinstance(removed, int)
        return removed

    def close(self) -> None:
        """The server goes on without us."""


class IndexMedium(Medium[bytes]):
    """The file of an index, with the database that is open on it where none needs opening."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, b"", bytes)
        self._open: tuple[bytes, sqlite3.Connection] | None = None

    def leave(self, database: sqlite3.Connection) -> None:
        """Keep what a process that ends leaves, and the database that holds just that."""
        self.state = database.serialize()
        self._open = self.state, database

    def take_database(self) -> sqlite3.Connection | None:
        """Return the database that was left, unless the file is another one since."""
        left, self._open = self._open, None
        return left[1] if left is not None and left[0] is self.state else None


class SimIndex(StreamIndex):
    """The real stream index, in memory, with the faults of a medium at its transactions."""

    def __init__(self, medium: IndexMedium, random: Random) -> None:
        self._medium: IndexMedium | None = None
        self._names = [f"{random.getrandbits(64):016x}" for _ in range(2)]
        """What it calls itself where its file says nothing."""
        self._file = medium
        self._read: dict[tuple[str, tuple[object, ...]], list[tuple[Any, ...]]] | None = {}
        """What was read since the last transaction; none while one is under way."""
        super().__init__(None)
        self._medium = medium

    def _connect(self) -> None:
        self._db = self._file.take_database()
        if self._db is None:
            self._db = sqlite3.connect(":memory:", isolation_level=None)
            self._db.deserialize(self._file.state or _empty_index())

    def _once(self, name: str) -> str:
        value = self._get(name)
        if value is None:
            value = self._names.pop(0)
            with self.transaction() as database:
                set_meta(database, name, value)
        return value

    def save(self) -> None:
        """Leave what the file holds to the next process."""
        if self._medium is not None and self._db is not None:
            self._medium.leave(self._db)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        medium = self._medium
        if medium is not None:
            medium.begin(lambda: self._open().serialize())
        self._read = None
        try:
            with super().transaction() as database:
                yield database
        finally:
            self._read = {}
        if medium is not None:
            medium.end()

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if self._read is None:
            return super().rows(statement, values)
        asked = statement, tuple(values)
        found = self._read.get(asked)
        if found is None:
            found = self._read[asked] = super().rows(statement, values)
        return found

    def load(self, source: SourceId) -> tuple[tuple[NumberingState, ...], tuple[Alias, ...]]:
        if self._medium is not None:
            self._medium.read()
        return super().load(source)


@cache
def _empty_index() -> bytes:
    """Return the file of an index in which nothing is: made once, for it takes its time."""
    with closing(sqlite3.connect(":memory:")) as database:
        prepare(database)
        return database.serialize()

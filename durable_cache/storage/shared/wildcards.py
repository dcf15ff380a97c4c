"""The wildcard updates of a storage: kept at hand, carried in answers, applied when keys are read.

A backend stores them like any sample, each under its expression. That is enough to keep, to align
and to trim them, and not to find them: a question for ``t/w/a`` names no key ``t/w/**``. So the
journaled storage keeps them here as well, bounded, and adds those that concern a question to what
the backend answers. Applying them to keys is the rule of `durable_cache.model.newest` (ADR 0095).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from itertools import groupby
from threading import Lock

from durable_cache.model.newest import NamingUpdates, is_update, values_of
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import (
    Identity,
    Kind,
    Sample,
    SampleBatch,
    Stream,
    key_bytes,
)
from durable_cache.model.selection import Cursor, Order, Selection
from durable_cache.storage.contract import Floor, Page

ReadBack = Callable[[Stream, RangeSet], Sequence[Sample]]
_Read = Callable[[Selection, int, Cursor | None], Page]


class _Room(Enum):
    """What becomes of an update that comes."""

    TAKEN = "taken"
    NOT_NEEDED = "not needed"
    """It is at hand, or a newer one has overtaken it: it is stored, and no key depends on it."""
    REFUSED = "refused"


class _Table:
    """Updates within bounds."""

    def __init__(self, updates_max: int, bytes_max: int) -> None:
        self._updates_max, self._bytes_max = updates_max, bytes_max
        self.updates: dict[Identity, Sample] = {}
        self._bytes = 0

    def copy(self) -> _Table:
        twin = _Table(self._updates_max, self._bytes_max)
        twin.updates, twin._bytes = self.updates.copy(), self._bytes
        return twin

    def take(self, sample: Sample, expected: int) -> _Room:
        """Take an update if there is room beside it and so many expected ones."""
        if sample.identity in self.updates:
            return _Room.NOT_NEEDED
        if not self._has_room(sample, expected):
            newest = self._newest()
            same = newest.get((sample.key, sample.kind))
            if same is not None and same.time_order > sample.time_order:
                return _Room.NOT_NEEDED
            self._drop_overtaken(newest)
            if same is not None and not self._has_room(sample, expected):
                self.drop(same.identity)
                if not self._has_room(sample, expected):
                    self._put(same)
        if not self._has_room(sample, expected):
            return _Room.REFUSED
        self._put(sample)
        return _Room.TAKEN

    def _has_room(self, sample: Sample, expected: int) -> bool:
        return (
            len(self.updates) + expected < self._updates_max
            and self._bytes + sample.size <= self._bytes_max
        )

    def _newest(self) -> dict[tuple[str, Kind], Sample]:
        newest: dict[tuple[str, Kind], Sample] = {}
        for held in self.updates.values():
            other = newest.setdefault((held.key, held.kind), held)
            if held.time_order > other.time_order:
                newest[held.key, held.kind] = held
        return newest

    def _drop_overtaken(self, newest: dict[tuple[str, Kind], Sample]) -> None:
        """Drop the oldest overtaken ones, a tenth of the bound: so this is seldom done."""
        overtaken = [
            held for held in self.updates.values() if held is not newest[held.key, held.kind]
        ]
        overtaken.sort(key=lambda held: held.time_order)
        for held in overtaken[: max(1, self._updates_max // 10)]:
            self.drop(held.identity)

    def _put(self, sample: Sample) -> None:
        self.updates[sample.identity] = sample
        self._bytes += sample.size

    def drop(self, identity: Identity) -> None:
        sample = self.updates.pop(identity, None)
        if sample is not None:
            self._bytes -= sample.size


class WildcardUpdates:
    """At most `updates_max` wildcard updates of `bytes_max` bytes; any thread.

    When it is full, updates that newer ones of their kind on their expression have overtaken make
    room: the value of no key depends on them. Where there are none, new ones are refused.
    """

    def __init__(self, updates_max: int, bytes_max: int) -> None:
        self._table = _Table(updates_max, bytes_max)
        self._stored: dict[Stream, RangeSet] = {}
        self._lock = Lock()
        self._loading = Lock()  # taken before the other, which is never held while a backend reads
        self.refused = 0
        """Updates that were not taken."""
        self.unapplied = 0
        """Updates that are stored and not applied, for the bounds are lower than they were."""

    def __len__(self) -> int:
        return len(self._table.updates)

    def expect(self, stored: Iterable[tuple[Stream, RangeSet]]) -> None:
        """Name what the backend holds, to be read when it is first needed."""
        with self._lock:
            self._stored.update(stored)

    def _expected(self) -> int:
        return sum(runs.count for runs in self._stored.values())

    def admit(self, batch: SampleBatch) -> SampleBatch:
        """Return a batch without the updates there is no room for; they are counted.

        Nothing is taken yet: an update counts when it is durable.
        """
        if not any(map(is_update, batch.keys)):
            return batch
        with self._lock:
            trial, expected = self._table.copy(), self._expected()
            kept = [
                sample
                for sample in batch
                if not is_update(sample.key) or trial.take(sample, expected) is not _Room.REFUSED
            ]
            self.refused += len(batch) - len(kept)
        return SampleBatch(kept)

    def add(self, batch: SampleBatch) -> None:
        """Take the updates of what was committed."""
        if not any(map(is_update, batch.keys)):
            return
        samples = batch.samples
        for stream, places in batch.places.items():
            if is_update(stream.key):
                self._take([samples[at] for at in places])

    def _take(self, samples: Iterable[Sample]) -> None:
        with self._lock:
            expected = self._expected()
            for sample in samples:
                self.unapplied += self._table.take(sample, expected) is _Room.REFUSED

    def removed(self, floors: Iterable[Floor]) -> None:
        """Forget what retention or a purge removed."""
        for stream, floor in floors:
            if is_update(stream.key):
                with self._lock:
                    if stream in self._stored:
                        self._stored[stream].remove(0, floor - 1)
                    for identity in [*self._table.updates]:
                        if identity[:3] == stream and identity.sn < floor:
                            self._table.drop(identity)

    def concerning(self, selection: Selection, read_back: ReadBack) -> list[Sample]:
        """Return the updates that a selection asks for, `newest` aside.

        `read_back` reads what the backend held when the storage was opened; what it raises comes
        through, and it is asked again.
        """
        if self._stored:
            self._load(read_back)
        with self._lock:
            updates = self._table.updates.values()
            return [sample for sample in updates if _concerns(selection, sample)]

    def _load(self, read_back: ReadBack) -> None:
        with self._loading:
            for stream, runs in [*self._stored.items()]:
                found = read_back(stream, runs)
                with self._lock:
                    self._stored.pop(stream, None)
                self._take(found)


def _concerns(selection: Selection, sample: Sample) -> bool:
    return (
        selection.has_numbering(sample.source, sample.epoch)
        and selection.sns.holds(sample.sn)
        and selection.times.holds(sample.ntp64)
        and selection.key_expr.concerns(sample.key)
    )


def read_values(
    read: _Read, updates: Iterable[Sample], selection: Selection, limit: int, cursor: Cursor | None
) -> Page:
    """Return a page of the newest values of keys, in order of the keys, updates applied.

    `read` reads what is stored; `selection.newest` is set. A page ends with a key, so that one more
    key may take it beyond `limit`.
    """
    newest = selection.newest or 1
    wanted = replace(selection, order=Order.IDENTITY)
    naming = NamingUpdates(updates)
    # A page that goes on behind a key begins before it: its last value may be an update's.
    begin: Cursor | None = None if cursor is None else (cursor[0], 0, 0, 0, -1)
    waiting: list[Sample] = []
    values: list[Sample] = []
    while True:
        page = read(wanted, limit, begin)
        waiting += page.samples
        begin = page.cursor
        groups = [(key, [*group]) for key, group in groupby(waiting, key=lambda each: each.key)]
        waiting = []
        if begin is not None and groups and len(groups[-1][1]) < newest:
            waiting = groups.pop()[1]  # the next page may have more of it
        for key, own in groups:
            if is_update(key) or (cursor is not None and key_bytes(key) == cursor[0]):
                continue
            oldest = min(own, key=lambda sample: sample.time_order)
            values += values_of(own, [*naming.of(key, oldest)], newest)
            if len(values) >= limit:
                return Page(SampleBatch(values), wanted.place(values[-1]))
        if begin is None or values:
            return Page(SampleBatch(values), wanted.place(values[-1]) if begin else None)

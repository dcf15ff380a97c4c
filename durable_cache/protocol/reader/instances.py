"""What is kept of one key, and what a read or a take returns of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import IntFlag
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

import msgspec

from durable_cache.model.sample import Sample, SourceId

NEVER = 1 << 64
"""A timestamp that no sample is above."""
_TIME_ORDER = attrgetter("time_order")


class SampleState(IntFlag):
    """Whether a sample was read before."""

    READ = 1
    NOT_READ = 2


class ViewState(IntFlag):
    """Whether something of an instance was read since it came to life."""

    NEW = 1
    NOT_NEW = 2


class InstanceState(IntFlag):
    """Whether an instance has a value, and somebody who may change it."""

    ALIVE = 1
    NOT_ALIVE_DISPOSED = 2
    NOT_ALIVE_NO_WRITERS = 4


class Message(NamedTuple):
    """What stands in a history where writers left: no sample, and no part of its depth."""

    state: InstanceState
    ntp64: int
    """When this reader saw it."""


class Mark(NamedTuple):
    """What is noted of each entry; few differ, so they are shared."""

    state: SampleState
    disposed: int
    no_writers: int
    life: int = 0
    """How many messages had come before it: what is sorted together."""


class InstanceSample(msgspec.Struct, frozen=True, gc=False):
    """One sample of an instance with the states it had when it was read or taken."""

    key: str
    sample: Sample | None
    """None where no sample came: writers left, and the instance became what `message` says."""
    view_state: ViewState
    instance_state: InstanceState
    """Of the instance now, whatever the sample says."""
    mark: Mark
    message: Message | None = None

    @property
    def sample_state(self) -> SampleState:
        """NOT_READ the first time."""
        return self.mark.state

    @property
    def disposed_generation_count(self) -> int:
        """How often the instance had come back from NOT_ALIVE_DISPOSED when the sample came."""
        return self.mark.disposed

    @property
    def no_writers_generation_count(self) -> int:
        """How often it had come back from NOT_ALIVE_NO_WRITERS."""
        return self.mark.no_writers

    @property
    def generation_count(self) -> int:
        """How often it had come back to life."""
        return self.mark.disposed + self.mark.no_writers

    @property
    def ntp64(self) -> int:
        """The sample's own timestamp, or when this reader saw writers leave."""
        said = self.sample or self.message
        return 0 if said is None else said.ntp64


class InstanceStatus(NamedTuple):
    """What an instance is now."""

    key: str
    state: InstanceState
    writers: int
    """How many publishers that are there write it."""
    disposed_generations: int
    """How often it came back from NOT_ALIVE_DISPOSED."""
    no_writers_generations: int
    """How often it came back from NOT_ALIVE_NO_WRITERS."""
    newest: Sample | None
    """The last sample in order of destination, also once it was taken; None: no sample came."""


@lru_cache(maxsize=4096)
def mark_of(state: SampleState, disposed: int, no_writers: int, life: int) -> Mark:
    """Return the one value of these."""
    return Mark(state, disposed, no_writers, life)


def _life_of(mark: Mark) -> int:
    return mark.life


class Writer:
    """A publisher as a reader knows it."""

    __slots__ = ("alive", "auto_dispose", "instances", "source")

    def __init__(self, source: SourceId | None, *, alive: bool, auto_dispose: bool) -> None:
        self.source = source
        """None stands for all that there is no room to tell apart."""
        self.alive = alive
        self.auto_dispose = auto_dispose
        """Whether its instances are disposed when it leaves."""
        self.instances: set[Instance] = set()
        """What it writes; after it left, what it wrote."""


class Instance:
    """One key: its history, oldest first, and its states.

    A message ends a life; by source timestamp the samples of one life are in `Sample.time_order`.
    """

    __slots__ = (
        "after",
        "consumed",
        "ended_by",
        "entries",
        "key",
        "mark",
        "marks",
        "messages",
        "newest",
        "registered",
        "source",
        "state",
        "view",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.entries: list[Sample | Message] = []
        self.marks: list[Mark] = []
        """What is noted of each entry."""
        self.messages = 0
        """How many entries are messages."""
        self.state = InstanceState.NOT_ALIVE_NO_WRITERS
        self.view = ViewState.NEW
        self.mark = mark_of(SampleState.NOT_READ, 0, 0, 0)
        """Of what comes next."""
        self.newest: Sample | None = None
        """The last sample in order of destination, also once it was taken."""
        self.consumed: Sample | None = None
        """The last in order that was taken."""
        self.ended_by: Writer | None = None
        """Whose leaving ended its life; None while it lives, and where a sample deleted it."""
        self.registered = 0
        """How many writers write it."""
        self.source: SourceId | None = None
        """The last to write it, where that one is registered."""
        self.after = NEVER
        """A put of `source` that is later than this goes to the end, with nothing else to do."""

    @property
    def status(self) -> InstanceStatus:
        """What it is now."""
        return InstanceStatus(
            self.key,
            self.state,
            self.registered,
            self.mark.disposed,
            self.mark.no_writers,
            self.newest,
        )

    @property
    def samples(self) -> int:
        """How many samples are held; messages are none."""
        return len(self.entries) - self.messages

    def revive(self) -> None:
        """Come to life (again): unread from here on, new, and one life older."""
        if self.newest is not None:
            _, disposed, no_writers, life = self.mark
            disposed += self.state is InstanceState.NOT_ALIVE_DISPOSED
            no_writers += self.state is InstanceState.NOT_ALIVE_NO_WRITERS
            self.mark = mark_of(SampleState.NOT_READ, disposed, no_writers, life)
        self.state, self.view, self.ended_by = InstanceState.ALIVE, ViewState.NEW, None

    def end(self, state: InstanceState, writer: Writer, ntp64: int) -> None:
        """Note that writers left and what became of the instance by that."""
        if self.entries and isinstance(self.entries[-1], Message):
            self.remove(len(self.entries) - 1)
        self.put(len(self.entries), Message(state, ntp64))
        _, disposed, no_writers, life = self.mark
        self.mark = mark_of(SampleState.NOT_READ, disposed, no_writers, life + 1)
        self.state, self.ended_by, self.after = state, writer, NEVER

    def place_of(self, sample: Sample, *, under: bool) -> int:
        """Return where a sample belongs by its time, in this life or `under` its end."""
        life = self.mark.life - under
        low = bisect_left(self.marks, life, key=_life_of)
        high = bisect_right(self.marks, life, low, key=_life_of)
        if high > low and self._is_message(high - 1):
            high -= 1
        return bisect_right(self.entries, sample.time_order, low, high, key=_TIME_ORDER)

    def _is_message(self, at: int) -> bool:
        return isinstance(self.entries[at], Message)

    def precedes_all(self, place: int) -> bool:
        """Tell whether no sample stands before a place."""
        return all(map(self._is_message, range(place)))

    def put(self, place: int, entry: Sample | Message, *, under: bool = False) -> None:
        """Insert an entry that was not read yet."""
        mark = self.mark
        if under:
            mark = mark_of(mark.state, mark.disposed, mark.no_writers, mark.life - 1)
        self.entries.insert(place, entry)
        self.marks.insert(place, mark)
        self.messages += isinstance(entry, Message)

    def push_out(self) -> None:
        """Forget the first sample, and messages that no sample stands before any more."""
        while self.remove(0):
            pass
        while self.samples and self._is_message(0):
            self.remove(0)

    def remove(self, at: int) -> bool:
        """Remove an entry; tells whether it was a message."""
        removed = isinstance(self.entries.pop(at), Message)
        self.marks.pop(at)
        self.messages -= removed
        return removed

"""What a reader keeps of each instance: inserted, read, taken, dropped with a report.

Theory of operation (DDS 1.4, 2.2.2.5; ADR 0140). A sample goes where its order puts it. By source
timestamp an older one is inserted before newer ones where there is room, and dropped where there is
none, or where a newer one was taken already. What is dropped is reported.

A writer that leaves ends the life of its instances: NOT_ALIVE_DISPOSED where it says so, else
NOT_ALIVE_NO_WRITERS where it was the last. A message in the history says when. What a writer that
has left published before belongs in front of that message, whenever it comes. When the writer is
back the instance lives again, and its newest sample is inserted once more, behind the message.

How a shell drives it: one thread at a time. `insert` returns how many samples it took; the others
wait for a `take` (KEEP_ALL without room, RELIABLE). `drops` are to be told to listeners.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from durable_cache.model.newest import comes_after
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.protocol.reader.instances import (
    NEVER,
    Instance,
    InstanceSample,
    InstanceState,
    InstanceStatus,
    Message,
    SampleState,
    ViewState,
    Writer,
    mark_of,
)
from durable_cache.protocol.reader.profile import DestinationOrder, Profile, Reliability
from durable_cache.protocol.reader.statuses import (
    LivelinessChanged,
    LostReason,
    SampleLost,
    SubscriptionMatched,
)
from durable_cache.protocol.reader.writers import Writers

_ALIVE = InstanceState.ALIVE
_DISPOSED = InstanceState.NOT_ALIVE_DISPOSED
_NO_WRITERS = InstanceState.NOT_ALIVE_NO_WRITERS
_PUT = Kind.PUT
_StatesT = TypeVar("_StatesT", SampleState, ViewState, InstanceState)
_BEFORE_ALL = -1


class ReaderCache:
    """The instances of one reader; owned by one thread at a time."""

    def __init__(self, profile: Profile) -> None:
        self._keep_last = profile.depth is not None
        self._waits = profile.reliability is Reliability.RELIABLE and not self._keep_last
        self._by_source = profile.destination_order is DestinationOrder.BY_SOURCE_TIMESTAMP
        self._per_instance = profile.per_instance or NEVER
        self._samples_max = profile.samples_max or NEVER
        self._instances_max = profile.instances_max
        self._instances: dict[str, Instance] = {}
        self._filled: dict[str, Instance] = {}
        """Those with something to read."""
        self._count = 0
        self._writers = Writers(profile.writers_max)
        self._unregistered: dict[tuple[SourceId, str], int] = {}
        """Until when a writer that is there wrote a key."""
        self._lost = SampleLost(0, 0, None, None, None)
        self._told_lost = 0
        self.changes = 0
        """Rises with whatever a reader could see."""
        self.drops: list[SampleLost] = []
        """What was dropped and not told yet; whoever tells of it empties it."""

    def __len__(self) -> int:
        """How many samples are held."""
        return self._count

    @property
    def instances(self) -> int:
        """How many keys are known."""
        return len(self._instances)

    def statuses(self) -> list[InstanceStatus]:
        """Return what each instance is now, by key; nothing counts as read by that."""
        return [self._instances[key].status for key in sorted(self._instances)]

    # What comes in

    def insert(self, samples: Sequence[Sample]) -> int:
        """Take samples in the order in which they came; returns how many were taken.

        What is beyond has no room until something is taken.
        """
        instances, filled = self._instances, self._filled
        per_instance, keep_last, by_source = self._per_instance, self._keep_last, self._by_source
        samples_max = self._samples_max
        count = self._count
        for at, sample in enumerate(samples):
            instance = instances.get(sample.key)
            # The next put of the same writer, of a key that lives: nothing else to look at.
            if (
                instance is not None
                and sample.ntp64 > instance.after
                and sample.source is instance.source
                and sample.kind is _PUT
                and count < samples_max
            ):
                entries = instance.entries
                if len(entries) < per_instance:
                    count += 1
                    if not entries:
                        filled[sample.key] = instance
                    entries.append(sample)
                    instance.marks.append(instance.mark)
                    instance.newest = sample
                    if by_source:
                        instance.after = sample.ntp64
                    continue
                if keep_last and not instance.messages:
                    del entries[0], instance.marks[0]
                    entries.append(sample)
                    instance.marks.append(instance.mark)
                    instance.newest = sample
                    if by_source:
                        instance.after = sample.ntp64
                    continue
            self._count = count
            if not self._insert(sample):
                self.changes += at
                return at
            count = self._count
        self._count = count
        self.changes += len(samples)
        return len(samples)

    def missed(self, source: SourceId, epoch: int, first: int, last: int) -> None:
        """Note numbers that will never come."""
        self._lose(LostReason.MISSED, (source, epoch, last), None, last - first + 1)

    def _insert(self, sample: Sample) -> bool:
        """Take one sample; False where it has to wait."""
        writer = self._writers.of(sample.source)
        instance = self._instances.get(sample.key)
        if instance is None:
            if len(self._instances) >= self._instances_max:
                self._drop(sample, LostReason.INSTANCES_MAX)
                return True
            instance = Instance(sample.key)
        newest = instance.newest
        is_newest = newest is None or not self._by_source or comes_after(sample, newest)
        consumed = instance.consumed
        if not is_newest and consumed is not None and not comes_after(sample, consumed):
            if sample.time_order != consumed.time_order:
                self._drop(sample, LostReason.CONSUMED)
            return True
        left = self._has_left(writer, instance, sample)
        under = instance.ended_by is not None and (left or not is_newest)
        place = self._place(instance, sample, under=under)
        if place and not is_newest and instance.entries[place - 1] == sample:
            return True
        reason = self._refusal(instance, place)
        if reason is not None:
            if is_newest and self._waits:
                return False
            self._drop(sample, reason)
            return True
        self._instances[sample.key] = instance
        if is_newest and not under:
            _change(instance, sample)
        self._put(instance, place, sample, under=under)
        if is_newest:
            instance.newest = sample
        self._settle(instance, sample, writer, left=left, under=under)
        return True

    def _has_left(self, writer: Writer, instance: Instance, sample: Sample) -> bool:
        if not writer.alive:
            return True
        if not self._unregistered or instance in writer.instances:
            return False
        return sample.ntp64 <= self._unregistered.get((sample.source, sample.key), _BEFORE_ALL)

    def _place(self, instance: Instance, sample: Sample, *, under: bool) -> int:
        if self._by_source:
            return instance.place_of(sample, under=under)
        last = len(instance.entries)
        return last - 1 if under and last and isinstance(instance.entries[-1], Message) else last

    def _refusal(self, instance: Instance, place: int) -> LostReason | None:
        """Return why there is no room at a place; None where there is."""
        held = instance.samples
        full, all_full = held >= self._per_instance, self._count >= self._samples_max
        if not (full or all_full):
            return None
        if self._keep_last and held and not instance.precedes_all(place):
            return None  # its own oldest goes
        return LostReason.NO_ROOM if full or held else LostReason.SAMPLES_MAX

    def _put(self, instance: Instance, place: int, sample: Sample, *, under: bool = False) -> None:
        full = instance.samples >= self._per_instance or self._count >= self._samples_max
        instance.put(place, sample, under=under)
        if full:
            instance.push_out()
        else:
            self._count += 1
        self._filled[instance.key] = instance

    def _settle(
        self,
        instance: Instance,
        sample: Sample,
        writer: Writer,
        *,
        left: bool,
        under: bool,
    ) -> None:
        """Draw what follows from who wrote a sample that was inserted."""
        instance.after = NEVER
        if left:
            if not writer.alive:
                writer.instances.add(instance)
            if under and instance.newest is sample and sample.kind is not _PUT:
                instance.state, instance.ended_by = _DISPOSED, None
            elif not under and instance.newest is sample and instance.state is _ALIVE:
                self._end(instance, writer, sample.ntp64)
            return
        if instance not in writer.instances:
            writer.instances.add(instance)
            instance.registered += 1
        if instance.state is _NO_WRITERS:
            self._revive(instance)
        instance.source = sample.source
        if instance.state is _ALIVE and instance.newest is not None and writer.source is not None:
            instance.after = instance.newest.ntp64 if self._by_source else _BEFORE_ALL

    # Who writes

    def appeared(self, source: SourceId, *, auto_dispose: bool) -> None:
        """Note a writer's token: where it had left, its instances live again."""
        writer = self._writers.appeared(source, auto_dispose=auto_dispose)
        if writer is None:
            return
        for instance in sorted(writer.instances, key=_key_of):
            instance.registered += 1
            if instance.ended_by is writer or instance.state is _NO_WRITERS:
                self._revive(instance)

    def disposes(self, source: SourceId) -> None:
        """Note that a writer's instances are disposed when it leaves."""
        writer = self._writers.find(source)
        if writer is not None:
            writer.auto_dispose = True

    def disappeared(self, source: SourceId, ntp64: int) -> None:
        """Note that a writer's token is gone, for whatever reason."""
        writer = self._writers.disappeared(source)
        if writer is None:
            return
        for instance in sorted(writer.instances, key=_key_of):
            self._leave(instance, writer, ntp64)

    def absent(self, source: SourceId) -> None:
        """Note that who wrote what caches keep is not there: it would show its token."""
        self._writers.absent(source)

    def unregistered(self, source: SourceId, key: str, ntp64: int) -> None:
        """Note that a writer that is there writes a key no more, from `ntp64` on."""
        noted = self._unregistered
        if (source, key) in noted or len(noted) < self._instances_max:
            noted[source, key] = ntp64
        writer, instance = self._writers.find(source), self._instances.get(key)
        if writer is None or instance is None or instance not in writer.instances:
            return
        newest = instance.newest
        if newest is not None and newest.source == source and newest.ntp64 > ntp64:
            return  # it writes it again
        writer.instances.discard(instance)
        if writer.alive:  # else its leaving ended what it wrote, and it will not revive that
            self._leave(instance, writer, ntp64)

    def registered(self, source: SourceId, key: str) -> None:
        """Note that `unregistered` holds no longer: the writer wrote the key again, or left."""
        self._unregistered.pop((source, key), None)

    def _leave(self, instance: Instance, writer: Writer, ntp64: int) -> None:
        instance.registered -= 1
        if instance.source == writer.source:
            instance.source, instance.after = None, NEVER
        if instance.state is _ALIVE:
            self._end(instance, writer, ntp64)

    def _end(self, instance: Instance, writer: Writer, ntp64: int) -> None:
        if writer.auto_dispose:
            instance.end(_DISPOSED, writer, ntp64)
        elif not instance.registered:
            instance.end(_NO_WRITERS, writer, ntp64)
        else:
            return
        self._filled[instance.key] = instance
        self.changes += 1

    def _revive(self, instance: Instance) -> None:
        """Let an instance live again, with its newest sample behind the message of its end."""
        newest = instance.newest
        instance.revive()
        self.changes += 1
        if newest is None:
            return
        place = len(instance.entries)
        reason = self._refusal(instance, place)
        if reason is None:
            self._put(instance, place, newest)
        else:
            self._drop(newest, reason)

    # What goes out

    def read(
        self,
        sample_states: SampleState = SampleState.READ | SampleState.NOT_READ,
        view_states: ViewState = ViewState.NEW | ViewState.NOT_NEW,
        instance_states: InstanceState = _ALIVE | _DISPOSED | _NO_WRITERS,
    ) -> list[InstanceSample]:
        """Return what is in all of these states, by instance and oldest first; it stays."""
        return self._collect(sample_states, view_states, instance_states, take=False)

    def take(
        self,
        sample_states: SampleState = SampleState.READ | SampleState.NOT_READ,
        view_states: ViewState = ViewState.NEW | ViewState.NOT_NEW,
        instance_states: InstanceState = _ALIVE | _DISPOSED | _NO_WRITERS,
    ) -> list[InstanceSample]:
        """The same, and forget it: nothing older than what is taken will come after it."""
        return self._collect(sample_states, view_states, instance_states, take=True)

    def _collect(
        self,
        sample_states: SampleState,
        view_states: ViewState,
        instance_states: InstanceState,
        *,
        take: bool,
    ) -> list[InstanceSample]:
        # Flags cost a microsecond each to combine; to be looked up among few they cost nothing.
        wanted = _members(sample_states)
        views, states = _members(view_states), _members(instance_states)
        whole = len(wanted) == len(SampleState)
        found: list[InstanceSample] = []
        emptied: list[str] = []
        for instance in self._filled.values():
            if not (instance.view in views and instance.state in states):
                continue
            chosen = None if whole else [mark.state in wanted for mark in instance.marks]
            if chosen is None or all(chosen):
                self._give_all(instance, found, take=take)
                if take:
                    emptied.append(instance.key)
            elif any(chosen):
                self._give(instance, [at for at, one in enumerate(chosen) if one], found, take=take)
            else:
                continue
            instance.view = ViewState.NOT_NEW
        if len(emptied) == len(self._filled):
            self._filled.clear()
        for key in emptied:
            self._filled.pop(key, None)
        return found

    def _give_all(self, instance: Instance, found: list[InstanceSample], *, take: bool) -> None:
        entries, marks, consumed = instance.entries, instance.marks, instance.consumed
        if instance.messages or not take:
            self._give(instance, range(len(entries)), found, take=take)
            return
        key, view, state = instance.key, instance.view, instance.state
        for sample, mark in zip(cast("list[Sample]", entries), marks, strict=True):
            found.append(InstanceSample(key, sample, view, state, mark))
            if consumed is None or sample.ntp64 > consumed.ntp64 or comes_after(sample, consumed):
                consumed = sample
        if self._by_source:
            instance.consumed = consumed
        self._count -= len(entries)
        # Emptied, not replaced: so many new lists would set the garbage collector going.
        entries.clear()
        marks.clear()

    def _give(
        self, instance: Instance, places: Sequence[int], found: list[InstanceSample], *, take: bool
    ) -> None:
        entries, marks, consumed = instance.entries, instance.marks, instance.consumed
        key, view, state = instance.key, instance.view, instance.state
        for at in places:
            entry, mark = entries[at], marks[at]
            if isinstance(entry, Message):
                found.append(InstanceSample(key, None, view, state, mark, entry))
                continue
            found.append(InstanceSample(key, entry, view, state, mark))
            if consumed is None or comes_after(entry, consumed):
                consumed = entry
        if not take:
            for at in places:
                marks[at] = mark_of(SampleState.READ, *marks[at][1:])
            return
        if self._by_source:
            instance.consumed = consumed
        for at in reversed(places):
            self._count -= not instance.remove(at)

    # What was lost, and who is there

    def _drop(self, sample: Sample, reason: LostReason) -> None:
        self._lose(reason, (sample.source, sample.epoch, sample.sn), sample.key, 1)

    def _lose(
        self, reason: LostReason, last: tuple[SourceId, int, int], key: str | None, count: int
    ) -> None:
        self._lost = SampleLost(self._lost.total + count, count, reason, last, key)
        self.drops.append(self._lost)

    def take_sample_lost(self) -> SampleLost:
        """Return what was dropped, and how much of it since this was last asked."""
        change, self._told_lost = self._lost.total - self._told_lost, self._lost.total
        return self._lost._replace(change=change)

    def take_liveliness_changed(self) -> LivelinessChanged:
        """Return how many writers are alive, and the change since this was last asked."""
        return self._writers.take_liveliness()

    def take_subscription_matched(self) -> SubscriptionMatched:
        """Return how many writers match, and the change since this was last asked."""
        return self._writers.take_matched()


def _members(states: _StatesT) -> tuple[_StatesT, ...]:
    return tuple(state for state in type(states) if state & states)


def _key_of(instance: Instance) -> str:
    return instance.key


def _change(instance: Instance, sample: Sample) -> None:
    """Let the newest sample decide what its instance is."""
    if sample.kind is _PUT:
        if instance.state is not _ALIVE:
            instance.revive()
        return
    if instance.newest is None:
        instance.revive()
    instance.state, instance.ended_by = _DISPOSED, None

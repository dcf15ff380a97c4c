"""A reader's cache against a naive model: every place is a key to sort by, every count is counted.

The model keeps one flat list for each instance and sorts it: by the life a sample belongs to, then
messages behind samples, then the order of destination.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.protocol.reader.cache import ReaderCache
from durable_cache.protocol.reader.instances import (
    InstanceSample,
    InstanceState,
    SampleState,
    ViewState,
)
from durable_cache.protocol.reader.profile import DestinationOrder, Profile, Reliability
from durable_cache.testing.samples import sample

SOURCES = [SourceId("a", 1), SourceId("b", 2), SourceId("c", 3)]
KEYS = ["k", "l", "m"]
ALIVE = InstanceState.ALIVE
DISPOSED = InstanceState.NOT_ALIVE_DISPOSED
NO_WRITERS = InstanceState.NOT_ALIVE_NO_WRITERS

times = st.integers(0, 30)
sources = st.sampled_from(SOURCES)
keys = st.sampled_from(KEYS)
sample_states = st.sampled_from([1, 2, 3]).map(SampleState)
view_states = st.sampled_from([1, 2, 3]).map(ViewState)
instance_states = st.sampled_from([*range(1, 8), 7, 7, 7]).map(InstanceState)
profiles = st.builds(
    lambda keep, per, total, order, reliability: Profile(
        reliability=reliability,
        depth=per if keep else None,
        samples_max=None if total is None else total + per,
        samples_max_per_instance=per,
        instances_max=2,
        destination_order=order,
    ),
    st.booleans(),
    st.integers(1, 4),
    st.none() | st.integers(0, 3),
    st.sampled_from([*DestinationOrder, DestinationOrder.BY_SOURCE_TIMESTAMP]),
    st.sampled_from([*Reliability, Reliability.RELIABLE]),
)


@dataclass
class Line:
    """One entry of a history; `place` is what the history is sorted by."""

    place: tuple[Any, ...]
    what: Sample | tuple[InstanceState, int]
    lives: tuple[int, int]
    read: bool = False

    @property
    def is_sample(self) -> bool:
        return isinstance(self.what, Sample)


@dataclass
class Known:
    """One instance."""

    lines: list[Line] = field(default_factory=list)
    life: int = 0
    state: InstanceState = NO_WRITERS
    is_new: bool = True
    lives: tuple[int, int] = (0, 0)
    """How often it came back from DISPOSED, and from NO_WRITERS."""
    newest: tuple[Any, ...] | None = None
    last: Sample | None = None
    taken: tuple[Any, ...] | None = None
    ended_by: SourceId | None = None

    def live(self) -> None:
        disposed, no_writers = self.lives
        if self.last is not None:
            disposed += self.state == DISPOSED
            no_writers += self.state == NO_WRITERS
        self.lives, self.state, self.is_new, self.ended_by = (
            (disposed, no_writers),
            ALIVE,
            True,
            None,
        )

    def samples(self) -> list[Line]:
        return [line for line in self.lines if line.is_sample]


class Naive:
    """The model."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.by_source = profile.destination_order is DestinationOrder.BY_SOURCE_TIMESTAMP
        self.known: dict[str, Known] = {}
        self.gone: dict[SourceId, bool] = {}
        self.auto: dict[SourceId, bool] = {}
        self.wrote: set[tuple[SourceId, str]] = set()
        self.until: dict[tuple[SourceId, str], int] = {}
        self.lost: list[int] = []
        self.arrivals = count(1)

    def order(self, one: Sample) -> tuple[Any, ...]:
        return one.time_order if self.by_source else (next(self.arrivals),)

    def held(self) -> int:
        return sum(len(known.samples()) for known in self.known.values())

    def writers(self, key: str) -> int:
        return sum(key == of and not self.gone[source] for source, of in self.wrote)

    def insert(self, one: Sample) -> bool:
        source, key, profile = one.source, one.key, self.profile
        self.gone.setdefault(source, False)
        self.auto.setdefault(source, False)
        if key not in self.known and len(self.known) >= profile.instances_max:
            self.lost.append(one.sn)
            return True
        known = self.known.get(key, Known())
        order = self.order(one)
        is_newest = known.newest is None or order > known.newest
        if known.taken is not None and not is_newest and order <= known.taken:
            if order != known.taken:
                self.lost.append(one.sn)
            return True
        unregistered = (source, key) not in self.wrote
        unregistered &= self.until.get((source, key), -1) >= one.ntp64
        away = self.gone[source] or unregistered
        early = known.ended_by is not None and (away or not is_newest)
        line = Line((known.life - early, 0, order), one, known.lives)
        if any(other.place == line.place for other in known.lines):
            return True
        if not self.has_room(known, line):
            if is_newest and profile.depth is None and profile.reliability is Reliability.RELIABLE:
                return False
            self.lost.append(one.sn)
            return True
        self.known[key] = known
        if is_newest and not early:
            if one.kind is Kind.PUT and known.state != ALIVE:
                known.live()
            elif one.kind is Kind.DELETE:
                known.state, known.ended_by = DISPOSED, None
            line.lives = known.lives
        if is_newest:
            known.newest, known.last = order, one
            if early and away and one.kind is Kind.DELETE:
                known.state, known.ended_by = DISPOSED, None
        self.add(known, line)
        if away:
            if self.gone[source]:
                self.wrote.add((source, key))
            if is_newest and not early and known.state == ALIVE:
                self.end(key, source, one.ntp64)
        else:
            self.wrote.add((source, key))
            if known.state == NO_WRITERS:
                self.again(key)
        return True

    def has_room(self, known: Known, line: Line) -> bool:
        profile, mine = self.profile, known.samples()
        if len(mine) < (profile.per_instance or 99) and self.held() < (profile.samples_max or 99):
            return True
        return profile.depth is not None and any(other.place < line.place for other in mine)

    def add(self, known: Known, line: Line) -> None:
        profile = self.profile
        full = len(known.samples()) >= (profile.per_instance or 99)
        full |= self.held() >= (profile.samples_max or 99)
        known.lines = sorted([*known.lines, line], key=lambda each: each.place)
        if full:
            known.lines.remove(known.samples()[0])
            first = min(known.lines.index(each) for each in known.samples())
            known.lines = known.lines[first:]

    def end(self, key: str, source: SourceId, ntp64: int) -> None:
        known = self.known[key]
        if self.auto[source]:
            known.state = DISPOSED
        elif not self.writers(key):
            known.state = NO_WRITERS
        else:
            return
        if known.lines and not known.lines[-1].is_sample:
            known.lines.pop()
        known.lines.append(Line((known.life, 1), (known.state, ntp64), known.lives))
        known.life, known.ended_by = known.life + 1, source

    def again(self, key: str) -> None:
        known = self.known[key]
        assert known.last is not None
        known.live()
        line = Line((known.life, 0, known.newest), known.last, known.lives)
        if not self.by_source:
            line.place = (known.life, 0, self.order(known.last))
        if self.has_room(known, line):
            self.add(known, line)
        else:
            self.lost.append(known.last.sn)

    def leave(self, source: SourceId, ntp64: int) -> None:
        self.gone[source] = True
        for key in sorted(key for of, key in self.wrote if of == source):
            if self.known[key].state == ALIVE:
                self.end(key, source, ntp64)

    def back(self, source: SourceId) -> None:
        self.gone[source] = False
        for key in sorted(key for of, key in self.wrote if of == source):
            if self.known[key].ended_by == source or self.known[key].state == NO_WRITERS:
                self.again(key)

    def unregister(self, source: SourceId, key: str, ntp64: int) -> None:
        if (source, key) in self.until or len(self.until) < self.profile.instances_max:
            self.until[source, key] = ntp64
        if (source, key) not in self.wrote:
            return
        last = self.known[key].last
        if last is not None and last.source == source and last.ntp64 > ntp64:
            return
        self.wrote.discard((source, key))
        if self.known[key].state == ALIVE and not self.gone[source]:
            self.end(key, source, ntp64)

    def collect(
        self, wanted: SampleState, views: ViewState, states: InstanceState, *, take: bool
    ) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for key, known in self.known.items():
            view = ViewState.NEW if known.is_new else ViewState.NOT_NEW
            if not (view & views and known.state & states):
                continue
            marks = {True: SampleState.READ, False: SampleState.NOT_READ}
            chosen = [line for line in known.lines if marks[line.read] & wanted]
            for line in chosen:
                found.append((key, line.what, marks[line.read], view, known.state, line.lives))
                line.read = True
                if take and isinstance(line.what, Sample) and self.by_source:
                    known.taken = max(known.taken or (), line.what.time_order)
            if take:
                known.lines = [line for line in known.lines if line not in chosen]
            known.is_new = known.is_new and not chosen
        return found


def as_model(found: list[InstanceSample]) -> list[tuple[Any, ...]]:
    return [
        (
            each.key,
            each.sample if each.message is None else tuple(each.message),
            each.sample_state,
            each.view_state,
            each.instance_state,
            (each.disposed_generation_count, each.no_writers_generation_count),
        )
        for each in found
    ]


def by_key(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(found, key=lambda each: each[0])


class ReaderMachine(RuleBasedStateMachine):
    """Whatever comes, in whatever order: both say the same."""

    @initialize(profile=profiles)
    def begin(self, profile: Profile) -> None:
        self.cache, self.model = ReaderCache(profile), Naive(profile)
        self.numbers = count()
        self.bound = profile.per_instance or 99
        self.samples_max = profile.samples_max or 99

    def make(self, time: int, source: SourceId, key: str, kind: Kind) -> Sample:
        made = sample(next(self.numbers), key, source, ntp64=time)
        return msgspec.structs.replace(made, kind=kind)

    @rule(
        made=st.lists(
            st.tuples(times, sources, keys, st.sampled_from([Kind.PUT] * 5 + [Kind.DELETE])),
            min_size=1,
            max_size=6,
        )
    )
    def insert(self, made: list[tuple[int, SourceId, str, Kind]]) -> None:
        samples = [self.make(*each) for each in made]
        taken = self.cache.insert(samples)
        for at, one in enumerate(samples):
            accepted = self.model.insert(one)
            assert accepted == (at < taken)
            if not accepted:
                break

    @rule(source=sources, auto_dispose=st.booleans())
    def appear(self, source: SourceId, auto_dispose: bool) -> None:
        self.cache.appeared(source, auto_dispose=auto_dispose)
        if source not in self.model.auto or self.model.gone[source] or source not in self.tokens:
            back = self.model.gone.get(source, False)
            self.model.gone.setdefault(source, False)
            self.model.auto[source] = auto_dispose
            self.tokens.add(source)
            if back:
                self.model.back(source)

    @rule(source=sources, time=times)
    def disappear(self, source: SourceId, time: int) -> None:
        self.cache.disappeared(source, time)
        if source in self.tokens:
            self.tokens.discard(source)
            self.model.leave(source, time)

    @rule(source=sources)
    def absent(self, source: SourceId) -> None:
        self.cache.absent(source)
        if source not in self.model.gone:
            self.model.gone[source], self.model.auto[source] = True, False

    @rule(source=sources, key=keys, time=times)
    def unregister(self, source: SourceId, key: str, time: int) -> None:
        self.cache.unregistered(source, key, time)
        self.model.unregister(source, key, time)

    @rule(source=sources, key=keys)
    def register(self, source: SourceId, key: str) -> None:
        self.cache.registered(source, key)
        self.model.until.pop((source, key), None)

    @rule(samples=sample_states, views=view_states, states=instance_states)
    def read(self, samples: SampleState, views: ViewState, states: InstanceState) -> None:
        found = as_model(self.cache.read(samples, views, states))
        assert by_key(found) == by_key(self.model.collect(samples, views, states, take=False))

    @rule(samples=sample_states, views=view_states, states=instance_states)
    def take(self, samples: SampleState, views: ViewState, states: InstanceState) -> None:
        found = as_model(self.cache.take(samples, views, states))
        assert by_key(found) == by_key(self.model.collect(samples, views, states, take=True))

    @precondition(lambda self: hasattr(self, "cache"))
    @invariant()
    def every_drop_is_reported_and_no_limit_exceeded(self) -> None:
        assert [lost.last[2] for lost in self.cache.drops if lost.last] == self.model.lost
        assert self.cache.take_sample_lost().total == len(self.model.lost)
        assert len(self.cache) == self.model.held() <= self.samples_max
        assert self.cache.instances == len(self.model.known)
        for status in self.cache.statuses():
            assert status.writers == self.model.writers(status.key)
            assert status.state == self.model.known[status.key].state
        liveliness = self.cache.take_liveliness_changed()
        assert liveliness.alive == len(self.tokens)
        assert liveliness.not_alive == sum(self.model.gone.values())
        for known in self.model.known.values():
            assert len(known.samples()) <= self.bound
            assert len(known.lines) <= 2 * len(known.samples()) + 1

    def __init__(self) -> None:
        super().__init__()
        self.tokens: set[SourceId] = set()


TestReader = ReaderMachine.TestCase
TestReader.settings = settings(
    stateful_step_count=30, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
# Histories are short already; to shrink one takes longer than to read it.

"""Seeded histories of a reader: the cache and the model agree, and readers agree with each other.

Hypothesis looks for the odd case; this covers many long histories in little time. A history is its
seed.
"""

from __future__ import annotations

from itertools import count, permutations
from random import Random

import msgspec
import pytest

from durable_cache.model.newest import is_update
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.protocol.reader.cache import ReaderCache
from durable_cache.protocol.reader.instances import InstanceState, SampleState, ViewState
from durable_cache.protocol.reader.profile import DestinationOrder, Profile, Reliability
from durable_cache.testing.conformance.newest import NEWEST_CASES, NewestCase
from durable_cache.testing.samples import sample
from tests.unit.test_reader_model import KEYS, SOURCES, Naive, as_model, by_key

HISTORIES, FILES = 2_000, 8
BY_SOURCE = DestinationOrder.BY_SOURCE_TIMESTAMP


def profile_of(dice: Random) -> Profile:
    per_instance = dice.randint(1, 4)
    total = dice.choice([None, None, dice.randint(0, 3)])
    return Profile(
        reliability=dice.choice([Reliability.BEST_EFFORT, *[Reliability.RELIABLE] * 2]),
        depth=dice.choice([None, per_instance]),
        samples_max=None if total is None else total + per_instance,
        samples_max_per_instance=per_instance,
        instances_max=2,
        destination_order=dice.choice([*DestinationOrder, BY_SOURCE]),
    )


class History:
    """One reader and the model of it, told the same."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        profile = profile_of(self.dice)
        self.cache, self.model = ReaderCache(profile), Naive(profile)
        self.tokens: set[SourceId] = set()
        self.numbers = count()

    def step(self) -> None:
        dice, weights = self.dice, (8, 2, 2, 1, 2, 5)
        source, key, time = dice.choice(SOURCES), dice.choice(KEYS), dice.randint(0, 30)
        match dice.choices(range(len(weights)), weights)[0]:
            case 0:
                self.insert([self.make() for _ in range(dice.randint(1, 6))])
            case 1:
                self.appear(source, auto_dispose=dice.random() < 0.5)
            case 2 if source in self.tokens:
                self.tokens.discard(source)
                self.cache.disappeared(source, time)
                self.model.leave(source, time)
            case 3:
                self.cache.absent(source)
                if source not in self.model.gone:
                    self.model.gone[source], self.model.auto[source] = True, False
            case 4:
                self.cache.unregistered(source, key, time)
                self.model.unregister(source, key, time)
            case 5:
                self.look(take=dice.random() < 0.5)

    def make(self) -> Sample:
        dice = self.dice
        time, source, key = dice.randint(0, 30), dice.choice(SOURCES), dice.choice(KEYS)
        kind = dice.choice([*[Kind.PUT] * 5, Kind.DELETE])
        return msgspec.structs.replace(
            sample(next(self.numbers), key, source, ntp64=time), kind=kind
        )

    def insert(self, samples: list[Sample]) -> None:
        taken = self.cache.insert(samples)
        for at, one in enumerate(samples):
            if not self.model.insert(one):
                assert at == taken
                return
        assert taken == len(samples)

    def appear(self, source: SourceId, *, auto_dispose: bool) -> None:
        self.cache.appeared(source, auto_dispose=auto_dispose)
        if source in self.tokens:
            return
        back = self.model.gone.get(source, False)
        self.model.gone.setdefault(source, False)
        self.model.auto[source] = auto_dispose
        self.tokens.add(source)
        if back:
            self.model.back(source)

    def look(self, *, take: bool) -> None:
        samples, views = SampleState(self.dice.randint(1, 3)), ViewState(self.dice.randint(1, 3))
        states = InstanceState(self.dice.choice([7, 7, self.dice.randint(1, 7)]))
        collect = self.cache.take if take else self.cache.read
        found = by_key(as_model(collect(samples, views, states)))
        assert found == by_key(self.model.collect(samples, views, states, take=take))

    def check(self) -> None:
        assert [lost.last[2] for lost in self.cache.drops if lost.last] == self.model.lost
        assert len(self.cache) == self.model.held()


@pytest.mark.parametrize("file", range(FILES))
def test_the_cache_does_what_the_model_does(file: int) -> None:
    for seed in range(file * HISTORIES // FILES, (file + 1) * HISTORIES // FILES):
        history = History(seed)
        try:
            for _ in range(history.dice.randint(1, 40)):
                history.step()
                history.check()
        except Exception as error:
            error.add_note(f"the history of seed {seed}")
            raise


@pytest.mark.parametrize("file", range(FILES))
def test_readers_end_in_one_state_whatever_order_samples_come_in(file: int) -> None:
    for seed in range(file * 25, file * 25 + 25):
        dice = Random(seed)
        made = [
            msgspec.structs.replace(
                sample(sn, dice.choice(KEYS), dice.choice(SOURCES), ntp64=dice.randint(0, 9)),
                kind=dice.choice([Kind.PUT, Kind.PUT, Kind.DELETE]),
            )
            for sn in range(20)
        ]
        ends = set()
        for depth in (1, 3):
            for _ in range(5):
                dice.shuffle(made)
                cache = ReaderCache(Profile(depth=depth, destination_order=BY_SOURCE))
                while_reading(cache, made, dice)
                last = {each.key: each for each in cache.read()}
                ends.add(frozenset((k, e.sample.sn, e.instance_state) for k, e in last.items()))  # type: ignore[union-attr]
        assert len(ends) == 1, f"the history of seed {seed}"


def while_reading(cache: ReaderCache, samples: list[Sample], dice: Random) -> None:
    for one in samples:
        cache.insert([one])
        if dice.random() < 0.2:
            cache.read()


@pytest.mark.parametrize(
    "case",
    [case for case in NEWEST_CASES if not any(is_update(each.key) for each in case.samples)],
    ids=lambda case: case.name,
)
def test_a_reader_names_the_newest_that_every_reader_names(case: NewestCase) -> None:
    for samples in permutations(case.samples):
        cache = ReaderCache(Profile(destination_order=BY_SOURCE))
        cache.insert(samples)
        found = {each.key: each for each in cache.take()}
        assert {key: each.sample for key, each in found.items()} == case.newest
        for key, newest in case.newest.items():
            deleted = newest.kind is Kind.DELETE
            state = InstanceState.NOT_ALIVE_DISPOSED if deleted else InstanceState.ALIVE
            assert found[key].instance_state is state
        cache.insert(samples)
        assert cache.read() == [], "what is older than what was taken never comes again"

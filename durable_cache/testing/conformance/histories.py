"""Does the backend answer like the memory storage after any history?"""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds, TimeBounds
from durable_cache.storage.contract import Floor, Retention, Storage
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.conformance.hooks import (
    StorageHooks,
    floors_by_stream,
    read_all,
)

KEYS = ["a", "a/b", "a/'x'", "b/\U0001f980", "b/\uff5e", "c/%_"]
SOURCES = [SourceId("f", 2), SourceId("f", 10), SourceId("10", 1)]
EPOCHS = [0, 7]
KEY_EXPRESSIONS = ["**", "a/**", "*", "*/*", "b/*", "c/%$*", "a/b", "nowhere"]
SN_END = 30
STEPS = 25


class HistoryTests(StorageHooks):
    """The memory storage is the reference: the same history must give the same answers."""

    @pytest.mark.parametrize("seed", range(8))
    def test_any_history_answers_as_the_reference_does(self, storage: Storage, seed: int) -> None:
        history = _History(Random(seed), storage)  # noqa: S311  # a seeded test, no secret
        for _ in range(STEPS):
            history.step()
        history.compare()


class _History:
    """Random operations on two storages at once; fails where their answers differ."""

    def __init__(self, random: Random, storage: Storage) -> None:
        self.random = random
        self.storage = storage
        self.reference = MemoryStorage()
        self.made = 0

    def step(self) -> None:
        dice = self.random.random()
        if dice < 0.65:
            self.append()
        elif dice < 0.8:
            self.trim()
        elif dice < 0.85:
            self.purge()
        else:
            self.compare()

    def append(self) -> None:
        batch = SampleBatch(self.sample() for _ in range(self.random.randint(0, 40)))
        skips = [self.skip() for _ in range(self.random.choice([0, 0, 1, 3]))]
        result = self.storage.append(batch, skips)
        expected = self.reference.append(batch, skips)
        assert (result.new, result.duplicates) == (expected.new, expected.duplicates)
        assert list(map(tuple, result.conflicts)) == list(map(tuple, expected.conflicts))
        assert result.refused == ()

    def sample(self) -> Sample:
        self.made += 1
        choice = self.random.choice
        return Sample(
            choice(KEYS),
            choice(SOURCES),
            choice(EPOCHS),
            self.random.randrange(SN_END),
            choice([b"same", b"same", b"same", b"other"]),
            kind=choice(list(Kind)) if self.random.random() < 0.05 else Kind.PUT,
            ntp64=self.random.randrange(16) << 60 >> choice([0, 40]),
            timestamp_id=choice(["", "f", "10"]),
            received_ns=self.made * 997 % 100_003,
        )

    def skip(self) -> Skip:
        first = self.random.randrange(SN_END)
        source, epoch = self.random.choice(SOURCES), self.random.choice(EPOCHS)
        return Skip(source, epoch, first, first + self.random.randrange(6))

    def trim(self) -> None:
        choice = self.random.choice
        exact_age = self.storage.capabilities.exact_age
        retention = Retention(
            age_seconds_max=choice([None, 0.00002, 0.00005]) if exact_age else None,
            samples_max=choice([None, 3, 15, 28]),
            bytes_max=choice([None, 50, 400, 900]),
        )
        found = floors_by_stream(self.storage.trim(retention, 100_003))
        assert found == floors_by_stream(self.reference.trim(retention, 100_003))

    def purge(self) -> None:
        one = self.sample()
        floors = [Floor(one.stream, one.sn)]
        assert self.storage.purge(floors) == self.reference.purge(floors)

    def compare(self) -> None:
        for _ in range(6):
            selection, limit = self.selection(), self.random.choice([1, 3, 20, 1000])
            found = read_all(self.storage, selection, limit)
            assert _plain(found) == _plain(read_all(self.reference, selection, limit)), selection
        assert list(self.storage.held()) == list(self.reference.held())
        assert list(self.storage.skips()) == list(self.reference.skips())

    def selection(self) -> Selection:
        choice, random = self.random.choice, self.random.random
        source = choice(SOURCES) if random() < 0.4 else None
        ends = sorted((self.random.randrange(16) << 60, self.random.randrange(16) << 60))
        last = choice([None, 10, 25])
        return Selection(
            KeyExpression(choice(KEY_EXPRESSIONS)),
            zid=None if source is None else source.zid,
            eid=None if source is None or random() < 0.5 else source.eid,
            epoch=choice(EPOCHS) if random() < 0.3 else None,
            sns=SnBounds(choice([None, 0, 5]), last) if random() < 0.5 else SnBounds(),
            times=TimeBounds(ends[0], ends[1]) if random() < 0.4 else TimeBounds(),
            newest=choice([1, 2, 10]) if random() < 0.4 else None,
            order=choice(list(Order)),
        )


def _plain(samples: list[Sample]) -> list[dict[str, object]]:
    return [msgspec.structs.asdict(sample) for sample in samples]

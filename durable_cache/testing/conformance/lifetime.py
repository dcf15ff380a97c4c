"""What holds when a storage is opened, shared, closed, broken or killed?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from durable_cache.errors import Closed, ConfigError, DurableCacheError, StorageError, StorageLocked
from durable_cache.model.sample import Skip
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import (
    AppendResult,
    Capabilities,
    Durability,
    Floor,
    Retention,
    Storage,
)
from durable_cache.testing.conformance.hooks import StorageHooks, read_all, runs_of
from durable_cache.testing.conformance.victim import BATCH_SAMPLES, batch_of
from durable_cache.testing.samples import HOSTILE_KEYS, SOURCE, batch, filled, run, sample

BATCHES_BEFORE_KILL = 3
CHILD_EXIT_SECONDS = 60

WRITES: dict[str, Callable[[Storage], object]] = {
    "append": lambda storage: storage.append(batch(sample(1))),
    "skip": lambda storage: storage.append(batch(), [Skip(SOURCE, 1, 3, 4)]),
    "trim": lambda storage: storage.trim(Retention(samples_max=1), 0),
    "purge": lambda storage: storage.purge([Floor(sample().stream, 5)]),
}
READS: dict[str, Callable[[Storage], object]] = {
    "read": lambda storage: storage.read(Selection(), 10),
    "held": lambda storage: list(storage.held()),
    "skips": lambda storage: list(storage.skips()),
}


class LifetimeTests(StorageHooks):
    """Clauses of `Backend.open`, `Storage.close`, `Capabilities` and durability."""

    def _persistent(self, storage: Storage) -> None:
        if storage.capabilities.durability is Durability.MEMORY:
            pytest.skip("declares no durability: a storage ends with its handle")

    def test_capabilities_are_claims_that_can_hold(self, storage: Storage) -> None:
        claims = storage.capabilities
        assert isinstance(claims, Capabilities)
        assert isinstance(claims.durability, Durability)
        assert 1 <= claims.time_resolution_ns <= 10**9
        assert storage.capabilities == claims

    def test_durable_across_reopen(self, storage: Storage, tmp_path: Path) -> None:
        samples = [filled(1), *run(2, 9), *(sample(1, key) for key in HOSTILE_KEYS)]
        storage.append(batch(samples))
        held, before = runs_of(storage), read_all(storage)
        with self.reopened(storage, tmp_path) as again:
            assert read_all(again) == before
            assert runs_of(again) == held
            assert again.append(batch(sample(100))).new == 1
            assert again.append(batch(samples)) == AppendResult(0, duplicates=len(samples))
        with self.open(tmp_path) as third:
            assert len(read_all(third)) == len(before) + 1

    def test_storages_of_different_names_do_not_mix(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "one") as one, self.open(tmp_path, "two") as two:
            one.append(batch(sample(1)), [Skip(SOURCE, 1, 5, 6)])
            assert read_all(two) == []
            assert list(two.skips()) == []
            two.append(batch(sample(1, payload=b"two's")))
            assert [s.payload for s in read_all(one)] == [b"payload 1"]

    @pytest.mark.parametrize(
        "name", ["", "Upper", "1st", "_x", "a/b", "../a", "a b", "a'b", "é", "x" * 65, "a\n"]
    )
    def test_a_bad_name_is_a_config_error(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ConfigError):
            self.open(tmp_path, name).close()

    @pytest.mark.parametrize("name", ["a", "a-1_b", "x" * 64])
    def test_every_good_name_is_taken(self, tmp_path: Path, name: str) -> None:
        with self.open(tmp_path, name) as storage:
            storage.append(batch(sample(1)))
            assert read_all(storage) == [sample(1)]

    @pytest.mark.parametrize("call", sorted(WRITES | READS))
    def test_a_closed_storage_says_so(self, storage: Storage, call: str) -> None:
        storage.append(batch(run(0, 3)))
        storage.close()
        with pytest.raises(Closed):
            (WRITES | READS)[call](storage)

    def test_closing_twice_does_nothing(self, tmp_path: Path) -> None:
        storage = self.open(tmp_path)
        storage.append(batch(sample(1)))
        storage.close()
        storage.close()

    def test_a_storage_is_closed_by_its_with_block(self, tmp_path: Path) -> None:
        with self.open(tmp_path) as storage:
            storage.append(batch(sample(1)))
        with pytest.raises(Closed):
            storage.read(Selection(), 1)

    def test_a_second_writer_is_locked_out(self, storage: Storage, tmp_path: Path) -> None:
        self._persistent(storage)
        storage.append(batch(sample(1)))
        with pytest.raises(StorageLocked):
            self.open(tmp_path).close()
        assert storage.append(batch(sample(2))).new == 1
        storage.close()
        with self.open(tmp_path) as next_writer:
            assert read_all(next_writer) == run(1, 2)

    @pytest.mark.parametrize("call", sorted(WRITES))
    def test_a_reader_cannot_write(self, storage: Storage, tmp_path: Path, call: str) -> None:
        storage.append(batch(sample(1)))
        with self.open(tmp_path, writer=False) as reader, pytest.raises(StorageLocked):
            WRITES[call](reader)
        assert read_all(storage) == [sample(1)]

    def test_readers_see_what_the_writer_acknowledged(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        self._persistent(storage)
        storage.append(batch(run(1, 3)), [Skip(SOURCE, 1, 0, 0)])
        with (
            self.open(tmp_path, writer=False) as reader,
            self.open(tmp_path, writer=False) as another,
        ):
            assert read_all(reader) == run(1, 3)
            assert list(reader.skips()) == [Skip(SOURCE, 1, 0, 0)]
            storage.append(batch(run(4, 6)))
            assert read_all(reader) == read_all(another) == run(1, 6)
            assert runs_of(reader) == runs_of(storage)

    def test_a_reader_creates_nothing(self, tmp_path: Path) -> None:
        before = sorted(tmp_path.rglob("*"))
        with (
            suppress(StorageError, ConfigError),
            self.open(tmp_path, writer=False) as reader,
        ):
            assert read_all(reader) == []
        assert sorted(tmp_path.rglob("*")) == before
        with self.open(tmp_path) as storage:
            assert read_all(storage) == []

    @pytest.mark.parametrize("call", sorted(WRITES | READS))
    def test_no_foreign_error_escapes(self, tmp_path: Path, call: str) -> None:
        storage = self.open(tmp_path)
        try:
            storage.append(batch(sample(1)))
            if not self.sabotage(tmp_path, "suite", storage):
                pytest.skip("the suite has no hook to break this backend")
            with pytest.raises(StorageError) as caught:
                (WRITES | READS)[call](storage)
            assert str(caught.value)
        finally:
            with suppress(DurableCacheError):
                storage.close()

    def test_acknowledged_samples_survive_sigkill(self, storage: Storage, tmp_path: Path) -> None:
        self._persistent(storage)
        storage.close()
        acknowledged = self._kill_writer(tmp_path)
        with self.open(tmp_path) as again:
            found = {s.sn: s for s in read_all(again)}
            for number in range(acknowledged + 1):
                for one in batch_of(number):
                    assert found.get(one.sn) == one, f"sample {one.sn} was acknowledged"
            assert len(found) % BATCH_SAMPLES == 0, "part of a batch was stored"
            assert again.append(batch(batch_of(acknowledged))).duplicates == BATCH_SAMPLES
            assert again.append(batch(sample(1, "suite/after"))).new == 1

    def _kill_writer(self, tmp_path: Path) -> int:
        """Run the child, kill it while it appends; returns the last batch it acknowledged."""
        path = os.pathsep.join(part for part in sys.path if part)
        child = subprocess.Popen(  # noqa: S603  # the suite's own module
            self.writer_command(tmp_path, "suite"),
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        with child:
            assert child.stdout is not None
            lines = []
            for line in child.stdout:
                lines.append(line)
                if len(lines) == BATCHES_BEFORE_KILL:
                    child.kill()
            child.wait(CHILD_EXIT_SECONDS)
        whole = [int(line) for line in lines if line.endswith("\n")]
        assert len(whole) >= BATCHES_BEFORE_KILL, "the child ended before it was killed"
        return whole[-1]

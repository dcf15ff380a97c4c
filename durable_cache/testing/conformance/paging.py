"""In which order do pages come, and does the next one begin where the last one ended?"""

from __future__ import annotations

from threading import Event, Thread

import pytest

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Cursor, Order, Selection
from durable_cache.storage.contract import Storage
from durable_cache.testing.conformance.hooks import StorageHooks, read_all
from durable_cache.testing.samples import HOSTILE_KEYS, batch, run, sample

JOIN_SECONDS = 60


class PagingTests(StorageHooks):
    """Clauses of `Storage.read` about order, limit and cursor."""

    def test_keys_order_as_utf8_bytes(self, storage: Storage) -> None:
        keys = ["a", "Z", "aa", "a/b", "a-b", "é", "z", "\uff5e", "\U0001f980", "e\u0301", "ß"]
        storage.append(batch(sample(1, key) for key in keys))
        assert [s.key for s in read_all(storage)] == sorted(keys, key=lambda key: key.encode())

    def test_hostile_keys_order_as_utf8_bytes(self, storage: Storage) -> None:
        keys = [key for key in HOSTILE_KEYS if "@" not in key]
        storage.append(batch(sample(1, key) for key in keys))
        assert [s.key for s in read_all(storage, limit=3)] == sorted(keys, key=str.encode)

    def test_sources_order_as_numbers(self, storage: Storage) -> None:
        zids = ["1", "9", "f", "10", "ff", "100", "7f" + "f" * 30, "8" + "0" * 31, "f" * 32]
        eids = [0, 2, 10, 100, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
        sources = [SourceId(zid, eid) for zid in zids for eid in eids]
        storage.append(batch(sample(1, source=source) for source in reversed(sources)))
        assert [s.source for s in read_all(storage, limit=5)] == sources

    def test_epoch_and_sn_order_as_numbers(self, storage: Storage) -> None:
        places = [(epoch, sn) for epoch in (0, 2, 10) for sn in (0, 9, 10, 1 << 31, 1 << 32)]
        storage.append(batch(sample(sn, epoch=epoch, ntp64=1) for epoch, sn in reversed(places)))
        assert [(s.epoch, s.sn) for s in read_all(storage, limit=4)] == places

    def test_time_order(self, storage: Storage) -> None:
        times = [1 << 63, 5, (1 << 64) - 1, 0, 7, (1 << 63) - 1, 6]
        samples = [sample(n, ntp64=ntp64) for n, ntp64 in enumerate(times)]
        storage.append(batch(samples))
        found = read_all(storage, Selection(order=Order.TIME), limit=2)
        assert [s.ntp64 for s in found] == sorted(times)

    def test_time_order_between_keys_and_sources(self, storage: Storage) -> None:
        samples: list[Sample] = [
            sample(sn, key, SourceId(zid, 1), ntp64=100 + sn // 2)
            for sn in range(6)
            for key in ("b", "a")
            for zid in ("10", "f")
        ]
        storage.append(batch(samples))
        expected = sorted(samples, key=lambda s: s.time_order)
        for limit in (1, 2, 5, 100):
            assert read_all(storage, Selection(order=Order.TIME), limit) == expected

    @pytest.mark.parametrize("order", Order)
    @pytest.mark.parametrize("limit", [1, 2, 7, 29, 30, 31])
    def test_pages_of_any_limit_make_the_whole(
        self, storage: Storage, limit: int, order: Order
    ) -> None:
        samples = [s for key in ("a", "b", "c") for s in run(0, 9, key)]
        storage.append(batch(samples))
        selection = Selection(order=order)
        assert read_all(storage, selection, limit) == sorted(samples, key=selection.place)

    def test_the_last_page_has_no_cursor(self, storage: Storage) -> None:
        assert storage.read(Selection(), 10).cursor is None
        storage.append(batch(run(0, 9)))
        page = storage.read(Selection(), 100)
        assert len(page.samples) == 10
        assert page.cursor is None

    def test_a_cursor_survives_the_samples_it_names(self, storage: Storage) -> None:
        storage.append(batch(run(0, 9, "a"), run(0, 9, "c")))
        place: Cursor = sample(5, "b").order
        assert [s.key for s in storage.read(Selection(), 100, place).samples] == ["c"] * 10
        assert storage.read(Selection(), 100, sample(9, "c").order).samples.samples == ()

    @pytest.mark.parametrize("order", Order)
    def test_appends_between_pages_neither_repeat_nor_lose(
        self, storage: Storage, order: Order
    ) -> None:
        storage.append(batch(run(0, 40, "m")))
        selection = Selection(order=order)
        found: list[Sample] = []
        cursor: Cursor | None = None
        for turn in range(100):
            page = storage.read(selection, 5, cursor)
            found.extend(page.samples)
            cursor = page.cursor
            if cursor is None:
                break
            storage.append(batch(sample(turn, "a", ntp64=turn), sample(100 + turn, "m")))
        assert cursor is None
        assert [s.sn for s in found if s.key == "m"][:41] == list(range(41))
        assert len({s.identity for s in found}) == len(found)
        assert found == sorted(found, key=selection.place)

    def test_reading_while_another_thread_appends(self, storage: Storage) -> None:
        storage.append(batch(run(0, 99, "m")))
        failures: list[BaseException] = []
        done = Event()

        def append() -> None:
            try:
                for turn in range(20):
                    first = 100 + 10 * turn
                    storage.append(batch(run(first, first + 9, "m"), run(first, first + 9, "z")))
            except BaseException as error:
                failures.append(error)
            finally:
                done.set()

        writer = Thread(target=append)
        writer.start()
        try:
            last_round = False
            while not last_round:
                last_round = done.is_set()
                sns = [s.sn for s in read_all(storage, limit=37) if s.key == "m"]
                assert sns == list(range(len(sns))), "a sample is missing or twice"
                assert len(sns) >= 100
        finally:
            writer.join(JOIN_SECONDS)
        assert failures == []
        assert len(read_all(storage)) == 500

"""Which samples does a selection return?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds, TimeBounds
from durable_cache.storage.contract import Storage
from durable_cache.testing.conformance.hooks import StorageHooks, read_all
from durable_cache.testing.samples import HOSTILE_KEYS, batch, run, sample

KEY_EXPRESSIONS = (
    "**",
    "a/**",
    "*/*",
    "a/*",
    "a/*/b",
    "a/x$*/**",
    "**/b",
    "*",
    "..",
    "../**",
    "a/..",
    "a/../*",
    "a/%/*",
    "a/_/*",
    "a/'$*",
    "a/new$*/**",
    "A/*",
    "a/nul\x00/*",
    "a/nul/*",
    "**/k$*",
    "a/$*%$*/b",
    "a/@verbatim/*",
    "a/@verbatim/b",
    "*/@verbatim/**",
    "@durable/**",
    "@durable/v1/*",
    "**/x",
    "a/back\\slash/**",
    "\U0001f980/**",
    "\u00e9/*",
    "e\u0301/*",
    "a/{HOME}",
    "a-$*",
    "a$*b",
    "nothing/here",
    "**/nothing",
    "long/*",
    "a/|> filter(fn: (r) => true)",
    "a/\\$*",
    "$*~$*/**",
)


class FilterTests(StorageHooks):
    """Clauses of `Selection`, one filter at a time and together."""

    @pytest.mark.parametrize("first", [None, 0, 3, 9, 10, 1 << 33])
    @pytest.mark.parametrize("last", [None, 0, 3, 9, 1 << 33])
    def test_sn_bounds_include_both_ends(
        self, storage: Storage, first: int | None, last: int | None
    ) -> None:
        sns = [*range(10), 1 << 32, 1 << 33]
        storage.append(batch(sample(sn, ntp64=sn) for sn in sns))
        expected = [sn for sn in sns if (first or 0) <= sn <= (1 << 40 if last is None else last)]
        found = read_all(storage, Selection(sns=SnBounds(first, last)))
        assert [s.sn for s in found] == expected

    def test_time_bounds_include_both_ends_to_the_last_bit(self, storage: Storage) -> None:
        middle = sample(0).ntp64
        samples = [sample(n, ntp64=middle + n) for n in range(10)]
        storage.append(batch(samples))
        for first in range(-1, 11):
            for last in range(first, 11):
                found = read_all(
                    storage, Selection(times=TimeBounds(middle + first, middle + last))
                )
                assert found == samples[max(0, first) : last + 1]

    def test_time_bounds_at_the_ends_of_time(self, storage: Storage) -> None:
        times = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]
        samples = [sample(n, ntp64=ntp64) for n, ntp64 in enumerate(times)]
        storage.append(batch(samples))
        for first in times:
            for last in times:
                found = read_all(storage, Selection(times=TimeBounds(first, last)))
                assert found == [s for s in samples if first <= s.ntp64 <= last]

    def test_a_zid_alone_means_all_its_entities(self, storage: Storage) -> None:
        mine = [sample(1, source=SourceId("ab", eid)) for eid in (0, 1, 10, (1 << 32) - 1)]
        other = [sample(1, source=SourceId(zid, 1)) for zid in ("a", "abc", "ba", "1ab")]
        storage.append(batch(other, mine))
        assert read_all(storage, Selection(zid="ab")) == mine
        assert read_all(storage, Selection(zid="abcd")) == []

    def test_a_zid_and_eid_mean_one_entity(self, storage: Storage) -> None:
        samples = [sample(1, source=SourceId(z, e)) for z in ("a", "ab") for e in (0, 1, 10)]
        storage.append(batch(samples))
        for one in samples:
            assert read_all(storage, Selection(zid=one.source.zid, eid=one.source.eid)) == [one]
        assert read_all(storage, Selection(zid="a", eid=2)) == []

    def test_an_epoch_selects_one_numbering(self, storage: Storage) -> None:
        samples = [sample(1, epoch=epoch) for epoch in (0, 1, 2, (1 << 29) - 1)]
        storage.append(batch(samples))
        for one in samples:
            assert read_all(storage, Selection(epoch=one.epoch)) == [one]
        assert read_all(storage, Selection(epoch=3)) == []

    def test_key_expressions_choose_as_zenoh_does(self, storage: Storage) -> None:
        samples = [sample(1, key) for key in HOSTILE_KEYS]
        storage.append(batch(samples))
        for text in KEY_EXPRESSIONS:
            wanted = KeyExpression(text)
            expected = sorted(key for key in HOSTILE_KEYS if wanted.matches(key))
            found = read_all(storage, Selection(wanted))
            assert sorted(s.key for s in found) == expected, f"key expression {text!r}"

    def test_a_wildcard_update_is_found_by_its_own_key_and_number(self, storage: Storage) -> None:
        """So a cache looks for it at a start, to see whether this is the backend it knows."""
        keys = ("t/*", "t/**", "**", "*/b", "t/$*b", "t/@v/**")
        samples = [sample(sn, key) for sn, key in enumerate((*keys, "t/a", "t/b", "t/@v/b"))]
        storage.append(batch(samples))
        for one in samples[: len(keys)]:
            numbering = Selection(KeyExpression(one.key), one.source.zid, one.source.eid, one.epoch)
            assert read_all(storage, replace(numbering, sns=SnBounds(one.sn, one.sn))) == [one]
            absent = SnBounds(100, 100)
            assert read_all(storage, replace(numbering, sns=absent)) == []

    @pytest.mark.parametrize("newest", [1, 2, 5, 100])
    @pytest.mark.parametrize("order", Order)
    def test_newest_are_the_last_in_time_of_each_key_oldest_first(
        self, storage: Storage, newest: int, order: Order
    ) -> None:
        samples = [
            sample(sn, key, ntp64=1000 + (sn * 7 + shift) % 10)
            for shift, key in enumerate(("a", "b", "c"))
            for sn in range(10)
        ]
        storage.append(batch(samples))
        expected = [
            one
            for key in ("a", "b", "c")
            for one in sorted((s for s in samples if s.key == key), key=lambda s: s.time_order)[
                -newest:
            ]
        ]
        selection = Selection(newest=newest, order=order)
        assert read_all(storage, selection, limit=4) == sorted(expected, key=selection.place)

    def test_newest_counts_a_key_over_all_its_sources_and_epochs(self, storage: Storage) -> None:
        old = [sample(9, source=SourceId(z, 1), ntp64=10) for z in ("a", "b")]
        new = sample(0, source=SourceId("c", 1), ntp64=11)
        newer = sample(0, source=SourceId("a", 1), epoch=5, ntp64=12)
        storage.append(batch(old, new, newer))
        assert read_all(storage, Selection(newest=1)) == [newer]
        assert read_all(storage, Selection(newest=2, order=Order.TIME)) == [new, newer]

    def test_equal_times_fall_back_to_the_stamp_id_and_identity(self, storage: Storage) -> None:
        samples = [sample(9, source=SourceId(z, e), ntp64=5) for z in ("f", "10") for e in (2, 10)]
        storage.append(batch(samples[::-1]))
        assert read_all(storage, Selection(order=Order.TIME)) == samples
        assert read_all(storage, Selection(newest=1)) == samples[-1:]

    def test_newest_applies_after_all_other_filters(self, storage: Storage) -> None:
        mine, other = SourceId("a", 1), SourceId("b", 1)
        samples = run(0, 9, source=mine)
        storage.append(batch(samples, run(20, 29, source=other), run(20, 29, "other/key", mine)))
        key = KeyExpression("suite/a")
        checks = [
            (Selection(key, zid="a", newest=1), samples[9:]),
            (Selection(key, zid="a", sns=SnBounds(2, 5), newest=2), samples[4:6]),
            (Selection(key, times=TimeBounds(0, samples[3].ntp64), newest=1), samples[3:4]),
            (Selection(key, zid="a", eid=1, epoch=2, newest=1), []),
        ]
        for selection, expected in checks:
            assert read_all(storage, selection) == expected

    def test_all_filters_together(self, storage: Storage) -> None:
        samples: list[Sample] = [
            sample(sn, key, SourceId(zid, eid), epoch)
            for key in ("a/x", "a/y", "b/x")
            for zid in ("a", "b")
            for eid in (1, 2)
            for epoch in (0, 4)
            for sn in range(6)
        ]
        storage.append(batch(samples))
        selection = Selection(
            KeyExpression("a/*"),
            zid="b",
            eid=2,
            epoch=4,
            sns=SnBounds(1, 4),
            times=TimeBounds(sample(2).ntp64, sample(9).ntp64),
        )
        expected = [s for s in samples if selection.holds(s)]
        assert len(expected) == 6
        assert read_all(storage, selection) == expected

"""Are the newest values of a key those a store that was told everything in order would have?"""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.newest import NamingUpdates, is_update, newest_per_key, values_of
from durable_cache.model.sample import Kind, Sample, SampleBatch, SourceId
from durable_cache.model.selection import Cursor, Order, Selection
from durable_cache.storage.contract import Floor, Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.storage.shared.wildcards import WildcardUpdates, read_values
from durable_cache.testing.samples import SOURCE, sample

KEYS = ["a", "a/b", "a/c", "b"]
EXPRESSIONS = ["**", "a/*", "a/b/**", "*", "c/**"]


def at(
    key: str, time: int, kind: Kind = Kind.PUT, source: SourceId = SOURCE, sn: int | None = None
) -> Sample:
    made = sample(time if sn is None else sn, key, source, ntp64=time)
    return msgspec.structs.replace(made, kind=kind)


histories = st.lists(
    st.builds(
        at,
        st.sampled_from(KEYS * 2 + EXPRESSIONS),
        st.integers(0, 5),
        st.sampled_from(Kind),
        st.sampled_from([SourceId("f", 2), SourceId("f", 10)]),
        st.integers(0, 20),
    ),
    max_size=20,
    unique_by=lambda each: each.identity,
)


def told_in_order(made: list[Sample], key: str) -> list[tuple[int, Kind]]:
    """Every change of a key, as a plain store of the latest value makes them: the model."""
    there = False
    changes = []
    for each in sorted(made, key=lambda each: each.time_order):
        own = each.key == key
        if own or (is_update(each.key) and there and KeyExpression(each.key).matches(key)):
            changes.append((each.ntp64, each.kind))
            there = each.kind is Kind.PUT
    return changes


def stored(made: list[Sample]) -> MemoryStorage:
    storage = MemoryStorage()
    storage.append(SampleBatch(made))
    return storage


@given(histories, st.integers(1, 4), st.integers(1, 7), st.booleans())
def test_values_are_those_of_a_store_told_in_order(
    made: list[Sample], newest: int, limit: int, again: bool
) -> None:
    updates = [each for each in made if is_update(each.key)]
    selection = Selection(newest=newest, order=Order.IDENTITY)
    storage = stored(made)
    found: list[Sample] = []
    cursor: Cursor | None = None
    while True:
        page: Page = read_values(storage.read, updates, selection, limit, cursor)
        found += page.samples
        assert len(found) <= len(KEYS) * len(made), "a key comes again"
        assert page.cursor is None or len(page.samples) > 0
        if page.cursor is None:
            break
        # whoever goes on names the last sample; the storage's own cursor is never handed out
        cursor = selection.place(found[-1]) if again else page.cursor
    assert [*dict.fromkeys(each.key for each in found)] == sorted({each.key for each in found})
    for key in KEYS:
        expected = told_in_order(made, key)[-newest:]
        assert [(each.ntp64, each.kind) for each in found if each.key == key] == expected
    assert not any(is_update(each.key) for each in found)


def test_an_update_is_a_change_of_the_key_with_all_it_was_published_with() -> None:
    own, update = at("a/b", 1), msgspec.structs.replace(at("a/*", 2), payload=b"all", sn=7)
    assert values_of([own], [update], 1) == [msgspec.structs.replace(update, key="a/b")]
    assert values_of([own], [update], 2) == [own, msgspec.structs.replace(update, key="a/b")]


def test_equal_timestamps_are_decided_by_id_then_identity() -> None:
    low, high = SourceId("9", 1), SourceId("a", 0)
    one, two = at("a", 1, source=low, sn=9), at("a", 1, source=high, sn=0)
    assert list(newest_per_key([two, one], 1)) == [two]
    later = msgspec.structs.replace(one, timestamp_id="b")
    assert list(newest_per_key([later, msgspec.structs.replace(two, timestamp_id="a")], 1)) == [
        later
    ]


def test_updates_are_found_by_the_keys_they_name() -> None:
    updates = [at("a/*", 3), at("a/*", 1), at("**", 2), at("b", 9), at("a*b", 9)]
    naming = NamingUpdates(updates)
    assert sorted(each.ntp64 for each in naming.of("a/x", at("a/x", 0))) == [1, 2, 3]
    assert [each.ntp64 for each in naming.of("a/x", at("a/x", 2))] == [3]
    assert [each.ntp64 for each in naming.of("c", at("c", 0))] == [2]


def nothing(*_: object) -> list[Sample]:
    raise AssertionError("nothing was to be read back")


def concerning(updates: WildcardUpdates, key_expr: str) -> list[int]:
    selection = Selection(key_expr=KeyExpression(key_expr))
    return sorted(each.sn for each in updates.concerning(selection, nothing))


def test_updates_concern_the_questions_they_share_a_key_with() -> None:
    updates = WildcardUpdates(10, 1 << 20)
    updates.add(SampleBatch([at("a/*", 1), at("a/b/**", 2), at("c/*", 3), at("a/b", 4)]))
    assert concerning(updates, "a/b") == [1, 2]
    assert concerning(updates, "**") == [1, 2, 3]
    assert concerning(updates, "c/$*x") == [3]
    assert concerning(updates, "d/**") == []


def test_an_overtaken_update_makes_room_and_any_other_is_refused() -> None:
    updates = WildcardUpdates(3, 1 << 20)
    for time in range(10):
        batch = SampleBatch([at("a/*", time)])
        assert updates.admit(batch) is not None
        updates.add(updates.admit(batch))
    assert (len(updates), updates.refused, updates.unapplied) == (3, 0, 0)
    others = SampleBatch([at("a/*", 20, Kind.DELETE), at("b/*", 21), at("c/*", 22), at("c", 23)])
    kept = updates.admit(others)
    assert [each.sn for each in kept] == [20, 21, 23]
    assert updates.refused == 1
    updates.add(kept)
    assert concerning(updates, "**") == [9, 20, 21]
    late = SampleBatch([at("a/*", 8)])
    assert updates.admit(late) == late  # no key depends on it: it is stored, and not at hand
    updates.add(late)
    assert concerning(updates, "**") == [9, 20, 21]


def test_the_bytes_of_updates_are_bounded() -> None:
    large = msgspec.structs.replace(at("a/*", 1), payload=bytes(5_000))
    updates = WildcardUpdates(10, 12_000)
    updates.add(SampleBatch([large, msgspec.structs.replace(large, key="b/*")]))
    third = msgspec.structs.replace(large, key="c/*")
    assert len(updates.admit(SampleBatch([third]))) == 0
    huge = msgspec.structs.replace(large, sn=2, ntp64=2, payload=bytes(20_000))
    assert len(updates.admit(SampleBatch([huge]))) == 0
    updates.add(SampleBatch([huge]))
    assert updates.unapplied == 1
    assert concerning(updates, "**") == [1, 1]  # the one it would have overtaken is still applied


def test_what_was_removed_is_applied_no_more() -> None:
    updates = WildcardUpdates(10, 1 << 20)
    updates.add(SampleBatch([at("a/*", time) for time in range(4)]))
    updates.removed([Floor(at("a/*", 0).stream, 2), Floor(at("b/*", 0).stream, 9)])
    assert concerning(updates, "a/b") == [2, 3]

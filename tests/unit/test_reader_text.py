"""Does a reader's cache do what DDS's text on eventual consistency says, sentence by sentence?"""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.protocol.reader.cache import ReaderCache
from durable_cache.protocol.reader.instances import (
    InstanceSample,
    InstanceState,
    SampleState,
    ViewState,
)
from durable_cache.protocol.reader.profile import DestinationOrder, Profile
from durable_cache.protocol.reader.statuses import LostReason
from durable_cache.testing.samples import sample

A, B = SourceId("a", 1), SourceId("b", 2)
ALIVE = InstanceState.ALIVE
DISPOSED = InstanceState.NOT_ALIVE_DISPOSED
NO_WRITERS = InstanceState.NOT_ALIVE_NO_WRITERS
BY_SOURCE = DestinationOrder.BY_SOURCE_TIMESTAMP
KEY = "k"


def keeping(depth: int | None = 3, **settings: object) -> ReaderCache:
    chosen: dict[str, object] = {"depth": depth, "destination_order": BY_SOURCE, **settings}
    return ReaderCache(Profile(**chosen))  # type: ignore[arg-type]


def at(time: int, source: SourceId = A, key: str = KEY) -> Sample:
    return sample(time, key, source, ntp64=time)


def deleted(time: int, source: SourceId = A) -> Sample:
    return msgspec.structs.replace(at(time, source), kind=Kind.DELETE, payload=b"")


def timeline(found: list[InstanceSample]) -> str:
    """Write a history as the text does."""
    names = {DISPOSED: "D", NO_WRITERS: "NW", None: "S"}
    return " ".join(f"{names[each.message and each.message.state]}({each.ntp64})" for each in found)


def dropped(cache: ReaderCache) -> list[tuple[LostReason | None, int]]:
    return [(lost.reason, lost.last[2] if lost.last else -1) for lost in cache.drops]


# Destination order


def test_by_reception_two_readers_differ_in_what_is_the_latest() -> None:
    latest = []
    for order in ([at(1, A), at(2, B)], [at(2, B), at(1, A)]):
        cache = keeping(1, destination_order=DestinationOrder.BY_RECEPTION_TIMESTAMP)
        cache.insert(order)
        latest.append(timeline(cache.read()))
    assert latest == ["S(2)", "S(1)"]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_by_source_all_readers_agree_on_the_latest(depth: int) -> None:
    cache, other = keeping(depth), keeping(depth)
    cache.insert([at(1, A), at(2, B)])
    other.insert([at(2, B), at(1, A)])
    assert timeline(cache.read()[-1:]) == timeline(other.read()[-1:]) == "S(2)"


@pytest.mark.parametrize(
    "cache", [keeping(2), keeping(None, samples_max_per_instance=2)], ids=["KEEP_LAST", "KEEP_ALL"]
)
def test_an_older_sample_is_inserted_before_a_newer_one_where_there_is_room(
    cache: ReaderCache,
) -> None:
    cache.insert([at(2, B), at(1, A)])
    assert timeline(cache.read()) == "S(1) S(2)"
    assert not cache.drops


@pytest.mark.parametrize(
    "cache", [keeping(1), keeping(None, samples_max_per_instance=1)], ids=["KEEP_LAST", "KEEP_ALL"]
)
def test_an_older_sample_is_dropped_and_reported_where_there_is_no_room(
    cache: ReaderCache,
) -> None:
    cache.insert([at(2, B), at(1, A)])
    assert timeline(cache.read()) == "S(2)"
    assert dropped(cache) == [(LostReason.NO_ROOM, 1)]
    lost = cache.take_sample_lost()
    assert (lost.total, lost.change, lost.key, lost.last) == (1, 1, KEY, (A, 1, 1))
    assert cache.take_sample_lost().change == 0


@pytest.mark.parametrize(
    "cache", [keeping(9), keeping(None, samples_max_per_instance=9)], ids=["KEEP_LAST", "KEEP_ALL"]
)
def test_an_older_sample_is_dropped_and_reported_where_a_newer_one_was_taken(
    cache: ReaderCache,
) -> None:
    cache.insert([at(2, B)])
    cache.take()
    cache.insert([at(1, A)])
    assert cache.read() == []
    assert dropped(cache) == [(LostReason.CONSUMED, 1)]


def test_what_was_only_read_lets_an_older_sample_in() -> None:
    cache = keeping()
    cache.insert([at(2, B)])
    cache.read()
    cache.insert([at(1, A)])
    found = cache.read()
    assert timeline(found) == "S(1) S(2)"
    assert [each.sample_state for each in found] == [SampleState.NOT_READ, SampleState.READ]


def test_equal_timestamps_are_decided_by_the_one_order() -> None:
    for first, second in ((A, B), (B, A)):
        cache = keeping(2)
        cache.insert([at(1, first), at(1, second)])
        assert [each.sample and each.sample.source for each in cache.read()] == [A, B]


def test_reception_order_inserts_what_is_older_behind_what_was_taken() -> None:
    cache = keeping(3, destination_order=DestinationOrder.BY_RECEPTION_TIMESTAMP)
    cache.insert([at(2)])
    cache.take()
    cache.insert([at(1, B)])
    assert timeline(cache.take()) == "S(1)"


def test_an_older_put_does_not_bring_a_deleted_instance_back() -> None:
    cache = keeping()
    cache.insert([at(1), deleted(3), at(2, B)])
    assert cache.read()[-1].instance_state is DISPOSED
    cache.take()
    cache.insert([msgspec.structs.replace(at(2, B), sn=9)])
    assert cache.read() == []
    assert dropped(cache) == [(LostReason.CONSUMED, 9)]


# Disconnect


def disconnected(*, auto_dispose: bool, others: int) -> ReaderCache:
    cache = keeping()
    cache.appeared(A, auto_dispose=auto_dispose)
    writers = [B][:others]
    for writer in writers:
        cache.appeared(writer, auto_dispose=False)
    cache.insert([at(1, A), *(at(2, writer) for writer in writers)])
    cache.disappeared(A, 5)
    return cache


@pytest.mark.parametrize(
    ("auto_dispose", "others", "state"),
    [
        (True, 0, DISPOSED),
        (True, 1, DISPOSED),
        (False, 0, NO_WRITERS),
        (False, 1, ALIVE),
    ],
)
def test_what_a_disconnect_makes_of_an_instance(
    auto_dispose: bool, others: int, state: InstanceState
) -> None:
    cache = disconnected(auto_dispose=auto_dispose, others=others)
    assert {each.instance_state for each in cache.read()} == {state}


def test_a_disconnect_shows_in_both_statuses() -> None:
    cache = disconnected(auto_dispose=True, others=1)
    liveliness, matched = cache.take_liveliness_changed(), cache.take_subscription_matched()
    assert (liveliness.alive, liveliness.not_alive, liveliness.last) == (1, 1, A)
    assert (matched.current, matched.total, matched.current_change) == (1, 2, 1)
    cache.appeared(A, auto_dispose=True)
    liveliness, matched = cache.take_liveliness_changed(), cache.take_subscription_matched()
    assert liveliness[:4] == (2, 0, 1, -1)
    assert matched[:4] == (2, 3, 1, 1)


def test_a_token_that_is_seen_twice_is_one_writer() -> None:
    cache = keeping()
    for _ in range(2):
        cache.appeared(A, auto_dispose=False)
    assert cache.take_subscription_matched()[:2] == (1, 1)


def test_numbers_that_never_come_count_as_lost_each() -> None:
    cache = keeping()
    cache.missed(A, 1, 3, 7)
    status = cache.take_sample_lost()
    assert (status.total, status.change, status.reason) == (5, 5, LostReason.MISSED)
    assert (status.last, status.key) == ((A, 1, 7), None)
    assert cache.take_sample_lost().change == 0


# Reconnect


@pytest.mark.parametrize(("auto_dispose", "message"), [(True, "D"), (False, "NW")])
def test_the_two_timelines(auto_dispose: bool, message: str) -> None:
    cache = keeping(3)
    cache.appeared(A, auto_dispose=auto_dispose)
    cache.insert([at(1)])
    cache.read()
    cache.disappeared(A, 2)
    cache.appeared(A, auto_dispose=auto_dispose)
    found = cache.read()
    assert timeline(found) == f"S(1) {message}(2) S(1)"
    assert [each.generation_count for each in found] == [0, 0, 1]
    last = found[-1]
    assert (last.disposed_generation_count, last.no_writers_generation_count) == (
        (1, 0) if auto_dispose else (0, 1)
    )
    assert found[0].sample_state is SampleState.READ
    assert last.sample_state is SampleState.NOT_READ
    assert last.view_state is ViewState.NEW
    assert last.instance_state is ALIVE


@pytest.mark.parametrize(
    ("cache", "shown"),
    [
        (keeping(1), "S(1)"),
        (keeping(2), "S(1) D(2) S(1)"),
        (keeping(None, samples_max_per_instance=2), "S(1) D(2) S(1)"),
    ],
    ids=["depth 1", "depth 2", "KEEP_ALL"],
)
def test_at_depth_one_only_the_last_sample_of_the_timeline_is_seen(
    cache: ReaderCache, shown: str
) -> None:
    cache.appeared(A, auto_dispose=True)
    cache.insert([at(1)])
    cache.disappeared(A, 2)
    cache.appeared(A, auto_dispose=True)
    assert timeline(cache.read()) == shown


def test_a_sample_that_was_taken_before_comes_again_after_a_reconnect() -> None:
    cache = keeping()
    cache.appeared(A, auto_dispose=True)
    cache.insert([at(1)])
    cache.take()
    cache.disappeared(A, 2)
    assert timeline(cache.take()) == "D(2)"
    cache.appeared(A, auto_dispose=True)
    assert timeline(cache.take()) == "S(1)"
    assert not cache.drops


def test_what_was_published_while_disconnected_follows_what_is_inserted_again() -> None:
    cache = keeping(9)
    cache.appeared(A, auto_dispose=False)
    cache.insert([at(1)])
    cache.disappeared(A, 2)
    cache.appeared(A, auto_dispose=False)
    cache.insert([at(3), at(4)])
    found = cache.read()
    assert timeline(found) == "S(1) NW(2) S(1) S(3) S(4)"
    assert {each.instance_state for each in found} == {ALIVE}


def test_what_a_writer_that_left_published_before_stands_before_its_leaving() -> None:
    cache = keeping(9)
    cache.appeared(A, auto_dispose=True)
    cache.insert([at(1)])
    cache.disappeared(A, 5)
    cache.insert([at(3), at(2)])
    assert timeline(cache.read()) == "S(1) S(2) S(3) D(5)"
    assert cache.read()[0].instance_state is DISPOSED


def test_another_writers_later_sample_brings_an_instance_back() -> None:
    cache = disconnected(auto_dispose=True, others=1)
    cache.insert([at(3, B)])
    found = cache.read()
    assert timeline(found) == "S(1) S(2) D(5) S(3)"
    assert found[-1].instance_state is ALIVE
    assert found[-1].disposed_generation_count == 1
    cache.appeared(A, auto_dispose=True)
    assert timeline(cache.read()) == timeline(found), "there is nothing to be reverted"


def test_a_reconnect_leaves_the_newest_sample_the_last_whoever_wrote_it() -> None:
    cache = disconnected(auto_dispose=True, others=1)
    cache.appeared(A, auto_dispose=True)
    assert timeline(cache.read()) == "S(1) S(2) D(5) S(2)"


def test_a_deleted_instance_stays_deleted_when_its_writer_leaves_and_returns() -> None:
    cache = keeping()
    cache.appeared(A, auto_dispose=False)
    cache.insert([at(1), deleted(2)])
    cache.disappeared(A, 3)
    cache.appeared(A, auto_dispose=False)
    found = cache.read()
    assert [each.instance_state for each in found] == [DISPOSED, DISPOSED]
    assert found[-1].generation_count == 0


def test_a_put_after_a_delete_is_a_new_life() -> None:
    cache = keeping()
    cache.insert([at(1), deleted(2)])
    cache.read()
    cache.insert([at(3)])
    found = cache.read(SampleState.NOT_READ)
    assert [(each.generation_count, each.view_state) for each in found] == [(1, ViewState.NEW)]


# Writers


def test_unregistering_the_last_writer_leaves_none() -> None:
    cache = keeping()
    for source in (A, B):
        cache.appeared(source, auto_dispose=False)
    cache.insert([at(1, A), at(2, B), at(2, B, "other")])
    cache.unregistered(A, KEY, 3)
    assert cache.read()[0].instance_state is ALIVE
    cache.unregistered(B, KEY, 4)
    states = {each.key: each.instance_state for each in cache.read()}
    assert states == {KEY: NO_WRITERS, "other": ALIVE}
    cache.insert([at(5, B)])
    found = [each for each in cache.read(instance_states=ALIVE) if each.key == KEY]
    assert timeline(found) == "S(1) S(2) NW(4) S(5)"


def test_a_writer_that_is_back_and_unregistered_a_key_meanwhile_does_not_count_twice() -> None:
    """Its tokens come back one by one: that of the key may be seen before its own."""
    cache = keeping()
    for source in (A, B):
        cache.appeared(source, auto_dispose=False)
        cache.insert([at(source.eid, source)])
    cache.disappeared(A, 3)
    cache.unregistered(A, KEY, 4)
    cache.appeared(A, auto_dispose=False)
    assert [(each.state, each.writers) for each in cache.statuses()] == [(ALIVE, 1)]
    cache.disappeared(B, 5)
    assert [(each.state, each.writers) for each in cache.statuses()] == [(NO_WRITERS, 0)]


def test_a_late_joiner_sees_that_a_writer_is_gone() -> None:
    cache = keeping()
    cache.absent(A)
    cache.insert([at(1)])
    found = cache.read()
    assert timeline(found) == "S(1) NW(1)"
    assert found[0].instance_state is NO_WRITERS
    cache.appeared(A, auto_dispose=False)
    assert timeline(cache.read()) == "S(1) NW(1) S(1)"


def test_a_native_publisher_without_a_token_counts_as_there() -> None:
    cache = keeping()
    cache.insert([at(1)])
    assert cache.read()[0].instance_state is ALIVE


# Bounds


def test_no_instance_beyond_the_bound() -> None:
    cache = keeping(1, instances_max=2)
    cache.insert([at(time, key=f"k{time}") for time in range(4)])
    assert [each.key for each in cache.read()] == ["k0", "k1"]
    assert dropped(cache) == [(LostReason.INSTANCES_MAX, 2), (LostReason.INSTANCES_MAX, 3)]


def test_keep_last_never_waits() -> None:
    cache = keeping(2, samples_max=3)
    taken = [at(1), at(2), at(3, key="l"), at(4, key="m"), at(5), at(6, key="l")]
    assert cache.insert(taken) == 6
    assert timeline(cache.read()) == "S(2) S(5) S(6)"
    assert dropped(cache) == [(LostReason.SAMPLES_MAX, 4)]


def test_keep_all_waits_until_something_is_taken() -> None:
    cache = keeping(None, samples_max=2)
    taken = [at(time) for time in range(1, 5)]
    assert cache.insert(taken) == 2
    assert cache.insert(taken[2:]) == 0
    assert timeline(cache.take()) == "S(1) S(2)"
    assert cache.insert(taken[2:]) == 2
    assert not cache.drops


def test_writers_beyond_the_bound_never_leave() -> None:
    cache = keeping(9, writers_max=1)
    cache.appeared(A, auto_dispose=True)
    cache.appeared(B, auto_dispose=True)
    cache.insert([at(1, A), at(2, B)])
    cache.disappeared(B, 3)
    assert cache.read()[0].instance_state is ALIVE
    cache.disappeared(A, 4)
    cache.appeared(B, auto_dispose=True)
    assert cache.take_subscription_matched().total == 2


def test_lives_stay_apart_where_the_message_between_them_was_taken() -> None:
    cache = keeping(9)
    cache.appeared(A, auto_dispose=False)
    cache.insert([at(1)])
    cache.disappeared(A, 9)
    cache.read()
    cache.insert([at(5)])
    assert timeline(cache.take(SampleState.READ)) == "S(1) NW(9)"
    cache.appeared(B, auto_dispose=False)
    cache.insert([at(8, B), at(4, B)])
    assert timeline(cache.read()) == "S(5) S(4) S(8)"
    cache.appeared(A, auto_dispose=False)
    cache.insert([at(7)])
    assert timeline(cache.read()) == "S(5) S(4) S(7) S(8)"

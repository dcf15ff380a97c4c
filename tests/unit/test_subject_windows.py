"""Do the windows of subject sequences agree with naive models, and hold what they say they hold?"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from durable_cache.errors import ConfigError
from durable_cache.model.clock import Moment
from durable_cache.model.quantities import bytes_of, read_size, read_span, seconds_of
from durable_cache.model.rotating import RotatingMap, held_size
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import SN_MAX, frame, pack_sequence, unpack_sequence
from durable_cache.protocol.publisher.subjects import PublisherWindow
from durable_cache.protocol.subjects import attach, detach, is_start
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.subjects import (
    Condition,
    SubjectId,
    SubscriberWindow,
)

SOURCE, OTHER = SourceId("4f2a", 7), SourceId("5e", 1)
SECOND = 1_000_000_000
BEGAN = 1_700_000_000 * SECOND
KEPT = 10 * SECOND
keys = st.sampled_from([f"a/{number}" for number in range(12)])


def at(seconds: float, *, behind: float = 0.0) -> Moment:
    """Return a time; `behind`: the clock of the wall was set back so far."""
    past = round(seconds * SECOND)
    return Moment(past, BEGAN + past - round(behind * SECOND))


class RotatingAgainstAModel(RuleBasedStateMachine):
    """Whatever is written: nothing leaves within the time, and what leaves is told once."""

    def __init__(self) -> None:
        super().__init__()
        self.map: RotatingMap[str, int] = RotatingMap(600, KEPT, lambda key, _: held_size(key))
        self.seconds, self.written = 0.0, 0
        self.newest: dict[str, int] = {}
        self.times: dict[str, float] = {}

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    @rule(key=keys)
    def write(self, key: str) -> None:
        self.written += 1
        forgotten = self.map.put(key, self.written, at(self.seconds).monotonic_ns)
        for gone, value in forgotten.items():
            assert gone != key
            assert value == self.newest.pop(gone)
            assert self.seconds - self.times.pop(gone) >= KEPT / SECOND
        self.newest[key], self.times[key] = self.written, self.seconds

    @invariant()
    def it_holds_the_newest_of_all_that_is_not_told_to_be_forgotten(self) -> None:
        assert dict(self.map.items()) == self.newest
        assert len(self.map) == len(self.newest)
        assert {key: self.map.get(key) for key in self.newest} == self.newest


class PublisherAgainstAModel(RuleBasedStateMachine):
    """Whatever is put, sent or not, with whatever clock: no sequence of a key comes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.window = PublisherWindow(900, KEPT)
        self.seconds = self.behind = 0.0
        self.sn = 0
        self.last: dict[str, tuple[int, float]] = {}
        self.numbers: dict[str, int] = {}

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 11.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    @rule(behind=st.sampled_from([0.0, 5.0, 100.0]))
    def set_the_clock(self, behind: float) -> None:
        self.behind = behind

    @rule(key=keys, sent=st.booleans())
    def put(self, key: str, sent: bool) -> None:
        now = at(self.seconds, behind=self.behind)
        sequence, since = self.window.following(key, self.sn, now)
        before = self.last.get(key)
        if before is not None:
            last, seconds = before
            assert sequence > last
            if self.seconds - seconds < KEPT / SECOND:
                assert sequence == last + 1
        if is_start(sequence):
            assert unpack_sequence(sequence)[0] >= frame(now.unix_ns)
            assert self.numbers.get(key, -1) < since <= self.sn
        else:
            assert before is not None
            assert sequence == before[0] + 1
        if sent:
            self.window.sent()
            self.last[key], self.numbers[key] = (sequence, self.seconds), self.sn
            self.sn += 1


class SubscriberAgainstAModel(RuleBasedStateMachine):
    """Two publishers' samples, some of them lost: told is what the program did not get."""

    def __init__(self) -> None:
        super().__init__()
        self.windows = {SOURCE: PublisherWindow(700, KEPT), OTHER: PublisherWindow(700, KEPT)}
        self.sn = dict.fromkeys(self.windows, -1)
        self.window = SubscriberWindow(DeliveryOptions(sub_window_size="1 mb"))
        self.seconds = 0.0
        self.put: dict[SubjectId, list[int]] = {}
        self.got: dict[SubjectId, int] = {}

    @rule(seconds=st.sampled_from([0.0, 1.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    @rule(source=st.sampled_from([SOURCE, OTHER]), key=keys, lost=st.booleans())
    def publish(self, source: SourceId, key: str, lost: bool) -> None:
        now, subject = at(self.seconds), SubjectId(source, key)
        publisher = self.windows[source]
        self.sn[source] += 1
        sequence, _ = publisher.following(key, self.sn[source], now)
        publisher.sent()
        self.put.setdefault(subject, []).append(sequence)
        if lost:
            return
        place = pack_sequence(5, self.sn[source])
        condition, missing = self.window.take(subject, sequence, place, now)
        before = self.got.get(subject)
        assert self.window.take(subject, sequence, place, now).condition is Condition.REPEATED
        self.got[subject] = sequence
        between = [one for one in self.put[subject] if (before or 0) < one < sequence]
        of_frame = [one for one in between if one >> 35 == sequence >> 35]
        if is_start(sequence):
            assert (condition, missing) == (Condition.START, 0)
        elif before is None:
            assert (condition, missing) == (Condition.FIRST, 0)
        elif of_frame:
            assert (condition, missing) == (Condition.SKIPPED, len(of_frame))
        else:
            assert (condition, missing) == (Condition.NEXT, 0)

    @invariant()
    def it_knows_the_last_of_each(self) -> None:
        assert {subject: state.sequence for subject, state in self.window.states()} == self.got
        marked = sum(state.perhaps_incomplete for _, state in self.window.states())
        assert self.window.perhaps_incomplete == marked


TestRotatingAgainstAModel = RotatingAgainstAModel.TestCase
TestPublisherAgainstAModel = PublisherAgainstAModel.TestCase
TestSubscriberAgainstAModel = SubscriberAgainstAModel.TestCase


# The trailer


@given(
    st.none() | st.binary(max_size=60),
    st.tuples(st.integers(0, (1 << 29) - 1), st.just(0) | st.integers(0, SN_MAX)),
    st.text(min_size=1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
)
def test_a_sample_bears_its_sequence_and_keeps_its_attachment(
    own: bytes | None, packed: tuple[int, int], key: str, sn: int, since: int
) -> None:
    sequence = pack_sequence(*packed)
    attached = attach(own, sequence, key, sn, since)
    assert len(attached) - len(own or b"") == (24 if packed[1] == 0 else 16)
    sample = Sample(key, SOURCE, 0, sn, b"x", attachment=attached)
    assert detach(sample) == (sequence, since if packed[1] == 0 else None, own)
    # Copied onto another sample it is an attachment as any.
    assert detach(Sample(key, SOURCE, 0, sn + 1, b"x", attachment=attached)) is None
    assert detach(Sample(key + "x", SOURCE, 0, sn, b"x", attachment=attached)) is None


@given(st.none() | st.binary(max_size=40))
def test_a_programs_own_attachment_is_no_trailer(own: bytes | None) -> None:
    assert detach(Sample("k", SOURCE, 0, 3, b"x", attachment=own)) is None


def test_what_only_looks_like_a_trailer_is_none() -> None:
    good = attach(None, pack_sequence(7, 1), "k", 3)
    zero = attach(None, 7 << 35, "k", 3)  # a low part of 0 is no sequence
    for bad in (good[:-1], b"x" + good, good[:8] + b"0000" + good[12:], zero):
        assert detach(Sample("k", SOURCE, 0, 3, b"x", attachment=bad)) is None


# What windows take in memory


def measured(fill: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    held = fill()
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held is not None
    return taken


def publisher_with(subjects: int) -> PublisherWindow:
    window = PublisherWindow(1 << 40, KEPT)
    for number in range(subjects):
        window.following(f"fleet/robot/{number:09}", number, at(0))
        window.sent()
    return window


def subscriber_with(subjects: int) -> SubscriberWindow:
    window = SubscriberWindow(DeliveryOptions(sub_window_size="100 GB"))
    for number in range(subjects):
        subject = SubjectId(SOURCE, f"fleet/robot/{number:09}")
        window.take(subject, pack_sequence(5, number), pack_sequence(6, number), at(0))
    return window


@pytest.mark.parametrize("fill", [publisher_with, subscriber_with])
@pytest.mark.parametrize("subjects", [1_000, 20_000])
def test_a_windows_size_is_what_it_takes(
    fill: Callable[[int], PublisherWindow | SubscriberWindow], subjects: int
) -> None:
    found: list[PublisherWindow | SubscriberWindow] = []
    taken = measured(lambda: found.append(fill(subjects)) or found)  # type: ignore[func-returns-value]
    assert taken / 1.5 < found[0].bytes < taken * 1.5


def test_a_window_stays_within_its_size_where_time_lets_it() -> None:
    window = PublisherWindow(4_000_000, KEPT)
    most = 0
    for number in range(40_000):
        window.following(f"fleet/robot/{number:09}", number, at(number / 200))
        window.sent()
        most = max(most, window.bytes)
    assert most <= 4_000_000 * 1.5
    assert window.rotated + len(window) == 40_000
    assert len(window) > 5_000


# What is chosen


@pytest.mark.parametrize(
    ("text", "size"),
    [("10 mb", 10_000_000), ("4MB", 4_000_000), ("1 MiB", 1 << 20), ("64 kb", 64_000), ("9 B", 9)],
)
def test_sizes_are_written_as_people_and_raims_do(text: str, size: int) -> None:
    assert read_size(text) == bytes_of("pub_window_size", text, 1) == size


@pytest.mark.parametrize(("text", "seconds"), [("60 sec", 60), ("1 min 30 s", 90), ("2h", 7200)])
def test_spans_are_written_as_people_and_raims_do(text: str, seconds: int) -> None:
    assert read_span(text) == seconds_of("pub_window_time", text, 0) == seconds


@pytest.mark.parametrize("text", ["", "10", "10 parsecs", "mb", "-1 mb", "1 mb of it"])
def test_what_is_no_quantity_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ConfigError, match="pub_window_size: expected a size"):
        bytes_of("pub_window_size", text, 1)
    with pytest.raises(ConfigError, match="pub_window_time: expected a duration"):
        seconds_of("pub_window_time", text, 0)

"""The cache's engine: what it stores, acknowledges, asks for and gives up."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.errors import LocalProtocolError
from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.sequence import frame
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.events import (
    Alias,
    Append,
    Appended,
    AppendFailed,
    BatchReceived,
    BatchRefused,
    EngineOptions,
    EpochDeclared,
    Event,
    Fetch,
    FetchEnded,
    Found,
    HeartbeatReceived,
    Learned,
    NumberingState,
    Origin,
    Output,
    ReportConflict,
    ReportMiss,
    SendAck,
    SourceLoaded,
    Tick,
    Verified,
    Verify,
)

SOURCE = SourceId("ab12", 7)
BEGIN = Moment(0, 1_700_000_000_000_000_000)
SECOND = 1_000_000_000


def at(seconds: float) -> Moment:
    return Moment(round(seconds * SECOND), BEGIN.unix_ns + round(seconds * SECOND))


def sample(sn: int, epoch: int = 0, payload: bytes = b"", ntp64: int | None = None) -> Sample:
    stamp = (sn + 1) << 20 if ntp64 is None else ntp64
    return Sample("k", SOURCE, epoch, sn, payload or b"%d" % sn, ntp64=stamp)


class Shell:
    """Drives an engine as a cache does, with a dictionary for a disk."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.engine = CacheEngine(options)
        self.disk: dict[tuple[int, int], Sample] = {}
        self.skipped: list[tuple[int, int]] = []
        self.others: list[Output] = []
        self.failing = False
        self.give(SourceLoaded(SOURCE, (), BEGIN))

    def give(self, event: Event) -> list[Output]:
        outputs = list(self.engine.handle(event))
        seen: list[Output] = []
        while outputs:
            output = outputs.pop(0)
            seen.append(output)
            match output:
                case Append(batch, skips):
                    if self.failing:
                        outputs += self.engine.handle(AppendFailed(event.now))  # type: ignore[union-attr]
                        continue
                    for one in batch:
                        self.disk.setdefault((one.epoch, one.sn), one)
                    self.skipped += [(skip.first, skip.last) for skip in skips]
                    outputs += self.engine.handle(Appended(event.now))  # type: ignore[union-attr]
                case SendAck(_, epoch, runs):
                    for first, last in runs:
                        for sn in range(first, last + 1):
                            durable = {(epoch, sn), (0, sn)} & self.disk.keys()
                            assert durable, "acknowledged before it was durable"
                case Verify(verify_id, samples):
                    found = tuple(Found(s, self.disk.get((s.epoch, s.sn))) for s in samples)
                    outputs += self.engine.handle(Verified(verify_id, found, event.now))  # type: ignore[union-attr]
                case _:
                    pass
        self.others += seen
        return seen

    def live(self, *samples: Sample, seconds: float = 0) -> list[Output]:
        return self.give(BatchReceived(SampleBatch(samples), Origin.LIVE, at(seconds)))

    def recovered(self, *samples: Sample, seconds: float = 0) -> list[Output]:
        return self.give(BatchReceived(SampleBatch(samples), Origin.RECOVERED, at(seconds)))

    def held(self, epoch: int = 0) -> RangeSet:
        return RangeSet.of(sn for at_epoch, sn in self.disk if at_epoch == epoch)


def only(outputs: list[Output], kind: type[Output]) -> list[Output]:
    return [output for output in outputs if isinstance(output, kind)]


def test_what_follows_is_stored_and_acknowledged_as_one_run() -> None:
    shell = Shell()
    shell.live(sample(5), sample(6))
    outputs = shell.live(sample(7), sample(8))
    assert only(outputs, SendAck) == [SendAck(SOURCE, 0, (SnRange(5, 8),))]
    assert shell.held() == RangeSet([(5, 8)])


def test_a_gap_is_asked_for_after_a_short_delay_and_closed_by_what_comes() -> None:
    shell = Shell(EngineOptions(recovery_delay_seconds=0.02))
    shell.live(sample(0), sample(3))
    assert only(shell.give(Tick(at(0.01))), Fetch) == []
    fetch = only(shell.give(Tick(at(0.03))), Fetch)[0]
    assert isinstance(fetch, Fetch)
    assert (fetch.first, fetch.last) == (1, 2)
    shell.recovered(sample(1), sample(2), seconds=0.04)
    shell.give(FetchEnded(fetch.fetch_id, at(0.04)))
    assert only(shell.give(Tick(at(100))), ReportMiss) == []
    assert len(shell.engine.gaps) == 0
    assert shell.held() == RangeSet([(0, 3)])


def test_a_gap_that_nobody_fills_becomes_a_durable_skip_and_then_a_miss() -> None:
    shell = Shell(EngineOptions(gap_timeout_seconds=10))
    shell.live(sample(0), sample(3))
    fetch = only(shell.give(Tick(at(1))), Fetch)[0]
    assert isinstance(fetch, Fetch)
    assert only(shell.give(Tick(at(10.5))), ReportMiss) == [], "a fetch is under way"
    shell.give(FetchEnded(fetch.fetch_id, at(10.6)))
    outputs = shell.give(Tick(at(10.7)))
    assert only(outputs, ReportMiss) == [ReportMiss(SOURCE, 0, 1, 2)]
    assert shell.skipped == [(1, 2)]
    kinds = [type(output) for output in outputs]
    assert kinds.index(Append) < kinds.index(ReportMiss)


def test_a_sample_found_after_its_skip_is_stored_all_the_same() -> None:
    shell = Shell(EngineOptions(gap_timeout_seconds=1))
    shell.live(sample(0), sample(2))
    for fetch in only(shell.give(Tick(at(0.5))), Fetch):
        shell.give(FetchEnded(fetch.fetch_id, at(0.6)))  # type: ignore[union-attr]
    shell.give(Tick(at(2)))
    assert shell.skipped == [(1, 1)]
    outputs = shell.recovered(sample(1), seconds=3)
    assert only(outputs, SendAck) == [SendAck(SOURCE, 0, (SnRange(0, 2),))]


def test_fetches_pause_longer_each_time_nothing_comes() -> None:
    shell = Shell(EngineOptions(fetch_retry_seconds=1, gap_timeout_seconds=1000))
    shell.live(sample(0), sample(2))
    asked: list[float] = []
    now = 0.0
    while now < 20:
        now = round(now + 0.1, 3)
        for fetch in only(shell.give(Tick(at(now))), Fetch):
            asked.append(now)
            shell.give(FetchEnded(fetch.fetch_id, at(now)))  # type: ignore[union-attr]
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses == sorted(pauses)
    assert pauses[0] >= 1
    assert pauses[-1] <= 5.2


def test_a_forged_number_far_ahead_silences_nobody() -> None:
    shell = Shell(EngineOptions(window_size_samples=1000))
    shell.live(*(sample(sn) for sn in range(10)))
    outputs = shell.live(sample(2**31))
    assert only(outputs, Append) == []
    assert only(outputs, Fetch) != [], "somebody may know it"
    shell.live(*(sample(sn) for sn in range(10, 110)))
    assert shell.held() == RangeSet([(0, 109)])
    assert len(shell.engine.gaps) == 0


def test_a_jump_is_taken_when_a_second_sample_confirms_it() -> None:
    shell = Shell(EngineOptions(window_size_samples=1000))
    shell.live(sample(0))
    shell.live(sample(500_000))
    shell.live(sample(500_001))
    assert shell.held() == RangeSet([(0, 0), (500_000, 500_001)])
    assert len(shell.engine.gaps) == 1


def test_the_same_sample_again_is_counted_and_dropped() -> None:
    shell = Shell()
    shell.live(sample(0), sample(1))
    assert only(shell.live(sample(0), sample(1)), Append) == []
    assert shell.engine.counts.duplicates == 2


def test_another_payload_under_one_identity_is_reported_and_the_first_kept() -> None:
    shell = Shell()
    shell.live(*(sample(sn) for sn in range(20)))
    outputs = shell.live(sample(18, payload=b"forged"))
    assert [type(output) for output in outputs] == [Verify, ReportConflict]
    assert shell.disk[0, 18].payload == b"18"
    assert shell.engine.counts.conflicts == 1


def test_a_restarted_numbering_gets_an_epoch_of_its_own() -> None:
    shell = Shell()
    shell.live(*(sample(sn) for sn in range(50)))
    later = 5 << 32
    shell.live(*(sample(sn, ntp64=later + sn, payload=b"new") for sn in range(5)), seconds=30)
    epoch = frame(at(30).unix_ns)
    assert shell.held(epoch) == RangeSet([(0, 4)])
    assert shell.held(0) == RangeSet([(0, 49)])
    assert shell.engine.known(SOURCE).current == epoch


def test_a_restart_whose_first_samples_were_lost_awaits_them() -> None:
    """With the one that is here: whoever calls the run otherwise shows which one is meant."""
    shell = Shell()
    shell.live(*(sample(sn) for sn in range(50)))
    shell.live(sample(3, ntp64=5 << 32, payload=b"new"), seconds=30)
    fetches = only(shell.give(Tick(at(31))), Fetch)
    assert [(fetch.first, fetch.last) for fetch in fetches] == [(0, 3)]  # type: ignore[union-attr]


@pytest.mark.parametrize("seconds", [80, 100, 160])
def test_a_restart_has_one_epoch_whatever_the_clock_of_the_cache(seconds: int) -> None:
    began = ntp64_from_ns(at(100).unix_ns)
    shell = Shell()
    shell.live(*(sample(sn) for sn in range(5)), seconds=1)
    shell.live(*(sample(sn, ntp64=began + sn, payload=b"new") for sn in range(3)), seconds=seconds)
    assert shell.engine.known(SOURCE).current == frame(at(100).unix_ns)


def test_a_restart_does_not_take_the_name_that_an_earlier_run_lost() -> None:
    """What is still stored under it counts under another, and so would the new run."""
    shell = Shell()
    lost = frame(at(61).unix_ns)
    shell.live(*(sample(sn, ntp64=ntp64_from_ns(at(30 + sn).unix_ns)) for sn in range(3)))
    shell.engine.epochs.learn(Alias(SOURCE, lost, 0, lost - 3))
    shell.live(sample(1, payload=b"new", ntp64=ntp64_from_ns(at(61).unix_ns)), seconds=61)
    assert shell.engine.known(SOURCE).current == lost + 1


def test_nobody_is_told_of_four_billion_numbers_between_two_runs_that_media_brought_together() -> (
    None
):
    """A backend that comes back older may have the end of a run under the name of the next."""
    shell = Shell()
    held = RangeSet([(32, 35), (38, 39), (2**32 - 20, 2**32 - 18)])
    known = SourceId("cd34", 7)
    shell.give(SourceLoaded(known, (NumberingState(0, held, RangeSet()),), BEGIN))
    assert [(gap.first, gap.last) for gap in shell.engine.gaps] == [(36, 37)]


def test_a_restart_within_the_same_frame_still_gets_a_new_epoch() -> None:
    shell = Shell()
    first = frame(BEGIN.unix_ns)
    shell.give(EpochDeclared(SOURCE, first, True, at(0)))
    shell.live(*(sample(sn) for sn in range(50)))
    shell.live(sample(0, ntp64=5 << 32, payload=b"new"), seconds=0.5)
    assert shell.engine.known(SOURCE).current == first + 1


def test_a_wrap_begins_a_new_epoch() -> None:
    shell = Shell()
    top = 2**32 - 1
    shell.live(sample(top - 1), sample(top))
    shell.live(sample(0), sample(1), seconds=1)
    epoch = frame(at(1).unix_ns)
    assert shell.held(epoch) == RangeSet([(0, 1)])


@pytest.mark.parametrize("incarnation", ["", "0a0a0a0a"])
def test_a_wrap_behind_a_repeat_begins_a_new_epoch(incarnation: str) -> None:
    shell = Shell()
    top = 2**32 - 1
    epoch = frame(BEGIN.unix_ns)
    if incarnation:
        shell.give(EpochDeclared(SOURCE, epoch, False, BEGIN, incarnation))
    before = shell.engine.known(SOURCE).current
    shell.live(sample(top - 1), sample(top))
    shell.live(sample(top), sample(0), sample(1), seconds=20)
    assert shell.held(before) == RangeSet([(top - 1, top)])
    assert shell.held(frame(at(20).unix_ns)) == RangeSet([(0, 1)])


def test_the_last_numbers_before_a_wrap_may_come_after_its_token() -> None:
    shell = Shell()
    top = 2**32 - 1
    first, second = frame(BEGIN.unix_ns), frame(at(20).unix_ns)
    shell.give(EpochDeclared(SOURCE, first, False, BEGIN, "0a0a0a0a"))
    shell.live(sample(top - 3))
    shell.give(EpochDeclared(SOURCE, second, True, at(20), "0b0b0b0b"))
    shell.live(sample(top - 1), sample(top), sample(top), sample(0), seconds=20)
    assert shell.held(first) == RangeSet([(top - 3, top - 3), (top - 1, top)])
    assert shell.held(second) == RangeSet([(0, 0)])
    asked = only(shell.give(Tick(at(21))), Fetch)
    assert [(one.epoch, one.first, one.last) for one in asked] == [(first, top - 2, top - 2)]  # type: ignore[union-attr]


def test_a_token_that_comes_late_adopts_the_samples_before_it() -> None:
    shell = Shell()
    stamp = ntp64_from_ns(BEGIN.unix_ns)
    shell.live(sample(0, ntp64=stamp), sample(1, ntp64=stamp + 1))
    epoch = frame(BEGIN.unix_ns)
    outputs = shell.give(EpochDeclared(SOURCE, epoch, True, at(0.1)))
    assert Learned(Alias(SOURCE, 0, 0, epoch)) in outputs
    outputs = shell.engine.handle(
        BatchReceived(SampleBatch([sample(2, ntp64=stamp + 2)]), Origin.LIVE, at(0.2))
    )
    append = outputs[0]
    assert isinstance(append, Append)
    assert [one.epoch for one in append.batch] == [epoch]
    acks = shell.engine.handle(Appended(at(0.2)))
    assert acks == [SendAck(SOURCE, epoch, (SnRange(0, 2),))]


def test_a_fresh_publishers_first_samples_are_awaited() -> None:
    shell = Shell()
    shell.give(EpochDeclared(SOURCE, frame(BEGIN.unix_ns), True, at(0)))
    shell.live(sample(4))
    fetches = only(shell.give(Tick(at(1))), Fetch)
    assert [(fetch.first, fetch.last) for fetch in fetches] == [(0, 3)]  # type: ignore[union-attr]


def test_what_a_publisher_has_no_more_is_awaited_and_reported() -> None:
    """While the cache was away its publisher put 3..9, and kept its last three samples."""
    shell = Shell(EngineOptions(gap_timeout_seconds=10))
    epoch = frame(BEGIN.unix_ns)
    shell.give(EpochDeclared(SOURCE, epoch, True, at(0)))
    shell.live(*(sample(sn) for sn in range(3)))
    tail = SampleBatch([sample(sn, epoch) for sn in (7, 8, 9)])
    shell.give(BatchReceived(tail, Origin.RECOVERED, at(1)))
    (fetch,) = only(shell.give(Tick(at(2))), Fetch)
    assert isinstance(fetch, Fetch)
    assert (fetch.first, fetch.last) == (3, 6)
    shell.give(FetchEnded(fetch.fetch_id, at(3)))
    assert only(shell.give(Tick(at(12))), ReportMiss) == [ReportMiss(SOURCE, epoch, 3, 6)]


def test_a_heartbeat_shows_a_lost_tail() -> None:
    shell = Shell()
    shell.live(sample(0))
    shell.give(HeartbeatReceived(SOURCE, 4, at(1)))
    fetches = only(shell.give(Tick(at(2))), Fetch)
    assert [(fetch.first, fetch.last) for fetch in fetches] == [(1, 4)]  # type: ignore[union-attr]


def test_a_live_sample_that_a_heartbeat_announced_is_no_restart() -> None:
    shell = Shell()
    shell.live(sample(0, ntp64=1 << 32))
    shell.give(HeartbeatReceived(SOURCE, 2, at(1)))
    shell.live(sample(1, ntp64=2 << 32), sample(2, ntp64=3 << 32), seconds=1)
    assert shell.engine.counts.restarts == 0
    assert shell.held() == RangeSet([(0, 2)])


def test_what_was_refused_is_awaited_and_recovered() -> None:
    shell = Shell()
    shell.live(sample(0))
    shell.give(BatchRefused(((SOURCE, SnRange(1, 5)),), at(1)))
    fetches = only(shell.give(Tick(at(2))), Fetch)
    assert [(fetch.first, fetch.last) for fetch in fetches] == [(1, 5)]  # type: ignore[union-attr]
    shell.recovered(*(sample(sn) for sn in range(1, 6)), seconds=2)
    assert shell.held() == RangeSet([(0, 5)])


def test_a_failed_append_is_not_acknowledged_and_recovered_later() -> None:
    shell = Shell()
    shell.live(sample(0))
    shell.failing = True
    assert only(shell.live(sample(1), sample(2)), SendAck) == []
    shell.failing = False
    fetches = only(shell.give(Tick(at(1))), Fetch)
    assert [(fetch.first, fetch.last) for fetch in fetches] == [(1, 2)]  # type: ignore[union-attr]
    shell.recovered(sample(1), sample(2), seconds=1)
    assert shell.held() == RangeSet([(0, 2)])


def test_a_loaded_source_goes_on_where_it_was() -> None:
    shell = Shell()
    engine = CacheEngine()
    engine.handle(
        SourceLoaded(
            SOURCE, (NumberingState(0, RangeSet([(0, 99)]), RangeSet(), 100 << 20),), BEGIN
        )
    )
    shell.engine = engine
    outputs = shell.live(sample(102))
    assert only(outputs, SendAck) == [SendAck(SOURCE, 0, (SnRange(102, 102),))]
    fetches = only(shell.give(Tick(at(1))), Fetch)
    assert [(fetch.first, fetch.last) for fetch in fetches] == [(100, 101)]  # type: ignore[union-attr]


def test_what_was_awaited_before_a_restart_is_awaited_after_it() -> None:
    shell = Shell()
    shell.engine = CacheEngine()
    held, skipped = RangeSet([(0, 9), (15, 20)]), RangeSet([(10, 11)])
    shell.give(SourceLoaded(SOURCE, (NumberingState(0, held, skipped),), BEGIN))
    fetches = only(shell.give(Tick(at(1))), Fetch)
    assert [(fetch.first, fetch.last) for fetch in fetches] == [(12, 14)]  # type: ignore[union-attr]


def test_windows_not_used_are_forgotten_and_asked_for_again() -> None:
    engine = CacheEngine(EngineOptions(sources_max=10))
    for number in range(50):
        source = SourceId("ab12", number)
        assert engine.unknown([source]) == [source]
        engine.handle(SourceLoaded(source, (), BEGIN))
        batch = SampleBatch([Sample("k", source, 0, 0, b"x")])
        engine.handle(BatchReceived(batch, Origin.LIVE, at(0)))
        engine.handle(Appended(at(0)))
    assert engine.sources == 10
    assert engine.unknown([SourceId("ab12", 0), SourceId("ab12", 49)]) == [SourceId("ab12", 0)]


def test_calls_out_of_order_are_refused() -> None:
    engine = CacheEngine()
    with pytest.raises(LocalProtocolError, match="without an Append"):
        engine.handle(Appended(at(0)))
    with pytest.raises(LocalProtocolError, match="not loaded"):
        engine.handle(BatchReceived(SampleBatch([sample(0)]), Origin.LIVE, at(0)))


@given(
    lost=st.sets(st.integers(0, 59), max_size=30),
    order=st.randoms(use_true_random=False),
    known=st.sets(st.integers(0, 59)),
)
def test_everything_published_is_stored_or_skipped_and_every_ack_is_true(
    lost: set[int], order: object, known: set[int]
) -> None:
    shell = Shell(EngineOptions(gap_timeout_seconds=5, window_size_samples=1000))
    arriving = [sn for sn in range(60) if sn not in lost] or [0]
    first = 0
    for start in range(0, len(arriving), 7):
        chunk = arriving[start : start + 7]
        order.shuffle(chunk)  # type: ignore[attr-defined]
        first = chunk[0] if start == 0 else first
        shell.live(*(sample(sn) for sn in chunk), seconds=start / 100)
    now = 1.0
    while len(shell.engine.gaps) and now < 200:
        now += 0.25
        for fetch in only(shell.give(Tick(at(now))), Fetch):
            assert isinstance(fetch, Fetch)
            answer = [sn for sn in known if fetch.first <= sn <= (fetch.last or 10**9)]
            shell.recovered(*(sample(sn) for sn in answer), seconds=now)
            shell.give(FetchEnded(fetch.fetch_id, at(now)))
    held = shell.held()
    skipped = RangeSet(shell.skipped)
    top = max(arriving)
    assert not held.gaps(first, top).difference(skipped).count
    assert not {sn for sn in known if first <= sn <= top} - {sn for _, sn in shell.disk}

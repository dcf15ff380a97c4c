"""The cache's engine, event by event: what is asked, awaited and acknowledged at the edges."""

from __future__ import annotations

from msgspec.structs import replace

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import SnRange
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.model.sequence import frame
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.events import (
    Append,
    Appended,
    AppendFailed,
    BatchReceived,
    Declared,
    EngineOptions,
    EpochDeclared,
    Fetch,
    FetchEnded,
    Found,
    HeartbeatReceived,
    Origin,
    Output,
    ReportAbsent,
    ReportConflict,
    ReportMiss,
    SendAck,
    SourceLoaded,
    Tick,
    Verified,
    Verify,
    VerifyFailed,
)

SOURCE = SourceId("ab12", 7)
SECOND = 1_000_000_000
BEGAN_NS = 1_700_000_000 * SECOND
STAMP = ntp64_from_ns(BEGAN_NS)


def at(seconds: float) -> Moment:
    return Moment(round(seconds * SECOND), BEGAN_NS + round(seconds * SECOND))


def sample(sn: int, payload: bytes = b"", ntp64: int = 0) -> Sample:
    return Sample("k", SOURCE, 0, sn, payload or b"%d" % sn, ntp64=ntp64 or STAMP + sn)


def engine_with(count: int, options: EngineOptions | None = None) -> CacheEngine:
    """Return an engine whose source has its numbers up to `count`, all durable."""
    engine = CacheEngine(options)
    engine.handle(SourceLoaded(SOURCE, (), at(0)))
    if count:
        live(engine, *(sample(sn) for sn in range(count)))
        engine.handle(Appended(at(0)))
    return engine


def live(engine: CacheEngine, *samples: Sample, seconds: float = 0) -> list[Output]:
    return engine.handle(BatchReceived(SampleBatch(samples), Origin.LIVE, at(seconds)))


def found(engine: CacheEngine, *samples: Sample) -> list[Output]:
    return engine.handle(BatchReceived(SampleBatch(samples), Origin.RECOVERED, at(0)))


def of(outputs: list[Output], kind: type[Output]) -> list[Output]:
    return [output for output in outputs if isinstance(output, kind)]


def appended(outputs: list[Output]) -> list[int]:
    return [s.sn for output in outputs if isinstance(output, Append) for s in output.batch]


def asked(outputs: list[Output]) -> list[tuple[int, int | None]]:
    return [(output.first, output.last) for output in outputs if isinstance(output, Fetch)]


def doubt_of(outputs: list[Output]) -> Verify:
    (doubt,) = [output for output in outputs if isinstance(output, Verify)]
    return doubt


def test_one_append_at_a_time_and_nothing_acknowledged_before_its_own() -> None:
    engine = engine_with(0)
    assert appended(live(engine, sample(0))) == [0]
    assert live(engine, sample(1)) == [], "the first is not answered yet"
    outputs = engine.handle(Appended(at(0)))
    assert outputs[0] == SendAck(SOURCE, 0, (SnRange(0, 0),))
    assert appended(outputs[1:]) == [1]
    assert engine.handle(Appended(at(0))) == [SendAck(SOURCE, 0, (SnRange(0, 1),))]


def test_a_number_far_ahead_is_asked_for_alone() -> None:
    engine = engine_with(1, EngineOptions(window_size_samples=1000))
    outputs = live(engine, sample(5000))
    assert asked(outputs) == [(5000, 5000)]
    assert len(engine.gaps) == 0


def test_a_number_far_from_the_parked_one_confirms_nothing() -> None:
    engine = engine_with(1, EngineOptions(window_size_samples=1000))
    live(engine, sample(5000))
    assert appended(live(engine, sample(900_000))) == []
    assert appended(live(engine, sample(4000))) == [], "nor does one before it"
    assert len(engine.gaps) == 0


def test_what_is_held_is_not_stored_again_when_it_is_found() -> None:
    engine = engine_with(3)
    assert found(engine, sample(1), sample(2)) == []
    assert engine.counts.duplicates == 2


def test_a_skip_leaves_out_what_came_and_ends_the_wait_for_the_rest() -> None:
    engine = engine_with(1, EngineOptions(gap_timeout_seconds=10))
    live(engine, sample(6))
    engine.handle(Appended(at(0)))
    (fetch,) = engine.handle(Tick(at(1)))
    assert isinstance(fetch, Fetch)
    found(engine, sample(3))
    engine.handle(Appended(at(1)))
    engine.handle(FetchEnded(fetch.fetch_id, at(1)))
    now = 1.0
    outputs: list[Output] = []
    while not of(outputs, Append):
        now += 1
        outputs = engine.handle(Tick(at(now)))
        for output in outputs:
            if isinstance(output, Fetch):
                engine.handle(FetchEnded(output.fetch_id, at(now)))
        assert now < 100
    (append,) = of(outputs, Append)
    assert isinstance(append, Append)
    assert append.skips == (Skip(SOURCE, 0, 1, 2), Skip(SOURCE, 0, 4, 5))
    misses = of(engine.handle(Appended(at(now))), ReportMiss)
    assert misses == [ReportMiss(SOURCE, 0, 1, 2), ReportMiss(SOURCE, 0, 4, 5)]
    assert engine.counts.missed == 4
    assert engine.known(SOURCE).live.window.settled == 6
    assert len(engine.gaps) == 0


def test_a_token_asks_for_what_comes_after_the_last_number() -> None:
    engine = engine_with(3)
    outputs = engine.handle(EpochDeclared(SOURCE, frame(BEGAN_NS), False, at(0)))
    assert asked(outputs) == [(3, None)]


def test_a_late_token_repeats_acknowledgements_under_its_epoch() -> None:
    engine = engine_with(3)
    epoch = frame(BEGAN_NS)
    outputs = engine.handle(EpochDeclared(SOURCE, epoch, False, at(0), "00c0ffee"))
    assert SendAck(SOURCE, epoch, (SnRange(0, 2),), "00c0ffee") in outputs
    assert Declared(SOURCE, epoch, "00c0ffee") in outputs


def test_another_incarnation_under_a_taken_epoch_is_the_next_one() -> None:
    engine = engine_with(0)
    epoch = frame(BEGAN_NS)
    engine.handle(EpochDeclared(SOURCE, epoch, True, at(0), "00000001"))
    outputs = engine.handle(EpochDeclared(SOURCE, epoch, True, at(1), "00000002"))
    assert Declared(SOURCE, epoch + 1, "00000002") in outputs
    assert engine.known(SOURCE).current == epoch + 1
    engine.handle(EpochDeclared(SOURCE, epoch, True, at(2), "00000001"))
    assert engine.known(SOURCE).current == epoch + 1, "the first comes back into reach"


def test_a_heartbeat_far_ahead_moves_nothing() -> None:
    engine = engine_with(1, EngineOptions(window_size_samples=1000))
    assert asked(engine.handle(HeartbeatReceived(SOURCE, 100_000, at(0)))) == [(100_000, 100_000)]
    assert len(engine.gaps) == 0
    assert engine.handle(HeartbeatReceived(SOURCE, 500, at(0))) == []
    assert len(engine.gaps) == 1


def test_a_look_up_that_failed_is_asked_again_and_forgets_nothing() -> None:
    engine = engine_with(10)
    first = doubt_of(live(engine, sample(5, b"another")))
    assert engine.handle(VerifyFailed(first.verify_id, at(1))) == []
    wake = engine.wake_ns()
    assert wake is not None
    assert of(engine.handle(Tick(at(wake / SECOND - 0.1))), Verify) == []
    again = doubt_of(engine.handle(Tick(at(wake / SECOND))))
    assert again.samples == first.samples
    engine.handle(VerifyFailed(again.verify_id, at(2)))
    later = engine.wake_ns()
    assert later is not None
    assert later - 2 * SECOND > wake - SECOND, "the pause grows"


def test_what_comes_behind_a_look_up_waits_for_it() -> None:
    engine = engine_with(10)
    doubt = doubt_of(live(engine, sample(5)))
    assert live(engine, sample(10), sample(11)) == []
    outputs = engine.handle(Verified(doubt.verify_id, (Found(doubt.samples[0], sample(5)),), at(1)))
    assert appended(outputs) == [10, 11]
    assert engine.doubtful == 0


def test_what_waits_behind_look_ups_is_bounded_and_the_rest_awaited() -> None:
    engine = engine_with(10, EngineOptions(doubtful_samples_max=2))
    doubt = doubt_of(live(engine, sample(5)))
    live(engine, *(sample(sn) for sn in (10, 11, 12)))
    assert engine.doubtful == 2
    outputs = engine.handle(Verified(doubt.verify_id, (Found(doubt.samples[0], sample(5)),), at(1)))
    assert appended(outputs) == [10]
    assert len(engine.gaps) == 1
    assert asked(engine.handle(Tick(at(2)))) == [(11, 12)]


def test_a_number_under_another_key_is_a_conflict() -> None:
    engine = engine_with(10)
    doubt = doubt_of(live(engine, sample(5)))
    stored = replace(sample(5), key="other")
    outputs = engine.handle(Verified(doubt.verify_id, (Found(doubt.samples[0], stored),), at(1)))
    assert outputs == [ReportConflict(doubt.samples[0], stored)]


def test_a_removed_number_does_not_come_in_again() -> None:
    engine = engine_with(10)
    doubt = doubt_of(live(engine, sample(5)))
    gone = Found(doubt.samples[0], None, removed=True)
    assert engine.handle(Verified(doubt.verify_id, (gone,), at(1))) == []
    assert engine.counts.duplicates == 1


def test_a_held_number_that_the_storage_lacks_is_stored_and_reported() -> None:
    engine = engine_with(10)
    doubt = doubt_of(live(engine, sample(5)))
    outputs = engine.handle(Verified(doubt.verify_id, (Found(doubt.samples[0], None),), at(1)))
    assert of(outputs, ReportAbsent) == [ReportAbsent(doubt.samples[0])]
    assert appended(outputs) == [5]


def test_what_follows_a_doubtful_number_in_its_batch_is_looked_up_with_it() -> None:
    engine = engine_with(50)
    later = STAMP + (60 << 32)
    restarted = [sample(sn, b"new", later + sn) for sn in range(5)]
    doubt = doubt_of(live(engine, *restarted, seconds=60))
    assert [looked_up.sn for looked_up in doubt.samples] == [0, 1, 2, 3, 4]


def test_the_pauses_after_failures_are_those_of_the_options() -> None:
    options = EngineOptions(verify_retry_seconds=3.0, fetch_retry_seconds_max=4.0)
    engine = engine_with(10, options)
    doubt = doubt_of(live(engine, sample(5)))
    for now, due in ((1, 4), (4, 8), (8, 12)):
        engine.handle(VerifyFailed(doubt.verify_id, at(now)))
        assert engine.wake_ns() == due * SECOND
        assert of(engine.handle(Tick(at(due))), Verify)


def test_nothing_is_given_up_right_after_an_append_that_failed() -> None:
    options = EngineOptions(append_retry_seconds=5.0, gap_timeout_seconds=1.0)
    engine = engine_with(1, options)
    live(engine, sample(2))
    (fetch,) = of(engine.handle(Tick(at(1))), Fetch)
    assert isinstance(fetch, Fetch)
    engine.handle(FetchEnded(fetch.fetch_id, at(1)))
    engine.handle(AppendFailed(at(1)))
    assert of(engine.handle(Tick(at(5.9))), Append) == []
    now = 6.0
    while not of(engine.handle(Tick(at(now))), Append):
        now += 1
        assert now < 60

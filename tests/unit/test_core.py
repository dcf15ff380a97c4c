"""A cache put together: what it stores, acknowledges and awaits, whatever fails and when."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, frame
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.cache.events import (
    Append,
    BatchRefused,
    EngineOptions,
    EpochDeclared,
    Fetch,
    FetchEnded,
    HeartbeatReceived,
    Origin,
    ReportAbsent,
)
from durable_cache.protocol.cache.questions import SourcesFound
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.core import CacheCore, CoreOptions
from durable_cache.runtime.effects import Answered, Arrived, Ask, Effect, Inquired
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from tests.unit.driven import BEGAN_NS, DrivenCache

ONE, TWO, THREE = (SourceId(zid, 7) for zid in ("ab1", "ab2", "ab3"))


def sample(
    source: SourceId, sn: int, *, seconds: float = 0.0, run: int = 0, key: str = "k"
) -> Sample:
    """Return the `sn`-th sample of a run that began so many seconds after the cache."""
    stamp = ntp64_from_ns(BEGAN_NS + round(seconds * 1e9) + sn * 1_000_000)
    payload = b"%d %d" % (run, sn)
    return Sample(key, source, EPOCH_UNKNOWN, sn, payload, ntp64=stamp, timestamp_id=source.zid)


def run_of(
    source: SourceId, first: int, last: int, *, seconds: float = 0.0, run: int = 0
) -> list[Sample]:
    return [sample(source, sn, seconds=seconds, run=run) for sn in range(first, last + 1)]


def of_run(cache: DrivenCache, source: SourceId, run: int) -> dict[int, RangeSet]:
    """Return which numbers of a run are stored, by epoch."""
    found: dict[int, list[int]] = {}
    for stored in cache.all():
        if stored.source == source and stored.payload.startswith(b"%d " % run):
            epoch = cache.core.epochs.canonical(source, stored.epoch, stored.sn)
            found.setdefault(epoch, []).append(stored.sn)
    return {epoch: RangeSet.of(sorted(sns)) for epoch, sns in found.items()}


def acknowledged(cache: DrivenCache, source: SourceId) -> RangeSet:
    acked = RangeSet()
    for ack in cache.acks:
        if ack.source == source:
            acked.update(RangeSet(ack.runs))
    return acked


def token(
    cache: DrivenCache, source: SourceId, epoch: int, incarnation: str, *, fresh: bool = True
) -> list[Effect]:
    return cache.give(EpochDeclared(source, epoch, fresh, cache.now, incarnation))


def answer_fetches(cache: DrivenCache, *, failed: bool = False) -> None:
    """Say to every fetch that was begun that nobody has more."""
    for fetch in cache.fetches:
        cache.give(FetchEnded(fetch.fetch_id, cache.now, failed))
    cache.effects = [effect for effect in cache.effects if not isinstance(effect, Fetch)]


# K1: repeats and new numbers of several sources in one batch


@pytest.mark.parametrize("sources", [(ONE, TWO), (ONE, TWO, THREE)])
@pytest.mark.parametrize("together", [True, False])
def test_repeats_followed_by_new_numbers_of_several_sources_in_one_batch(
    sources: tuple[SourceId, ...], together: bool
) -> None:
    cache = DrivenCache()
    cache.take([s for source in sources for s in run_of(source, 0, 9)])
    cache.reads = together
    batch = [s for source in sources for s in run_of(source, 8, 12)]
    cache.take(batch)
    if not together:
        assert cache.core.doubtful == len(batch)
        while cache.unanswered:
            cache.answer_one(-1)
    assert cache.core.doubtful == 0
    for source in sources:
        assert of_run(cache, source, 0) == {0: RangeSet([SnRange(0, 12)])}
        assert list(acknowledged(cache, source)) == [(0, 12)]
    assert cache.core.counts.duplicates == 2 * len(sources)


def test_what_failed_to_be_looked_up_or_stored_beside_others_comes_in_later() -> None:
    cache = DrivenCache()
    cache.take([s for source in (ONE, TWO, THREE) for s in run_of(source, 0, 9)])
    cache.reads = cache.appends = False
    cache.take([s for source in (ONE, TWO, THREE) for s in run_of(source, 8, 12)])
    cache.answer_one(1, fails=True)
    cache.answer_one(0)
    assert cache.core.doubtful == 10
    cache.answer_one(-1, fails=True)  # the append of what the answer let in
    cache.wait(1)
    cache.answer_all()
    for source in (ONE, TWO, THREE):
        missing = RangeSet([SnRange(0, 12)]).difference(acknowledged(cache, source))
        asked = RangeSet([(f.first, f.last) for f in cache.fetches if f.source == source])  # type: ignore[list-item]
        assert not missing.difference(asked), "neither stored nor asked for"
    for fetch in cache.fetches:
        cache.give(
            Arrived(
                SampleBatch(run_of(fetch.source, fetch.first, fetch.last or 12)),
                Origin.NATIVE,
                cache.now,
            ),
            FetchEnded(fetch.fetch_id, cache.now),
        )
    for source in (ONE, TWO, THREE):
        assert of_run(cache, source, 0) == {0: RangeSet([SnRange(0, 12)])}


def test_what_is_accepted_while_an_append_is_outstanding_is_neither_appended_nor_acknowledged() -> (
    None
):
    cache = DrivenCache()
    cache.appends = False
    cache.take(run_of(ONE, 0, 4))
    cache.take(run_of(ONE, 5, 9))
    assert len(cache.unanswered) == 1
    cache.answer_one()
    assert [ack.runs for ack in cache.acks] == [((0, 4),)]
    assert len(cache.unanswered) == 1
    cache.answer_one()
    assert cache.acks[-1].runs == ((0, 9),)


def test_numbers_whose_append_failed_are_awaited_and_not_acknowledged() -> None:
    cache = DrivenCache()
    cache.appends = False
    cache.take(run_of(ONE, 0, 4))
    cache.answer_one(fails=True)
    cache.appends = True
    cache.take(run_of(ONE, 5, 9))
    assert [ack.runs for ack in cache.acks] == [((5, 9),)]
    cache.wait(0.5)
    assert [(fetch.first, fetch.last) for fetch in cache.fetches] == [(0, 4)]


def test_a_restart_after_an_append_that_failed_is_one_all_the_same() -> None:
    cache = DrivenCache()
    cache.appends = False
    cache.take(run_of(ONE, 0, 4))
    cache.answer_one(fails=True)
    cache.appends = True
    cache.take(run_of(ONE, 0, 9, seconds=5, run=1))
    (runs,) = of_run(cache, ONE, 1).values()
    assert list(runs) == [(0, 9)]
    cache.wait(1)
    asked = [(fetch.epoch, fetch.first, fetch.last) for fetch in cache.fetches]
    assert asked == [(EPOCH_UNKNOWN, 0, 4)], "the first run is awaited, not taken for the second"


# K7: nothing continues past a doubt that is not answered


def test_a_restart_while_the_backend_cannot_be_read_waits_until_it_can() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 30))
    cache.reads = False
    restarted = run_of(ONE, 0, 49, seconds=5, run=1)
    cache.take(restarted[:20])
    for _ in range(5):
        cache.answer_one(fails=True)
        cache.wait(6)
    cache.take(restarted[20:40])
    assert len(cache.all()) == 31
    assert list(acknowledged(cache, ONE)) == [(0, 30)]
    cache.answer_all()
    cache.take(restarted[40:])
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([SnRange(0, 30)])}
    (runs,) = of_run(cache, ONE, 1).values()
    assert list(runs) == [(0, 49)]
    assert list(of_run(cache, ONE, 1)) == [frame(BEGAN_NS + 5 * 10**9)]


def test_live_samples_behind_a_doubt_have_a_bound_and_are_awaited_beyond_it() -> None:
    cache = DrivenCache(options=CoreOptions(EngineOptions(doubtful_samples_max=10)))
    cache.take(run_of(ONE, 0, 30))
    cache.reads = False
    restarted = run_of(ONE, 0, 49, seconds=5, run=1)
    for at in range(0, 50, 5):
        cache.take(restarted[at : at + 5])
    assert cache.core.doubtful == 10
    cache.answer_all()
    cache.wait(0.1)
    (fetch,) = cache.fetches
    assert (fetch.first, fetch.last) == (10, 49)
    cache.give(
        Arrived(SampleBatch(restarted), Origin.NATIVE, cache.now),
        FetchEnded(fetch.fetch_id, cache.now),
    )
    (runs,) = of_run(cache, ONE, 1).values()
    assert list(runs) == [(0, 49)]
    assert cache.core.doubtful == 0


# K8: what others give is not awaited as if it were live


def test_pages_of_an_older_run_that_are_put_off_open_no_gap() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    old = [msgspec.structs.replace(s, epoch=5) for s in run_of(ONE, 100_000, 100_990, run=7)]
    cache.reads = False
    cache.take(old, Origin.RECOVERED)
    while cache.unanswered:
        cache.answer_one(fails=True)
    cache.wait(200, 1)
    cache.reads = True
    cache.take(run_of(ONE, 12, 12))
    cache.wait(1)
    assert cache.misses == []
    assert [(fetch.first, fetch.last) for fetch in cache.fetches] == [(10, 11)]


def test_a_page_that_could_not_be_judged_is_counted_and_left_to_be_asked_for_again() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    page = [msgspec.structs.replace(s, epoch=5) for s in run_of(ONE, 0, 20, run=7)]
    cache.reads = False
    cache.take(page, Origin.RECOVERED)
    cache.answer_one(fails=True)
    assert cache.core.put_off == 21
    assert len(cache.all()) == 10
    cache.reads = True
    cache.take(page, Origin.RECOVERED)
    assert of_run(cache, ONE, 7) == {5: RangeSet([SnRange(0, 20)])}


# K3: another incarnation is another numbering, whatever the clock


EPOCH = frame(BEGAN_NS)


@pytest.mark.parametrize("declared", [EPOCH, EPOCH - 10_000])
@pytest.mark.parametrize("process_restarts", [False, True])
def test_another_incarnation_is_a_new_numbering_whatever_its_clock(
    declared: int, process_restarts: bool
) -> None:
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 0, 9))
    if process_restarts:
        cache.start()
    token(cache, ONE, declared, "00000002")
    cache.take(run_of(ONE, 0, 4, seconds=-86_400, run=1))
    if process_restarts:
        cache.start()
        token(cache, ONE, declared, "00000002", fresh=False)
    cache.take(run_of(ONE, 5, 14, seconds=-86_400, run=1))
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 9)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([SnRange(0, 14)])}
    of_second = [ack for ack in cache.acks if ack.incarnation == "00000002"]
    assert {ack.epoch for ack in of_second} == {EPOCH + 1}
    assert of_second[-1].runs == ((0, 14),)


def test_the_token_of_an_incarnation_that_is_known_is_no_new_numbering() -> None:
    cache = DrivenCache()
    for _ in range(3):
        token(cache, ONE, EPOCH, "00000001", fresh=False)
        cache.start()
    cache.take(run_of(ONE, 0, 9))
    token(cache, ONE, EPOCH, "00000001", fresh=False)
    cache.take(run_of(ONE, 10, 19))
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 19)])}


def test_the_token_of_an_earlier_incarnation_that_comes_late_changes_nothing() -> None:
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001")
    token(cache, ONE, EPOCH, "00000002")
    token(cache, ONE, EPOCH, "00000001", fresh=False)
    cache.take(run_of(ONE, 0, 9))
    assert of_run(cache, ONE, 0) == {EPOCH + 1: RangeSet([SnRange(0, 9)])}


def test_what_a_token_says_is_kept_before_samples_are_stored_under_it() -> None:
    cache = DrivenCache()
    cache.disk_up = False
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 0, 9))
    assert not cache.core.ready
    assert not cache.of(Append)
    cache.disk_up = True
    cache.wait(1)
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 9)])}
    assert [found[1:] for found in cache.store.index.incarnations([ONE])] == [(EPOCH, "00000001")]


# K21: the limit of streams


@pytest.mark.parametrize("at_once", [True, False])
def test_as_many_streams_are_admitted_as_the_limit_says(at_once: bool) -> None:
    cache = DrivenCache(options=CoreOptions(resources_limit=10))
    batch = [sample(ONE, sn, key=f"k/{sn}") for sn in range(15)]
    if at_once:
        cache.take(batch)
    else:
        for offered in batch:
            cache.take([offered])
    cache.take([sample(ONE, sn, key="k/0") for sn in range(15, 20)])
    assert len({stored.stream for stored in cache.all()}) == 10
    assert len(cache.all()) == 15
    assert cache.core.streams_refused == 5


def test_the_limit_of_streams_goes_by_the_epoch_a_token_declares() -> None:
    cache = DrivenCache(options=CoreOptions(resources_limit=2))
    token(cache, ONE, EPOCH, "00000001")
    cache.take([sample(ONE, sn, key=f"k/{sn % 2}") for sn in range(6)])
    cache.take([sample(ONE, 6, key="k/2")])
    assert len({stored.stream for stored in cache.all()}) == 2
    assert cache.core.streams_refused == 1


def test_a_stream_counts_once_whether_it_comes_live_or_from_others() -> None:
    cache = DrivenCache(options=CoreOptions(resources_limit=1))
    token(cache, ONE, EPOCH, "00000001")
    cache.take([sample(ONE, 0)])
    pulled = msgspec.structs.replace(sample(ONE, 5), epoch=EPOCH)
    cache.take([pulled], Origin.ALIGNED)
    assert [stored.sn for stored in cache.all()] == [0, 5]


def test_a_run_whose_token_comes_late_has_one_place_for_each_key() -> None:
    cache = DrivenCache(options=CoreOptions(resources_limit=2))
    cache.take([sample(ONE, sn, key=f"k/{sn % 2}") for sn in range(4)])
    token(cache, ONE, EPOCH, "00000001")
    cache.take([sample(ONE, sn, key=f"k/{sn % 2}") for sn in range(4, 8)])
    assert cache.core.streams_refused == 0
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 7)])}


def test_a_run_that_others_called_otherwise_has_one_place_for_each_key_once_that_shows() -> None:
    cache = DrivenCache(options=CoreOptions(resources_limit=2))
    for sns, epoch in (((3, 4, 5), EPOCH), ((5, 6), EPOCH + 2)):
        given = [msgspec.structs.replace(sample(ONE, sn), epoch=epoch) for sn in sns]
        cache.take(given, Origin.ALIGNED)
    (inquiry,) = cache.inquiries()
    shown = [msgspec.structs.replace(sample(ONE, sn), epoch=EPOCH + 2) for sn in (3, 4, 5)]
    cache.take(shown, Origin.ALIGNED)
    cache.give(Inquired(inquiry.inquiry_id, cache.now))
    cache.take([msgspec.structs.replace(shown[2], sn=7, key="other")], Origin.ALIGNED)
    assert cache.core.streams_refused == 0
    assert of_run(cache, ONE, 0) == {EPOCH + 2: RangeSet([SnRange(3, 7)])}


# H1, H4, H10: one source costs no other


def test_a_number_at_the_end_of_the_range_builds_no_range() -> None:
    cache = DrivenCache()
    cache.take([sample(ONE, 0)])
    far = SOURCE_SN_MODULUS // 2
    cache.take([sample(ONE, 1), sample(ONE, far), sample(TWO, 0)])
    cache.take([sample(ONE, 2)])
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 2)])}
    assert of_run(cache, TWO, 0) == {0: RangeSet([SnRange(0, 0)])}
    assert [(fetch.first, fetch.last) for fetch in cache.fetches] == [(far, far)]
    assert cache.core.gaps_open == 0


def test_a_heartbeat_far_ahead_raises_nothing() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.give(HeartbeatReceived(ONE, 1_000_000_000, cache.now))
    assert [(fetch.first, fetch.last) for fetch in cache.fetches] == [(10**9, 10**9)]
    answer_fetches(cache)
    cache.wait(200, 1)
    cache.take(run_of(ONE, 10, 19))
    assert cache.misses == []
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 19)])}


def test_a_refused_number_far_ahead_raises_nothing() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.give(BatchRefused(((ONE, SnRange(10**9, 10**9)),), cache.now))
    assert [(fetch.first, fetch.last) for fetch in cache.fetches] == [(10**9, 10**9)]
    answer_fetches(cache)
    cache.wait(200, 1)
    assert cache.misses == []
    assert cache.core.gaps_open == 0


def test_a_heartbeat_within_reach_shows_what_was_lost() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.give(HeartbeatReceived(ONE, 12, cache.now))
    cache.wait(0.1)
    assert [(fetch.first, fetch.last) for fetch in cache.fetches] == [(10, 12)]


def test_a_publisher_that_began_anew_out_of_reach_shows_it_with_the_last_number_that_is_here() -> (
    None
):
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 2))
    cache.wait(30)
    cache.give(HeartbeatReceived(ONE, 4, cache.now))
    cache.wait(0.1)
    (fetch,) = cache.fetches
    assert (fetch.first, fetch.last, fetch.native_first) == (3, 4, 2)
    given = run_of(ONE, 2, 4, seconds=20, run=1)
    cache.give(Arrived(SampleBatch(given), Origin.NATIVE, cache.now))
    assert [*of_run(cache, ONE, 0)] == [EPOCH_UNKNOWN]
    ((epoch, runs),) = of_run(cache, ONE, 1).items()
    assert epoch != EPOCH_UNKNOWN
    assert list(runs) == [(2, 4)]


# K9: a number that is known as held and is not there


def test_what_is_held_and_not_found_is_stored_anew_and_said() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    restored = JournaledStorage(MemoryStorage(), None)
    restored.commit(SampleBatch(run_of(ONE, 0, 4)))
    cache.store = restored
    cache.take(run_of(ONE, 3, 9))
    absent = [effect.sample.sn for effect in cache.effects if isinstance(effect, ReportAbsent)]
    assert absent == [5, 6, 7, 8, 9]
    assert cache.core.counts.absent == 5
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 9)])}


def test_what_was_removed_on_purpose_is_not_stored_anew() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.store.purge([Floor(cache.all()[0].stream, 5)])
    cache.take(run_of(ONE, 0, 9))
    assert not cache.of(ReportAbsent)
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(5, 9)])}


def test_another_content_under_a_stored_number_is_a_conflict() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 30))
    forged = msgspec.structs.replace(sample(ONE, 20), payload=b"forged")
    cache.take([forged, sample(ONE, 31)])
    assert [effect.offered for effect in cache.conflicts] == [forged]
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 31)])}


# K30: samples that came before their token


def test_samples_before_their_token_are_moved_to_its_epoch() -> None:
    cache = DrivenCache()
    batch = [sample(ONE, sn, key=f"k/{sn}") for sn in range(17)]
    cache.take(batch[:1])
    token(cache, ONE, EPOCH, "00000001")
    cache.take(batch[1:])
    while cache.core.moving:
        cache.wait(0.5)
    assert {stored.epoch for stored in cache.all()} == {EPOCH}
    assert len(cache.all()) == 17
    assert {info.stream.epoch for info in cache.store.index.all_infos()} == {EPOCH}
    acks = [ack for ack in cache.acks if ack.epoch == EPOCH and ack.incarnation == "00000001"]
    assert acks[0].runs == ((0, 0),)
    assert acks[-1].runs == ((0, 16),)


def test_a_run_that_began_before_its_token_within_the_frame_of_the_run_before_gets_one_epoch() -> (
    None
):
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 0, 9))
    cache.take(run_of(ONE, 0, 2, seconds=1, run=1))
    token(cache, ONE, EPOCH, "00000002")
    cache.take(run_of(ONE, 3, 9, seconds=1, run=1))
    while cache.core.moving:
        cache.wait(0.5)
    (runs,) = of_run(cache, ONE, 1).values()
    assert list(runs) == [(0, 9)]
    assert len({stored.epoch for stored in cache.all()}) == 2
    of_second = [ack for ack in cache.acks if ack.incarnation == "00000002"]
    assert of_second[0].runs == ((0, 2),)


def test_what_is_to_be_moved_is_moved_after_a_restart_too() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.reads = False
    token(cache, ONE, EPOCH, "00000001")
    assert cache.core.moving
    cache.reads = True
    cache.start()
    while cache.core.moving:
        cache.wait(0.5)
    assert {stored.epoch for stored in cache.all()} == {EPOCH}
    assert len(cache.all()) == 10


def test_a_move_that_fails_begins_anew() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.reads = False
    token(cache, ONE, EPOCH, "00000001")
    for _ in range(4):
        cache.answer_one(fails=True)
        cache.wait(1)
    cache.answer_all()
    while cache.core.moving:
        cache.wait(0.5)
    assert {stored.epoch for stored in cache.all()} == {EPOCH}
    assert len(cache.all()) == 10


def test_an_append_that_fails_again_and_again_opens_one_gap() -> None:
    cache = DrivenCache()
    cache.take([Sample("k", SourceId("ab12", 7), 0, 0, b"0", ntp64=1 << 32)])
    lost = Sample("k", SourceId("ab12", 7), 0, 1, b"1", ntp64=2 << 32)
    cache.disk_up = False
    for _ in range(20):
        cache.take([lost])
        cache.wait(0.5)
    assert cache.core.gaps_open == 1
    cache.disk_up = True
    cache.take([lost])
    assert [sample.sn for sample in cache.all()] == [0, 1]


# Runs that another cache calls differently


def test_what_another_gives_goes_by_the_name_of_its_run_and_not_by_its_epoch() -> None:
    """The other saw two runs begin within one time frame, this one only the second."""
    cache = DrivenCache()
    epoch = frame(BEGAN_NS)
    token(cache, ONE, epoch, "bbbbbbbb")
    cache.take(run_of(ONE, 0, 2, seconds=5, run=2))
    first = [msgspec.structs.replace(one, epoch=epoch) for one in run_of(ONE, 0, 9, run=1)]
    second = [
        msgspec.structs.replace(one, epoch=epoch + 1) for one in run_of(ONE, 0, 5, seconds=5, run=2)
    ]
    names = (Incarnation(ONE, epoch, "aaaaaaaa"), Incarnation(ONE, epoch + 1, "bbbbbbbb"))
    batch = SampleBatch([*first, *second])
    cache.give(Arrived(batch, Origin.RECOVERED, cache.now, names))
    cache.wait(1)
    assert of_run(cache, ONE, 2) == {epoch + 1: RangeSet([(0, 5)])}
    assert of_run(cache, ONE, 1) == {}
    assert cache.core.put_off == len(first)
    assert list(acknowledged(cache, ONE)) == [(0, 5)]


def test_live_samples_do_not_pass_those_that_wait_for_the_index() -> None:
    core = CacheCore()
    (first,) = core.handle(Arrived(SampleBatch(run_of(ONE, 0, 0)), Origin.LIVE, Moment(0, 0)))
    assert isinstance(first, Ask)
    later = Arrived(
        SampleBatch([*run_of(TWO, 0, 0), *run_of(ONE, 1, 1)]), Origin.LIVE, Moment(0, 0)
    )
    assert core.handle(later) == []
    assert not core.ready
    after = core.handle(Answered(first.ask_id, SourcesFound({ONE: ()}), Moment(0, 0)))
    assert [type(effect) for effect in after] == [Append, Ask]

"""A cache put together: what it stores, acknowledges and awaits, whatever fails and when."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

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
from durable_cache.runtime.core import CoreOptions
from durable_cache.runtime.effects import Arrived, Effect
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


class Publisher:
    """What one publisher has sent so far, run by run; numbers and times only rise within a run."""

    def __init__(self, source: SourceId, *, tokens: bool) -> None:
        self.source = source
        self.tokens = tokens
        self.runs: list[list[Sample]] = [[]]
        self.epochs: list[int] = [0]

    @property
    def run(self) -> list[Sample]:
        return self.runs[-1]

    def publish(self, seconds: float) -> Sample:
        at, stamp = len(self.run), ntp64_from_ns(BEGAN_NS + round(seconds * 1e9))
        sent = sample(self.source, at, run=len(self.runs) - 1)
        stamp = max([stamp, *(s.ntp64 + 1 for s in self.run[-1:])])
        self.run.append(msgspec.structs.replace(sent, ntp64=stamp))
        return self.run[-1]


class Whatever(RuleBasedStateMachine):
    """Four publishers, two with tokens, one cache: answers late, in any order, or failures.

    The model is what was published, what was handed in, and what the storage took.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = DrivenCache()
        self.publishers = [
            Publisher(source, tokens=at > 1)
            for at, source in enumerate((ONE, TWO, THREE, SourceId("ab4", 7)))
        ]
        self.handed_in: set[Sample] = set()
        self.missed: dict[SourceId, RangeSet] = {}
        self.crashed = False
        """Samples went with a process, so that nothing here shows where their run began."""

    @initialize()
    def begin(self) -> None:
        for publisher in self.publishers:
            self.declare(publisher)

    def declare(self, publisher: Publisher) -> None:
        if publisher.tokens:
            incarnation = f"{len(publisher.runs):08x}"
            # Every other run declares the epoch of the run before: restarted within a frame.
            epoch = frame(self.cache.now.unix_ns) - len(publisher.runs) % 2
            token(self.cache, publisher.source, epoch, incarnation)

    def hand_in(self, batch: list[Sample]) -> None:
        self.handed_in.update(batch)
        self.cache.take(batch)

    @rule(picks=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12))
    def publish(self, picks: list[tuple[int, int]]) -> None:
        """New samples and repeats of several publishers in one batch."""
        self.cache.seconds += 0.01
        batch: list[Sample] = []
        for at, back in picks:
            publisher = self.publishers[at]
            repeats = back and len(publisher.run) >= back
            batch.append(publisher.run[-back] if repeats else publisher.publish(self.cache.seconds))
        self.hand_in(batch)

    @rule(at=st.integers(0, 3), count=st.integers(1, 3))
    def lose(self, at: int, count: int) -> None:
        """Some samples are lost on the way; the first of a run show that it began."""
        publisher = self.publishers[at]
        if publisher.run or publisher.tokens:
            for _ in range(count):
                publisher.publish(self.cache.seconds)

    @rule(at=st.integers(0, 3))
    def refuse(self, at: int) -> None:
        """There was no room for a live sample."""
        publisher = self.publishers[at]
        if publisher.run and publisher.run[-1] in self.handed_in:
            sn = publisher.publish(self.cache.seconds).sn
            refused = ((publisher.source, SnRange(sn, sn)),)
            self.cache.give(BatchRefused(refused, self.cache.now))

    @rule(at=st.integers(0, 3), late=st.booleans())
    def restart_publisher(self, at: int, late: bool) -> None:
        publisher = self.publishers[at]
        if not publisher.run:
            return
        self.cache.wait(1)
        publisher.runs.append([])
        if not late:
            self.declare(publisher)
        self.hand_in([publisher.publish(self.cache.seconds + n / 1000) for n in range(3)])
        if late:
            self.declare(publisher)

    @rule()
    def restart_process(self) -> None:
        stored = self.stored()
        lost = {s for s in self.handed_in if (s.source, s.payload) not in stored}
        self.handed_in -= lost
        self.crashed |= bool(lost)
        self.forget_effects()
        self.cache.start()

    @rule(seconds=st.sampled_from([0.02, 0.3, 2.0]))
    def wait(self, seconds: float) -> None:
        self.cache.wait(seconds)

    @rule(up=st.booleans())
    def disk(self, up: bool) -> None:
        self.cache.disk_up = up

    @rule(reads=st.booleans(), appends=st.booleans())
    def withhold(self, reads: bool, appends: bool) -> None:
        self.cache.reads, self.cache.appends = reads, appends

    @precondition(lambda self: self.cache.unanswered)
    @rule(data=st.data(), fails=st.booleans())
    def answer_one(self, data: st.DataObject, fails: bool) -> None:
        at = data.draw(st.integers(0, len(self.cache.unanswered) - 1))
        self.cache.answer_one(at, fails=fails)

    @precondition(lambda self: self.cache.fetches)
    @rule(data=st.data(), fails=st.booleans())
    def answer_fetch(self, data: st.DataObject, fails: bool) -> None:
        fetches = self.cache.fetches
        fetch = fetches[data.draw(st.integers(0, len(fetches) - 1))]
        self.end_fetch(fetch, fails=fails)

    def end_fetch(self, fetch: Fetch, *, fails: bool = False) -> None:
        """The publisher's own cache answers: with the run it is in, whatever was asked."""
        cache = self.cache
        cache.effects.remove(fetch)
        (publisher,) = (p for p in self.publishers if p.source == fetch.source)
        last = 1 << 35 if fetch.last is None else fetch.last
        found = [] if fails else [s for s in publisher.run if fetch.first <= s.sn <= last]
        if found:
            cache.give(Arrived(SampleBatch(found), Origin.NATIVE, cache.now))
        cache.give(FetchEnded(fetch.fetch_id, cache.now, fails))

    @invariant()
    def one_append_is_outstanding_at_most(self) -> None:
        assert sum(isinstance(effect, Append) for effect in self.cache.unanswered) <= 1

    def stored(self) -> set[tuple[SourceId, bytes]]:
        return {(stored.source, stored.payload) for stored in self.cache.all()}

    def forget_effects(self) -> None:
        for miss in self.cache.misses:
            self.missed.setdefault(miss.source, RangeSet()).add(miss.first, miss.last)
        self.cache.effects = list(self.cache.fetches)

    @invariant()
    def what_is_acknowledged_is_stored(self) -> None:
        if not self.cache.acks:
            return
        canonical = self.cache.core.epochs.canonical
        stored: dict[tuple[SourceId, int], RangeSet] = {}
        for held in self.cache.all():
            epoch = canonical(held.source, held.epoch, held.sn)
            stored.setdefault((held.source, epoch), RangeSet()).add(held.sn, held.sn)
        for ack in self.cache.acks:
            name = (ack.source, canonical(ack.source, ack.epoch))
            held_sns = stored.get(name, RangeSet())
            assert not RangeSet(ack.runs).difference(held_sns), f"{ack} is not stored"
        self.forget_effects()

    def teardown(self) -> None:
        cache = self.cache
        cache.disk_up = True
        for _ in range(200):
            cache.answer_all()
            for fetch in cache.fetches:
                self.end_fetch(fetch)
            if not (cache.core.gaps_open or cache.core.doubtful or cache.fetches):
                break
            cache.wait(2, 0.5)
        self.forget_effects()
        assert not cache.core.gaps_open
        assert not cache.core.doubtful
        assert cache.core.ready
        stored = self.stored()
        for publisher in self.publishers:
            lacking = RangeSet.of(
                sorted(
                    sent.sn
                    for sent in self.handed_in
                    if sent.source == publisher.source and (sent.source, sent.payload) not in stored
                )
            )
            missed = self.missed.get(publisher.source, RangeSet())
            assert not lacking.difference(missed), f"{publisher.source}: {lacking} vanished"
            if not self.crashed:
                self.runs_have_an_epoch_each(publisher)

    def runs_have_an_epoch_each(self, publisher: Publisher) -> None:
        epochs = [
            set(of_run(self.cache, publisher.source, at)) for at in range(len(publisher.runs))
        ]
        assert all(len(names) <= 1 for names in epochs), f"{publisher.source}: {epochs}"
        names = [name for found in epochs for name in found]
        assert len(set(names)) == len(names), f"{publisher.source}: {epochs}"


@pytest.mark.parametrize("steps", [20])
def test_whatever_fails_and_whenever_nothing_live_is_lost_and_every_acknowledgement_is_true(
    steps: int,
) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Whatever, settings=settings(stateful_step_count=steps)
    )


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


# H1, H4, H10: one source costs no other


def test_a_number_at_the_end_of_the_range_builds_no_range() -> None:
    cache = DrivenCache()
    cache.take([sample(ONE, 0)])
    far = SOURCE_SN_MODULUS - 1
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


def test_a_heartbeat_within_reach_shows_what_was_lost() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.give(HeartbeatReceived(ONE, 12, cache.now))
    cache.wait(0.1)
    assert [(fetch.first, fetch.last) for fetch in cache.fetches] == [(10, 12)]


def test_thousands_of_gaps_of_one_source_crowd_out_none_of_another() -> None:
    cache = DrivenCache()
    cache.take([sample(ONE, 0), sample(ONE, 2), sample(TWO, 0)])
    cache.take([sample(TWO, sn) for sn in range(2, 20_102, 2)])
    assert cache.core.gaps_open == 10_051
    cache.wait(0.1)
    assert {miss.source for miss in cache.misses} == {TWO}
    assert sum(miss.last - miss.first + 1 for miss in cache.misses) == 51
    (fetch,) = (fetch for fetch in cache.fetches if fetch.source == ONE)
    cache.give(
        Arrived(SampleBatch([sample(ONE, 1)]), Origin.NATIVE, cache.now),
        FetchEnded(fetch.fetch_id, cache.now),
    )
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 2)])}


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

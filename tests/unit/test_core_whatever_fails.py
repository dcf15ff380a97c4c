"""Four publishers and one cache: whatever fails, and whenever, nothing live is lost."""

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
from durable_cache.model.sequence import frame
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.cache.events import Append, BatchRefused, Fetch, FetchEnded, Origin
from durable_cache.runtime.effects import Arrived
from tests.unit.driven import BEGAN_NS, DrivenCache
from tests.unit.test_core import ONE, THREE, TWO, of_run, sample, token


class Publisher:
    """What one publisher has sent so far, run by run; numbers and times only rise within a run."""

    def __init__(self, source: SourceId, *, tokens: bool) -> None:
        self.source = source
        self.tokens = tokens
        self.runs: list[list[Sample]] = [[]]
        self.token = (0, "")
        """The epoch and the incarnation of the token that is shown."""

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
        """What was reported: as missed, or as another sample under a number that is stored."""
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
            publisher.token = epoch, incarnation
            token(self.cache, publisher.source, *publisher.token)

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
        # Before its token only a number that is here already gives a sign that a run began.
        first = publisher.run[0]
        late = late and (first.source, first.payload) in self.stored()
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
        for publisher in self.publishers:
            if publisher.tokens:  # a cache that starts lists the tokens that are there
                token(self.cache, publisher.source, *publisher.token)

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
        for conflict in self.cache.conflicts:
            offered = conflict.offered
            self.missed.setdefault(offered.source, RangeSet()).add(offered.sn, offered.sn)
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
            if cache.core.ready and not (
                cache.core.gaps_open or cache.core.doubtful or cache.fetches
            ):
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

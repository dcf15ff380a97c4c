"""The shell of a cache's core: what waits, what is refused, and what a failure means."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec
import pytest

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.fetching import Fetching
from durable_cache.endpoints.ingest import Ingest
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.session import (
    Session,
    close_session,
    open_session,
    undeclare,
    zid_of,
)
from durable_cache.endpoints.workers import Pool
from durable_cache.errors import StorageCorrupt, StorageError, StorageUnavailable
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Kind, Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.cache.events import (
    EngineOptions,
    FetchEnded,
    HeartbeatReceived,
    Origin,
)
from durable_cache.protocol.wire import Incarnation, PublisherToken, decode_ack, own_key
from durable_cache.storage.contract import AppendResult, Page, Refusal
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import wait_until

SOURCE, OTHER = SourceId("ab", 1), SourceId("cd", 1)
WAIT_SECONDS = 10.0
PATIENT = CacheOptions(
    stall_seconds_max=0.02,
    queue_seconds_max=3600,
    fetch_timeout_seconds=0.2,
    engine=EngineOptions(gap_timeout_seconds=3600),
)
"""Zenoh is held up for no time worth speaking of, and no gap is given up."""


def token(source: SourceId, epoch: int, incarnation: str) -> PublisherToken:
    return PublisherToken(source, epoch, KeyExpression("**"), incarnation)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    alone = {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    session = open_session({**alone, "timestamping": {"enabled": True}})
    yield session
    close_session(session)


class Backend(MemoryStorage):
    """A backend whose appends can fail, or wait until they may go on; it has no place for b"bad".

    Its reads can fail by a fault of ours.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: StorageError | None = None
        self.go_on = threading.Event()
        self.go_on.set()
        self.failed = 0
        self.faulty = False

    def check(self, batch: SampleBatch) -> Sequence[Refusal]:
        return [Refusal(sample, "it is bad") for sample in batch if sample.payload == b"bad"]

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        if self.faulty:
            self.failed += 1
            raise ZeroDivisionError("a fault of ours")
        return super().read(selection, limit, cursor)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        self.go_on.wait(WAIT_SECONDS)
        if self.error is not None:
            self.failed += 1
            raise self.error
        return super().append(batch, skips)


class Shell:
    """An ingest with all that it needs; `start` lets its core run."""

    def __init__(self, session: Session, options: CacheOptions, store: JournaledStorage) -> None:
        self.store = store
        self.pool = Pool("test", threads=1)
        lane = self.pool.lane("read", running_max=1, waiting_max=64)
        asking = Asking(session, zid_of(session), timeout_seconds=options.fetch_timeout_seconds)

        def fetching(offer: Callable[[list[Sample], Origin], None]) -> Fetching:
            return Fetching(asking, [KeyExpression("a/**")], lambda _: False, offer, lane)

        self.ingest = Ingest(session, store, options, fetching, lane)
        self.error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.ingest.run()
        except StorageError as error:
            self.error = error

    @property
    def ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def held(self, source: SourceId = SOURCE) -> RangeSet:
        """Return which numbers of a source are stored."""
        selection = Selection(zid=source.zid, eid=source.eid)
        return RangeSet.of(sample.sn for sample in self.store.read(selection, 10_000).samples)

    def epochs(self, source: SourceId = SOURCE) -> dict[int, list[int]]:
        """Return the stored numbers of a source by epoch."""
        epochs: dict[int, list[int]] = {}
        for sample in self.store.read(Selection(zid=source.zid, eid=source.eid), 10_000).samples:
            epochs.setdefault(sample.epoch, []).append(sample.sn)
        return epochs

    def close(self) -> None:
        self.ingest.stop()
        if self._thread is not None:
            self._thread.join(WAIT_SECONDS)
        assert self.pool.close(WAIT_SECONDS) == []
        self.ingest.close()
        self.store.close()


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def shell(session: Session, backend: Backend) -> Iterator[Callable[..., Shell]]:
    """Return what makes a shell with these options changed."""
    made: list[Shell] = []

    def make(store: JournaledStorage | None = None, **changes: object) -> Shell:
        options = replace(PATIENT, **changes)  # type: ignore[arg-type]
        made.append(Shell(session, options, store or JournaledStorage(backend, None)))
        return made[-1]

    yield make
    backend.go_on.set()
    for each in made:
        each.close()


def run_of(first: int, last: int, source: SourceId = SOURCE, size: int = 1) -> list[Sample]:
    return [
        Sample("a/b", source, 0, sn, bytes(size), Kind.PUT, ntp64=(sn + 1) << 32, received_ns=1)
        for sn in range(first, last + 1)
    ]


def runs(*ends: tuple[int, int]) -> RangeSet:
    return RangeSet(SnRange(first, last) for first, last in ends)


def test_what_finds_the_queue_full_is_refused_and_its_numbers_are_recovered(
    shell: Callable[..., Shell],
) -> None:
    full = shell(queue_bytes_max=1000)
    full.ingest.offer(run_of(0, 4, size=100))
    full.ingest.offer(run_of(5, 9, size=100))
    assert full.ingest.refused == 5
    full.start()
    wait_until(lambda: full.ingest.gaps_open, what="a gap")
    assert full.held() == runs((0, 4))
    full.ingest.offer(run_of(10, 10))
    wait_until(lambda: full.held() == runs((0, 4), (10, 10)), what="what came later")
    full.ingest.offer(run_of(5, 9), Origin.NATIVE)
    wait_until(lambda: full.held() == runs((0, 10)), what="what was refused")
    assert full.ingest.counts.missed == 0


def test_a_batch_larger_than_the_queue_still_passes(shell: Callable[..., Shell]) -> None:
    small = shell(queue_bytes_max=1)
    small.ingest.offer(run_of(0, 4, size=100))
    assert small.ingest.refused == 0


def test_samples_that_wait_too_long_hold_up_who_brings_more(shell: Callable[..., Shell]) -> None:
    late = shell(queue_seconds_max=0.0)
    late.ingest.offer(run_of(0, 4))
    late.ingest.offer(run_of(5, 9))
    assert late.ingest.refused == 5
    patient = shell(queue_seconds_max=3600)
    patient.ingest.offer(run_of(0, 4))
    patient.ingest.offer(run_of(5, 9))
    assert patient.ingest.refused == 0


def test_who_is_held_up_goes_on_as_soon_as_there_is_room(shell: Callable[..., Shell]) -> None:
    full = shell(queue_bytes_max=1, stall_seconds_max=WAIT_SECONDS)
    full.ingest.offer(run_of(0, 4))
    full.start()
    for first in range(5, 50, 5):
        full.ingest.offer(run_of(first, first + 4))
    wait_until(lambda: full.held() == runs((0, 49)), what="everything")
    assert full.ingest.refused == 0
    assert full.ingest.queued_bytes == 0


def test_who_is_held_up_when_all_ends_is_let_go(shell: Callable[..., Shell]) -> None:
    full = shell(queue_bytes_max=1, stall_seconds_max=3600)
    full.ingest.offer(run_of(0, 4))
    held_up = threading.Thread(target=full.ingest.offer, args=(run_of(5, 9),))
    held_up.start()
    full.ingest.stop()
    held_up.join(WAIT_SECONDS)
    assert not held_up.is_alive()
    assert full.ingest.refused == 5


def test_what_waits_together_becomes_one_commit_of_bounded_size(
    shell: Callable[..., Shell],
) -> None:
    sizes: list[int] = []
    waiting = shell(batch_samples_max=20)
    waiting.ingest.on_committed.append(lambda batch: sizes.append(len(batch)))
    for first in range(0, 50, 10):
        waiting.ingest.offer(run_of(first, first + 9))
    waiting.start()
    wait_until(lambda: sum(sizes) == 50, what="every commit")
    assert sizes == [20, 20, 10]
    assert (waiting.ingest.commits, waiting.ingest.appended) == (3, 50)
    assert waiting.ingest.queued_bytes == 0


def test_what_others_give_beyond_the_bound_is_left_to_be_asked_for_again(
    shell: Callable[..., Shell],
) -> None:
    small = shell(given_samples_max=6)
    small.start()
    small.ingest.offer(run_of(0, 6), Origin.RECOVERED)
    assert small.ingest.refused == 1
    wait_until(lambda: small.held() == runs((0, 5)), what="what was given")
    assert small.ingest.gaps_open == 0


def test_a_page_larger_than_all_the_room_for_what_others_give_comes_in_part_by_part(
    shell: Callable[..., Shell],
) -> None:
    small, page = shell(given_samples_max=3), run_of(0, 9)
    small.start()
    for begin in range(0, 10, 3):  # whoever pulls asks for what is missing, again and again
        small.ingest.offer(page[begin:], Origin.ALIGNED)
        wait_until(lambda at=begin: small.ingest.appended >= min(10, at + 3), what="a part")
    assert small.held() == runs((0, 9))
    assert small.ingest.refused == 7 + 4 + 1


def test_tokens_beyond_the_bound_are_dropped_and_counted(shell: Callable[..., Shell]) -> None:
    small = shell(events_max=2)
    for eid in range(1, 6):
        small.ingest.declared(token(SourceId("ab", eid), 7, "0000000a"))
    assert small.ingest.tokens_refused == 3
    small.start()
    wait_until(lambda: not small.ingest.waiting, what="those that waited")
    for eid in range(1, 3):
        small.ingest.declared(token(SourceId("ef", eid), 7, "0000000a"))
    assert small.ingest.tokens_refused == 3


def test_a_token_keeps_its_place_among_the_samples(shell: Callable[..., Shell]) -> None:
    waiting = shell()
    epoch = 250_000_000
    waiting.ingest.offer(run_of(0, 4))
    waiting.ingest.declared(token(SOURCE, epoch, "0000000a"))
    waiting.ingest.offer(run_of(5, 9))
    waiting.start()
    wait_until(lambda: waiting.ingest.appended == 10, what="everything")
    assert waiting.epochs() == {0: [*range(5)], epoch: [*range(5, 10)]}


def test_what_others_give_comes_behind_the_tokens_that_wait(shell: Callable[..., Shell]) -> None:
    """By what others have of the later run, the earlier one would follow it (seed 74407)."""
    waiting = shell()
    before, after = 250_000_000, 250_000_001
    waiting.ingest.offer(run_of(0, 2))
    waiting.ingest.declared(token(SOURCE, before, "0000000a"))
    waiting.ingest.token_gone(token(SOURCE, before, "0000000a"))
    waiting.ingest.declared(token(SOURCE, after, "0000000b"))
    given = [msgspec.structs.replace(one, epoch=after) for one in run_of(0, 2, size=2)]
    names = (Incarnation(SOURCE, after, "0000000b"),)
    waiting.ingest.offer(given, Origin.RECOVERED, names)
    waiting.ingest.offer(run_of(0, 1, OTHER), Origin.RECOVERED)
    waiting.start()
    wait_until(lambda: waiting.held(OTHER) == runs((0, 1)), what="what was given last")
    wait_until(lambda: not waiting.ingest.waiting, what="everything")
    named = {name: epoch for _, epoch, name in waiting.store.index.incarnations([SOURCE])}
    assert named == {"0000000a": before, "0000000b": after}


def test_what_others_give_waits_for_no_heartbeat(shell: Callable[..., Shell]) -> None:
    """Native publishers send one each second, and a queue may be seconds long."""
    waiting = shell()
    waiting.ingest._heard(HeartbeatReceived(SOURCE, 9, moment_now()))
    waiting.ingest.offer(run_of(0, 1, OTHER), Origin.RECOVERED)
    assert waiting.ingest._given, "its turn has come"
    waiting.ingest.declared(token(SOURCE, 7, "0000000a"))
    waiting.ingest.tell(FetchEnded(1, moment_now()))
    waiting.start()
    wait_until(lambda: not waiting.ingest.waiting, what="everything")
    assert waiting.held(OTHER) == runs((0, 1))


def test_what_others_gave_has_its_bound_also_while_it_waits_for_tokens(
    shell: Callable[..., Shell],
) -> None:
    small = shell(given_samples_max=6)
    small.ingest.declared(token(SOURCE, 7, "0000000a"))
    for first in (0, 4):
        small.ingest.offer(run_of(first, first + 3, OTHER), Origin.ALIGNED)
    assert small.ingest.refused == 2
    small.start()
    wait_until(lambda: small.held(OTHER) == runs((0, 5)), what="what was given")
    small.ingest.offer(run_of(6, 11, OTHER), Origin.ALIGNED)
    wait_until(lambda: small.held(OTHER) == runs((0, 11)), what="what was given then")


def test_refused_numbers_keep_their_place_behind_a_token(shell: Callable[..., Shell]) -> None:
    full = shell(queue_bytes_max=10_000, engine=EngineOptions(gap_timeout_seconds=0.2))
    before, after = 250_000_000, 250_000_001
    full.ingest.declared(token(SOURCE, before, "0000000a"))
    full.ingest.offer(run_of(0, 4, size=1000))
    full.ingest.declared(token(SOURCE, after, "0000000b"))
    full.ingest.offer(run_of(0, 5, size=1000))
    full.ingest.offer(run_of(6, 6, size=9000))
    assert full.ingest.refused == 7
    full.start()
    wait_until(lambda: full.ingest.misses, what="what nobody has")
    assert [miss[2:] for miss in full.ingest.misses] == [(after, 0, 6)]
    assert full.epochs() == {before: [*range(5)]}


def test_a_cache_of_one_publisher_leaves_the_others_out(shell: Callable[..., Shell]) -> None:
    one = shell(source=str(SOURCE))
    one.start()
    one.ingest.offer([*run_of(0, 3), *run_of(0, 3, OTHER)])
    wait_until(lambda: one.held() == runs((0, 3)), what="its publisher's samples")
    assert one.ingest.of_others == 4
    assert not one.held(OTHER)


def test_a_commit_that_fails_is_acknowledged_to_nobody_and_recovered_later(
    shell: Callable[..., Shell], backend: Backend
) -> None:
    failing = shell()
    committed: list[int] = []
    failing.ingest.on_committed.append(lambda batch: committed.append(len(batch)))
    failing.start()
    failing.ingest.offer(run_of(0, 4))
    wait_until(lambda: committed == [5], what="the first commit")
    backend.error = StorageUnavailable("away")
    failing.ingest.offer(run_of(5, 9))
    wait_until(lambda: backend.failed and failing.ingest.gaps_open, what="the failure")
    assert failing.ingest.commit_error == "away"
    assert committed == [5]
    assert failing.ingest.refused >= 5
    backend.error = None
    failing.ingest.offer(run_of(10, 10))
    wait_until(lambda: failing.held() == runs((0, 4), (10, 10)), what="the next commit")
    wait_until(lambda: not (failing.ingest.commit_error or failing.ingest.error), what="no error")
    failing.ingest.offer(run_of(5, 9), Origin.NATIVE)
    wait_until(lambda: failing.held() == runs((0, 10)), what="what was not committed")


def test_nothing_is_taken_behind_damage(shell: Callable[..., Shell], backend: Backend) -> None:
    damaged = shell()
    backend.error = StorageCorrupt("damaged")
    damaged.start()
    damaged.ingest.offer(run_of(0, 4))
    wait_until(lambda: damaged.ended, what="the end")
    assert damaged.error is backend.error
    assert damaged.ingest.commits == 0


def test_numbers_that_were_awaited_are_awaited_after_a_restart(
    shell: Callable[..., Shell], backend: Backend
) -> None:
    with_hole = SampleBatch(s for s in run_of(0, 9) if s.sn not in (3, 4))
    store = JournaledStorage(backend, None)
    store.commit(with_hole)
    restarted = shell(store)
    restarted.start()
    wait_until(lambda: restarted.ingest.gaps_open == 1, what="the gap")
    restarted.ingest.offer(run_of(3, 4), Origin.RECOVERED)
    wait_until(lambda: restarted.held() == runs((0, 9)), what="the hole filled")
    wait_until(lambda: restarted.ingest.gaps_open == 0, what="the gap's end")


def test_what_was_received_is_committed_before_the_end(
    shell: Callable[..., Shell], backend: Backend
) -> None:
    ending = shell()
    backend.go_on.clear()
    ending.start()
    ending.ingest.offer(run_of(0, 4))
    wait_until(lambda: ending.ingest.queued_bytes == 0, what="the commit to begin")
    ending.ingest.offer(run_of(5, 9))
    threading.Timer(0.1, backend.go_on.set).start()
    ending.ingest.finish(WAIT_SECONDS)
    assert ending.ingest.stopped.is_set()
    assert not ending.ingest.waiting
    assert ending.held() == runs((0, 9))


def test_delays_are_those_of_live_samples_from_their_arrival_on(
    shell: Callable[..., Shell],
) -> None:
    timed = shell()
    timed.start()
    timed.ingest.offer(run_of(0, 4))
    wait_until(lambda: timed.ingest.appended == 5, what="live samples")
    timed.ingest.offer(run_of(0, 9, OTHER), Origin.RECOVERED)
    wait_until(lambda: timed.ingest.appended == 15, what="recovered samples")
    assert timed.ingest.delays.seen().count == 5


def test_the_reason_why_samples_are_kept_out_is_told(shell: Callable[..., Shell]) -> None:
    limited = shell(resources_limit=1)
    limited.start()
    limited.ingest.offer(run_of(0, 0))
    wait_until(lambda: limited.ingest.appended == 1, what="the first stream")
    assert limited.ingest.full == ""
    limited.ingest.offer(run_of(0, 0, OTHER))
    wait_until(lambda: limited.ingest.refused == 1, what="the refusal")
    assert "resources_limit = 1" in limited.ingest.full
    assert not limited.held(OTHER)


def test_what_is_stored_counts_against_the_limit_after_a_restart(
    shell: Callable[..., Shell], backend: Backend
) -> None:
    store = JournaledStorage(backend, None)
    store.commit(SampleBatch(run_of(0, 0)))
    limited = shell(store, resources_limit=1)
    limited.start()
    limited.ingest.offer([*run_of(0, 0, OTHER), *run_of(1, 1)])
    wait_until(lambda: limited.ingest.refused == 1, what="the refusal")
    wait_until(lambda: limited.held() == runs((0, 1)), what="the stream that is known")
    assert not limited.held(OTHER)


def test_what_the_backend_can_never_take_is_refused_and_said(shell: Callable[..., Shell]) -> None:
    picky = shell()
    picky.start()
    bad = msgspec.structs.replace(run_of(1, 1)[0], payload=b"bad")
    picky.ingest.offer([*run_of(0, 0), bad, *run_of(2, 2)])
    wait_until(lambda: picky.held() == runs((0, 0), (2, 2)), what="the others")
    assert picky.ingest.refused == 1
    assert "no backend can take" in picky.ingest.full


def test_a_look_up_that_fails_by_a_fault_of_ours_is_asked_again(
    shell: Callable[..., Shell], backend: Backend
) -> None:
    faulty = shell(engine=EngineOptions(verify_retry_seconds=0.01))
    faulty.start()
    faulty.ingest.offer(run_of(0, 4))
    wait_until(lambda: faulty.ingest.appended == 5, what="the first samples")
    backend.faulty = True
    faulty.ingest.offer([*run_of(4, 4), *run_of(5, 9)])
    wait_until(lambda: backend.failed > 1, what="a second look-up")
    backend.faulty = False
    wait_until(lambda: faulty.held() == runs((0, 9)), what="what waited")
    assert faulty.ingest.counts.duplicates == 1


def test_what_nobody_hears_is_acknowledged_later_up_to_the_bound(
    session: Session, shell: Callable[..., Shell]
) -> None:
    unheard = shell(acks_unheard_max=2)
    unheard.start()
    for eid in (1, 2, 3):
        unheard.ingest.offer(run_of(0, 4, SourceId("ab", eid)))
        wait_until(lambda eid=eid: unheard.ingest.appended == 5 * eid, what="a commit")
    heard: list[int] = []
    listener = session.declare_subscriber(
        own_key("default", "ack", "*"),
        lambda sample: heard.append(decode_ack(sample.payload.to_bytes()).source.eid),
    )
    wait_until(lambda: len(heard) == 2, what="two acknowledgements")
    unheard.ingest.offer(run_of(0, 4, SourceId("ab", 4)))
    wait_until(lambda: len(heard) == 3, what="the next")
    undeclare(listener)
    assert sorted(heard) == [2, 3, 4]

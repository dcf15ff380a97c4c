"""What does a publisher make of a spool: what it keeps before it sends, and what it takes over?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    AckReceived,
    AskEpochs,
    CacheAppeared,
    Declare,
    EngineOptions,
    EpochsKnown,
    Finished,
    HandedOver,
    Keep,
    Kept,
    Put,
    Resend,
    Send,
    SendFailed,
    Sent,
    Spooled,
    Started,
    Tick,
    TokenDeclared,
)
from durable_cache.protocol.wire import Ack
from tests.unit.test_publisher import FRAME, NOW, OTHER, SOURCE, put_event

FRESH, OLD, OLDER = "0000ffff", "0000aaaa", "0000bbbb"
DISK = 2
LATER = Moment(NOW.monotonic_ns + 2_000_000_000, NOW.unix_ns + 2_000_000_000)
"""When what was put waits long enough to be sent once more."""


def left(source: SourceId, epoch: int, name: str, first: int, last: int) -> Spooled:
    samples = tuple(Sample("a/b", source, epoch, sn, b"%d" % sn) for sn in range(first, last + 1))
    return Spooled(source, epoch, name, samples)


def started(*spooled: Spooled, highest: int = 0) -> tuple[PublisherEngine, Declare]:
    options = EngineOptions(acknowledgements=1)
    engine = PublisherEngine(SOURCE, FRESH, options, spooled=spooled)
    assert engine.handle(Started(NOW)) == [AskEpochs()]
    (declare,) = engine.handle(EpochsKnown(highest, NOW))
    assert isinstance(declare, Declare)
    engine.handle(TokenDeclared(declare.incarnation))
    return engine, declare


def put(engine: PublisherEngine, event: Put | None = None) -> Sample:
    keep, send = engine.handle(event or put_event())
    assert isinstance(keep, Keep)
    assert isinstance(send, Send)
    assert keep.sample is send.sample
    assert keep.incarnation == engine.incarnation
    engine.handle(Kept())
    engine.handle(Sent())
    return send.sample


def resent(engine: PublisherEngine) -> list[tuple[SourceId, int, str, list[int]]]:
    """Let caches come one after the other and take what they are sent; none of it is new twice."""
    engine.handle(CacheAppeared("c1"))
    got = []
    while True:
        resends = [out for out in engine.handle(Tick(LATER)) if isinstance(out, Resend)]
        if not resends:
            return got
        (resend,) = resends
        numbers = [sample.sn for sample in resend.samples]
        got.append((resend.source, resend.epoch, resend.incarnation, numbers))
        runs = ((numbers[0], numbers[-1]),)
        ack = Ack("c1", DISK, resend.source, resend.epoch, runs, resend.incarnation)
        assert isinstance(engine.handle(AckReceived(ack))[0], Finished)
        engine.handle(CacheAppeared("c1"))


def test_a_sample_is_kept_before_it_is_sent() -> None:
    engine, _ = started()
    assert put(engine).sn == 0
    keep, send = engine.handle(put_event())
    assert isinstance(keep, Keep)
    assert isinstance(send, Send)


def test_one_that_could_not_be_kept_leaves_its_number() -> None:
    engine, _ = started()
    engine.handle(put_event())
    engine.handle(SendFailed())
    assert (engine.next_sn, engine.unacknowledged) == (0, 0)
    assert put(engine).sn == 0


def test_one_that_is_kept_and_does_not_leave_is_sent_from_the_spool() -> None:
    engine, _ = started()
    engine.handle(put_event())
    engine.handle(Kept())
    engine.handle(SendFailed())
    assert (engine.next_sn, engine.unacknowledged) == (1, 1)
    assert [sample.sn for sample in engine.kept()] == [0]


def test_the_numbering_of_the_same_source_goes_on_with_what_is_left_first() -> None:
    engine, declare = started(left(SOURCE, FRAME - 7, OLD, 3, 5), highest=FRAME - 7)
    assert declare == Declare(FRAME - 7, OLD)
    sample = put(engine)
    assert (sample.source, sample.epoch, sample.sn) == (SOURCE, FRAME - 7, 6)
    assert resent(engine) == [(SOURCE, FRAME - 7, OLD, [3, 4, 5, 6])]
    assert engine.unacknowledged == engine.unacknowledged_bytes == 0


def test_its_own_cache_answers_for_what_is_left() -> None:
    engine, _ = started(left(SOURCE, FRAME - 7, OLD, 3, 5), highest=FRAME - 7)
    page, _ = engine.read(Selection(zid=SOURCE.zid, eid=SOURCE.eid, sns=SnBounds(4, 9)), 10, None)
    assert [sample.sn for sample in page] == [4, 5]


@pytest.mark.parametrize("source", [OTHER, SourceId("cd34", 7)])
def test_what_another_source_left_goes_under_its_own_identity_and_first(source: SourceId) -> None:
    engine, declare = started(left(source, FRAME - 7, OLD, 3, 5))
    assert declare == Declare(FRAME, FRESH)
    sample = put(engine)
    assert (sample.source, sample.epoch, sample.sn) == (SOURCE, FRAME, 0)
    assert resent(engine) == [
        (source, FRAME - 7, OLD, [3, 4, 5]),
        (SOURCE, FRAME, FRESH, [0]),
    ]


def test_who_follows_the_other_source_is_told_its_last_number_once_all_is_held() -> None:
    engine, _ = started(left(OTHER, FRAME - 7, OLD, 3, 5))

    def acknowledge(*runs: tuple[int, int]) -> list[object]:
        return [*engine.handle(AckReceived(Ack("c1", DISK, OTHER, FRAME - 7, runs, OLD)))]

    assert [type(output) for output in acknowledge((3, 4))] == [Finished]
    assert acknowledge((3, 5))[1:] == [HandedOver(OTHER, 5, 3)]
    assert acknowledge((3, 5)) == []


def test_several_numberings_that_were_left_go_in_their_order() -> None:
    engine, _ = started(
        left(OTHER, FRAME - 20, OLDER, 0, 1), left(SOURCE, FRAME - 7, OLD, 3, 3), highest=FRAME - 7
    )
    assert [run[:2] for run in resent(engine)] == [(OTHER, FRAME - 20), (SOURCE, FRAME - 7)]


def test_a_run_without_the_spool_ends_the_spools_numbering() -> None:
    engine, declare = started(left(SOURCE, FRAME - 7, OLD, 3, 5), highest=FRAME + 2)
    assert declare == Declare(FRAME + 3, FRESH)
    assert put(engine).sn == 0
    assert [run[1:] for run in resent(engine)] == [
        (FRAME - 7, OLD, [3, 4, 5]),
        (FRAME + 3, FRESH, [0]),
    ]


@pytest.mark.parametrize("highest", [0, FRAME - 7, FRAME + 20])
def test_a_numbering_that_lost_samples_does_not_go_on(highest: int) -> None:
    """Also where its epoch is that of now, and no cache is there to tell it."""
    lost = replace(left(SOURCE, FRAME + 9, OLD, 3, 5), goes_on=False)
    engine, declare = started(lost, highest=highest)
    assert declare == Declare(max(FRAME + 10, highest + 1), FRESH)
    assert put(engine).sn == 0
    assert [run[1:] for run in resent(engine)] == [
        (FRAME + 9, OLD, [3, 4, 5]),
        (declare.epoch, FRESH, [0]),
    ]


def test_a_spool_with_nothing_left_says_which_number_is_next() -> None:
    engine, declare = started(left(SOURCE, FRAME - 7, OLD, 9, 9), highest=FRAME - 7)
    engine.handle(AckReceived(Ack("c1", DISK, SOURCE, declare.epoch, ((0, 9),), OLD)))
    assert engine.unacknowledged == 0
    assert put(engine).sn == 10

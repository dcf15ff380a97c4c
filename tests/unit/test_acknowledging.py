"""What a cache says is durable: to whoever listens, and later to whoever begins to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import zenoh

from durable_cache.endpoints.acknowledging import Acknowledging
from durable_cache.endpoints.session import (
    Session,
    close_session,
    open_session,
    undeclare,
)
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import SourceId
from durable_cache.protocol.cache.events import SendAck
from durable_cache.protocol.wire import Ack, decode_ack, own_key
from durable_cache.storage.contract import Durability
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import wait_until

ACKS = own_key("default", "ack", "*")
INCARNATION = "0000000a"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    alone = {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    session = open_session(alone)
    yield session
    close_session(session)


@pytest.fixture
def store() -> Iterator[JournaledStorage]:
    store = JournaledStorage(MemoryStorage(), None)
    yield store
    store.close()


class Listener:
    """Hears acknowledgements from when it begins to."""

    def __init__(self, session: Session) -> None:
        self.heard: list[Ack] = []
        self._session = session
        self._subscriber = session.declare_subscriber(ACKS, self._take)

    def _take(self, sample: zenoh.Sample) -> None:
        ack = decode_ack(sample.payload.to_bytes())
        assert str(sample.key_expr) == own_key("default", "ack", str(ack.source))
        self.heard.append(ack)

    @property
    def of(self) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
        return {(ack.source.eid, ack.epoch): ack.runs for ack in self.heard}

    def close(self) -> None:
        undeclare(self._subscriber)


def ack_of(eid: int, *ends: tuple[int, int], epoch: int = 7) -> SendAck:
    runs = RangeSet(SnRange(first, last) for first, last in ends)
    return SendAck(SourceId("ab", eid), epoch, tuple(runs), INCARNATION)


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    """Close what a test declares, whatever becomes of it."""
    with ExitStack() as ends:
        yield ends


def listening(session: Session, ends: ExitStack) -> Listener:
    return ends.enter_context(closing(Listener(session)))


def acknowledging_by(
    session: Session, store: JournaledStorage, ends: ExitStack, unheard_max: int = 8
) -> Acknowledging:
    made = Acknowledging(session, store, "default", unheard_max=unheard_max)
    return ends.enter_context(closing(made))


def test_an_acknowledgement_says_who_holds_what_and_how_safely(
    session: Session, store: JournaledStorage, ends: ExitStack
) -> None:
    listener = listening(session, ends)
    acknowledging = acknowledging_by(session, store, ends)
    acknowledging.send(ack_of(1, (0, 4), (6, 9)))
    wait_until(lambda: listener.heard, what="the acknowledgement")
    (ack,) = listener.heard
    assert (ack.source, ack.epoch, ack.incarnation) == (SourceId("ab", 1), 7, INCARNATION)
    assert ack.runs == ((0, 4), (6, 9))
    assert (ack.cache_id, ack.level) == (store.index.cache_id, Durability.MEMORY)
    assert acknowledging.sent == 1


def test_what_nobody_hears_yet_waits_for_a_listener_up_to_the_bound(
    session: Session, store: JournaledStorage, ends: ExitStack
) -> None:
    acknowledging = acknowledging_by(session, store, ends, unheard_max=2)
    for eid in (1, 2, 3):
        acknowledging.send(ack_of(eid, (0, eid)))
    assert acknowledging.sent == 0
    listener = listening(session, ends)
    wait_until(lambda: acknowledging.sent == 2, what="what waited")
    wait_until(lambda: len(listener.heard) == 2, what="what waited, heard")
    assert listener.of == {(2, 7): ((0, 2),), (3, 7): ((0, 3),)}
    acknowledging.send(ack_of(1, (0, 5)))
    wait_until(lambda: len(listener.heard) == 3, what="what came later")


def test_of_a_numbering_the_latest_acknowledgement_waits(
    session: Session, store: JournaledStorage, ends: ExitStack
) -> None:
    acknowledging = acknowledging_by(session, store, ends)
    acknowledging.send(ack_of(1, (0, 1)))
    acknowledging.send(ack_of(1, (0, 5)))
    acknowledging.send(ack_of(1, (0, 2), epoch=8))
    listener = listening(session, ends)
    wait_until(lambda: len(listener.heard) == 2, what="what waited")
    assert listener.of == {(1, 7): ((0, 5),), (1, 8): ((0, 2),)}


def test_nothing_is_said_of_nothing(
    session: Session, store: JournaledStorage, ends: ExitStack
) -> None:
    listener = listening(session, ends)
    acknowledging = acknowledging_by(session, store, ends)
    acknowledging.send(ack_of(1))
    acknowledging.send(ack_of(2, (0, 0)))
    wait_until(lambda: listener.heard, what="the acknowledgement")
    assert [ack.source.eid for ack in listener.heard] == [2]


def test_of_very_many_runs_the_newest_are_acknowledged(
    session: Session, store: JournaledStorage, ends: ExitStack
) -> None:
    listener = listening(session, ends)
    acknowledging = acknowledging_by(session, store, ends)
    acknowledging.send(ack_of(1, *((2 * at, 2 * at) for at in range(2000))))
    wait_until(lambda: listener.heard, what="the acknowledgement")
    runs = listener.heard[0].runs
    assert 100 <= len(runs) <= 1024
    assert runs[-1] == (3998, 3998)
    assert runs[0][0] == 4000 - 2 * len(runs)


def test_somebody_who_listens_from_the_start_is_no_error(
    session: Session, store: JournaledStorage, ends: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    listener = listening(session, ends)
    for eid in range(30):
        acknowledging = acknowledging_by(session, store, ends)
        acknowledging.send(ack_of(eid, (0, 0)))
        wait_until(lambda eid=eid: len(listener.heard) == eid + 1, what="the acknowledgement")
        assert [record.getMessage() for record in caplog.records] == []

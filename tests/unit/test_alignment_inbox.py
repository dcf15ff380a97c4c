"""What waits for the aligner is bounded, in order, and named before it is heard."""

from __future__ import annotations

import pytest

from durable_cache.endpoints.alignment.inbox import Inbox
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.protocol.alignment import (
    Appended,
    ContentRead,
    Forgotten,
    PeerSeen,
    ReplyReceived,
    Trimmed,
)
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias

SOURCE = SourceId("ab12", 7)
STREAM = Stream("a/b", SOURCE, 5)
NAMELESS = Stream("a/b", SOURCE, 0)


def appended(sn: int, *, epoch: int = 5, payload: bytes = b"x") -> Appended:
    return Appended(SampleBatch([Sample("a/b", SOURCE, epoch, sn, payload)]))


@pytest.fixture
def epochs() -> Epochs:
    return Epochs()


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def inbox(epochs: Epochs, woken: list[str]) -> Inbox:
    return Inbox(epochs, bytes_max=5_000, events_max=3, wake=lambda: woken.append("woken"))


def taken(inbox: Inbox, now: float = 0.0) -> list[object]:
    found: list[object] = []
    while (event := inbox.take(now)) is not None:
        found.append(event)
    return found


def test_what_was_stored_comes_in_order_and_before_what_peers_say(inbox: Inbox) -> None:
    said, stored = PeerSeen("one", "1"), [appended(1), Trimmed(((STREAM, 1),)), appended(2)]
    assert inbox.heard(said)
    for event in stored:
        inbox.stored(event, 0.0)
    assert taken(inbox) == [*stored, said]


def test_samples_without_an_epoch_wait_for_their_token(inbox: Inbox, epochs: Epochs) -> None:
    inbox.stored(appended(1, epoch=0), 10.0)
    inbox.stored(Forgotten((NAMELESS,)), 10.1)
    inbox.stored(appended(2), 10.2)
    assert taken(inbox, 10.3) == [appended(2)]
    epochs.learn(Alias(SOURCE, 0, 0, 9))
    assert taken(inbox, 11.9) == []
    assert taken(inbox, 12.05) == [appended(1, epoch=9)]
    assert taken(inbox, 12.2) == [Forgotten((NAMELESS,))]


def test_what_left_an_epoch_is_told_before_what_takes_it(inbox: Inbox) -> None:
    """The aligner forgot what came under the epoch since, and pulled it for ever (seed 2128)."""
    both = SampleBatch([*appended(1, epoch=0).batch, *appended(1).batch])
    inbox.stored(Appended(both), 10.0)
    inbox.stored(Forgotten((STREAM,)), 10.1)
    inbox.stored(appended(2), 10.2)
    assert taken(inbox, 10.3) == [appended(1), Forgotten((STREAM,)), appended(2)]
    assert taken(inbox, 12.05) == [appended(1, epoch=0)]


def test_what_was_stored_is_never_left_out_in_silence(inbox: Inbox) -> None:
    for sn in range(100):
        inbox.stored(appended(sn, epoch=sn % 2), 0.0)
    assert inbox.overflown
    assert taken(inbox, 99.0) == []
    inbox.clear()
    assert not inbox.overflown
    inbox.stored(appended(1), 0.0)
    assert taken(inbox) == [appended(1)]


def test_what_was_taken_makes_room_again(inbox: Inbox) -> None:
    for sn in range(100):
        inbox.stored(appended(sn, epoch=sn % 2), 0.0)
        assert len(taken(inbox, 5.0)) == 1
    assert not inbox.overflown


def test_one_batch_larger_than_the_bound_comes_through(inbox: Inbox) -> None:
    large = appended(1, payload=bytes(10_000))
    inbox.stored(large, 0.0)
    assert inbox.crowded
    assert taken(inbox) == [large]
    assert not inbox.crowded


def test_samples_read_for_content_ends_nothing_where_there_is_no_room(inbox: Inbox) -> None:
    inbox.stored(appended(1, payload=bytes(4_900)), 0.0)
    assert inbox.crowded
    inbox.stored(ContentRead(appended(2, payload=bytes(900)).batch), 0.0)
    assert not inbox.overflown
    assert len(taken(inbox)) == 2


def test_what_could_not_be_read_to_be_put_in_counts_as_left_out(inbox: Inbox) -> None:
    inbox.stored(appended(1), 0.0)
    inbox.lost()
    assert inbox.overflown
    assert taken(inbox) == []


def test_questions_of_peers_beyond_the_bound_are_refused_but_no_answer_to_ours(
    inbox: Inbox,
) -> None:
    assert [inbox.heard(PeerSeen("one", str(at))) for at in range(4)] == [True, True, True, False]
    assert inbox.refused == 1
    inbox.answered(ReplyReceived(1, b""))
    assert taken(inbox)[-1] == ReplyReceived(1, b"")


def test_whoever_takes_is_woken_by_the_first_that_waits(inbox: Inbox, woken: list[str]) -> None:
    for put_in in (
        lambda: inbox.stored(appended(1), 0.0),
        lambda: inbox.heard(PeerSeen("one", "1")),
        lambda: inbox.answered(ReplyReceived(1, b"")),
    ):
        put_in()
        assert woken == ["woken"]
        inbox.heard(PeerSeen("two", "1"))
        inbox.stored(appended(2), 0.0)
        assert woken == ["woken"], "one turn takes them all"
        taken(inbox)
        woken.clear()


def test_what_was_left_out_wakes_at_once_and_what_has_time_does_not(
    inbox: Inbox, woken: list[str]
) -> None:
    inbox.stored(appended(1, epoch=0), 0.0)
    inbox.stored(Forgotten((NAMELESS,)), 0.0)
    assert not woken
    inbox.stored(appended(2, payload=bytes(9_000)), 0.0)
    assert woken == ["woken"]
    inbox.clear()
    inbox.lost()
    assert woken == ["woken"] * 2

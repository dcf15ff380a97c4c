"""What a subscriber knows of each key of a publisher that counts keys by themselves, live."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import zenoh

from durable_cache import (
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions
from durable_cache.endpoints.session import source_of
from durable_cache.model.sequence import frame, pack_sequence
from durable_cache.pipes import PipeOptions, declare_reliable_pipe
from durable_cache.protocol.losses import decode_rows
from durable_cache.protocol.subjects import attach
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.subjects import SubjectLoss
from durable_cache.service.measured import told_now
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected, ready_publisher

ALONE = DeliveryOptions(recovery=False, subject_losses_max=2)


class Counted(Numbered):
    """A publisher that counts each key by itself, and can keep a sample from the network."""

    def __init__(self, session: zenoh.Session, key: str, began: int = 0) -> None:
        super().__init__(session, key)
        self.frame = began or frame(time.time_ns())

    def send(self, sn: int, count: int, key: str = "", *, lost: bool = False) -> None:
        key = key or self.key
        attached = attach(None, pack_sequence(self.frame, count - 1), key, sn, since=sn)
        self.put(sn, key=key, lost=lost, attachment=attached)


def test_a_subscriber_of_one_key_asks_nobody_about_the_others(network: LocalNetwork) -> None:
    """Without any cache, and without waiting: what it did not get is of other keys."""
    taken: list[Sample] = []
    with declare_reliable_subscriber(network.client(), "a/1", taken.append) as subscriber:
        session = network.client()
        with ready_publisher(session, "a/*", cache=False, subject_sequences=True) as publisher:
            for number in range(30):
                own = b"mine" if number % 6 == 0 else None
                publisher.put(b"%d" % number, key=f"a/{number % 3}", attachment=own)
            wait_until(lambda: len(taken) == 10, 5, "ten samples")
            assert [one.sn for one in taken] == list(range(1, 30, 3))
            assert {one.attachment for one in taken} == {None}
            assert (subscriber.missed, subscriber.gaps_open) == (0, 0)
            counts = subscriber.subjects.counts
            assert (counts.subjects, counts.starts, counts.joined, counts.lost) == (1, 1, 0, 0)
            state = subscriber.subjects.state(publisher.source, "a/1")
            assert state is not None
            assert (state.count, state.perhaps_incomplete) == (10, False)
            assert state.frame >= publisher.epoch


def test_plain_and_reliable_subscribers_get_what_was_attached(network: LocalNetwork) -> None:
    """A plain one gets 16 bytes behind it, and 24 where a frame begins."""
    plain: list[bytes] = []
    watching = network.client().declare_subscriber(
        "a/*", lambda sample: plain.append(sample.attachment.to_bytes())
    )
    taken: list[Sample] = []
    with declare_reliable_subscriber(network.client(), "a/*", taken.append):
        with ready_publisher(network.client(), "a/*", subject_sequences=True) as publisher:
            for own in (None, b"", b"mine"):
                publisher.put(b"x", key="a/b", attachment=own)
            wait_until(lambda: len(taken) == len(plain) == 3)
            assert [one.attachment for one in publisher.kept()] == plain
    assert [one.attachment for one in taken] == [None, b"", b"mine"]
    assert [one[:-24] if at == 0 else one[:-16] for at, one in enumerate(plain)] == [
        *(b"", b"", b"mine")
    ]
    watching.undeclare()  # type: ignore[no-untyped-call]


def test_a_loss_is_told_of_its_key_with_the_count(network: LocalNetwork) -> None:
    taken: list[Sample] = []
    told: list[SubjectLoss] = []
    counted = Counted(network.client(), "a/*")
    with declare_reliable_subscriber(
        network.client(), "a/*", taken.append, options=ALONE
    ) as subscriber:
        subscriber.subjects.listen(told.append)
        connected(counted.publisher)
        sent = [("a/1", 1), ("a/2", 1), ("a/1", 2), ("a/2", 2), ("a/1", 3), ("a/2", 3), ("a/1", 4)]
        for sn, (key, count) in enumerate(sent):
            counted.send(sn, count, key, lost=sn in (2, 4))
        wait_until(lambda: len(taken) == 5)
        source = source_of(counted.publisher)
        (loss,) = told
        assert (loss.source, loss.key, loss.lost, loss.total) == (source, "a/1", 2, 2)
        assert subscriber.subjects.losses == (loss,)
        counts = subscriber.subjects.counts
        assert (counts.skips, counts.lost, counts.repeats, counts.starts) == (1, 2, 0, 2)
        counted.send(7, 4, "a/2")
        counted.send(8, 9, "a/2")
        counted.send(9, 7, "a/3")
        counted.send(10, 9, "a/3")
        wait_until(lambda: len(taken) == 9)
        assert [(loss.key, loss.total) for loss in subscriber.subjects.losses] == [
            ("a/2", 4),
            ("a/3", 1),
        ]
        assert subscriber.subjects.counts.lost == 7


def test_a_young_stream_that_is_joined_late_is_perhaps_incomplete(network: LocalNetwork) -> None:
    young = Counted(network.client(), "a/young")
    old = Counted(network.client(), "a/old", began=frame(time.time_ns()) - 4)
    new = Counted(network.client(), "a/new")
    with declare_reliable_subscriber(network.client(), "a/*", lambda _: None) as subscriber:
        for one, count in ((young, 5), (old, 5), (new, 1)):
            connected(one.publisher)
            one.send(count - 1, count)
        wait_until(lambda: subscriber.delivered == 3)
        counts = subscriber.subjects.counts
        assert (counts.joined, counts.starts, counts.perhaps_incomplete) == (2, 1, 1)
        perhaps = {
            key: state.perhaps_incomplete
            for one, key in ((young, "a/young"), (old, "a/old"), (new, "a/new"))
            if (state := subscriber.subjects.state(source_of(one.publisher), key))
        }
        assert perhaps == {"a/young": True, "a/old": False, "a/new": False}


def test_how_old_a_frame_must_be_is_an_option(network: LocalNetwork) -> None:
    old = Counted(network.client(), "a/old", began=frame(time.time_ns()) - 4)
    patient = DeliveryOptions(convergence_seconds=600.0)
    with declare_reliable_subscriber(
        network.client(), "a/*", lambda _: None, options=patient
    ) as subscriber:
        connected(old.publisher)
        old.send(4, 5)
        wait_until(lambda: subscriber.delivered == 1)
        assert subscriber.subjects.counts.perhaps_incomplete == 1


def test_what_comes_when_the_subscriber_is_closed_is_not_subscribed(network: LocalNetwork) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Sample) -> None:
        begun.set()
        go_on.wait(10)

    counted = Counted(network.client(), "a/b")
    subscriber = declare_reliable_subscriber(network.client(), "a/b", slow, options=ALONE)
    connected(counted.publisher)
    counted.send(0, 1)
    assert begun.wait(10)
    for sn in range(1, 4):
        counted.send(sn, sn + 1)
    wait_until(lambda: sum(len(one.received.samples) for one in subscriber._mailbox.waiting) == 3)
    closing = threading.Thread(target=subscriber.close, args=(10.0,))
    closing.start()
    wait_until(subscriber._stopped.is_set)
    go_on.set()
    closing.join(10)
    assert subscriber.subjects.counts.unsubscribed == 3


def test_a_publisher_has_the_options_of_raims(network: LocalNetwork) -> None:
    session = network.client()
    with declare_reliable_publisher(
        session,
        "a/*",
        subject_sequences=True,
        pub_window_size="10 mb",
        pub_window_time="60 sec",
    ) as publisher:
        publisher.put(b"x", key="a/b")
        assert publisher.subjects is not None
        assert len(publisher.subjects) == 1
        assert 0 < publisher.subjects.bytes < 1000


def test_what_was_counted_is_in_the_table_that_the_subscriber_answers_with(
    network: LocalNetwork,
) -> None:
    counted = Counted(network.client(), "a/b")
    with declare_reliable_subscriber(
        network.client(), "a/*", lambda _: None, options=ALONE
    ) as subscriber:
        connected(counted.publisher)
        counted.send(4, 5)
        counted.send(5, 9)
        wait_until(lambda: subscriber.delivered == 2)
        (reply,) = list(network.client().get("@durable/v1/default/loss/*", timeout=5.0))
        assert reply.ok is not None
        table = decode_rows(reply.ok.payload.to_bytes())
        assert table.subjects == subscriber.subjects.counts
        told, errors = told_now(network.client(), "default")
        assert (told.subjects, errors) == (table.subjects, ()), "what status and metrics show"
        assert (table.subjects.joined, table.subjects.perhaps_incomplete) == (1, 1)
        assert (table.subjects.lost, table.subjects.skips) == (3, 1)


def test_sequences_go_through_a_pipe_as_they_are(network: LocalNetwork) -> None:
    """Behind it a subscriber knows as much of each key as before it."""
    positions = "@durable/v1/default/consumers/**"
    soon = ConsumerOptions(level="memory", confirm_seconds=0.01, caches_seconds=5.0)
    with LocalNetwork() as far, ExitStack() as stack:
        caches = [
            stack.enter_context(declare_reliability_cache(one.client(), ["a/**", positions]))
            for one in (network, far)
        ]
        publisher = stack.enter_context(
            ready_publisher(network.client(), "a/*", subject_sequences=True)
        )
        for number in range(6):
            publisher.put(b"x", key=f"a/{number % 2}", attachment=b"mine")
        pipe = PipeOptions(level="memory", consumer_options=soon, retry_seconds=0.3)
        stack.enter_context(
            declare_reliable_pipe(network.client(), far.client(), "a/**", options=pipe)
        )
        wait_until(lambda: len(caches[1].find("a/**")) == 6, 20, "the far cache")
        near_held, far_held = (
            {one.sn: one.attachment for one in cache.find("a/**")} for cache in caches
        )
        assert near_held == far_held
        taken: list[Sample] = []
        subscriber = stack.enter_context(
            declare_reliable_subscriber(far.client(), "a/**", taken.append, history=True)
        )
        wait_until(lambda: len(taken) == 6, what="history")
        assert {one.attachment for one in taken} == {b"mine"}
        counts = subscriber.subjects.counts
        assert (counts.subjects, counts.starts, counts.lost) == (2, 2, 0)


def test_a_durable_consumer_goes_back_and_counts_on(network: LocalNetwork) -> None:
    soon = ConsumerOptions(level="memory", confirm_seconds=0.01, caches_seconds=5.0)
    taken: list[Sample] = []
    with ExitStack() as stack:
        stack.enter_context(
            declare_reliability_cache(
                network.client(), ["a/**", "@durable/v1/default/consumers/**"]
            )
        )
        consumer = stack.enter_context(
            declare_reliable_subscriber(
                network.client(), "a/b", taken.append, consumer="one", consumer_options=soon
            )
        )
        publisher = stack.enter_context(
            ready_publisher(network.client(), "a/b", subject_sequences=True)
        )
        for _ in range(4):
            publisher.put(b"x")
        wait_until(lambda: len(taken) == 4)
        consumer.rewind()
        wait_until(lambda: len(taken) == 8, 20, "all of it again")
        publisher.put(b"y")
        wait_until(lambda: len(taken) == 9)
        assert {one.attachment for one in taken} == {None}
        counts = consumer.subjects.counts
        assert (counts.starts, counts.lost, counts.repeats) == (2, 0, 0)

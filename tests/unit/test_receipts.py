"""Does a publisher tell its program what became of each put? On a session without a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import zenoh

from durable_cache.endpoints.publisher import (
    PublisherOptions,
    Receipt,
    ReliablePublisher,
    declare_reliable_publisher,
)
from durable_cache.endpoints.session import Session, close_session, open_session, put_own
from durable_cache.errors import Closed, ConfigError, Unacknowledged
from durable_cache.model.sample import Qos
from durable_cache.protocol.wire import Ack, ack_key, encode_ack
from durable_cache.storage.contract import Durability
from durable_cache.testing.network import wait_until


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    alone = {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    session = open_session({**alone, "timestamping": {"enabled": True}})
    yield session
    close_session(session)


def acknowledge(
    session: Session,
    publisher: ReliablePublisher[Any],
    *runs: tuple[int, int],
    cache: str = "c1",
    level: Durability = Durability.DISK,
    incarnation: str | None = None,
) -> None:
    name = publisher.incarnation if incarnation is None else incarnation
    ack = Ack(cache, int(level), publisher.source, publisher.epoch, runs, name)
    put_own(session, ack_key("default", publisher.source), encode_ack(ack))


def test_a_receipt_is_done_when_the_caches_wanted_hold_the_sample(session: Session) -> None:
    with declare_reliable_publisher(session, "a/b", acknowledgements=2) as publisher:
        receipt = publisher.put(b"x")
        assert (receipt.sn, receipt.done, receipt.caches) == (0, False, {})
        assert not receipt.wait(0)
        acknowledge(session, publisher, (0, 0), cache="c1")
        acknowledge(session, publisher, (0, 0), cache="c2", level=Durability.PROCESS)
        wait_until(lambda: len(receipt.caches) == 2)
        assert not receipt.done
        acknowledge(session, publisher, (0, 0), cache="c3")
        assert receipt.wait(10)
        assert receipt.caches == {
            "c1": Durability.DISK,
            "c2": Durability.PROCESS,
            "c3": Durability.DISK,
        }


def test_callbacks_are_called_once_each_whenever_they_are_given(session: Session) -> None:
    called: list[tuple[str, int, bool]] = []
    with declare_reliable_publisher(session, "a/b", acknowledgements=1) as publisher:
        receipt = publisher.put(b"x")
        receipt.on_done(lambda it: called.append(("before", it.sn, it.done)))
        receipt.on_done(lambda it: called.append(("too", it.sn, it.done)))
        acknowledge(session, publisher, (0, 0))
        acknowledge(session, publisher, (0, 0), cache="c2")
        assert receipt.wait(10)
        receipt.on_done(lambda it: called.append(("after", it.sn, it.done)))
        wait_until(lambda: len(called) == 3)
    assert sorted(called) == [("after", 0, True), ("before", 0, True), ("too", 0, True)]


def test_a_callback_that_raises_ends_nothing(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []

    def raises(receipt: Receipt) -> None:
        raise SystemExit(f"not {receipt.sn}")

    with declare_reliable_publisher(session, "a/b", acknowledgements=1) as publisher:
        for _ in range(3):
            receipt = publisher.put(b"x")
            receipt.on_done(raises)
            receipt.on_done(lambda it: called.append(it.sn))
        acknowledge(session, publisher, (0, 2))
        wait_until(lambda: called == [0, 1, 2])
        assert publisher.callback_errors == 3
    assert "a callback of a receipt failed" in caplog.text


def test_callbacks_may_put_and_run_on_one_thread_of_ours(session: Session) -> None:
    threads: set[str] = set()
    numbers = count()
    with declare_reliable_publisher(session, "a/b", acknowledgements=1) as publisher:

        def again(receipt: Receipt) -> None:
            threads.add(threading.current_thread().name)
            if next(numbers) < 5:
                publisher.put(b"again").on_done(again)
                acknowledge(session, publisher, (0, receipt.sn + 1))

        publisher.put(b"first").on_done(again)
        acknowledge(session, publisher, (0, 0))
        wait_until(lambda: publisher.next_sn == 6)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("dc-publisher") == 1
    assert threads == {"dc-publisher"}


def test_who_waits_is_woken_by_the_end_of_the_publisher(session: Session) -> None:
    publisher = declare_reliable_publisher(session, "a/b", acknowledgements=1)
    receipt = publisher.put(b"x")
    ended: list[bool] = []
    waiting = threading.Thread(target=lambda: ended.append(receipt.wait()))
    waiting.start()
    publisher.close()
    publisher.close()
    waiting.join(10)
    assert ended == [False]
    with pytest.raises(Closed):
        publisher.put(b"y")


def test_acknowledgements_of_another_incarnation_or_damaged_ones_do_not_count(
    session: Session,
) -> None:
    with declare_reliable_publisher(session, "a/b", acknowledgements=1) as publisher:
        receipt = publisher.put(b"x")
        acknowledge(session, publisher, (0, 0), incarnation="ffffffff")
        put_own(session, ack_key("default", publisher.source), b"damaged")
        acknowledge(session, publisher, (1, 5))
        second = publisher.put(b"y")
        acknowledge(session, publisher, (1, 1))
        assert second.wait(10)
        assert not receipt.done


@pytest.mark.parametrize("bound", ["unacknowledged_max", "receipts_max"])
def test_a_put_beyond_the_bound_raises_and_uses_no_number(session: Session, bound: str) -> None:
    settings: dict[str, Any] = {bound: 3, "put_timeout_seconds": 0}
    with declare_reliable_publisher(session, "a/b", acknowledgements=1, **settings) as publisher:
        for _ in range(3):
            publisher.put(b"x")
        with pytest.raises(Unacknowledged, match="3 samples on a/b"):
            publisher.put(b"y")
        assert (publisher.unacknowledged, publisher.next_sn, len(publisher.kept())) == (3, 3, 3)


def test_a_put_waits_for_room_as_long_as_it_may(session: Session) -> None:
    options = PublisherOptions(unacknowledged_max=1, put_timeout_seconds=20)
    with declare_reliable_publisher(
        session, "a/b", acknowledgements=1, options=options
    ) as publisher:
        publisher.put(b"x")
        timer = threading.Timer(0.2, lambda: acknowledge(session, publisher, (0, 0)))
        timer.start()
        began = time.monotonic()
        assert publisher.put(b"y").sn == 1
        assert 0.1 < time.monotonic() - began < 15
        timer.join()


def test_a_callback_that_finds_no_room_is_told_at_once(session: Session) -> None:
    raised: list[BaseException] = []
    with declare_reliable_publisher(
        session, "a/b", acknowledgements=1, unacknowledged_max=2, put_timeout_seconds=30
    ) as publisher:

        def puts(receipt: Receipt) -> None:
            for _ in range(3):
                try:
                    publisher.put(b"again")
                except Unacknowledged as error:
                    raised.append(error)

        publisher.put(b"x").on_done(puts)
        acknowledge(session, publisher, (0, 0))
        wait_until(lambda: raised, 5)


def test_a_put_that_zenoh_refuses_leaves_its_number_to_the_next(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    import durable_cache.endpoints.publisher.publisher as shell

    def refuses(*_: object) -> None:
        raise zenoh.ZError("away")

    with declare_reliable_publisher(session, "a/b", acknowledgements=1) as publisher:
        with monkeypatch.context() as patch:
            patch.setattr(shell, "send", refuses)
            with pytest.raises(zenoh.ZError):
                publisher.put(b"phantom")
        assert (publisher.next_sn, publisher.unacknowledged, publisher.kept()) == (0, 0, [])
        receipt = publisher.put(b"x")
        acknowledge(session, publisher, (0, 0))
        assert receipt.wait(10)


@pytest.mark.parametrize(
    "arguments",
    [
        {"payload": 5},
        {"encoding": 5},
        {"encoding": "x" * 70_000},
        {"attachment": 5},
        {"key": 5},
        {"key": "elsewhere"},
        {"key": "a//b"},
        {"key": ""},
    ],
    ids=lambda arguments: str(arguments)[:60],
)
def test_a_put_with_a_bad_argument_uses_no_number(
    session: Session, arguments: dict[str, Any]
) -> None:
    with declare_reliable_publisher(session, "a/*", acknowledgements=1) as publisher:
        with pytest.raises(ConfigError):
            publisher.put(**{"payload": b"1", "key": "a/b", **arguments})
        assert (publisher.next_sn, publisher.kept()) == (0, [])
        assert publisher.put(b"good", key="a/b").sn == 0


def test_ctrl_c_while_zenoh_sends_never_gives_a_number_twice(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    import durable_cache.endpoints.publisher.publisher as shell

    real = shell.send

    def interrupted(*arguments: Any) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    with declare_reliable_publisher(session, "a/b") as publisher:
        with monkeypatch.context() as patch:
            patch.setattr(shell, "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                publisher.put(b"left")
        publisher.put(b"next")
        assert [(s.sn, s.payload) for s in publisher.kept()] == [(0, b"left"), (1, b"next")]


# Options


def test_named_arguments_win_over_options(session: Session) -> None:
    options = PublisherOptions(history=2, acknowledgements=1, encoding="text/plain")
    with declare_reliable_publisher(session, "a/b", options=options, history=3) as publisher:
        receipts = [publisher.put(b"x") for _ in range(5)]
        assert all(receipts)
        acknowledge(session, publisher, (0, 4))
        wait_until(lambda: len(publisher.kept()) == 3)
        assert publisher.kept()[0].encoding == "text/plain"
    with declare_reliable_publisher(
        session, "a/b", options=options, acknowledgements=0
    ) as publisher:
        assert publisher.put(b"x") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"cache": 10},
        {"history": 0},
        {"history": 1.5},
        {"history": True},
        {"receipts_max": 0},
        {"unacknowledged_max": 0},
        {"queries_waiting_max": 0},
        {"acknowledgers_max": 0},
        {"put_timeout_seconds": -1},
        {"epochs_timeout_seconds": "1"},
        {"level": "disc"},
        {"level": 2},
        {"domain": ""},
        {"qos": 5},
        {"encoding": 5},
        {"acknowledgements": -1},
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_by_name(session: Session, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        declare_reliable_publisher(session, "a/b", **wrong)


@pytest.mark.parametrize("level", ["disk", Durability.PROCESS, "memory"])
def test_the_level_wanted_is_the_engines(level: Durability | str) -> None:
    wanted = Durability[level.upper()] if isinstance(level, str) else level
    options = PublisherOptions(level=level, qos=Qos(priority=2), acknowledgers_max=7)
    assert options.engine_options().level == wanted
    assert options.engine_options().acknowledgers_max == 7


def test_the_own_cache_answers_and_what_it_cannot_answer_is_counted(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    import durable_cache.endpoints.publisher.own_cache as shell

    def replies(selector: str) -> list[zenoh.Reply]:
        return list(session.get(selector, timeout=5))

    with declare_reliable_publisher(session, "a/b", epochs_timeout_seconds=0) as publisher:
        publisher.put(b"x")
        (reply,) = replies(f"{publisher.source}/a/b")
        assert reply.ok is not None
        assert reply.ok.payload.to_bytes() == b"x"
        (refused,) = replies(f"{publisher.source}/a/b?_sn=x")
        assert refused.err is not None

        def fails(*_: object) -> None:
            raise RuntimeError("a fault of ours")

        with monkeypatch.context() as patch:
            patch.setattr(shell, "parse_query", fails)
            assert replies(f"{publisher.source}/a/b") == []
        assert publisher.query_errors == 1
        (after,) = replies(f"{publisher.source}/a/b")
        assert after.ok is not None


def test_a_question_that_waited_too_long_is_not_worked_for(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked is gone, as a rule: a cache that was killed."""
    import durable_cache.endpoints.publisher.own_cache as shell

    monkeypatch.setattr(shell, "_WAITED_SECONDS_MAX", 0.2)
    holding, held = threading.Event(), threading.Event()

    def holds(_: Receipt) -> None:
        held.set()
        holding.wait(20)

    with declare_reliable_publisher(session, "a/b", acknowledgements=1) as publisher:
        publisher.put(b"x").on_done(holds)
        acknowledge(session, publisher, (0, 0))
        assert held.wait(10)
        late = session.get(f"{publisher.source}/a/b", timeout=20)
        time.sleep(0.3)  # what is tested is a time
        holding.set()
        (reply,) = late
        assert reply.err is not None
        assert b"busy with others; ask again" in reply.err.payload.to_bytes()
        (reply,) = session.get(f"{publisher.source}/a/b", timeout=20)
        assert reply.ok is not None


def test_questions_beyond_the_bound_go_without_an_answer(session: Session) -> None:
    holding, held = threading.Event(), threading.Event()

    def holds(_: Receipt) -> None:
        held.set()
        holding.wait(20)

    with declare_reliable_publisher(
        session, "a/b", acknowledgements=1, queries_waiting_max=2
    ) as publisher:
        publisher.put(b"x").on_done(holds)
        acknowledge(session, publisher, (0, 0))
        assert held.wait(10)
        channels = [session.get(f"{publisher.source}/a/b", timeout=20) for _ in range(5)]
        wait_until(lambda: publisher.query_errors == 3)
        holding.set()
        assert sorted(len(list(channel)) for channel in channels) == [0, 0, 0, 1, 1]

"""Does the short way of an ordinary put come to the same as its event?"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from durable_cache.errors import LocalProtocolError
from durable_cache.model.clock import Moment
from durable_cache.model.sample import Kind, SourceId
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.protocol.publisher import engine as engine_module
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    AckReceived,
    AskEpochs,
    CacheAppeared,
    Declare,
    EngineOptions,
    EpochsUnknown,
    Event,
    Keep,
    Kept,
    Output,
    Put,
    Send,
    SendFailed,
    Sent,
    Started,
    Tick,
    TokenDeclared,
    TokenFailed,
)
from durable_cache.protocol.wire import Ack
from tests.kit.signals import at_call

SOURCE = SourceId("4f2a", 7)
START_NS = 1_700_000_000 * 10**9
STEP_NS = 400_000_000


class Way:
    """One engine, told of a history; `short`: puts go the short way wherever it is open."""

    def __init__(self, options: EngineOptions, *, spool: bool, short: bool) -> None:
        self.engine = PublisherEngine(
            SOURCE, "00000001", options, next_sn=2, spooled=() if spool else None
        )
        self.short = short
        self.now = Moment(5, START_NS)
        self.told: list[Any] = []
        """What came of everything, as values that can be compared."""
        self.token_fails = False
        self.went_short = 0
        self.tell(Started(self.now))

    def tell(self, event: Event) -> list[Output]:
        outputs = self.engine.handle(event)
        self.told += [_plain(output) for output in outputs]
        for output in outputs:
            if isinstance(output, AskEpochs):
                self.tell(EpochsUnknown(self.now))
            elif isinstance(output, Declare) and self.token_fails:
                self.tell(TokenFailed(output.incarnation))
            elif isinstance(output, Declare):
                self.tell(TokenDeclared(output.incarnation))
            elif isinstance(output, Keep):
                self.tell(Kept())
        return outputs

    def put(self, key: str, ends: str, acks: int) -> None:
        put = Put(key, Kind.PUT, b"x" * 3, "zenoh/bytes", b"a", 9, "4f2a", 13, self.now)
        send = _number(self.engine, put) if self.short else None
        if send is not None:
            self.went_short += 1
            self.told.append(_plain(send))
        elif not any(isinstance(out, Send) for out in self.tell(put)):
            return
        if acks:
            self.ack(acks)  # it may come before the call into Zenoh is over
        self.look()
        if ends == "fails":
            self.tell(SendFailed())
        elif self.short:
            self.engine.sent()
        else:
            self.tell(Sent())

    def ack(self, caches: int) -> None:
        engine = self.engine
        for cache in range(caches):
            ack = Ack(f"c{cache}", 2, SOURCE, engine.epoch, ((0, 3), (4, 9)), engine.incarnation)
            self.tell(AckReceived(ack))

    def pass_time(self) -> None:
        self.now = Moment(self.now.monotonic_ns + STEP_NS, self.now.unix_ns + STEP_NS)
        self.tell(Tick(self.now))

    def look(self) -> None:
        engine = self.engine
        self.told.append(
            (
                engine.kept(),
                engine.under_way,
                (engine.next_sn, engine.epoch, engine.incarnation, engine.incarnations()),
                (engine.unacknowledged, engine.unacknowledged_bytes, engine.unknown),
                (engine.has_room, engine.waits_since_ns(), engine.wake_ns()),
            )
        )


def _number(engine: PublisherEngine, put: Put) -> Send | None:
    return engine.number(put.form, put.payload, put.attachment, put.ntp64, put.now)


def _plain(output: Output) -> Any:
    """Return an output with what is known of its receipts at this moment."""
    if isinstance(output, Send):
        standing = output.standing
        return "send", output.sample, None if standing is None else _known(standing)
    return type(output), [_known(it) for it in getattr(output, "standings", ())] or output


def _known(standing: Any) -> Any:
    return standing.incarnation, standing.sn, dict(standing.caches), standing.done, standing.unknown


_PUTS = st.tuples(
    st.just("put"),
    st.sampled_from("ab"),
    st.sampled_from(["leaves", "leaves", "fails"]),
    st.sampled_from([0, 0, 1, 2]),
)
_OTHER = st.tuples(
    st.sampled_from(["ack", "time", "token", "cache"]),
    st.just(""),
    st.just(""),
    st.sampled_from([1, 2]),
)
_PUT = ("put", "a", "leaves", 0)


@given(
    history=st.sampled_from([None, 1, 3]),
    wanted=st.sampled_from([0, 1, 2]),
    room=st.sampled_from([2, 100]),
    window=st.sampled_from([None, 4_000]),
    spool=st.booleans(),
    steps=st.lists(_PUTS | _OTHER, max_size=25),
)
@example(1, 1, 2, None, False, [_PUT] * 4)  # no room
@example(1, 0, 2, None, False, [_PUT] * 9)  # a wrap
@example(1, 1, 100, None, True, [_PUT] * 2)  # a spool
@example(1, 0, 2, None, False, [_PUT] * 4 + [("token", "", "", 1)] + [_PUT] * 4)  # no token
def test_both_ways_of_a_put_come_to_the_same(
    history: int | None,
    wanted: int,
    room: int,
    window: int | None,
    spool: bool,
    steps: list[tuple[str, str, str, int]],
) -> None:
    options = EngineOptions(
        history=history,
        acknowledgements=wanted,
        unacknowledged_max=room,
        unacknowledged_seconds_max=3.0,
        pub_window_bytes=window,
    )
    modulus, engine_module.SOURCE_SN_MODULUS = engine_module.SOURCE_SN_MODULUS, 7
    try:
        told = [_play(Way(options, spool=spool, short=short), steps) for short in (False, True)]
    finally:
        engine_module.SOURCE_SN_MODULUS = modulus
    assert told[0] == told[1]


def _play(way: Way, steps: list[tuple[str, str, str, int]]) -> list[Any]:
    for kind, key, ends, count in steps:
        if kind == "put":
            way.put(key, ends, count)
        elif kind == "ack":
            way.ack(count)
        elif kind == "time":
            way.pass_time()
        elif kind == "cache":
            way.tell(CacheAppeared(f"c{count}"))
        else:
            way.token_fails = not way.token_fails
        way.look()
    return way.told


def test_an_ordinary_put_goes_the_short_way() -> None:
    way = Way(EngineOptions(acknowledgements=1), spool=False, short=True)
    for _ in range(5):
        way.put("a", "leaves", 1)
    assert way.went_short == 5


def test_one_put_at_a_time_goes_the_short_way() -> None:
    way = Way(EngineOptions(), spool=False, short=True)
    put = Put("a", Kind.PUT, b"", "zenoh/bytes", None, 9, "4f2a", 13, way.now)
    assert _number(way.engine, put) is not None
    assert _number(way.engine, put) is None
    way.engine.sent()
    try:
        way.engine.sent()
    except LocalProtocolError:
        return
    raise AssertionError("what was sent once is not sent again")


def test_what_is_acknowledged_takes_no_bytes() -> None:
    way = Way(EngineOptions(acknowledgements=2), spool=False, short=True)
    for _ in range(5):
        way.put("a", "leaves", 0)
    assert way.engine.unacknowledged_bytes > 0
    way.ack(1)
    assert way.engine.unacknowledged_bytes > 0
    way.ack(2)
    assert (way.engine.unacknowledged, way.engine.unacknowledged_bytes) == (0, 0)


@pytest.mark.parametrize("depth", [0, 2])
def test_wherever_ctrl_c_ends_a_put_its_sample_is_kept_once(depth: int) -> None:
    interrupted = number = 1
    while interrupted:
        way = Way(EngineOptions(depth, acknowledgements=1), spool=False, short=True)
        for _ in range(3):
            way.put("a", "leaves", 0)
        engine = way.engine
        put = Put("a", Kind.PUT, b"x", "zenoh/bytes", None, 9, "4f2a", 13, way.now)
        assert _number(engine, put) is not None
        try:
            with at_call(number, _ctrl_c):
                engine.sent()
        except KeyboardInterrupt:
            interrupted = number
        else:
            interrupted = 0
        if engine.under_way is not None:
            engine.handle(Sent())  # as the next put does
        assert [sample.sn for sample in engine.kept()] == [2, 3, 4, 5]
        page, _ = engine.read(Selection(sns=SnBounds(5, 5)), 9, None)
        assert [sample.sn for sample in page] == [5]
        number += 1
    assert number > 4


def _ctrl_c() -> None:
    raise KeyboardInterrupt

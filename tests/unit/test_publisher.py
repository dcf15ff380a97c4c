"""Does the publisher's engine number, keep and count as a naive model does, whatever comes?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from durable_cache.errors import LocalProtocolError
from durable_cache.model.clock import Moment
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.run_name import RunName, run_of
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.selection import Cursor, Order, Selection, SnBounds, TimeBounds
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame
from durable_cache.protocol.publisher import engine as engine_module
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    AckReceived,
    AskEpochs,
    Declare,
    EngineOptions,
    EpochsKnown,
    EpochsUnknown,
    Finished,
    Form,
    Full,
    Output,
    Put,
    Send,
    SendFailed,
    Sent,
    Standing,
    Started,
    TokenDeclared,
    TokenFailed,
)
from durable_cache.protocol.wire import AbsenceReason, Ack, incarnation_after, is_incarnation

SOURCE = SourceId("4f2a", 7)
OTHER = SourceId("4f2a", 8)
NOW = Moment(5, 1_700_000_000 * 10**9)
FRAME = frame(NOW.unix_ns)
MEMORY, PROCESS, DISK = 0, 1, 2


def put_event(payload: bytes = b"x", key: str = "a/b", ntp64: int = 1) -> Put:
    return Put(key, Kind.PUT, payload, "zenoh/bytes", None, ntp64, "4f2a", 13, NOW)


def test_what_it_puts_names_its_run_and_the_next_behind_a_wrap() -> None:
    engine = started(next_sn=SOURCE_SN_MODULUS - 1)
    form = Form("a/b", Kind.PUT, "zenoh/bytes", "", 13)
    runs: list[RunName | None] = []
    for _ in range(3):
        send = engine.number(form, b"x", None, 1, NOW)
        if send is None:
            outputs = engine.handle(Put.of(form, b"x", None, 1, NOW))
            declare(engine, outputs)
            (send,) = [one for one in outputs if isinstance(one, Send)]
        runs.append(run_of(send.sample))
        assert send.form.timestamp_id == engine.timestamp_id
        engine.handle(Sent())
    names = ["00000001", incarnation_after("00000001")]
    assert runs == [RunName(FRAME, names[0]), *2 * [RunName(FRAME + 1, names[1])]]


def test_a_timestamp_that_the_program_gives_keeps_its_clock() -> None:
    engine = started()
    outputs = engine.handle(put_event())
    (send,) = [one for one in outputs if isinstance(one, Send)]
    assert send.sample.timestamp_id == "4f2a"


def started(options: EngineOptions | None = None, next_sn: int = 0) -> PublisherEngine:
    engine = PublisherEngine(SOURCE, "00000001", options, next_sn=next_sn)
    outputs = engine.handle(Started(NOW))
    if outputs == [AskEpochs()]:
        outputs = engine.handle(EpochsUnknown(NOW))
    declare(engine, outputs)
    return engine


def declare(engine: PublisherEngine, outputs: list[Output]) -> None:
    for output in outputs:
        if isinstance(output, Declare):
            engine.handle(TokenDeclared(output.incarnation))


def put(engine: PublisherEngine, payload: bytes = b"x", key: str = "a/b", ntp64: int = 1) -> Send:
    outputs = engine.handle(put_event(payload, key, ntp64))
    declare(engine, outputs)
    send = outputs[-1]
    assert isinstance(send, Send)
    engine.handle(Sent())
    return send


def ack(
    engine: PublisherEngine, *runs: tuple[int, int], cache: str = "c1", level: int = DISK
) -> list[Standing]:
    outputs = engine.handle(
        AckReceived(Ack(cache, level, SOURCE, engine.epoch, runs, engine.incarnation))
    )
    return [
        standing
        for output in outputs
        if isinstance(output, Finished)
        for standing in output.standings
    ]


def sns(engine: PublisherEngine) -> list[int]:
    return [sample.sn for sample in engine.kept()]


@pytest.fixture
def wraps_at_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SOURCE_SN_MODULUS", 5)


# Epochs and tokens


def test_caches_are_asked_before_the_first_token() -> None:
    engine = PublisherEngine(SOURCE, "00000001")
    assert engine.handle(Started(NOW)) == [AskEpochs()]
    assert engine.handle(EpochsKnown(FRAME + 3, NOW)) == [Declare(FRAME + 4, "00000001")]


@pytest.mark.parametrize("highest", [0, FRAME - 1, (1 << 29) - 1, 1 << 60])
def test_lower_or_impossible_epochs_leave_the_clocks_frame(highest: int) -> None:
    engine = PublisherEngine(SOURCE, "00000001")
    engine.handle(Started(NOW))
    assert engine.handle(EpochsKnown(highest, NOW)) == [Declare(FRAME, "00000001")]


def test_an_epoch_already_known_in_this_frame_is_not_taken_again() -> None:
    engine = PublisherEngine(SOURCE, "00000001")
    engine.handle(Started(NOW))
    assert engine.handle(EpochsKnown(FRAME, NOW)) == [Declare(FRAME + 1, "00000001")]


def test_nobody_answering_is_no_reason_not_to_begin() -> None:
    engine = PublisherEngine(SOURCE, "00000001", EngineOptions(ask_epochs=False))
    assert engine.handle(Started(NOW)) == [Declare(FRAME, "00000001")]


def test_a_token_that_failed_is_declared_with_the_next_put() -> None:
    engine = PublisherEngine(SOURCE, "00000001")
    engine.handle(EpochsUnknown(NOW))
    engine.handle(TokenFailed("00000001"))
    assert engine.handle(put_event())[0] == Declare(FRAME, "00000001")
    engine.handle(SendFailed())
    assert engine.handle(put_event())[0] == Declare(FRAME, "00000001")
    engine.handle(TokenDeclared("00000001"))
    engine.handle(Sent())
    assert isinstance(engine.handle(put_event())[0], Send)


def test_a_wrap_declares_a_new_numbering_before_its_first_sample(wraps_at_five: None) -> None:
    engine = started(next_sn=4)
    last = put(engine).sample
    outputs = engine.handle(put_event())
    renamed = outputs[0]
    assert isinstance(renamed, Declare)
    assert isinstance(outputs[1], Send)
    first = outputs[1].sample
    assert (last.sn, first.sn) == (4, 0)
    assert first.epoch == renamed.epoch == last.epoch + 1
    assert renamed.incarnation != "00000001"
    assert is_incarnation(renamed.incarnation)


# Numbers


def test_a_put_that_fails_leaves_nothing_behind() -> None:
    engine = started(EngineOptions(acknowledgements=1))
    put(engine)
    engine.handle(put_event(b"phantom"))
    assert sns(engine) == [0], "not offered before it left"
    engine.handle(SendFailed())
    assert engine.unacknowledged == 1
    assert (sns(engine), engine.next_sn) == ([0], 1)
    again = put(engine, b"second")
    assert (again.sample.sn, again.sample.payload) == (1, b"second")
    assert len(ack(engine, (0, 1))) == 2


def test_one_put_at_a_time() -> None:
    engine = started()
    engine.handle(put_event())
    with pytest.raises(LocalProtocolError):
        engine.handle(put_event())
    engine.handle(Sent())
    for event in (Sent(), SendFailed()):
        with pytest.raises(LocalProtocolError):
            engine.handle(event)


# Receipts


def test_a_receipt_waits_for_as_many_caches_as_were_wanted() -> None:
    engine = started(EngineOptions(acknowledgements=2))
    standing = put(engine).standing
    assert standing is not None
    assert ack(engine, (0, 0), cache="c1") == []
    assert ack(engine, (0, 0), cache="c1") == [], "one cache twice is one cache"
    assert not standing.done
    assert ack(engine, (0, 0), cache="c2") == [standing]
    assert standing.done
    assert standing.caches == {"c1": DISK, "c2": DISK}


def test_a_lower_level_is_known_but_not_enough() -> None:
    engine = started(EngineOptions(acknowledgements=1, level=DISK))
    standing = put(engine).standing
    assert standing is not None
    assert ack(engine, (0, 0), level=PROCESS) == []
    assert standing.caches == {"c1": PROCESS}
    assert ack(engine, (0, 0), level=DISK) == [standing]
    assert standing.caches == {"c1": DISK}


def test_without_wishes_there_are_no_standings() -> None:
    engine = started()
    assert put(engine).standing is None
    assert ack(engine, (0, 0)) == []
    assert engine.unacknowledged == 0


def test_an_acknowledgement_may_come_before_the_send_returns() -> None:
    engine = started(EngineOptions(acknowledgements=1))
    outputs = engine.handle(put_event())
    assert isinstance(outputs[0], Send)
    assert ack(engine, (0, 0)) == [outputs[0].standing]
    engine.handle(Sent())
    assert (engine.unacknowledged, sns(engine)) == (0, [0])


def test_numbers_that_were_not_put_yet_are_not_acknowledged() -> None:
    engine = started(EngineOptions(acknowledgements=1))
    ack(engine, (0, 10))
    standing = put(engine).standing
    assert ack(engine, (0, 10)) == [standing]


def test_what_was_acknowledged_of_a_number_that_failed_does_not_count_for_the_next() -> None:
    engine = started(EngineOptions(acknowledgements=1))
    engine.handle(put_event())
    ack(engine, (0, 0))
    engine.handle(SendFailed())
    standing = put(engine).standing
    assert standing is not None
    assert not standing.done
    assert ack(engine, (0, 0)) == [standing]


def test_receipts_open_at_a_wrap_end_and_numbers_count_again(wraps_at_five: None) -> None:
    engine = started(EngineOptions(acknowledgements=1))
    old_epoch, old_name = engine.epoch, engine.incarnation
    before = [put(engine).standing for _ in range(5)]
    assert ack(engine, (0, 3)) == before[:4]
    after = [put(engine).standing for _ in range(5)]
    assert ack(engine, (0, 4)) == after
    late = engine.handle(AckReceived(Ack("c1", DISK, SOURCE, old_epoch, ((0, 4),), old_name)))
    assert late == [Finished((before[4],))]  # type: ignore[arg-type]
    assert engine.unacknowledged == 0


@pytest.mark.parametrize(
    ("source", "epoch", "incarnation", "counts"),
    [
        (SOURCE, FRAME, "00000001", True),
        (SOURCE, FRAME + 9, "00000001", True),
        (SOURCE, FRAME, "", False),  # of whichever run began in that frame
        (SOURCE, FRAME, "00000002", False),
        (OTHER, FRAME, "00000001", False),
    ],
)
def test_acks_of_another_run_or_source_do_not_count(
    source: SourceId, epoch: int, incarnation: str, counts: bool
) -> None:
    engine = started(EngineOptions(acknowledgements=1))
    put(engine)
    outputs = engine.handle(AckReceived(Ack("c1", DISK, source, epoch, ((0, 0),), incarnation)))
    assert bool(outputs) is counts


def test_a_run_of_any_length_costs_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(EngineOptions(acknowledgements=1), next_sn=(1 << 32) - 3)
    standings = [put(engine).standing for _ in range(3)]
    assert ack(engine, (0, (1 << 35) - 2)) == standings


# What is kept


def test_the_history_keeps_the_newest() -> None:
    engine = started(EngineOptions(history=3))
    for _ in range(5):
        put(engine)
    assert sns(engine) == [2, 3, 4]


def test_unacknowledged_samples_are_kept_beyond_the_history() -> None:
    engine = started(EngineOptions(history=2, acknowledgements=1))
    for _ in range(6):
        put(engine)
    assert sns(engine) == [0, 1, 2, 3, 4, 5]
    ack(engine, (1, 2))
    assert sns(engine) == [0, 3, 4, 5]
    ack(engine, (0, 5))
    assert sns(engine) == [4, 5]
    put(engine)
    assert sns(engine) == [5, 6]


def test_without_a_history_nothing_is_offered() -> None:
    engine = started(EngineOptions(history=None, acknowledgements=1))
    put(engine)
    assert engine.kept() == []
    assert engine.read(Selection(), 10, None) == ([], None)
    assert len(ack(engine, (0, 0))) == 1


def test_a_put_beyond_the_bound_is_not_taken() -> None:
    engine = started(EngineOptions(acknowledgements=1, unacknowledged_max=2))
    put(engine)
    put(engine)
    assert engine.handle(put_event()) == [Full(2)]
    assert engine.next_sn == 2
    ack(engine, (0, 0))
    assert put(engine).sample.sn == 2


def test_a_publisher_that_wants_no_acknowledgements_is_never_full() -> None:
    engine = started(EngineOptions(unacknowledged_max=1))
    for _ in range(3):
        put(engine)
    assert engine.next_sn == 3


def test_forged_caches_do_not_grow_what_is_remembered() -> None:
    engine = started(EngineOptions(acknowledgements=1, acknowledgers_max=4))
    for sn in range(20):
        put(engine)
        ack(engine, (sn, sn), cache=f"forged-{sn}", level=MEMORY)
    assert len(engine._numbering.seen) == 4
    assert len(ack(engine, (0, 19), cache="c1")) == 20


# What its own cache answers


def history_of(keys: list[str], depth: int = 100) -> PublisherEngine:
    engine = started(EngineOptions(history=depth))
    for at, key in enumerate(keys):
        put(engine, b"%d" % at, key, ntp64=at + 1)
    return engine


def pages(engine: PublisherEngine, selection: Selection, limit: int) -> Iterator[list[Sample]]:
    cursor: Cursor | None = None
    while True:
        page, cursor = engine.read(selection, limit, cursor)
        yield page
        if cursor is None:
            return


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("order", Order)
def test_pages_hold_everything_once_in_order(limit: int, order: Order) -> None:
    engine = history_of(["b", "a", "b", "a", "c"])
    found = [s for page in pages(engine, Selection(order=order), limit) for s in page]
    wanted = [1, 3, 0, 2, 4] if order is Order.IDENTITY else [0, 1, 2, 3, 4]
    assert [sample.sn for sample in found] == wanted


def test_the_newest_are_of_each_key() -> None:
    engine = history_of(["a", "b", "a", "a", "b"])
    page, more = engine.read(Selection(newest=1, order=Order.TIME), 100, None)
    assert ([sample.sn for sample in page], more) == ([3, 4], None)


@pytest.mark.parametrize("bounds", [(3, 4), (0, 99), (8, 30), (99, 100)])
def test_numbers_are_found(bounds: tuple[int, int]) -> None:
    engine = history_of(["a"] * 12, depth=10)
    page, _ = engine.read(Selection(KeyExpression("a"), sns=SnBounds(*bounds)), 100, None)
    assert [s.sn for s in page] == [n for n in range(2, 12) if bounds[0] <= n <= bounds[1]]


def test_numbers_of_both_sides_of_a_wrap_are_found(wraps_at_five: None) -> None:
    engine = started(EngineOptions(history=8))
    for _ in range(12):
        put(engine)
    page, _ = engine.read(Selection(sns=SnBounds(1, 2)), 100, None)
    epochs = sorted({sample.epoch for sample in engine.kept()})
    assert [(s.epoch - epochs[0], s.sn) for s in page] == [(1, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize("depth", [0, 1, 5, 20])
def test_a_few_numbers_of_many_are_found(depth: int) -> None:
    engine = started(EngineOptions(history=depth, acknowledgements=1), next_sn=3)
    for _ in range(12):
        put(engine)
    acked = Ack("c", DISK, SOURCE, engine.epoch, ((4, 6), (9, 9)), engine.incarnation)
    engine.handle(AckReceived(acked))
    kept = [sample.sn for sample in engine.kept()]
    for first in range(18):
        for last in range(first, 18):
            page, _ = engine.read(Selection(sns=SnBounds(first, last)), 100, None)
            assert [s.sn for s in page] == [sn for sn in kept if first <= sn <= last]


def test_numbers_under_other_keys_are_named_where_numbers_are_asked_for() -> None:
    engine = history_of(["a", "b", "b", "a", "b"])
    asked = Selection(KeyExpression("a"), *SOURCE, sns=SnBounds(1, None))
    assert [(run.first, run.last, run.reason) for run in engine.absences(asked)] == [
        (1, 2, AbsenceReason.OTHER_KEY),
        (4, 4, AbsenceReason.OTHER_KEY),
    ]
    for other in (
        Selection(KeyExpression("a"), *SOURCE),
        Selection(KeyExpression("a"), *OTHER, sns=SnBounds(1, None)),
        Selection(KeyExpression("a"), sns=SnBounds(1, None)),
        Selection(KeyExpression("a"), *SOURCE, sns=SnBounds(1, None), newest=1),
        Selection(KeyExpression("a"), *SOURCE, sns=SnBounds(1, None), times=TimeBounds(5, 9)),
    ):
        assert engine.absences(other) == ()


def test_a_wildcard_update_is_given_to_who_asks_for_a_key_that_it_is_about() -> None:
    engine = history_of(["a/b", "a/**", "b/*", "a/c"])
    asked = Selection(KeyExpression("a/b"), *SOURCE, sns=SnBounds(0, 3))
    page, _ = engine.read(asked, 100, None)
    assert {sample.sn for sample in page} == {0, 1}
    assert [(run.first, run.last) for run in engine.absences(asked)] == [(2, 3)]


# Everything together, against a model that keeps all it ever saw


@dataclass
class _Put:
    sample: Sample
    standing: Standing | None
    incarnation: str
    caches: dict[str, int] = field(default_factory=dict)

    def done(self, wanted: int, level: int) -> bool:
        return sum(at >= level for at in self.caches.values()) >= wanted


class PublisherMachine(RuleBasedStateMachine):
    """Puts, failed puts, wraps, and acknowledgements true, late, of others and of nothing."""

    @initialize(
        history=st.sampled_from([None, 1, 3, 10]),
        wanted=st.integers(0, 3),
        level=st.integers(0, 2),
        bound=st.sampled_from([4, 20]),
        first=st.integers(0, 6),
        acknowledgers=st.sampled_from([1, 2, 50]),
    )
    def begin(
        self,
        history: int | None,
        wanted: int,
        level: int,
        bound: int,
        first: int,
        acknowledgers: int,
    ) -> None:
        self.modulus, engine_module.SOURCE_SN_MODULUS = engine_module.SOURCE_SN_MODULUS, 7
        self.options = EngineOptions(history, wanted, level, bound, acknowledgers)
        self.engine = started(self.options, next_sn=first)
        self.puts: list[_Put] = []
        self.under_way: _Put | None = None
        self.finished: list[Standing] = []
        self.numberings = [(self.engine.epoch, self.engine.incarnation)]

    def teardown(self) -> None:
        engine_module.SOURCE_SN_MODULUS = self.modulus

    def waiting(self) -> list[_Put]:
        begun = [*self.puts, *([self.under_way] if self.under_way else [])]
        return [
            one for one in begun if not one.done(self.options.acknowledgements, self.options.level)
        ]

    @precondition(lambda self: self.under_way is None)
    @rule(key=st.sampled_from("ab"))
    def put(self, key: str) -> None:
        full = (
            self.options.acknowledgements and len(self.waiting()) >= self.options.unacknowledged_max
        )
        before = self.engine.next_sn
        outputs = self.engine.handle(put_event(key=key, ntp64=len(self.puts) + 1))
        if full:
            assert outputs == [Full(len(self.waiting()))]
            return
        declared = [output for output in outputs if isinstance(output, Declare)]
        if before >= 7:
            assert [(d.epoch, d.incarnation) for d in declared] == [
                (self.engine.epoch, self.engine.incarnation)
            ] or not declared
        if (self.engine.epoch, self.engine.incarnation) != self.numberings[-1]:
            assert before == 7
            self.numberings.append((self.engine.epoch, self.engine.incarnation))
        declare(self.engine, outputs)
        send = outputs[-1]
        assert isinstance(send, Send)
        assert send.sample.sn == before % 7
        assert (send.standing is not None) == (self.options.acknowledgements > 0)
        self.under_way = _Put(send.sample, send.standing, self.engine.incarnation)

    @precondition(lambda self: self.under_way is not None)
    @rule(leaves=st.booleans())
    def ends(self, leaves: bool) -> None:
        assert self.under_way is not None
        if leaves:
            self.engine.handle(Sent())
            self.puts.append(self.under_way)
        else:
            self.engine.handle(SendFailed())
        self.under_way = None

    @precondition(lambda self: self.options.acknowledgements > 0)
    @rule(
        cache=st.sampled_from(["c1", "c2", "c3", "c4"]),
        level=st.integers(0, 2),
        numbering=st.integers(0, 9),
        named=st.sampled_from(["incarnation", "epoch alone", "wrong", "other source"]),
        runs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=3),
    )
    def ack(
        self, cache: str, level: int, numbering: int, named: str, runs: list[list[int]]
    ) -> None:
        epoch, incarnation = self.numberings[-1 - numbering % len(self.numberings)]
        message = Ack(
            cache,
            level,
            OTHER if named == "other source" else SOURCE,
            epoch if named == "epoch alone" else 1,
            tuple((first, last) for first, last in runs),
            {"epoch alone": "", "wrong": "ffffffff"}.get(named, incarnation),
        )
        newly = []
        if named == "incarnation":
            for one in self.waiting():
                if one.incarnation == incarnation and any(
                    first <= one.sample.sn <= last for first, last in runs
                ):
                    one.caches[cache] = max(level, one.caches.get(cache, level))
                    if one.done(self.options.acknowledgements, self.options.level):
                        newly.append(one.standing)
        outputs = self.engine.handle(AckReceived(message))
        told: list[Any] = [s for output in outputs for s in getattr(output, "standings", ())]
        assert sorted(map(id, told)) == sorted(map(id, newly))

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "engine"):
            return
        options, engine = self.options, self.engine
        wanted = options.acknowledgements
        waiting = self.waiting() if wanted else []
        assert engine.unacknowledged == len(waiting) <= options.unacknowledged_max
        sent = self.puts
        kept = []
        if options.history is not None:
            newest = {id(one) for one in sent[-options.history :]}
            kept = [s.sample for s in sent if id(s) in newest or (wanted and s in waiting)]
        assert engine.kept() == kept
        for one in (*sent, *([self.under_way] if self.under_way else [])):
            if one.standing is not None:
                assert one.standing.caches == one.caches
                assert one.standing.done == (one not in waiting)
        identities = [(one.sample.epoch, one.sample.sn) for one in sent]
        assert len(set(identities)) == len(identities)
        assert len(set(self.numberings)) == len(self.numberings)


TestPublisher = PublisherMachine.TestCase

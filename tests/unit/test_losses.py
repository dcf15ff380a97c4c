"""Are losses counted as a person with a list would, and told as RaiMS's text says?"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.endpoints.session import close_session, open_session
from durable_cache.endpoints.subscriber.tables import ConsumerCounts, by_consumer
from durable_cache.errors import ConfigError, RemoteProtocolError
from durable_cache.model.sample import Sample, SampleAfterMiss, SourceId
from durable_cache.protocol.advisories import (
    Advisories,
    LossAdvisory,
    check_user,
    decode_advisory,
    encode_advisory,
    loss_key,
    parse_any_user_token,
    parse_user_token,
    user_token,
)
from durable_cache.protocol.cache.events import EngineOptions, FetchEnded
from durable_cache.protocol.losses import (
    OTHERS,
    Losses,
    LossRow,
    LossTable,
    decode_rows,
    encode_rows,
    encode_table,
)
from durable_cache.protocol.modes import Passed
from durable_cache.protocol.subjects import SubjectCounts
from durable_cache.protocol.subscriber.events import DeliveryOptions, FetchFailed
from durable_cache.runtime.core import CoreOptions
from durable_cache.service.advised import Advised
from durable_cache.service.measured import ModeRates, by_mode
from tests.unit.driven import DrivenCache
from tests.unit.subscriber_reader import BEGAN_NS, OTHER, SOURCE, Reader, sample

SECOND = 1_000_000_000
NAMELESS = str(SOURCE)


def row_of(losses: Losses, source: SourceId | None = SOURCE) -> LossRow:
    return next(row for row in losses.rows() if row.source == source)


def alone() -> Reader:
    """Return a subscriber that asks nobody."""
    return Reader(DeliveryOptions(recovery=False))


# RaiMS, "Message Loss": what may be so when a number is not the next one


def test_under_normal_conditions_each_number_is_one_greater_and_nothing_is_counted() -> None:
    reader = alone()
    reader.live(*map(sample, range(5)))
    assert row_of(reader.engine.losses) == LossRow(SOURCE, NAMELESS)


def test_the_first_message_received_is_no_loss() -> None:
    reader = alone()
    reader.live(sample(766))
    assert reader.story == [766]
    assert row_of(reader.engine.losses).lost == 0


def test_a_number_at_or_below_the_last_was_processed_and_is_dropped() -> None:
    reader = alone()
    reader.live(*map(sample, range(5)))
    reader.seconds = 2.0
    reader.live(sample(4), sample(2))
    assert reader.story == [0, 1, 2, 3, 4]
    row = row_of(reader.engine.losses)
    assert (row.repeats, row.repeat_ns) == (2, BEGAN_NS + 2 * SECOND)
    assert row.lost == 0


def test_a_number_that_waits_and_comes_again_is_a_repeat() -> None:
    reader = Reader()
    reader.live(sample(0), sample(2), sample(2))
    assert row_of(reader.engine.losses).repeats == 1


def test_what_caches_give_twice_is_no_repeat_of_a_publication() -> None:
    reader = Reader()
    reader.live(sample(0), sample(3))
    reader.answer(sample(1), sample(1), sample(2))
    assert reader.story == [0, 1, 2, 3]
    assert row_of(reader.engine.losses).repeats == 0


def test_a_sequence_that_skips_ahead_tells_how_many_are_lost_and_when() -> None:
    reader = alone()
    reader.seconds = 3.0
    reader.live(sample(0), sample(767))
    assert reader.story == [0, (1, 766), 767]
    assert [one for one in reader.story if isinstance(one, tuple)] == [(1, 766)]


def test_a_question_without_an_answer_is_lost_from_the_inbox() -> None:
    reader = Reader()
    reader.live(sample(0), sample(2))
    (fetch,) = reader.fetches
    reader.seconds = 1.0
    reader.handle(FetchFailed(fetch.fetch_id, reader.now))
    row = row_of(reader.engine.losses)
    assert (row.inbox_lost, row.inbox_ns, row.lost) == (1, BEGAN_NS + SECOND, 0)


def test_an_answer_with_an_error_is_lost_from_the_inbox_too() -> None:
    reader = Reader()
    reader.live(sample(0), sample(2))
    reader.answer(sample(1), whole=False)
    assert row_of(reader.engine.losses).inbox_lost == 1
    assert reader.story == [0, 1, 2]


# "Notification of message loss": it is forwarded with how many are missing, if that can be told


def marked(losses: Losses, *sns: int, unsure: bool = False) -> list[int | None]:
    return [s.missed_before for s in losses.after_misses([*map(sample, sns)], unsure=unsure)]


def test_the_first_sample_after_a_loss_bears_how_many_are_missing() -> None:
    losses = Losses(10)
    losses.lost(SOURCE, 3)
    losses.lost(SOURCE, 4)
    theirs = sample(5, source=OTHER)
    passed = losses.after_misses([theirs, sample(8), sample(9)], unsure=False)
    assert [s.missed_before for s in passed] == [0, 7, 0]
    assert passed[0] is theirs
    assert marked(losses, 10) == [0]


def test_what_nobody_can_count_is_none_and_only_before_the_first() -> None:
    losses = Losses(10)
    assert marked(losses, 0, 1, unsure=True) == [None, 0]
    losses.lost(SOURCE, 2)
    assert marked(losses, 4, 5, unsure=True) == [None, 0]
    assert marked(losses, 6) == [0]


def test_a_marked_sample_is_the_sample_on_the_wire() -> None:
    told = SampleAfterMiss.of(sample(3), 7)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Sample) == sample(3)
    assert (told.identity, sample(3).missed_before) == (sample(3).identity, 0)


def test_a_restart_whose_end_nobody_told_is_unsure() -> None:
    reader = alone()
    reader.live(sample(5), sample(6))
    reader.live(sample(0, at=100.0))
    assert reader.story == [5, 6, 0]
    assert reader.unsure == [0]


def test_a_restart_whose_end_a_cache_told_is_sure() -> None:
    reader = Reader()
    reader.live(sample(5), sample(6))
    reader.live(sample(0, at=100.0))
    reader.answer()
    assert reader.story == [5, 6, 0]
    assert reader.unsure == []


# "Show loss": a row for each peer

COUNTED = st.lists(
    st.tuples(
        st.sampled_from(["repeated", "lost", "unanswered", "unsubscribed", "seen", "name"]),
        st.integers(0, 5),
        st.integers(1, 9),
    ),
    max_size=60,
)


def source(number: int) -> SourceId:
    return SourceId("ab", number + 1)


@given(COUNTED, st.integers(1, 7))
def test_rows_are_what_a_list_would_say_and_sums_are_exact(
    steps: list[tuple[str, int, int]], sources_max: int
) -> None:
    losses = Losses(sources_max)
    naive: dict[str, Counter[SourceId]] = defaultdict(Counter)
    last: dict[tuple[str, SourceId], int] = {}
    for at, (what, number, count) in enumerate(steps, 1):
        one, losses.now_ns = source(number), at
        match what:
            case "repeated":
                losses.repeated(one, count)
            case "lost":
                losses.lost(one, count)
            case "unanswered":
                losses.unanswered(one)
                count = 1
            case "unsubscribed":
                losses.unsubscribed([sample(sn, source=one) for sn in range(count)])
            case "seen":
                losses.seen(one)
            case _:
                losses.name(one, f"B.{number}")
        naive[what][one] += count
        last[what, one] = at
    rows = losses.rows()
    fields = {
        "repeated": ("repeats", "repeat_ns"),
        "lost": ("lost", "lost_ns"),
        "unanswered": ("inbox_lost", "inbox_ns"),
        "unsubscribed": ("unsubscribed", "unsubscribed_ns"),
    }
    for what, (field, time_field) in fields.items():
        assert sum(getattr(row, field) for row in rows) == naive[what].total()
        times = [at for (named, _), at in last.items() if named == what]
        assert max((getattr(row, time_field) for row in rows), default=0) == max(times, default=0)
    assert len([row for row in rows if row.source is not None]) <= sources_max
    if sources_max >= 6:
        for row in rows:
            assert row.source is not None
            for what, (field, time_field) in fields.items():
                assert getattr(row, field) == naive[what][row.source]
                assert getattr(row, time_field) == last.get((what, row.source), 0)
            named = ("name", row.source) in last
            assert row.user == (f"B.{row.source.eid - 1}" if named else str(row.source))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 4)), max_size=40))
def test_each_loss_is_borne_by_one_sample(steps: list[tuple[bool, int, int]]) -> None:
    losses, due = Losses(10), Counter[SourceId]()
    for is_loss, number, count in steps:
        one = source(number)
        if is_loss:
            losses.lost(one, count)
            due[one] += count
            continue
        samples = [sample(sn, source=one) for sn in range(count)]
        passed = losses.after_misses(samples, unsure=False)
        assert [s.missed_before for s in passed] == [due.pop(one, 0), *[0] * (count - 1)]


def test_sources_without_a_loss_have_rows_only_while_there_is_room() -> None:
    losses = Losses(1)
    losses.lost(SOURCE, 2)
    losses.seen(OTHER)
    assert [row.source for row in losses.rows()] == [SOURCE]
    losses.repeated(OTHER)
    others, theirs = sorted(losses.rows(), key=lambda row: row.source is not None)
    assert (others.user, others.lost, theirs.source) == (OTHERS, 2, OTHER)


def test_a_question_about_no_source_is_counted() -> None:
    losses = Losses(1)
    losses.unanswered(None)
    assert row_of(losses, None) == LossRow(None, OTHERS, inbox_lost=1)


def test_a_table_is_read_as_it_was_written() -> None:
    rows = (LossRow(SOURCE, "B.1", 1, 2, 3, 4, 5, 6, 7, 8, 9), LossRow(None, OTHERS, lost=1))
    table = encode_rows("ab12:9", "a/**", rows)
    assert decode_rows(table) == LossTable("ab12:9", "a/**", rows)


def test_what_was_counted_of_subjects_is_in_the_table() -> None:
    counts = SubjectCounts(subjects=3, joined=2, perhaps_incomplete=1, lost=7)
    table = decode_rows(encode_rows("ab12:9", "a/**", (), subjects=counts))
    assert table.at("x").naming({}).subjects == counts
    member = LossTable("ab12:9", "a/**", (), consumer="bill", processed_twice=3)
    assert decode_rows(encode_table(member)) == member
    with pytest.raises(RemoteProtocolError):
        decode_rows(encode_table(LossTable("ab12:9", "a/**", (), processed_twice=-1)))
    bad = encode_rows("ab12:9", "a/**", (), subjects=SubjectCounts(lost=-1))
    with pytest.raises(RemoteProtocolError):
        decode_rows(bad)
    earlier = decode_rows(b'{"name":"x","key_expr":"a","rows":[]}')
    assert earlier.subjects == SubjectCounts()


def test_a_table_of_an_earlier_version_is_read() -> None:
    table = encode_rows("ab12:9", "a/**", (LossRow(SOURCE, "B.1", lost=2),))
    (row,) = decode_rows(table.replace(b',"delivered":0', b"")).rows
    assert (row.lost, row.delivered) == (2, 0)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b'{"name":"x","key_expr":"a","rows":[{}]}',
        encode_rows("x", "a", (LossRow(SOURCE, "u", lost=-1),)),
        encode_rows("x", "a", (LossRow(SOURCE, "u"),)).replace(b"ab12:7", b"nobody"),
        b"[" * 100_000,
    ],
)
def test_what_is_no_table_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_rows(payload)


# Ockam, "Reliability and uniqueness", of what was passed on


def test_rates_of_the_texts_picture() -> None:
    losses = Losses(10)
    losses.passed_on([*map(sample, range(3))])
    losses.lost(SOURCE, 1)
    losses.repeated(SOURCE)
    assert row_of(losses).rates == (0.75, 0.75)
    assert row_of(losses).delivered == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=30), st.integers(1, 7))
def test_what_is_passed_on_is_counted_once_by_source(
    batches: list[tuple[int, int]], sources_max: int
) -> None:
    losses, naive = Losses(sources_max), Counter[SourceId]()
    for number, count in batches:
        of_both = [source(number), source((number + 1) % 6)]
        losses.passed_on([sample(sn, source=of_both[sn % 2]) for sn in range(count)])
        naive.update(of_both[sn % 2] for sn in range(count))
    rows = losses.rows()
    assert sum(row.delivered for row in rows) == naive.total()
    if sources_max >= 6:
        assert {row.source: row.delivered for row in rows} == naive


def test_what_was_not_passed_on_or_has_no_number_has_no_rates() -> None:
    losses = Losses(10)
    losses.repeated(SOURCE)
    losses.lost(SOURCE, 2)
    losses.passed_on([sample(1, source=SourceId("ab", 0))])
    assert [row.rates for row in losses.rows()] == [None]


# "RV protocol": the advisory, throttled so that one is published a second after the first one

OF_THE_TEXT = [
    *("RSF.REC.PAC.NaE", "RSF.REC.MTC.NaE", "RSF.REC.MCD.NaE", "RSF.REC.MCD.N"),
    *("RSF.REC.SPM4.NaE", "RSF.REC.MER.NaE", "RSF.REC.MER.N"),
]


def test_the_advisory_of_the_text() -> None:
    advisories = Advisories(SOURCE, 100)
    assert advisories.wake_ns() is None
    for subject in OF_THE_TEXT:
        advisories.lost(subject, 1)
    assert advisories.wake_ns() == 0
    advisory = advisories.take(0)
    assert advisory is not None
    fields = json.loads(encode_advisory(advisory))
    assert list(fields.items())[:8] == [
        ("ADV_CLASS", "ERROR"),
        ("ADV_SOURCE", "SYSTEM"),
        ("ADV_NAME", "DATALOSS.INBOUND.BCAST"),
        ("ADV_DESC", "lost msgs"),
        ("lost", 7),
        ("sub_cnt", 7),
        ("sub1", "RSF.REC.PAC.NaE"),
        ("lost1", 1),
    ]
    assert (fields["sub7"], fields["lost7"]) == ("RSF.REC.MER.N", 1)
    assert (fields["subscriber"], fields["total"]) == (str(SOURCE), 7)
    assert decode_advisory(encode_advisory(advisory)) == advisory


@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 4), st.integers(1, 9)), max_size=60),
    st.integers(1, 6),
)
def test_the_first_at_once_then_one_a_second_and_nothing_is_left_out(
    steps: list[tuple[int, int, int]], keys_max: int
) -> None:
    advisories, now_ns = Advisories(SOURCE, keys_max), 0
    told: list[tuple[int, LossAdvisory]] = []
    per_key: Counter[str] = Counter()
    for milliseconds, number, count in steps:
        until_ns = now_ns + milliseconds * 1_000_000
        wake_ns = advisories.wake_ns()
        if wake_ns is not None and wake_ns <= until_ns:
            assert wake_ns > now_ns
            advisory = advisories.take(wake_ns)
            assert advisory is not None
            told.append((wake_ns, advisory))
        now_ns = until_ns
        waited = advisories.wake_ns() is not None
        advisories.lost(f"k/{number}", count)
        per_key[f"k/{number}"] += count
        advisory = advisories.take(now_ns)
        if advisory is not None:
            told.append((now_ns, advisory))
        elif not waited:
            assert now_ns - told[-1][0] < SECOND
    assert all(later[0] - one[0] >= SECOND for one, later in pairwise(told))
    last = advisories.take(now_ns, at_once=True)
    told += [] if last is None else [(now_ns, last)]
    assert advisories.take(now_ns, at_once=True) is None
    assert advisories.wake_ns() is None
    assert sum(one.lost for _, one in told) == per_key.total()
    assert [one.total for _, one in told] == [
        sum(one.lost for _, one in told[: at + 1]) for at in range(len(told))
    ]
    assert all(len(one.keys) <= keys_max for _, one in told)
    if keys_max >= 5:
        named: Counter[str] = Counter()
        for _, one in told:
            named.update(dict(one.keys))
        assert named == per_key


@pytest.mark.parametrize(
    "changed",
    [
        {"lost": -1},
        {"lost": 0},
        {"total": 1},
        {"sub_cnt": 9},
        {"lost1": "many"},
        {"sub1": 3},
        {"subscriber": "nobody"},
    ],
)
def test_what_is_no_advisory_is_refused(changed: dict[str, object]) -> None:
    sound = encode_advisory(LossAdvisory(SOURCE, 3, 3, (("a/b", 3),)))
    assert decode_advisory(sound).lost == 3
    with pytest.raises(RemoteProtocolError, match="advisory"):
        decode_advisory(json.dumps(json.loads(sound) | changed).encode())


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff", b" " * ((1 << 20) + 1)])
def test_what_cannot_be_read_is_no_advisory(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="advisory"):
        decode_advisory(payload)


# "user": the publisher's name


@pytest.mark.parametrize("name", ["B.1", "é", "x" * 64])
def test_a_name_goes_through_a_token(name: str) -> None:
    assert check_user(name) == name
    assert parse_user_token(user_token("d", SOURCE, name), "d") == (SOURCE, name)
    assert parse_user_token(user_token("d", SOURCE, name), "other") is None


@pytest.mark.parametrize("name", ["", "a/b", "a*", "$", "a?", "#", "@x", "a b", "x" * 65, 7, "\n"])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="name"):
        check_user(name)
    if isinstance(name, str):
        assert parse_user_token(user_token("d", SOURCE, name), "d") is None


def test_a_table_shows_names_in_place_of_source_ids() -> None:
    rows = (LossRow(SOURCE, NAMELESS, lost=1), LossRow(OTHER, "C.4"), LossRow(None, OTHERS))
    named = LossTable("lab", "a", rows).at("lab@ab").naming({SOURCE: "B.1", OTHER: "no"})
    assert (named.name, named.key_expr) == ("lab@ab", "a")
    assert [row.user for row in named.rows] == ["B.1", "C.4", OTHERS]
    assert parse_any_user_token(user_token("a/b", SOURCE, "B.1")) == (SOURCE, "B.1")


@pytest.mark.parametrize(
    "key", ["@durable/v1/d/users/ab12:7/B.1", "x/v1/d/user/ab12:7/B.1", "user/ab12:7/B.1", "B.1"]
)
def test_what_is_no_token_of_a_name_in_any_domain(key: str) -> None:
    assert parse_any_user_token(key) is None


# A cache counts alike


def test_a_cache_counts_repeats_of_publications_and_what_it_gave_up() -> None:
    cache = DrivenCache(options=CoreOptions(engine=EngineOptions(gap_timeout_seconds=5)))
    cache.take([sample(0), sample(3)])
    cache.wait(1.0)
    cache.take([sample(3)])
    row = row_of(cache.core.counts.losses)
    assert (row.repeats, row.lost) == (1, 0)
    assert row.repeat_ns > 0
    (fetch, *_) = cache.fetches
    cache.give(FetchEnded(fetch.fetch_id, cache.now))
    cache.wait(30.0, 0.5)
    row = row_of(cache.core.counts.losses)
    assert (row.repeats, row.lost) == (1, 2)
    assert row.lost_ns > row.repeat_ns


def test_a_cache_counts_questions_without_an_answer() -> None:
    cache = DrivenCache()
    cache.take([sample(0), sample(3)])
    cache.wait(1.0)
    (fetch, *_) = cache.fetches
    cache.give(FetchEnded(fetch.fetch_id, cache.now, failed=True))
    row = row_of(cache.core.counts.losses)
    assert (row.inbox_lost, row.inbox_ns) == (1, cache.now.unix_ns)
    cache.wait(10.0)
    cache.give(FetchEnded(cache.fetches[-1].fetch_id, cache.now))
    assert row_of(cache.core.counts.losses).inbox_lost == 1


def test_a_service_adds_up_what_subscribers_say() -> None:
    alone = {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    session = open_session(alone)
    advised = Advised(session, "d")
    for subscriber, total in ((SOURCE, 3), (OTHER, 4), (SOURCE, 9), (SOURCE, 8)):
        advised.heard(encode_advisory(LossAdvisory(subscriber, 1, total, ())))
    advised.heard(b"noise")
    assert (advised.lost, advised.unreadable) == (13, 1)
    for eid in range(10_001):
        advised.heard(encode_advisory(LossAdvisory(SourceId("ef", eid), 1, 1, ())))
    assert advised.lost == 13 + 10_001
    advised.close()
    close_session(session)


def test_no_token_of_a_name() -> None:
    assert parse_user_token("@durable/v1/d/user/nobody/B.1", "d") is None
    assert parse_user_token("@durable/v1/d/user/ab12:7", "d") is None
    assert loss_key("d", SOURCE) == "@durable/v1/d/loss/ab12:7"


def test_what_came_after_all_is_lost_no_more_in_the_row_of_all_others_too() -> None:
    losses = Losses(1)
    losses.lost(SOURCE, 3)
    losses.lost(OTHER, 1)  # there is room for one
    losses.passed_on([sample(0), sample(1)], Passed.FOUND)
    rows = losses.rows()
    assert sum(row.lost for row in rows) == 2
    assert sum(row.delivered for row in rows) == 2
    assert all(row.lost >= 0 for row in rows)
    assert decode_rows(encode_rows("x", "a", rows)).rows == tuple(rows)


def test_a_sample_bears_what_was_lost_less_what_came_after_all() -> None:
    losses = Losses(10)
    losses.lost(SOURCE, 3)
    losses.passed_on([sample(2)], Passed.FOUND)
    (late,) = losses.after_misses([sample(2)], unsure=False)
    assert late.missed_before == 2


def test_subscribers_are_summed_up_by_their_mode() -> None:
    first = LossTable("a", "k", (LossRow(SOURCE, "u", delivered=3, repeats=1),), "exactly-once")
    second = LossTable("b", "k", (LossRow(OTHER, "v", delivered=1, lost=4),), "exactly-once")
    idle = LossTable("c", "k", (), "unreliable")
    assert by_mode([idle, first, second]) == (
        ModeRates("exactly-once", 2, 4, 1, 4, 4 / 8, 4 / 5),
        ModeRates("unreliable", 1, 0, 0, 0, None, None),
    )
    table = decode_rows(encode_rows(first.name, first.key_expr, first.rows, first.mode))
    assert table.naming({SOURCE: "w"}).at("d").mode == "exactly-once"


def test_members_are_summed_up_by_their_consumer_and_other_subscribers_are_none() -> None:
    tables = [
        LossTable("a", "k", (), consumer="ship", processed_twice=2),
        LossTable("b", "k", (), consumer="bill", processed_twice=0),
        LossTable("c", "k", ()),
        LossTable("d", "k", (), consumer="ship", processed_twice=5),
    ]
    assert by_consumer(tables) == (ConsumerCounts("bill", 1, 0), ConsumerCounts("ship", 2, 7))


def test_what_nobody_confirmed_counts_as_received_and_not_as_unique() -> None:
    losses = Losses(10)
    losses.passed_on([sample(0), sample(1)])
    losses.passed_on([sample(1)], Passed.AGAIN)
    losses.in_vain(SOURCE)
    losses.lost(SOURCE, 1)
    row = row_of(losses)
    assert (row.delivered, row.lost, row.repeats) == (1, 1, 2)
    assert row.rates == (1 / 2, 1 / 3)

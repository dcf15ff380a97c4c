"""What a cache takes when it asks other caches, and how it tells that an answer was not whole."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest
import zenoh

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.cache import declare_reliability_cache
from durable_cache.endpoints.fetching import Fetching
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.session import Session, close_session, open_session, zid_of
from durable_cache.endpoints.workers import Pool
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample, SampleBatch, SourceId
from durable_cache.protocol.cache.events import Origin
from durable_cache.protocol.wire import Incarnation, encode_packed
from durable_cache.storage.memory import MemoryStorage

SOURCE, OTHER = SourceId("ab", 1), SourceId("cd", 1)
WAIT_SECONDS = 10.0


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    alone = {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    session = open_session({**alone, "timestamping": {"enabled": True}})
    yield session
    close_session(session)


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool("test", threads=1)
    yield pool
    assert pool.close(WAIT_SECONDS) == []


def sample(sn: int, key: str = "a/b", source: SourceId = SOURCE) -> Sample:
    return Sample(key, source, 1, sn, b"x", Kind.PUT, ntp64=(sn + 1) << 32)


def holding(*samples: Sample) -> MemoryStorage:
    storage = MemoryStorage()
    storage.append(SampleBatch(samples))
    return storage


class Asker:
    """A cache's fetching, and what it was given."""

    def __init__(
        self, session: Session, pool: Pool, *, excluded: str = "", asker: str = ""
    ) -> None:
        self.given: list[tuple[str, int, Origin]] = []
        asking = Asking(session, zid_of(session), timeout_seconds=WAIT_SECONDS, asker=asker)
        lane = pool.lane("read", running_max=1, waiting_max=8)
        self.fetching = Fetching(
            asking, [KeyExpression("a/**")], lambda key: key == excluded, self._take, lane
        )

    def _take(self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...]) -> None:
        self.given += [(sample.key, sample.sn, origin) for sample in samples]

    def fetch(self, first: int, last: int | None) -> bool:
        """Fetch numbers of the source; returns whether that failed."""
        over, results = Event(), list[bool]()

        def ended(failed: bool) -> None:
            results.append(failed)
            over.set()

        self.fetching.start(SOURCE, first, last, ended)
        assert over.wait(WAIT_SECONDS)
        (failed,) = results
        return failed


def test_only_the_numbers_that_were_asked_for_come(session: Session, pool: Pool) -> None:
    storage = holding(*map(sample, range(10)), sample(4, source=OTHER))
    with declare_reliability_cache(session, "a/**", backend=storage):
        asker = Asker(session, pool)
        assert not asker.fetch(3, 5)
        assert asker.given == [("a/b", sn, Origin.RECOVERED) for sn in (3, 4, 5)]


def test_a_question_without_an_end_is_answered_to_the_last_number(
    session: Session, pool: Pool
) -> None:
    with declare_reliability_cache(session, "a/**", backend=holding(*map(sample, range(10)))):
        asker = Asker(session, pool)
        assert not asker.fetch(7, None)
        assert [sn for _, sn, _ in asker.given] == [7, 8, 9]


def test_an_answer_of_many_pages_is_read_to_its_end(session: Session, pool: Pool) -> None:
    options = CacheOptions(query_samples_max=3)
    storage = holding(*map(sample, range(10)))
    with declare_reliability_cache(session, "a/**", backend=storage, options=options):
        asker = Asker(session, pool)
        assert not asker.fetch(0, 9)
        assert sorted({sn for _, sn, _ in asker.given}) == [*range(10)]


def test_keys_that_a_cache_leaves_out_are_left_out_of_what_others_give(
    session: Session, pool: Pool
) -> None:
    storage = holding(sample(0), sample(1, "a/secret"), sample(2))
    with declare_reliability_cache(session, "a/**", backend=storage):
        asker = Asker(session, pool, excluded="a/secret")
        assert not asker.fetch(0, 2)
        assert [(key, sn) for key, sn, _ in asker.given] == [("a/b", 0), ("a/b", 2)]


def test_a_cache_does_not_answer_its_own_question(session: Session, pool: Pool) -> None:
    storage = holding(*map(sample, range(3)))
    with declare_reliability_cache(session, "a/**", backend=storage) as cache:
        own, other = Asker(session, pool, asker=cache.cache_id), Asker(session, pool, asker="else")
        assert not own.fetch(0, 2)
        assert not other.fetch(0, 2)
        assert own.given == []
        assert [sn for _, sn, _ in other.given] == [0, 1, 2]


def test_an_error_is_no_answer_and_is_told(session: Session, pool: Pool) -> None:
    asked: list[zenoh.Query] = []

    def fail(query: zenoh.Query) -> None:
        asked.append(query)
        query.reply_err("the disk is away")
        query.drop()

    failing = session.declare_queryable("*/a/**", fail)
    storage = holding(*map(sample, range(3)))
    with declare_reliability_cache(session, "a/**", backend=storage):
        asker = Asker(session, pool)
        assert asker.fetch(0, 2)
        assert [sn for _, sn, _ in asker.given] == [0, 1, 2]
        assert "the disk is away" in asker.fetching.error
        failing.undeclare()
        assert not asker.fetch(0, 2)
        assert asker.fetching.error == ""
    assert asked


@pytest.mark.parametrize(
    ("pages", "said"),
    [(1, "no cache answered the question for the rest"), (9, "no further than the one before")],
    ids=["who has the rest goes", "the same page again"],
)
def test_a_cut_page_that_nothing_follows_is_no_end(
    session: Session, pool: Pool, pages: int, said: str
) -> None:
    cut = encode_packed(SampleBatch(map(sample, range(3))), more=True)
    left = [cut] * pages

    def answer(query: zenoh.Query) -> None:
        if left and not str(query.key_expr).startswith("a/"):
            query.reply(str(query.key_expr).replace("**", "x"), left.pop())
        query.drop()

    cutting = session.declare_queryable("*/a/**", answer)
    asker = Asker(session, pool)
    assert asker.fetch(0, 9)
    cutting.undeclare()
    assert said in asker.fetching.error


@pytest.mark.parametrize(
    ("came", "said"),
    [
        ((1, 2, 3), ""),
        ((1, 3), "a reply of an answer was lost on its way"),
        ((3,), "a reply of an answer was lost on its way"),
        ((1, 2), "an answer was cut off before its end"),
        ((1, 2, 1, 2, 3), "a reply of an answer was lost on its way"),
        ((1, 2, 3, 1, 2, 3), ""),
    ],
    ids=["none", "the second", "all but the last", "the last", "one's end", "two answer, none"],
)
def test_a_reply_that_was_lost_makes_the_answer_an_error(
    session: Session, pool: Pool, came: tuple[int, ...], said: str
) -> None:
    """What is known of the other replies is taken all the same."""

    def answer(query: zenoh.Query) -> None:
        if not str(query.key_expr).startswith("a/"):
            for place in came:
                one = SampleBatch([sample(place)])
                reply = encode_packed(one, last=place == 3, place=place)
                query.reply(str(query.key_expr).replace("**", "x"), reply)
        query.drop()

    answering = session.declare_queryable("*/a/**", answer)
    asker = Asker(session, pool)
    assert asker.fetch(0, 9) is bool(said)
    answering.undeclare()
    assert said in asker.fetching.error
    assert {sn for _, sn, _ in asker.given} == {*came}


def test_what_was_not_asked_for_is_not_taken(session: Session, pool: Pool) -> None:
    answer = [*map(sample, range(9)), sample(4, source=OTHER), sample(4, "b/c")]

    def forge(query: zenoh.Query) -> None:
        if not str(query.key_expr).startswith("a/"):
            packed = encode_packed(SampleBatch(sorted(answer, key=lambda each: each.order)))
            query.reply(str(query.key_expr).replace("**", "x"), packed)
        query.drop()

    forging = session.declare_queryable("*/a/**", forge)
    asker = Asker(session, pool)
    asker.fetch(3, 5)
    forging.undeclare()
    assert asker.given == [("a/b", sn, Origin.RECOVERED) for sn in (3, 4, 5)]

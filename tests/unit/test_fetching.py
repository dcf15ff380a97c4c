"""Is whoever waits for a fetch told of its end, whatever happens on the way?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from durable_cache.endpoints.asking import Gathered
from durable_cache.endpoints.fetching import Fetching
from durable_cache.endpoints.workers import Lane, Pool
from durable_cache.errors import Closed
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import SourceId
from durable_cache.testing.network import wait_until

SOURCE = SourceId("ab12", 7)


class Network:
    """Answers the first questions, then does what it was told to."""

    def __init__(self, then: Callable[[], Gathered], answered: int = 0) -> None:
        self._then = then
        self._answered = answered

    def later(
        self, selector: str, answered: Callable[[Callable[[], Gathered]], None], **_: object
    ) -> None:
        self._answered -= 1
        answered(Gathered if self._answered >= 0 else self._then)


def mistake() -> Gathered:
    raise ZeroDivisionError("a mistake of the program")


def closed() -> Gathered:
    raise Closed("the session is closed")


@pytest.fixture
def lane() -> Iterator[Lane]:
    pool = Pool("fetching", threads=1)
    yield pool.lane("read", running_max=1, waiting_max=9)
    assert pool.close(5) == []


@pytest.mark.parametrize("answered", [0, 1])
@pytest.mark.parametrize("then", [mistake, closed])
def test_an_answer_that_cannot_be_read_ends_the_fetch_as_one_that_failed(
    lane: Lane, then: Callable[[], Gathered], answered: int
) -> None:
    network, ends = Network(then, answered), list[bool]()
    fetching = Fetching(
        network,  # type: ignore[arg-type]
        [KeyExpression("a/**")],
        lambda _: False,
        lambda *_: None,
        lane,
    )
    fetching.start(SOURCE, 0, 9, ends.append)
    wait_until(lambda: ends == [True], what="the fetch's end")
    wait_until(lambda: lane.failures == 1, what="what failed is counted")
    assert ends == [True]


def test_a_publishers_own_cache_is_asked_from_a_number_that_is_here(lane: Lane) -> None:
    selectors: list[str] = []

    class Asked(Network):
        def later(
            self, selector: str, answered: Callable[[Callable[[], Gathered]], None], **_: object
        ) -> None:
            selectors.append(selector)
            answered(Gathered)

    network, ends = Asked(Gathered), list[bool]()
    fetching = Fetching(
        network,  # type: ignore[arg-type]
        [KeyExpression("a/**")],
        lambda _: False,
        lambda *_: None,
        lane,
    )
    fetching.start(SOURCE, 3, 4, ends.append, 2)
    wait_until(lambda: ends == [False], what="the fetch's end")
    assert selectors == ["ab12:7/a/**?_sn=3..4;_pack=1", "a/**/@adv/*/ab12/7/**?_sn=2..4"]

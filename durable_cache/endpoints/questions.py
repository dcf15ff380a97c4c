"""Queries that wait for their turn in a pool: none is forgotten, none costs another anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from durable_cache.endpoints.session import Query, ZError, refuse
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import DurableCacheError


class Questions:
    """Takes queries on Zenoh's thread and answers them in a lane's.

    `answer(query)` may raise: a `DurableCacheError` or a `ValueError` is told to the asker as it
    is, anything else as an error of `owner`, and the lane logs and counts it. Every query is
    finalised, on errors too, for an asker waits until then.
    """

    def __init__(self, lane: Lane, owner: str, answer: Callable[[Query], None]) -> None:
        self._lane = lane
        self._owner = owner
        self._answer = answer
        self._waiting: deque[Query] = deque()
        self.answered = self.failed = 0

    def take(self, query: Query) -> None:
        """Keep a query until its turn; with too many waiting, its asker is told so at once."""
        self._waiting.append(query)
        del query
        if not self._lane.submit(self._answer_next):
            self._refuse_newest("too many queries wait here; ask again later")

    def refuse_all(self, reason: str) -> None:
        """Tell all who wait that there will be no answer; the lane is closed."""
        while self._waiting:
            self._refuse_newest(reason)

    def _refuse_newest(self, reason: str) -> None:
        try:
            query = self._waiting.pop()
        except IndexError:
            return  # it was answered meanwhile
        self.failed += 1
        with query:
            refuse(query, reason)

    def _answer_next(self) -> None:
        try:
            query = self._waiting.popleft()
        except IndexError:
            return  # it was refused meanwhile
        with query:
            try:
                self._answer(query)
            except (DurableCacheError, ValueError) as error:
                self.failed += 1
                refuse(query, str(error))
            except ZError:
                self.failed += 1  # the asker is gone
            except Exception as error:
                self.failed += 1
                refuse(query, f"{self._owner}: internal error: {type(error).__name__}")
                raise
            else:
                self.answered += 1

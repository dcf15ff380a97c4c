"""The questions of other caches that are not answered yet: who asked, until the answer is there."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from durable_cache.endpoints.session import Query, ZError, refuse, reply_bytes


class Asked:
    """Queries by number; any thread. An asker is never left without an answer."""

    def __init__(self, queries_max: int) -> None:
        self._max = queries_max
        self._lock = Lock()
        self._queries: OrderedDict[int, Query] = OrderedDict()
        self._number = 0

    def __len__(self) -> int:
        return len(self._queries)

    def put(self, query: Query) -> int:
        """Keep a query until it is answered; beyond the bound the oldest is refused."""
        oldest = None
        with self._lock:
            self._number += 1
            number = self._number
            self._queries[number] = query
            if len(self._queries) > self._max:
                oldest = self._queries.popitem(last=False)[1]
        if oldest is not None:
            with oldest:
                refuse(oldest, "too many questions wait here; ask again later")
        return number

    def reply(self, number: int, payload: bytes) -> bool:
        """Answer a query; False when it was answered before, or the asker is gone."""
        query = self._take(number)
        if query is None:
            return False
        with query:
            try:
                reply_bytes(query, str(query.key_expr), payload)
            except ZError:
                return False  # the asker is gone; it asks again
        return True

    def refuse(self, number: int, reason: str) -> None:
        """Answer a query with an error, unless it was answered before."""
        query = self._take(number)
        if query is not None:
            with query:
                refuse(query, reason)

    def refuse_all(self, reason: str) -> None:
        """Answer every query with an error."""
        with self._lock:
            queries, self._queries = self._queries, OrderedDict()
        for query in queries.values():
            with query:
                refuse(query, reason)

    def _take(self, number: int) -> Query | None:
        with self._lock:
            return self._queries.pop(number, None)

"""How a cache gets what it misses: from every other cache, and from the publisher's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import ZError
from durable_cache.errors import DurableCacheError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.cache.events import Fetch, FetchEnded, Moment, Origin

__all__ = ["Fetching"]

_EVERYTHING_NATIVE = Fetch(0, SourceId("0", 0), 0, 0, None)


class Fetching:
    """Does an engine's fetches in threads of its own; what it finds goes to `offer`."""

    def __init__(
        self,
        asking: Asking,
        key_exprs: Sequence[KeyExpression],
        excluded: Callable[[str], bool],
        offer: Callable[[list[Sample], Origin], None],
        ended: Callable[[FetchEnded], None],
    ) -> None:
        self._asking = asking
        self._key_exprs = tuple(key_exprs)
        self._excluded = excluded
        self._offer = offer
        self._ended = ended
        self._fetches: SimpleQueue[Fetch | None] = SimpleQueue()
        self.error = ""

    def start(self, fetch: Fetch) -> None:
        """Do a fetch soon; `ended` is called with its id when it is over."""
        self._fetches.put(fetch)

    def catch_up(self) -> None:
        """Ask every foreign publisher's own cache for what was published while we were away."""
        self._fetches.put(_EVERYTHING_NATIVE)

    def stop(self, threads: int) -> None:
        """End `run` in so many threads, after the fetch each is at."""
        for _ in range(threads):
            self._fetches.put(None)

    def run(self) -> None:
        """Do fetches until `stop`."""
        while (fetch := self._fetches.get()) is not None:
            try:
                self._fetch(fetch)
            except (DurableCacheError, ZError) as error:
                self.error = str(error)
            if fetch is not _EVERYTHING_NATIVE:
                now = Moment(time.monotonic_ns(), time.time_ns())
                self._ended(FetchEnded(fetch.fetch_id, now))

    def _fetch(self, fetch: Fetch) -> None:
        if fetch is _EVERYTHING_NATIVE:
            for key_expr in map(str, self._key_exprs):
                self._take(self._asking.publisher(key_expr, None).native, Origin.NATIVE)
            return
        last = "" if fetch.last is None else str(fetch.last)
        parameters = f"_sn={fetch.first}..{last}"
        for key_expr in map(str, self._key_exprs):
            for page in self._asking.history(key_expr, str(fetch.source), parameters):
                self._take(page, Origin.RECOVERED)
            native = self._asking.publisher(key_expr, fetch.source, parameters).native
            own = [sample for sample in native if sample.source == fetch.source]
            self._take(own, Origin.NATIVE)

    def _take(self, samples: list[Sample], origin: Origin) -> None:
        wanted = [
            sample
            for sample in samples
            if not self._excluded(sample.key)
            and any(key_expr.concerns(sample.key) for key_expr in self._key_exprs)
        ]
        self._offer(wanted, origin)

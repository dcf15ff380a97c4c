"""The program's own callbacks of its receipts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from threading import Condition

from durable_cache.endpoints.publisher.receipts import Receipt
from durable_cache.protocol.publisher.events import Standing

_log = logging.getLogger(__name__)


class Callbacks:
    """Calls each once, where `jobs` are done; as many wait as there are receipts that are open."""

    def __init__(self, changed: Condition, jobs: SimpleQueue[Callable[[], None] | None]) -> None:
        self._changed, self._jobs = changed, jobs
        self._waiting: dict[Standing, list[tuple[Callable[[Receipt], object], Receipt]]] = {}
        self.errors = 0
        """What they raised."""

    def add(self, receipt: Receipt, callback: Callable[[Receipt], object]) -> None:
        """Keep `callback` until its receipt is `finished`; any thread."""
        with self._changed:
            self._waiting.setdefault(receipt._standing, []).append((callback, receipt))

    def finished(self, standings: Iterable[Standing]) -> None:
        """Have called what waits for samples whose outcome is known, or that are given up."""
        if not self._waiting:
            return
        for standing in standings:
            with self._changed:
                callbacks = self._waiting.pop(standing, ())
            for callback, receipt in callbacks:
                self._jobs.put(partial(self._call, callback, receipt))

    def _call(self, callback: Callable[[Receipt], object], receipt: Receipt) -> None:
        try:
            callback(receipt)
        except BaseException:
            self.errors += 1
            _log.exception("a callback of a receipt failed")
        with self._changed:
            self._changed.notify_all()  # a put may wait for fewer callbacks

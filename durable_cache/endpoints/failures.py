"""What fails again and again is said seldom."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

_AGAIN_SECONDS = 60.0
_REASONS_MAX = 32


class Failures:
    """Logs each reason of a failure once a minute at most; any thread.

    What fails is tried again soon, and goes well in between: a full disk fails what is written and
    not what is read. At most 32 reasons are remembered.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock, self._lock = log, clock, Lock()
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()

    def tell(self, sentence: str, reason: str) -> None:
        """Say what failed, and why, if that was not said within a minute."""
        now, told = self._clock(), (sentence, reason)
        with self._lock:
            before = self._told.get(told)
            if before is not None and now - before < _AGAIN_SECONDS:
                return
            self._told[told] = now
            self._told.move_to_end(told)
            if len(self._told) > _REASONS_MAX:
                self._told.popitem(last=False)
        self._log.warning(sentence, extra={"reason": reason})

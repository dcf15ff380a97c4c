"""What a publisher's own thread does: one job after the other, and now and then a look around."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.1
"""How often it is looked which caches are in reach, and what is due to be sent once more."""


def run_jobs(
    jobs: SimpleQueue[Callable[[], None] | None], looks: Callable[[], None] | None, on: str
) -> None:
    """Do what comes until there is a None; call `looks`, where there is one, however much comes.

    What a job raises is logged, with the key expression that the publisher is on, and ends nothing.
    """
    pause = None if looks is None else _LOOK_SECONDS
    looked = 0.0
    while True:
        try:
            job = jobs.get(timeout=pause)
            if job is None:
                return
        except Empty:
            job = None
        try:
            if job is not None:
                job()
            if looks is not None and (job is None or time.monotonic() - looked > _LOOK_SECONDS):
                looked = time.monotonic()
                looks()
        except BaseException:  # a panic in Zenoh is no Exception
            _log.exception("a task of the publisher on %s failed", on)

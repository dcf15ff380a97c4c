"""Plays seeded histories of one kind, and says how to play those again that went wrong."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from durable_cache.testing.simulation.world import World


class Playable(Protocol):
    """One history; a seed is one."""

    world: World

    def run(self) -> list[str]:
        """Play it and return what went wrong."""


def play_each(
    history_of: Callable[[int], Playable],
    option: str,
    seeds: Iterable[int],
    occurred: Counter[str] | None = None,
) -> dict[str, list[str]]:
    """Play the history of each seed; return what went wrong by the command that plays it again.

    `option` names the kind on that command's line. `occurred` counts in how many histories each
    kind of fault and event occurred.
    """
    logging.disable(logging.CRITICAL)  # caches say that they were killed
    try:
        wrong = {}
        for seed in seeds:
            history = history_of(seed)
            if found := history.run():
                again = f"python -m durable_cache.testing.simulation {option} --seed {seed}"
                wrong[again] = found[:3]
            if occurred is not None:
                occurred.update(dict.fromkeys(history.world.occurred, 1))
        return wrong
    finally:
        logging.disable(logging.NOTSET)


def nightly_seeds(first: int, count: int) -> range:
    """Return which seeds a nightly run plays.

    `DURABLE_CACHE_HISTORIES` says how many, `DURABLE_CACHE_FIRST_SEED` from where.
    """
    first = int(os.environ.get("DURABLE_CACHE_FIRST_SEED", str(first)))
    count = int(os.environ.get("DURABLE_CACHE_HISTORIES", str(count)))
    return range(first, first + count)

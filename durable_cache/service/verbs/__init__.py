"""What can be typed after ``durable-cache``: which verb is in which module, and what it does.

Nothing is imported here, so that the list of verbs is shown at once.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["VERBS", "Verb"]


class Verb(NamedTuple):
    """One verb."""

    group: str
    """Under which heading the list of verbs shows it."""
    module: str
    """Where its options and its work are."""
    summary: str


_HERE = "durable_cache.service.verbs"
_RUN, _ASK, _KEEP, _LAKE = "serve", "publish and ask", "watch and keep", "tables"
_HABIT = "this command"

VERBS = {
    "serve": Verb(
        _RUN, f"{_HERE}.serve", "store what is published, durably, and answer for it until stopped"
    ),
    "check-config": Verb(
        _RUN, f"{_HERE}.check", "check a configuration and print the effective settings"
    ),
    "backends": Verb(_RUN, f"{_HERE}.backends", "list the backends and whether they can be used"),
    "migrate": Verb(_RUN, f"{_HERE}.backends", "bring the schemas of the volumes up to date"),
    "demo": Verb(
        _RUN, f"{_HERE}.demo", "publish, cut, kill and restart before your eyes; fails on any loss"
    ),
    "put": Verb(_ASK, f"{_HERE}.put", "publish values and wait until a cache has them on its disk"),
    "query": Verb(_ASK, f"{_HERE}.query", "print what the caches hold, and follow what comes"),
    "replay": Verb(_ASK, f"{_HERE}.replay", "publish stored history once more, in time order"),
    "pipe": Verb(
        _ASK, f"{_HERE}.pipe", "carry samples to the caches of another network until stopped"
    ),
    "status": Verb(_KEEP, f"{_HERE}.observe", "what each service stores, and how well"),
    "top": Verb(
        _KEEP, f"{_HERE}.observe", "storages, keys, sources and samples, live on the terminal"
    ),
    "streams": Verb(_KEEP, f"{_HERE}.observe", "every stream that is stored, with its ranges"),
    "instances": Verb(
        _KEEP, f"{_HERE}.instances", "what each key is now: alive, deleted, or left by its writers"
    ),
    "loss": Verb(
        _KEEP, f"{_HERE}.losses", "what each subscriber and cache lost, publisher by publisher"
    ),
    "consumers": Verb(
        _KEEP, f"{_HERE}.consumers", "how far durable consumers have come; rewinds one"
    ),
    "align": Verb(_KEEP, f"{_HERE}.align", "how the caches stand with each other, peer by peer"),
    "purge": Verb(_KEEP, f"{_HERE}.observe", "remove stored samples for good; shows what, first"),
    "copy": Verb(
        _KEEP, f"{_HERE}.storages", "copy one storage's history into another, backend to backend"
    ),
    "export": Verb(_KEEP, f"{_HERE}.storages", "write a storage's history to a file"),
    "import": Verb(_KEEP, f"{_HERE}.storages", "append an exported history to a storage"),
    "lake": Verb(_LAKE, f"{_HERE}.lake", "look after Delta tables"),
    "spark": Verb(_LAKE, "durable_cache.spark.verbs", "query the history with Spark"),
    "context": Verb(_HABIT, f"{_HERE}.context", "name services, and which of them verbs ask"),
    "completion": Verb(_HABIT, f"{_HERE}.shell", "print what completes this command in a shell"),
    "man": Verb(_HABIT, f"{_HERE}.shell", "print the manual page of a verb, or write them all"),
}

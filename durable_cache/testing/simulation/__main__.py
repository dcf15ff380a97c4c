"""Plays one history again, with its trace: ``python -m durable_cache.testing.simulation``."""

from __future__ import annotations

import argparse
import re
import sys

from durable_cache.testing.simulation.history import History
from durable_cache.testing.simulation.reader_history import ReaderHistory


def main(arguments: list[str] | None = None) -> int:
    """Play the history and print it; 1 where the promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m durable_cache.testing.simulation")
    parser.add_argument("--seed", type=int, required=True, help="which history")
    parser.add_argument("--readers", action="store_true", help="one of readers with profiles")
    parser.add_argument("--without", default="", help="kinds of trouble to leave out, by commas")
    parser.add_argument("--only", default="", help="print lines that match this expression")
    chosen = parser.parse_args(arguments)
    without = tuple(filter(None, chosen.without.split(",")))
    history: History | ReaderHistory
    if chosen.readers:
        history = ReaderHistory(chosen.seed, tracing=True)
    else:
        history = History(chosen.seed, tracing=True, without=without)
    wrong = history.run()
    lines = [line for line in history.world.trace if re.search(chosen.only, line)]
    lines += [f"{count:6} {kind}" for kind, count in sorted(history.world.occurred.items())]
    lines += wrong or ["the promise was kept"]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

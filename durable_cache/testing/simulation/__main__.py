"""Plays one history again, with its trace: ``python -m durable_cache.testing.simulation``."""

from __future__ import annotations

import argparse
import re
import sys

from durable_cache.testing.simulation.history import History
from durable_cache.testing.simulation.member_history import MemberHistory
from durable_cache.testing.simulation.mode_history import ModeHistory
from durable_cache.testing.simulation.pipe_history import PipeHistory
from durable_cache.testing.simulation.reader_history import ReaderHistory
from durable_cache.testing.simulation.seeded import SeededHistory
from durable_cache.testing.simulation.split_brain_history import SplitBrainHistory
from durable_cache.testing.simulation.spool_history import SpoolHistory


def main(arguments: list[str] | None = None) -> int:
    """Play the history and print it; 1 where the promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m durable_cache.testing.simulation")
    parser.add_argument("--seed", type=int, required=True, help="which history")
    parser.add_argument("--readers", action="store_true", help="one of readers with profiles")
    parser.add_argument("--pipes", action="store_true", help="one of a pipe and its consumer")
    parser.add_argument("--split-brain", action="store_true", help="one of a partition")
    parser.add_argument("--spools", action="store_true", help="one of a publisher with a spool")
    parser.add_argument("--members", action="store_true", help="one of a consumer's members")
    parser.add_argument("--modes", action="store_true", help="one of subscribers with modes")
    parser.add_argument("--without", default="", help="kinds of trouble to leave out, by commas")
    parser.add_argument("--always", default="", help="kinds of trouble to have often, by commas")
    parser.add_argument("--only", default="", help="print lines that match this expression")
    chosen = parser.parse_args(arguments)
    without = tuple(filter(None, chosen.without.split(",")))
    always = tuple(filter(None, chosen.always.split(",")))
    history: History | ReaderHistory | SplitBrainHistory | ModeHistory | SeededHistory
    if chosen.readers:
        history = ReaderHistory(chosen.seed, tracing=True)
    elif chosen.pipes:
        history = PipeHistory(chosen.seed, tracing=True)
    elif chosen.split_brain:
        history = SplitBrainHistory(chosen.seed, tracing=True)
    elif chosen.spools:
        history = SpoolHistory(chosen.seed, tracing=True)
    elif chosen.members:
        history = MemberHistory(chosen.seed, tracing=True)
    elif chosen.modes:
        history = ModeHistory(chosen.seed, tracing=True)
    else:
        history = History(chosen.seed, tracing=True, without=without, always=always)
    wrong = history.run()
    lines = [line for line in history.world.trace if re.search(chosen.only, line)]
    lines += [f"{count:6} {kind}" for kind, count in sorted(history.world.occurred.items())]
    lines += wrong or ["the promise was kept"]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

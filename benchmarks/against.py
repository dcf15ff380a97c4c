"""Is this tree slower than another commit? Both in turn, on one machine: ratios of pairs.

    python benchmarks/against.py a7952e0 --pairs 10

Each tree runs its own benchmarks of the same name, in a process of its own; which goes first
changes from pair to pair. Printed is here divided by there, and between which ratios the median of
all pairs lies with 98 % confidence. Nothing is judged. Bytes of alignment do not vary: they are
measured once, with `python benchmarks/alignment.py` in both trees.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.pairs import interval

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 300
INGEST = ("ingest.py", "--seconds", "5")
PACED = ("ingest.py", "--seconds", "5", "--rate", "10000")
RECOVERY = ("recovery.py", "--stored", "20000", "--trials", "200")
STREAMS = ("streams.py", "--streams", "100000")
REPLAY = ("replay.py", "--stored", "20000")
"""Of this tree, with the other's code: that has none."""
BENCHMARKS = {
    "ingest": INGEST,
    "paced": PACED,
    "recovery": RECOVERY,
    "replay": REPLAY,
    "streams": STREAMS,
}
RECOVERED = re.compile(r"p50 ([\d.]+) ms, p99 ([\d.]+) ms .*replay ([\d,]+) samples/s")
REPLAYED = re.compile(r"replay ([\d,]+) samples/s.* ([\d.]+) us of the asker, ([\d.]+) us")
RESIDENT = re.compile(r"streams stored: (\d+) MiB")


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yield a tree of a commit of this repository; it is gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tree = Path(folder) / "tree"
        add = ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit]
        subprocess.run(add, cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            remove = ["git", "worktree", "remove", "--force", str(tree)]
            subprocess.run(remove, cwd=ROOT, check=True)


def printed(tree: Path, benchmark: tuple[str, ...]) -> str:
    """Run a benchmark of a tree with the tree's own code, and return what it printed."""
    name, *arguments = benchmark
    script = (ROOT if benchmark is REPLAY else tree) / "benchmarks" / name
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tree), str(tree / "backends")))},
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    ).stdout


def figures(benchmark: tuple[str, ...], text: str) -> dict[str, float]:
    """Read the figures of what a benchmark printed, by name and unit."""
    if benchmark is RECOVERY:
        found = RECOVERED.search(text)
        assert found is not None, text
        gap_ms, late_ms, replayed = (float(one.replace(",", "")) for one in found.groups())
        return {"gap p50, ms": gap_ms, "gap p99, ms": late_ms, "first replay, samples/s": replayed}
    if benchmark is REPLAY:
        found = REPLAYED.search(text)
        assert found is not None, text
        replayed, asker_us, cache_us = (float(one.replace(",", "")) for one in found.groups())
        return {
            "replay, samples/s": replayed,
            "replay, us of the asker's CPU a sample": asker_us,
            "replay, us of the cache's CPU a sample": cache_us,
        }
    if benchmark is STREAMS:
        found = RESIDENT.search(text)
        assert found is not None, text
        return {"memory of 100,000 streams, MiB": float(found[1])}
    cache = json.loads(text[: text.index("\n}") + 2])["cache"]
    latency_ms = {f"acknowledged {at}, ms": cache[f"ack_{at}_ms"] for at in ("p50", "p99")}
    if benchmark is PACED:
        return {f"at 10,000/s: {name}": float(value) for name, value in latency_ms.items()}
    return {
        "ingest, samples/s": cache["published"] / cache["acknowledged_seconds"],
        "ingest, us of CPU a sample": cache["server_cpu_seconds"] / cache["server_appended"] * 1e6,
        "publisher, us of CPU a sample": cache["cpu_seconds"] / cache["published"] * 1e6,
        **{f"full speed: {name}": float(value) for name, value in latency_ms.items()},
    }


def main() -> None:
    """Measure the pairs and print one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="of this repository")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=[*BENCHMARKS])
    arguments = parser.parse_args()
    here: dict[str, list[float]] = defaultdict(list)
    there: dict[str, list[float]] = defaultdict(list)
    with checked_out(arguments.commit) as other:
        for at in range(arguments.pairs):
            sides = ((ROOT, here), (other, there))[:: 1 if at % 2 else -1]
            for benchmark in (BENCHMARKS[name] for name in arguments.only):
                for tree, into in sides:
                    for name, value in figures(benchmark, printed(tree, benchmark)).items():
                        into[name].append(value)
            print(f"pair {at + 1} of {arguments.pairs} measured", file=sys.stderr, flush=True)
    for name, values in here.items():
        ratios = [mine / its for mine, its in zip(values, there[name], strict=True)]
        both = f"{statistics.median(there[name]):,.2f} there, {statistics.median(values):,.2f} here"
        print(f"{name}: {both}; ratio {interval(ratios)}")


if __name__ == "__main__":
    main()

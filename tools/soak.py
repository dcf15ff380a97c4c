"""Do the suites with real sessions pass again and again while the machine is busy with other work?

Runs them several times, each core kept busy by a process of its own, and ends with the first run
that fails, or when the time allowed is over. Databases and Spark are left out: they would measure
the servers. `--hurried` lets Python change threads every microsecond in every process, in place of
every five milliseconds: what two threads do to the same thing at once shows within minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
SUITES = (
    *("tests/integration/test_rfc*.py", "tests/integration/test_alignment*.py"),
    *("tests/faults/test_pro*.py", "tests/acceptance", "tests/regressions"),
)
"""Power cuts are played on files and have no sessions."""
LEFT_OUT = "not nightly and not postgres and not influxdb and not delta and not spark"
NO_SESSIONS = ("test_cli_config.py", "test_shell.py", "test_other_shells.py")
"""Of the acceptance suite what ends before a session is opened, or opens none."""
BUSY = "import os; os.nice(19)\nwhile True: pass"
"""It takes what tests leave: those are each other's load, and ten runs fit into 90 minutes."""
HURRIED = "import sys\nsys.setswitchinterval(1e-6)\n"
"""Python imports it at its start, in children, too."""
OUT_OF_TIME = 124
PROCESSES = 8
"""Many more than cores: most of a run is waits, and the tests are each other's load."""


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy, one process each."""
    loads = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for load in loads:
            load.kill()
            load.wait()


@contextmanager
def environment(*, hurried: bool) -> Iterator[dict[str, str]]:
    """Yield what the runs inherit."""
    with TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(HURRIED)
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        yield {**os.environ, "PYTHONPATH": path} if hurried else {**os.environ}


def suites(patterns: tuple[str, ...]) -> list[str]:
    """Return the files and folders that the patterns name; each must name at least one."""
    found = []
    for pattern in patterns:
        paths = sorted(glob(str(ROOT / pattern)))
        if not paths:
            raise SystemExit(f"soak: {pattern} names no file")
        found += paths
    return found


def run_once(paths: list[str], inherited: dict[str, str], seconds: float) -> int:
    """Run the suites once; return pytest's exit code, or `OUT_OF_TIME`."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", LEFT_OUT, "-p", "no:cacheprovider"]
    command += [f"--numprocesses={PROCESSES}"]
    command += [f"--ignore-glob=*/acceptance/{name}" for name in NO_SESSIONS]
    with subprocess.Popen([*command, *paths], cwd=ROOT, env=inherited) as tests:
        try:
            return tests.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            tests.terminate()
            return OUT_OF_TIME


def soak(
    patterns: tuple[str, ...], runs: int, cores: int, minutes: float, *, hurried: bool = False
) -> int:
    """Run the suites `runs` times beside busy cores; return the exit code of the whole."""
    paths = suites(patterns)
    began = time.monotonic()
    with busy_cores(cores), environment(hurried=hurried) as inherited:
        for number in range(1, runs + 1):
            from_here = time.monotonic()
            print(f"soak: run {number} of {runs}, {cores} cores loaded", flush=True)
            code = run_once(paths, inherited, minutes * 60 - (from_here - began))
            seconds = time.monotonic() - from_here
            if code == OUT_OF_TIME:
                print(f"soak: STOPPED in run {number} of {runs}: {minutes:g} min are over")
                return code
            if code:
                print(f"soak: run {number} of {runs} FAILED (exit {code}) after {seconds:.0f} s")
                return 1
            print(f"soak: run {number} of {runs} passed in {seconds:.0f} s", flush=True)
    print(f"soak: {runs} runs passed in {(time.monotonic() - began) / 60:.0f} min")
    return 0


def main() -> int:
    """Run the soak test and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 2, help="kept busy")
    parser.add_argument("--minutes", type=float, default=90.0, help="for all runs together")
    parser.add_argument("--hurried", action="store_true", help="threads change all the time")
    parser.add_argument("suites", nargs="*", help="instead of all suites with real sessions")
    chosen = parser.parse_args()
    patterns = tuple(chosen.suites) or SUITES
    runs, cores, minutes = chosen.runs, chosen.cores, chosen.minutes
    return soak(patterns, runs, cores, minutes, hurried=chosen.hurried)


if __name__ == "__main__":
    sys.exit(main())

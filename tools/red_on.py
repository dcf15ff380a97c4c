"""Compares two runs of the regression tests, which `tools/red_on.sh` makes."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from xml.etree import ElementTree


class Result(Enum):
    """How a test ended."""

    GREEN = "green"
    RED = "red"
    SKIPPED = "skipped"
    NONE = "no result"  # its file could not be imported, or ran out of time


def results(report: Path) -> dict[str, Result]:
    """Return how each test of a file ended; nothing where pytest left no report."""
    if not report.exists():
        return {}
    found: dict[str, Result] = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314  # pytest wrote it here
        if not case.get("classname"):
            continue  # the file itself, which could not be imported
        ends = {child.tag for child in case}
        red = Result.RED if ends & {"failure", "error"} else None
        name = str(case.get("name"))
        found[name] = red or (Result.SKIPPED if "skipped" in ends else Result.GREEN)
    return found


def compare(folder: Path) -> dict[tuple[Result, Result], list[str]]:
    """Return the tests by how they ended (there, here)."""
    pairs: dict[tuple[Result, Result], list[str]] = {}
    for log in sorted(folder.glob("here-*.log")):
        name = log.name.removeprefix("here-").removesuffix(".log")
        here, there = results(folder / f"here-{name}"), results(folder / f"there-{name}")
        for test in sorted(here.keys() | there.keys()) or ["(the file)"]:
            key = there.get(test, Result.NONE), here.get(test, Result.NONE)
            pairs.setdefault(key, []).append(f"{name}::{test}")
    return pairs


def main() -> int:
    """Print the lists; return 1 where a test is not green here."""
    folder, commit = Path(sys.argv[1]), sys.argv[2][:9]
    pairs = compare(folder)
    for (there, here), tests in sorted(pairs.items(), key=lambda pair: pair[0][0].value):
        print(f"\n{there.value} on {commit}, {here.value} here: {len(tests)}")
        for test in tests:
            print(f"  {test}")
    return int(any(here is not Result.GREEN for _, here in pairs))


if __name__ == "__main__":
    sys.exit(main())

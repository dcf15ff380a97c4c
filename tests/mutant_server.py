"""Runs test files one after another, each in a fork, so that the heavy imports are paid for once.

Reads the path of a test file and of a log a line, prints the exit code of pytest.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import msgspec  # noqa: F401  # imported before the fork
import pytest
import zenoh  # noqa: F401
from hypothesis import Phase, settings

ROOT = Path(__file__).parent.parent


def run(test: str, log: str) -> int:
    """Run pytest in this process; it ends at the first failure and shrinks nothing."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    settings.register_profile(
        "mutants",
        max_examples=100,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
    )
    options = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis came before pytest
    return int(pytest.main([*options, "-c", str(ROOT / "pyproject.toml"), test]))


def main() -> None:
    for line in sys.stdin:
        test, log = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = run(test, log)
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()

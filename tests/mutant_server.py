"""Runs tests one after another, each run in a fork, so that imports are paid for once.

Reads a line of JSON for each run, `{"tests": [node ids], "log": path}`, and prints the exit code of
pytest. The package's own modules are imported anew by each run: they may have changed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parent.parent
OPTIONS = ("-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--no-header", "--color=no")
FRESH = ("durable_cache", "tests")
"""What a run imports itself: the package, its backends and the tests."""
RUN_SECONDS_MAX = 60
"""A fault may make a test wait for ever; that counts as not noticed."""


def run_pytest(tests: list[str], *options: str) -> int:
    """Run pytest in this process; it ends at the first failure and shrinks nothing."""
    settings.register_profile(
        "mutants",
        max_examples=100,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
    )
    ignored = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # plugins are imported already
    where = (f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml"))
    return int(pytest.main([*OPTIONS, *options, *ignored, *where, *tests]))


def import_all(tests: list[str], log: str) -> None:
    """Import what the tests import, then forget what each run is to import itself."""
    saved = os.dup(1)
    write_to(log)
    run_pytest(tests, "--collect-only")
    sys.stdout.flush()
    os.dup2(saved, 1)
    os.dup2(saved, 2)
    for name in [name for name in sys.modules if name.startswith(FRESH)]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def write_to(log: str) -> None:
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)


def run_in_fork(tests: list[str], log: str) -> int:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            signal.alarm(RUN_SECONDS_MAX)
            sys.dont_write_bytecode = True  # a fault's bytecode would outlive it
            write_to(log)
            code = run_pytest(tests)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("import"):
            import_all(request["tests"], request["log"])
            code = 0
        else:
            code = run_in_fork(request["tests"], request["log"])
        print(code, flush=True)


if __name__ == "__main__":
    main()

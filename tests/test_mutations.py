"""Would the quick tests notice? Faults planted in a copy of the package must make them fail.

`mutations.toml` lists the faults, each with the test that notices it soonest. Two servers play them
side by side, each on a copy of its own; every fault is a test of its own, which waits for its turn.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self

import pytest

from tests.planted import PACKAGE, TESTS, Fault, planted_faults
from tests.tree import ROOT

SERVERS = 2
EXIT_SECONDS = 30
PASSED, FAILED = 0, 1

pytestmark = pytest.mark.nightly  # until the whole has been run in CI's time


class Outcome(NamedTuple):
    """How a run of pytest ended, and what it said."""

    code: int
    words: str


class Mutants:
    """A copy of the package, and a process that runs tests on it. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._package = folder / "durable_cache"
        self._log = folder / "log"
        copy_package(self._package)
        self._server = subprocess.Popen(
            [sys.executable, str(TESTS / "mutant_server.py")],
            cwd=folder,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, ROOT / "backends"))),
                "DURABLE_CACHE_HYPOTHESIS": "mutants",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, test_files: list[str]) -> None:
        """Let the server import what these files import."""
        self._ask(test_files, only_import=True)

    def run(self, *tests: str) -> Outcome:
        """Run tests on the copy as it is."""
        return self._ask([*tests])

    def run_with(self, fault: Fault) -> Outcome:
        """Run the test of a fault on a copy that has it; where that passes, the whole file."""
        path = self._package / fault.file
        source = path.read_text()
        path.write_text(source.replace(fault.old, fault.new))
        try:
            outcome = self.run(fault.test)
            return outcome if outcome.code != PASSED else self.run(fault.test_file)
        finally:
            path.write_text(source)

    def _ask(self, tests: list[str], *, only_import: bool = False) -> Outcome:
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None
        assert stdout is not None
        paths = [str(TESTS / test) for test in tests]
        request = {"tests": paths, "log": str(self._log), "import": only_import}
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return Outcome(int(stdout.readline()), self._log.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stream in (self._server.stdin, self._server.stdout):
            assert stream is not None
            stream.close()
        self._server.wait(EXIT_SECONDS)


def copy_package(package: Path) -> None:
    """Copy the package; its bytecode goes by the source's content, not its time: no fault is late.

    Written in the same second and of the same length, a fault would otherwise not be compiled.
    """
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    by_content = py_compile.PycInvalidationMode.CHECKED_HASH
    assert compileall.compile_dir(package, quiet=1, invalidation_mode=by_content)


class Played(NamedTuple):
    """The runs that were asked for, each on its way."""

    unchanged: dict[str, Future[Outcome]]
    faults: dict[str, Future[Outcome]]


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    """Play what this session selected, in its order, on whichever server is free."""
    mine = (item for item in request.session.items if item.path == Path(__file__))
    wanted = [item.callspec.params for item in mine if hasattr(item, "callspec")]
    faults: list[Fault] = [given["fault"] for given in wanted if "fault" in given]
    test_files: list[str] = [given["test_file"] for given in wanted if "test_file" in given]
    free: SimpleQueue[Mutants] = SimpleQueue()
    imported = sorted({fault.test_file for fault in faults}.union(test_files))

    def begin(mutants: Mutants) -> None:
        try:
            mutants.begin(imported)
        finally:
            free.put(mutants)

    def unchanged(test_file: str) -> Outcome:
        mutants = free.get()
        try:
            return mutants.run(*nodes_of(test_file))
        finally:
            free.put(mutants)

    def with_fault(fault: Fault) -> Outcome:
        mutants = free.get()
        try:
            return mutants.run_with(fault)
        finally:
            free.put(mutants)

    with ExitStack() as stack:
        servers = [
            stack.enter_context(Mutants(tmp_path_factory.mktemp("mutants"))) for _ in range(SERVERS)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(SERVERS))
        stack.callback(pool.shutdown, cancel_futures=True)
        for mutants in servers:
            pool.submit(begin, mutants)
        yield Played(
            {test_file: pool.submit(unchanged, test_file) for test_file in test_files},
            {fault.name: pool.submit(with_fault, fault) for fault in faults},
        )


def nodes_of(test_file: str) -> list[str]:
    """Return the tests of a file that are to notice something."""
    return sorted({fault.test for fault in planted_faults() if fault.test_file == test_file})


@pytest.mark.parametrize("test_file", sorted({fault.test_file for fault in planted_faults()}))
def test_the_unchanged_copy_passes(played: Played, test_file: str) -> None:
    code, words = played.unchanged[test_file].result()
    assert code == PASSED, words[-3000:]


@pytest.mark.parametrize("fault", planted_faults(), ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(played: Played, fault: Fault) -> None:
    code, words = played.faults[fault.name].result()
    assert code == FAILED, f"not caught, exit code {code}: {words[-2000:]}"


def test_the_list_covers_what_it_must() -> None:
    planted = Counter(fault.file for fault in planted_faults())
    needed = planted["model/ranges.py"] + planted["model/window.py"] + planted["protocol/wire.py"]
    assert needed >= 20

"""Would the unit tests notice? Faults planted in a copy of the package must make them fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "durable_cache"
MUTATIONS: list[dict[str, str]] = tomllib.loads((HERE / "mutations.toml").read_text())["mutation"]
TESTS = sorted({mutation["test"] for mutation in MUTATIONS})
ROOMS = [
    room
    for room in ("errors.py", "model", "protocol", "storage", "runtime", "endpoints", "testing")
    if (PACKAGE / room).exists()
]
EXIT_SECONDS = 30
PASSED, FAILED = 0, 1

pytestmark = pytest.mark.nightly  # 360 faults take longer than CI has: `make nightly`


@pytest.fixture(scope="session")
def package_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the rooms where the promise is kept; a name of the package itself is not imported."""
    package = tmp_path_factory.mktemp("mutants") / "durable_cache"
    package.mkdir()
    package.joinpath("__init__.py").write_text("")
    for room in ROOMS:
        if (PACKAGE / room).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PACKAGE / room, package / room, ignore=ignore)
        else:
            (package / room).parent.mkdir(exist_ok=True)
            shutil.copy(PACKAGE / room, package / room)
    return package


@pytest.fixture(scope="session")
def run(package_copy: Path) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Return what runs one test file on the copy: it gives pytest's exit code and its words."""
    log = package_copy.parent / "log"
    server = subprocess.Popen(
        [sys.executable, str(HERE / "mutant_server.py")],
        cwd=package_copy.parent,
        env=os.environ
        | {
            "PYTHONPATH": str(package_copy.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DURABLE_CACHE_HYPOTHESIS": "mutants",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    requests, answers = server.stdin, server.stdout

    def run(test: str) -> tuple[int, str]:
        requests.write(f"{HERE / test}\t{log}\n")
        requests.flush()
        return int(answers.readline()), log.read_text()

    yield run
    requests.close()
    answers.close()
    server.wait(EXIT_SECONDS)


@pytest.mark.parametrize("test", TESTS)
def test_the_unchanged_copy_passes(run: Callable[[str], tuple[int, str]], test: str) -> None:
    code, words = run(test)
    assert code == PASSED, words[-3000:]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation["name"])
def test_a_planted_fault_is_caught(
    run: Callable[[str], tuple[int, str]], package_copy: Path, mutation: dict[str, str]
) -> None:
    path = package_copy / mutation["file"]
    source = path.read_text()
    assert source.count(mutation["old"]) == 1, "the text to replace must stand there exactly once"
    path.write_text(source.replace(mutation["old"], mutation["new"]))
    try:
        code, words = run(mutation["test"])
    finally:
        path.write_text(source)
    assert code == FAILED, f"not caught: {words[-2000:]}"
    assert "error during collection" not in words


def test_the_list_covers_what_it_must() -> None:
    planted = Counter(mutation["file"] for mutation in MUTATIONS)
    needed = planted["model/ranges.py"] + planted["model/window.py"] + planted["protocol/wire.py"]
    assert needed >= 20
    assert len({mutation["name"] for mutation in MUTATIONS}) == len(MUTATIONS)

"""Do the README, the tutorial and the walk run as printed, from an empty directory, installed?"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.acceptance.walk import blocks_of, is_as_shown, steps_of
from tests.tree import ROOT

pytestmark = pytest.mark.slow

WALK_SECONDS_MAX = 400
PAGES = ("README.md", "docs/tutorial.md", "docs/walk.md", "docs/frame.md")
UNABLE = {
    ("README.md", "pip install ."): "asks a package index; the wheel is installed here instead",
    ("README.md", "pip install '.[postgres]'"): "needs a PostgreSQL server",
    ("README.md", "pip install '.[delta,spark]'"): "needs Java and a package index",
    ("README.md", "from durable_cache.spark import"): "needs Java and Spark",
    ("docs/frame.md", "pip install '.[frame]'"): "asks a package index; what it installs is there",
    ("README.md", "make check"): "is what CI runs by itself, in a clone",
}
"""The blocks that are not tried, by how they begin, and why."""


def unable(page: str) -> list[int]:
    """Return the lines of the blocks of a page that are not tried."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        block.line
        for block in blocks_of(text)
        for where, beginning in UNABLE
        if where == page and block.text.startswith(beginning)
    ]


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"))


def install(place: Path) -> Path:
    """Install the wheel into an environment that has the locked dependencies; its commands."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    for step in (
        (*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(place), str(ROOT)),
        (sys.executable, "-m", "venv", "--without-pip", str(place / "venv")),
    ):
        subprocess.run(step, check=True, capture_output=True, timeout=300)
    (wheel,) = place.glob("*.whl")
    python = place / "venv/bin/python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (site,) = (place / "venv").glob("lib/python*/site-packages")
    # A folder named in a .pth comes behind our own, and its own .pth files are not read.
    (site / "locked.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def own_network(*command: str) -> list[str]:
    """Return a command that runs where every port is free and no other Zenoh is heard."""
    return ["unshare", "--map-root-user", "--net", *command]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_printed(page: str, commands: Path, tmp_path: Path) -> None:
    if subprocess.run(own_network("true"), capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody make a network of their own")
    walk = subprocess.run(
        own_network(
            sys.executable,
            *(str(Path(__file__).with_name("walk.py")), str(ROOT / page)),
            *(str(tmp_path), str(commands), json.dumps(unable(page))),
        ),
        capture_output=True,
        text=True,
        timeout=WALK_SECONDS_MAX,
        check=False,
    )
    assert walk.returncode == 0, walk.stderr
    differences = [json.loads(line) for line in walk.stdout.splitlines()]
    assert not differences, "\n\n".join(differences)


def test_every_exception_is_a_block_that_exists() -> None:
    for page, beginning in UNABLE:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert sum(block.text.startswith(beginning) for block in blocks_of(text)) == 1, beginning


def test_what_differs_is_seen() -> None:
    assert is_as_shown("a  b\n…\nd…", "a b\nx\ny\ndone\n")
    assert is_as_shown("a\n…", "a\n")
    for printed in ("", "a\nc\n", "a\nb\nc\n", "x\na\nb\n"):
        assert not is_as_shown("a\nb", printed)
    (block,) = blocks_of("text\n\n```console\n$ one\nshown\n$ two \\\n> more\n```\n")
    assert list(steps_of(block)) == [("one", "shown\n"), ("two \\\nmore", "")]
    (program,) = blocks_of("```python\nprint(1)\n```\n\n```text\n1\n```\n")
    assert program.shown == "1\n"

"""Programs written for `zenoh.ext` do the same on durable-cache when only their imports change.

The two programs in `zenoh_programs` have the shape of zenoh-python's own examples of advanced
publishing and subscribing. The ported ones are made here, from the same text: a line that imports
from `zenoh.ext` imports from `durable_cache.ext`, and no other line differs.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from durable_cache import declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until

PROGRAMS = Path(__file__).parent / "zenoh_programs"
KEY = "demo/example/zenoh-python-pub"


def ported(text: str) -> str:
    """Return a program with its imports changed, and nothing else."""
    lines = text.splitlines(keepends=True)
    changed = [
        line.replace("from zenoh.ext import", "from durable_cache.ext import") for line in lines
    ]
    differing = [old for old, new in zip(lines, changed, strict=True) if old != new]
    assert differing
    assert all(line.startswith("from zenoh.ext import ") for line in differing)
    return "".join(changed)


class Program:
    """A program as a process, whose lines are read as they come."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, path, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.lines: list[str] = []
        self._coming: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._coming.put(line.rstrip("\n"))

    def has(self, count: int) -> bool:
        """Tell whether so many lines were printed."""
        while not self._coming.empty():
            self.lines.append(self._coming.get())
        return len(self.lines) >= count

    def await_lines(self, count: int) -> list[str]:
        try:
            wait_until(lambda: self.has(count))
        except AssertionError:
            raise AssertionError(f"no line {count} after {self.lines}") from None
        return self.lines

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """End its input and wait for it; returns its exit code and what it wrote to stderr."""
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        code = self._process.wait(timeout=15)
        self._reader.join(timeout=5)
        self.has(0)
        return code, self._process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def ported_programs(tmp_path: Path) -> Path:
    for program in PROGRAMS.glob("*.py"):
        (tmp_path / program.name).write_text(ported(program.read_text()))
    return tmp_path


def run(programs: Path, endpoint: str) -> tuple[list[str], list[str]]:
    """Run publisher and late subscriber side by side; returns what each printed."""
    with ExitStack() as stack:
        publisher = stack.enter_context(
            Program(programs / "advanced_pub.py", "-e", endpoint, "--history", "3")
        )
        publisher.await_lines(2)
        subscriber = stack.enter_context(Program(programs / "advanced_sub.py", "-e", endpoint))
        subscriber.await_lines(4)  # three of history, one publisher
        publisher.tell('{"n": 6}')
        subscriber.await_lines(5)
        publisher.tell("delete")
        subscriber.await_lines(6)
        assert publisher.end() == (0, "")
        subscriber.await_lines(7)  # the publisher is gone
        assert subscriber.end() == (0, "")
        return publisher.lines, subscriber.lines


def test_both_programs_print_the_same_whichever_library_they_import(
    network: LocalNetwork, ported_programs: Path
) -> None:
    put, got = run(PROGRAMS, network.endpoint)
    ported_put, ported_got = run(ported_programs, network.endpoint)
    assert ported_put == put
    about_publishers = [line for line in got if line.startswith("publisher ")]
    assert about_publishers == [f"publisher {KEY} SampleKind.{kind}" for kind in ("PUT", "DELETE")]
    assert [line for line in ported_got if line.startswith("publisher ")] == about_publishers
    samples = [line for line in got if not line.startswith("publisher ")]
    assert [line for line in ported_got if not line.startswith("publisher ")] == samples
    assert [line.partition("sn=")[2][:1] for line in samples] == ["2", "3", "4", "5", "6"]


def test_with_a_durable_cache_the_ported_history_outlives_its_publisher(
    network: LocalNetwork, ported_programs: Path, tmp_path: Path
) -> None:
    with (
        declare_reliability_cache(
            network.client(),
            "demo/**",
            backend="sql",
            backend_options={"url": f"sqlite:///{tmp_path}/samples.db"},
            state_dir=tmp_path / "state",
        ) as cache,
        Program(ported_programs / "advanced_pub.py", "-e", network.endpoint) as publisher,
    ):
        publisher.await_lines(2)
        wait_until(lambda: cache.status().appended >= 5, what="five stored samples")
        assert publisher.end() == (0, "")
        with Program(ported_programs / "advanced_sub.py", "-e", network.endpoint) as subscriber:
            subscriber.await_lines(5)
            assert subscriber.end() == (0, "")
            assert [line.partition("sn=")[2][:1] for line in subscriber.lines] == list("01234")

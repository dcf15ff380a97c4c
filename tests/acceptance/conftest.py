"""What every acceptance test needs: the command line as a real process, and free ports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from durable_cache.testing.network import free_port

RUN_SECONDS_MAX = 60.0
COMMAND = (sys.executable, "-m", "durable_cache.service")


class Process:
    """A verb that is still running; its stderr is collected in a file."""

    def __init__(self, arguments: list[str], directory: Path, environment: dict[str, str]) -> None:
        self._stderr = directory / f"stderr-{time.monotonic_ns()}.txt"
        self._stdout = self._stderr.with_name(self._stderr.name.replace("stderr", "stdout"))
        with self._stderr.open("wb") as errors, self._stdout.open("wb") as output:
            self.process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float = 30.0) -> str:
        """Wait until the process has said `text`; fail when it ends or time is up first."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            said = self.stderr + self.stdout
            if text in said:
                return said
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"never said {text!r}: rc={self.process.poll()}: {self.stderr}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 30.0) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(seconds)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture
def environment() -> dict[str, str]:
    return environment_of_tests()


def environment_of_tests() -> dict[str, str]:
    """Return what a verb inherits: nothing of what configures the service of whoever tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DURABLE_CACHE_")}
    return {**kept, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


@pytest.fixture
def run(
    tmp_path: Path, environment: dict[str, str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run one verb to its end, in an empty directory."""

    def run_verb(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )

    return run_verb


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., Process]]:
    """Start verbs that keep running; every one is killed when the test ends."""
    started: list[Process] = []

    def start_verb(*arguments: str, **variables: str) -> Process:
        process = Process(list(arguments), tmp_path, {**environment, **variables})
        started.append(process)
        return process

    yield start_verb
    for process in started:
        process.stop()


@pytest.fixture(name="free_port")
def free_port_fixture() -> Callable[[], int]:
    """Return what finds a port nobody listens on."""
    return free_port

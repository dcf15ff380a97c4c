"""How does a test fill a disk, kill a process in the middle, or disturb a link?

Everything runs on loopback and in temporary folders, is owned by a ``with`` block, and is gone when
the block ends: no process, mount or thread outlives it. Power cuts are in `powercut`, the proxy in
`proxy`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

_POLL_SECONDS = 0.02
_OUTPUT_BYTES_MAX = 1024 * 1024
_COMMAND_SECONDS_MAX = 30.0


class ModuleProcess:
    """A ``python -m MODULE ARGUMENTS`` of this interpreter, to be killed, stopped, started again.

    A context manager that starts the process and leaves neither it nor its children behind.
    stdout and stderr go to one file each, which grow over restarts; the last 1 MiB can be read.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        ready: str | None = None,
        ready_timeout_seconds: float = 30.0,
    ) -> None:
        """`ready` is a text on stdout or stderr to wait for at every start."""
        self._command = [sys.executable, "-m", module, *arguments]
        self._folder = folder
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._ready = ready
        self._ready_timeout_seconds = ready_timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._logs = Path(tempfile.mkdtemp(prefix="durable-cache-process-"))
        self._started_at = {"out": 0, "err": 0}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The number of the running process, or of the last one."""
        return self._running_or_ended().pid

    @property
    def stdout(self) -> str:
        """What all runs have written to stdout, the last 1 MiB of it."""
        return self._tail("out", 0)

    @property
    def stderr(self) -> str:
        """What all runs have written to stderr, the last 1 MiB of it."""
        return self._tail("err", 0)

    def start(self) -> None:
        """Start the process and wait for its ready line; AssertionError if it ends before."""
        if self.is_running():
            raise RuntimeError(f"{' '.join(self._command)} is running already (pid {self.pid})")
        for name in self._started_at:
            log = self._logs / name
            self._started_at[name] = log.stat().st_size if log.exists() else 0
        with (self._logs / "out").open("ab") as out, (self._logs / "err").open("ab") as err:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        if self._ready is not None:
            self.wait_for(self._ready, self._ready_timeout_seconds)

    def wait_for(self, text: str, timeout_seconds: float = 30.0) -> None:
        """Wait until this run has written a line with `text`, the end of the line included.

        AssertionError if it ends before, or time is up.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self._has_line(text):
            ended = not self.is_running()
            if ended and text in self._of_this_run():
                return
            if ended or time.monotonic() > deadline:
                why = f"ended with {self.exit_code}" if ended else f"{timeout_seconds} s went by"
                raise AssertionError(f"never wrote {text!r}, {why}:\n{self._of_this_run()}")
            time.sleep(_POLL_SECONDS)

    def is_running(self) -> bool:
        """Tell whether the process runs, stopped by a signal or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The code of the last run, negative for a signal; None while it runs."""
        return self._running_or_ended().poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; nothing happens when it has ended."""
        self._running_or_ended().send_signal(number)

    def kill(self) -> None:
        """SIGKILL the process and what it started, and wait for the end."""
        self._kill_group()

    def terminate(self, timeout_seconds: float = 30.0) -> int:
        """SIGTERM the process and return its exit code; AssertionError if it does not end."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_seconds)

    def wait(self, timeout_seconds: float = 30.0) -> int:
        """Wait for the end and return the exit code; AssertionError if time is up before."""
        try:
            return self._running_or_ended().wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"did not end within {timeout_seconds} s:\n{self._of_this_run()}"
            ) from None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """SIGSTOP the process for the length of the block."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill what is left and forget the output; twice is once."""
        if self._process is not None:
            self._kill_group()
        shutil.rmtree(self._logs, ignore_errors=True)

    def _running_or_ended(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{' '.join(self._command)} was never started")
        return self._process

    def _kill_group(self) -> None:
        process = self._running_or_ended()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _has_line(self, text: str) -> bool:
        """Tell whether a whole line has it: Python writes text and line end one after the other."""
        written = (self._tail(name, since) for name, since in self._started_at.items())
        return any(text in said[: said.rfind("\n") + 1] for said in written)

    def _of_this_run(self) -> str:
        return "".join(self._tail(name, since) for name, since in self._started_at.items())

    def _tail(self, name: str, since: int) -> str:
        log = self._logs / name
        if not log.exists():
            return ""
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - _OUTPUT_BYTES_MAX))
            return file.read(_OUTPUT_BYTES_MAX).decode(errors="replace")


@contextmanager
def full_disk(folder: Path, size_bytes: int = 1024 * 1024) -> Iterator[Path]:
    """Mount a disk of `size_bytes` in memory on `folder`, to be filled; needs root on Linux.

    The folder is made if needed and unmounted with all its content at the end. Raises OSError
    naming what is missing.
    """
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise OSError("a disk of a limited size needs root on Linux")
    folder.mkdir(parents=True, exist_ok=True)
    _mount("mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _mount("umount", "-l", str(folder))


def _mount(name: str, *arguments: str) -> None:
    program = shutil.which(name) or f"/usr/bin/{name}"
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"{name} {' '.join(arguments)}: {done.stderr.strip()}")

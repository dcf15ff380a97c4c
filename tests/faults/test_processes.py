"""Are processes started, killed and collected as a fault test needs them, and disks filled?"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from durable_cache.testing.network import wait_until
from tests.kit.faults import ModuleProcess, full_disk

_PROGRAM = """
import signal, subprocess, sys, time

def stop(*_):
    print("stopping", flush=True)
    sys.exit(7)

signal.signal(signal.SIGTERM, stop)
if "child" in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print("child", child.pid, flush=True)
if "fail" in sys.argv:
    sys.exit("no luck today")
if "slow" in sys.argv:
    sys.stdout.write("ready to")
    time.sleep(0.2)
    print(" be killed", flush=True)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(_PROGRAM)
    return tmp_path


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_sigterm_lets_it_end_in_its_own_way(folder: Path) -> None:
    with ModuleProcess("program", folder=folder, ready="ready") as process:
        assert process.terminate() == 7
        assert process.stdout == "ready\nstopping\n"


def test_sigkill_and_start_again_waits_for_the_new_ready_line(folder: Path) -> None:
    with ModuleProcess("program", folder=folder, ready="ready") as process:
        first = process.pid
        process.kill()
        assert process.exit_code == -signal.SIGKILL
        process.start()
        assert process.pid != first
        assert process.stdout == "ready\nready\n"


def test_a_line_is_ready_when_it_is_written_to_its_end(folder: Path) -> None:
    """Python writes it in pieces: a process was killed between its line and the line's end."""
    with ModuleProcess("program", ["slow"], folder=folder, ready="ready to") as process:
        assert process.stdout.startswith("ready to be killed\n")


def test_nothing_outlives_the_block_not_even_a_child(folder: Path) -> None:
    with ModuleProcess("program", ["child"], folder=folder, ready="ready") as process:
        child = int(process.stdout.split()[1])
        assert _is_alive(child)
    wait_until(lambda: not _is_alive(child), 30, "the child's end")
    assert not _is_alive(process.pid)


def test_a_stopped_process_stands_still_and_goes_on(folder: Path) -> None:
    with ModuleProcess("program", folder=folder, ready="ready") as process:
        with process.suspended():
            stat = Path(f"/proc/{process.pid}/stat")
            wait_until(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T", 30, "the stop")
            process.signal(signal.SIGTERM)
            assert process.is_running()
        assert process.wait() == 7


def test_an_end_before_the_ready_line_shows_what_was_said(folder: Path) -> None:
    process = ModuleProcess("program", ["fail"], folder=folder, ready="ready")
    with pytest.raises(AssertionError, match=r"ended with 1.*\n.*no luck today"), process:
        pass
    assert not process.is_running()


@pytest.mark.root
def test_a_full_disk_says_so_and_is_gone_afterwards(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    with full_disk(tmp_path / "disk", size_bytes=64 * 1024) as disk:
        with pytest.raises(OSError, match="No space left") as caught:
            (disk / "big").write_bytes(b"x" * 1024 * 1024)
        assert caught.value.errno == errno.ENOSPC
    assert list((tmp_path / "disk").iterdir()) == []

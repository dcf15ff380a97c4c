"""A process in the foreground stops at the first signal, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROUNDS = 40
ASKED = f"""
import os, signal, threading, time
from durable_cache.service.stopping import Stop

for round in range({ROUNDS}):
    stop = Stop()
    threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGINT)).start()
    while not stop.wait(0.0):  # nearly always at the beginning or the end of a wait
        pass
    print(round)
"""
TWICE = """
import signal
from durable_cache.service.stopping import Stop

stop = Stop()
signal.raise_signal(signal.SIGTERM)
assert stop.wait(0.0) and stop.wait(60.0)
signal.raise_signal(signal.SIGINT)
"""


UNBROKEN = """
import signal, time
from durable_cache.service.stopping import unbroken, unwinding_on_signals

with unwinding_on_signals():
    with unbroken():
        signal.raise_signal(signal.{name})
        time.sleep(0.3)
        print("whole", flush=True)
    time.sleep(30)
"""


OF_ANOTHER_THREAD = """
import os, signal, threading
from durable_cache.service.stopping import unwinding_on_signals

def interrupt():
    signal.pthread_kill(threading.get_ident(), signal.{name})

with unwinding_on_signals():
    threading.Timer(0.5, interrupt).start()
    {wait}
"""
LOCKED = "lock = threading.Lock(); lock.acquire(); lock.acquire()"
READING = "os.read(os.pipe()[0], 1)"


STARTING = """
import signal
from pathlib import Path
from durable_cache.service.demo import show
from durable_cache.service.stopping import unwinding_on_signals

class Signalled(show.Process):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        signal.raise_signal(signal.SIGTERM)

show.Process = Signalled
with unwinding_on_signals(), show._Stage(Path({directory!r})) as stage:
    stage.serve()
"""


def _run(program: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def test_a_signal_at_the_edge_of_a_wait_is_no_deadlock() -> None:
    ended = _run(ASKED)
    assert ended.stdout.split() == [str(number) for number in range(ROUNDS)], ended.stderr


def test_a_second_signal_ends_the_process_at_once() -> None:
    assert _run(TWICE).returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_waits_for_the_end_of_what_is_not_broken_off(name: str) -> None:
    """A child that is started just then is noted, and ended with the others."""
    began = time.monotonic()
    ended = _run(UNBROKEN.format(name=name))
    assert ended.stdout == "whole\n"
    assert {"SIGINT": "KeyboardInterrupt", "SIGTERM": "Terminated"}[name] in ended.stderr
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("name", "wait", "raised"),
    [("SIGINT", LOCKED, "KeyboardInterrupt"), ("SIGTERM", READING, "Terminated")],
)
def test_a_signal_that_another_thread_was_given_ends_an_endless_wait(
    name: str, wait: str, raised: str
) -> None:
    assert raised in _run(OF_ANOTHER_THREAD.format(name=name, wait=wait), 20).stderr


def _processes_that_name(path: Path) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(path).encode() in each.read_bytes():
                found.append(int(each.parent.name))
        except OSError:
            continue  # it ended meanwhile
    return found


def test_a_terminated_demonstration_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "durable_cache", "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not _processes_that_name(tmp_path):
            assert demo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 128 + signal.SIGTERM
        assert not _processes_that_name(tmp_path)
        assert not list(tmp_path.iterdir())
    finally:
        demo.kill()
        demo.wait()
        for process in _processes_that_name(tmp_path):
            os.kill(process, signal.SIGKILL)


def test_a_signal_that_meets_the_start_of_a_child_leaves_none(tmp_path: Path) -> None:
    ended = _run(STARTING.format(directory=str(tmp_path)))
    left = _processes_that_name(tmp_path)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert "Terminated" in ended.stderr
    assert not left

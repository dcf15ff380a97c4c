"""Ctrl-C in the first moments of a verb: no traceback, no crash, one exit code."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

IMPORTING = """
import signal, sys, os
{handled}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "msgspec":  # the first of the compiled modules
            os.kill(os.getpid(), signal.{number})
        return None
sys.meta_path.insert(0, Finder())
sys.argv = ["durable-cache", *{verb}]
from durable_cache.service.start import main
main()
"""
STORM = """
import os, signal, sys, threading, time
from durable_cache.service import stopping

code = 0
def interrupt():
    while True:
        time.sleep(0.0005)
        os.kill(os.getpid(), signal.SIGINT)
try:
    with stopping.unwinding_on_signals():
        threading.Thread(target=interrupt, daemon=True).start()
        import durable_cache.endpoints.session  # heavy, with compiled modules
        time.sleep(10)
except KeyboardInterrupt:
    code = 130
os._exit(code)
"""
ASKING = ["query", "fleet/**", "--connect", "tcp/127.0.0.1:1"]
"""Imports what Zenoh needs, then looks for a service where there is none."""
ROUNDS = 4


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_while_modules_are_imported_ends_the_verb_without_a_word(number: str) -> None:
    handled = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    ended = _run(IMPORTING.format(handled=handled, number=number, verb=ASKING))
    code = signal.Signals[number]
    assert ended.returncode in (128 + code, -code), ended.stderr
    assert not ended.stderr
    assert not ended.stdout


def test_no_interrupt_is_raised_within_an_import() -> None:
    for _ in range(ROUNDS):
        ended = _run(STORM)
        assert (ended.returncode, ended.stderr) == (130, "")


def test_an_ignored_interrupt_stays_ignored() -> None:
    handled = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    ended = _run(IMPORTING.format(handled=handled, number="SIGINT", verb=ASKING))
    assert ended.returncode == 1
    assert "nobody answers at tcp/127.0.0.1:1" in ended.stderr

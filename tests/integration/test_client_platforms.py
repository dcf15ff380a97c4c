"""Publishers, subscribers and the command line run where POSIX-only modules are missing.

The modules that macOS or Windows lack are hidden in a process of its own, and what a client does is
done there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from durable_cache.testing.network import LocalNetwork
from durable_cache_delta.marker import Marker

HIDE = """
import sys

HIDDEN = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "crypt", "curses"}


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for name in HIDDEN:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
"""
CLIENT = """
import durable_cache, durable_cache.ext, durable_cache.profiles
from durable_cache.errors import DurableCacheError

for name in durable_cache.__all__:
    getattr(durable_cache, name)
session = durable_cache.open_session({
    "mode": "client",
    "connect": {"endpoints": [sys.argv[1]]},
    "scouting": {"multicast": {"enabled": False}},
})
with durable_cache.declare_reliable_publisher(session, "a/b") as publisher:
    publisher.put(b"x")
    with durable_cache.declare_reliable_subscriber(session, "a/b", history=True) as subscriber:
        print(subscriber.recv(10).payload)
with durable_cache.declare_reliability_cache(session, "c/d"):
    print("a cache in memory")
try:
    durable_cache.declare_reliable_publisher(
        session, "a/b", acknowledgements=1, spool_dir=sys.argv[2]
    )
except DurableCacheError as error:
    print(type(error).__name__, "POSIX" in str(error))
session.close()
"""
COMMANDS = """
from importlib import import_module
from pkgutil import iter_modules

import durable_cache.service.verbs as verbs
from durable_cache.service.cli import main

server = {"lake"}  # Spark and Delta Lake
print(sorted(m.name for m in iter_modules(verbs.__path__) if m.name not in server and not
             import_module(f"{verbs.__name__}.{m.name}")))
for verb in ("put", "query", "check-config"):
    try:
        main([verb, "--help"])
    except SystemExit as ended:
        assert not ended.code
print("helped")
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_client_needs_no_posix_module(network: LocalNetwork, tmp_path: Path) -> None:
    result = run(CLIENT, network.endpoint, str(tmp_path / "spool"))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["b'x'", "a cache in memory", "StorageUnavailable True"]


def test_the_command_line_needs_no_posix_module() -> None:
    result = run(COMMANDS)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("[]", "helped")


def test_the_modules_are_hidden() -> None:
    result = run("import fcntl")
    assert "No module named 'fcntl'" in result.stderr


def test_a_delta_tables_marker_needs_no_call_of_linux_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr("os.fdatasync")
    marker = Marker(tmp_path / "confirmed")
    marker.confirm(7)
    marker.close()
    again = Marker(tmp_path / "confirmed")
    again.close()
    assert again.version == 7

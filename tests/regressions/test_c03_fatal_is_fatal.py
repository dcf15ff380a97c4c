"""C3: a corrupt journal, and a failed fsync, end the service with exit code 1 and their name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from durable_cache import Receipt, ReliablePublisher, declare_reliable_publisher, open_session
from durable_cache.service.config import read_settings
from durable_cache.service.service import Service
from durable_cache.testing.network import free_port, wait_until
from tests.kit.faults import ModuleProcess
from tests.regressions.failing_syncs import reason_unavailable

READY = "try from another terminal"
JOURNAL = "state/cache/journal.db"
FAILED = 1
DAMAGE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA user_version = 7")  # whoever has the file open reads its pages anew
database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
(root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries'").fetchone()
(size,) = database.execute("PRAGMA page_size").fetchone()
database.close()
with open(sys.argv[1], "r+b") as file:
    file.seek((root - 1) * size)
    file.write(b"damage" * 100)
"""


def damage(journal: Path) -> None:
    """Overwrite the page that the next commit needs.

    In a process of its own: SQLite's locks end with the first descriptor that their process closes.
    """
    subprocess.run([sys.executable, "-c", DAMAGE, str(journal)], check=True)


@pytest.fixture
def endpoint() -> str:
    return f"tcp/127.0.0.1:{free_port()}"


def settings(folder: Path, endpoint: str, **ours: object) -> dict[str, object]:
    return {
        "mode": "peer",
        "scouting": {"multicast": {"enabled": False}},
        "listen": {"endpoints": [endpoint]},
        "plugins": {
            "durable_cache": {
                "state_dir": str(folder / "state"),
                "storages": {"cache": {"key_expr": "a/**"}},
                **ours,
            }
        },
    }


@contextmanager
def service(
    folder: Path, endpoint: str, module: str = "durable_cache.service"
) -> Iterator[ModuleProcess]:
    (folder / "service.json5").write_text(json.dumps(settings(folder, endpoint)))
    arguments = ["serve", "--config", "service.json5"]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with ModuleProcess(
        module, arguments, folder=folder, environment=environment, ready=READY
    ) as process:
        yield process


@contextmanager
def publisher(endpoint: str) -> Iterator[ReliablePublisher]:
    session = open_session(
        {
            "mode": "client",
            "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )
    try:
        with declare_reliable_publisher(session, "a/b", acknowledgements=1) as out:
            yield out
    finally:
        session.close()  # type: ignore[no-untyped-call]


def put(out: ReliablePublisher, payload: bytes) -> Receipt:
    receipt = out.put(payload)
    assert receipt is not None
    return receipt


def test_a_journal_found_corrupt_ends_the_service(tmp_path: Path, endpoint: str) -> None:
    with service(tmp_path, endpoint) as process, publisher(endpoint) as out:
        assert put(out, b"before").wait(20)
        damage(tmp_path / JOURNAL)
        after = put(out, b"after")
        assert process.wait(20) == FAILED
        assert str(tmp_path / JOURNAL) in process.stderr.splitlines()[-1]
        assert not after.done


@pytest.mark.skipif(bool(reason_unavailable()), reason=reason_unavailable())
def test_a_failed_fsync_ends_the_service(tmp_path: Path, endpoint: str) -> None:
    failing = "tests.regressions.failing_syncs"
    with service(tmp_path, endpoint, failing) as process, publisher(endpoint) as out:
        assert put(out, b"before").wait(20)
        process.signal(signal.SIGUSR1)
        process.wait_for("every fsync fails")
        after = put(out, b"after")
        assert process.wait(20) == FAILED
        assert str(tmp_path / JOURNAL) in process.stderr.splitlines()[-1]
        assert not after.done


def test_a_service_whose_journal_is_corrupt_is_not_ready(tmp_path: Path, endpoint: str) -> None:
    port = free_port()
    chosen = settings(tmp_path, endpoint, http={"listen": f"127.0.0.1:{port}"})
    with Service(read_settings(chosen)), publisher(endpoint) as out:
        assert put(out, b"before").wait(20)
        assert readiness(port) == 200
        damage(tmp_path / JOURNAL)
        put(out, b"after")
        wait_until(lambda: readiness(port) == 503, what="unready")


def readiness(port: int) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()

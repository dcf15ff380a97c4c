"""Has a service the same Zenoh id after a restart, and does it say why where it cannot?"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durable_cache.endpoints.session import close_session, neighbours, open_session
from durable_cache.testing.network import wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Any]
READY = "try from another terminal"


@pytest.fixture
def served(
    start: Start, free_port: Callable[[], int], tmp_path: Path
) -> tuple[Callable[..., Any], str]:
    """Return what starts the same service again, and where it listens."""
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    (tmp_path / "cache.json5").write_text(
        json.dumps(
            {
                "listen": {"endpoints": [endpoint]},
                "scouting": {"multicast": {"enabled": False}},
                "plugins": {"durable_cache": {"storages": {"lab": {"key_expr": "lab/**"}}}},
            }
        )
    )
    return lambda *more: start("serve", "-c", "cache.json5", *more), endpoint


def zid_said(process: Any) -> str:
    found = re.search(r"serving as peer ([0-9a-f]+)", process.wait_for(READY))
    assert found
    return found[1]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_service_keeps_its_zenoh_id_over_a_restart(
    served: tuple[Callable[..., Any], str], end: signal.Signals, tmp_path: Path
) -> None:
    again, endpoint = served
    first = again()
    zid = zid_said(first)
    session = open_session(
        {
            "connect": {"endpoints": [endpoint]},
            "listen": {"endpoints": []},
            "scouting": {"multicast": {"enabled": False}},
        }
    )
    try:
        assert zid in neighbours(session)
        first.send(end)
        first.end()
        wait_until(lambda: zid not in neighbours(session), 20)
        second = again()
        assert zid_said(second) == zid
        wait_until(lambda: zid in neighbours(session), 20, "the neighbour")
    finally:
        close_session(session)
    assert (tmp_path / "durable-cache-data" / "zenoh.id").read_text() == f"{zid}\n"


def test_the_settings_win_over_the_id_that_is_kept(
    served: tuple[Callable[..., Any], str], tmp_path: Path
) -> None:
    again, _ = served
    assert zid_said(again("--id", "abc1")) == "abc1"
    assert not (tmp_path / "durable-cache-data" / "zenoh.id").exists()


def test_a_damaged_id_is_named_with_what_to_do(
    served: tuple[Callable[..., Any], str], run: Run, tmp_path: Path
) -> None:
    state = tmp_path / "durable-cache-data"
    state.mkdir()
    (state / "zenoh.id").write_text("seven\n")
    result = run("serve", "-c", "cache.json5")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "zenoh.id: 'seven' is no Zenoh id; remove the file" in result.stderr


@pytest.mark.parametrize("name", ["changes.json", "zenoh.id"])
def test_a_file_of_the_state_directory_that_cannot_be_read_is_named(
    run: Run, free_port: Callable[[], int], tmp_path: Path, name: str
) -> None:
    """A directory in its place stands for a file of another user, which nobody is for root."""
    (tmp_path / "data" / name).mkdir(parents=True)
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    ended = run("serve", "--state-dir", "data", "--listen", endpoint)
    assert ended.returncode in (1, 2)
    (line,) = ended.stderr.splitlines()
    assert f"data/{name}: Is a directory; let this user read it, or choose another" in line

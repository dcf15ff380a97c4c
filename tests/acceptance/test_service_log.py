"""Does a service say what changes, in lines or JSON, and tell its supervisor where it stands?"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durable_cache import open_session
from durable_cache.testing.network import wait_until

Start = Callable[..., Any]
ALONE = ("--no-multicast-scouting", "-k", "lab/**")


def lines(process: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.stderr.splitlines()]


def messages(process: Any) -> list[str]:
    return [line["message"] for line in lines(process)]


def test_sessions_that_come_and_go_and_samples_left_out_are_told(
    start: Start, free_port: Callable[[], int], tmp_path: Path
) -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    config = tmp_path / "warned.json5"
    config.write_text(
        '{ plugins: { durable_cache: { storages: { cache: { key_expr: "lab/**" } } } } }'
    )
    started = ("-c", str(config), "-l", endpoint, "--no-multicast-scouting")
    service = start("serve", *started, "--log-format", "json")
    service.wait_for('"message": "serving"')
    (serving,) = lines(service)
    assert (serving["level"], serving["listening"], serving["storages"]) == (
        "info",
        endpoint,
        "cache",
    )
    session = open_session(
        {
            "mode": "peer",
            "listen": {"endpoints": []},
            "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )
    try:
        wait_until(lambda: "a peer has come" in messages(service), 30, "the peer")
        for number in range(20):
            session.put("lab/plain", f"{number}")
        wait_until(lambda: len(lines(service)) == 3, 30, "a line on what is left out")
    finally:
        session.close()  # type: ignore[no-untyped-call]
    wait_until(lambda: "a peer is gone" in messages(service), 30, "the peer's end")
    service.send(signal.SIGTERM)
    assert service.end() == 0
    said = lines(service)
    (left_out,) = [line for line in said if "without a number" in line["message"]]
    assert (left_out["storage"], left_out["level"]) == ("cache", "warning")
    assert (left_out["key_expr"], left_out["key"]) == ("lab/**", "'lab/plain'")
    assert said[-1]["message"] == "stopped; everything acknowledged is stored"
    assert all({"time", "level", "logger", "message"} <= set(line) for line in said)


def test_lines_for_people_say_the_same(start: Start, free_port: Callable[[], int]) -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    service = start("serve", "-l", endpoint, *ALONE)
    service.wait_for("try from another terminal")
    other = start("serve", "-e", endpoint, *ALONE, "--state-dir", "other", "--log", "error")
    said = service.wait_for("a peer has come zid=")
    assert " INFO durable_cache.service.changes: a peer has come" in said
    other.wait_for("try from another terminal")
    service.send(signal.SIGTERM)
    assert service.end() == 0
    assert "is gone" not in other.stderr, "--log error keeps it quiet"


def test_a_router_that_is_not_there_is_told_of(start: Start, free_port: Callable[[], int]) -> None:
    absent = f"tcp/127.0.0.1:{free_port()}"
    service = start("serve", "-l", f"tcp/127.0.0.1:{free_port()}", "-e", absent, *ALONE)
    service.wait_for(f"nobody answers yet; connecting is tried again connect={absent}")


def test_a_supervisor_is_told_when_it_is_ready_alive_and_stopping(
    start: Start, free_port: Callable[[], int], tmp_path: Path
) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(path)
        supervisor.settimeout(30)
        service = start("serve", "-l", f"tcp/127.0.0.1:{free_port()}", *ALONE, NOTIFY_SOCKET=path)
        assert supervisor.recv(1000) == b"READY=1\nSTATUS=serving cache"
        assert supervisor.recv(1000) == b"WATCHDOG=1"
        service.send(signal.SIGTERM)
        while (said := supervisor.recv(1000)) == b"WATCHDOG=1":
            continue
        assert said == b"STOPPING=1"
        assert service.end() == 0


def test_zenoh_logs_what_its_own_variable_asks_for(
    start: Start, free_port: Callable[[], int]
) -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    service = start("serve", "-l", endpoint, *ALONE, RUST_LOG="zenoh=debug")
    service.wait_for("try from another terminal")
    assert "zenoh::" in service.stdout + service.stderr


@pytest.mark.parametrize("option", ["--listen", "--http", "--rest-http-port"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_start_that_fails_leaves_no_directory_that_it_made(
    exists: bool, option: str, start: Start, free_port: Callable[[], int], tmp_path: Path
) -> None:
    if exists:
        (tmp_path / "durable-cache-data").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listening = ["--listen", f"tcp/127.0.0.1:{free_port()}"] if option != "--listen" else []
        chosen = f"tcp/{address}" if option == "--listen" else address
        service = start("serve", *listening, option, chosen, *ALONE)
        assert service.end() == 1
    assert f"{address}: Address already in use" in service.stderr
    assert option in service.stderr
    assert (tmp_path / "durable-cache-data").exists() is exists

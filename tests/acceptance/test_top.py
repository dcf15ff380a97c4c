"""Does the terminal view show what services do, lead down to single samples, and end cleanly?"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import select
import signal
import sys
import termios
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from durable_cache.service.cli import main
from durable_cache.service.top.app import Top
from durable_cache.service.top.reach import Reach
from tests.acceptance.conftest import COMMAND
from tests.acceptance.test_service import publish

SECONDS = 30.0
Start = Callable[..., Any]


@pytest.fixture
def endpoint(start: Start, free_port: Callable[[], int], tmp_path: Path) -> str:
    """A running service with something in it, hostile names too."""
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    (tmp_path / "top.json5").write_text(
        json.dumps(
            {
                "listen": {"endpoints": [endpoint]},
                "scouting": {"multicast": {"enabled": False}},
                "plugins": {
                    "durable_cache": {
                        "volumes": {"quick": {"backend": "memory"}},
                        "storages": {"lab": {"key_expr": "lab/**", "acknowledge": "memory"}},
                    }
                },
            }
        )
    )
    start("serve", "--config", "top.json5").wait_for("try from another terminal")
    publish(endpoint, "lab/a", [b"one", b"two", b"three"])
    publish(endpoint, "lab/b", [b"[red]hot[/red] \x1b[2J"])
    publish(endpoint, "lab/c;x=[bold]", [b"odd"])
    return endpoint


def reach(endpoint: str) -> Reach:
    return Reach(
        argparse.Namespace(
            config="",
            context="",
            connect=[endpoint],
            listen=[],
            cfg=["scouting/multicast/enabled:false", "connect/timeout_ms:200"],
            mode="client",
            no_multicast_scouting=True,
        )
    )


def view(app: Top, steps: Callable[[Pilot[int]], Awaitable[None]], size: tuple[int, int]) -> int:
    """Run the app without a terminal while `steps` types; returns the exit code."""

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await steps(pilot)

    asyncio.run(run())
    return app.return_value if app.return_value is not None else -1


async def until(pilot: Pilot[int], text: str) -> str:
    """Wait until the screen's widgets hold a text; returns all they hold."""
    deadline = time.monotonic() + SECONDS
    while True:
        await pilot.pause(0.05)
        shown = shown_text(pilot)
        if text in shown:
            return shown
        assert time.monotonic() < deadline, f"{text!r} never came: {shown}"


def shown_text(pilot: Pilot[int]) -> str:
    table = pilot.app.query_one("#rows", DataTable)
    lines = [" ".join(str(cell) for cell in table.get_row_at(at)) for at in range(table.row_count)]
    lines += [
        str(pilot.app.query_one(name, Static).content) for name in ("#where", "#said", "#text")
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("size", [(120, 30), (30, 8)], ids=["large", "small"])
def test_from_a_storage_down_to_one_sample_and_back(endpoint: str, size: tuple[int, int]) -> None:
    asking = reach(endpoint)

    async def steps(pilot: Pilot[int]) -> None:
        await until(pilot, "lab")
        await pilot.press("enter")
        keys = await until(pilot, "lab/a")
        assert "three" in keys, "the last value"
        assert "[red]hot[/red] \\x1b[2J" in keys, "no markup, no control characters"
        await pilot.press("enter")
        samples = await until(pilot, "one")
        assert samples.index("three") < samples.index("two") < samples.index("one"), "newest first"
        await pilot.press("enter")
        assert "payload (text):\nthree" in await until(pilot, "payload (text)")
        await pilot.press("escape", "escape")
        await until(pilot, "lab/c;x=[bold]")
        await pilot.press("s")
        await until(pilot, "sources, of lab, lab/a | 1 row")
        await pilot.press("escape", "escape")
        await until(pilot, "storages | 1 row")
        await pilot.press("s")
        await until(pilot, "sources, of lab | 3 rows")
        await pilot.press("q")

    assert view(Top(asking, interval_seconds=0.1, rows_max=50), steps, size) == 0
    asking.close()


def test_a_key_expression_finds_sorting_orders_and_pages_turn(endpoint: str) -> None:
    asking = reach(endpoint)
    app = Top(asking, interval_seconds=0.1, rows_max=2)

    async def steps(pilot: Pilot[int]) -> None:
        await until(pilot, "lab")
        await pilot.press("enter")
        first = await until(pilot, "n: more")
        assert "lab/c" not in first
        await pilot.press("n")
        assert "lab/a" not in await until(pilot, "lab/c;x=[bold]")
        await pilot.press("b")
        await until(pilot, "lab/a")
        await pilot.press("greater_than_sign")
        shown = await until(pilot, "by key ↓")
        assert shown.index("lab/b") < shown.index("lab/a")
        await pilot.press("r")
        shown = await until(pilot, "by key ↑")
        assert shown.index("lab/a") < shown.index("lab/b")
        await pilot.press("slash", *"lab//b", "enter")
        await until(pilot, "empty chunk")
        await pilot.press("escape", "slash", *"lab/b", "enter")
        found = await until(pilot, "keys, of lab, in lab/b")
        found = await until(pilot, "hot")
        assert "lab/a" not in found
        await pilot.press("q")

    view(app, steps, (100, 20))
    asking.close()


def test_without_a_service_it_says_so_and_finds_the_one_that_comes(
    start: Start, free_port: Callable[[], int], tmp_path: Path
) -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    asking = reach(endpoint)

    async def steps(pilot: Pilot[int]) -> None:
        await until(pilot, "trying again every 0.2 s")
        serve = start("serve", "-k", "lab/**", "--listen", endpoint, "--no-multicast-scouting")
        await asyncio.to_thread(serve.wait_for, "try from another terminal")
        await until(pilot, "1 row")
        serve.send(signal.SIGTERM)
        await asyncio.to_thread(serve.end)
        await until(pilot, "trying again every 0.2 s")
        await pilot.press("q")

    assert view(Top(asking, interval_seconds=0.2, rows_max=5), steps, (80, 24)) == 0
    asking.close()


def in_terminal(arguments: list[str], typed: bytes | signal.Signals, wanted: bytes) -> int:
    """Run the verb in a pseudo-terminal, type once it shows `wanted`; returns its exit code.

    The terminal must be as it was at the end.
    """
    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    child = os.posix_spawn(
        sys.executable,
        [*COMMAND, "top", *arguments],
        {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
        file_actions=[(os.POSIX_SPAWN_DUP2, follower, number) for number in (0, 1, 2)],
        setsid=True,
    )
    shown, told = b"", False
    deadline = time.monotonic() + SECONDS
    try:
        while True:
            ready, _, _ = select.select([leader], [], [], 0.1)
            shown += os.read(leader, 65536) if ready else b""
            if wanted in shown and not told:
                told = True
                os.write(leader, typed) if isinstance(typed, bytes) else os.kill(child, typed)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            assert time.monotonic() < deadline, shown[-2000:]
        while select.select([leader], [], [], 0.1)[0]:
            shown += os.read(leader, 65536)
        assert termios.tcgetattr(follower) == before
    finally:
        os.close(leader)
        os.close(follower)
    assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h"), "the screen came back"
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l"), "the cursor came back"
    assert b"Traceback" not in shown
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(
    ("typed", "code"),
    [(b"q", 0), (b"\x03", 130), (signal.SIGINT, 130), (signal.SIGTERM, 143)],
    ids=["q", "ctrl-c", "SIGINT", "SIGTERM"],
)
def test_a_terminal_is_left_as_it_was(
    endpoint: str, typed: bytes | signal.Signals, code: int
) -> None:
    arguments = ["--connect", endpoint, "--no-multicast-scouting", "--interval", "0.2"]
    assert in_terminal(arguments, typed, b"lab") == code


def test_without_its_extra_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "durable_cache.service.top.app", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "textual"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    said: list[str] = []
    monkeypatch.setattr("durable_cache.service.cli.say", said.append)
    assert main(["top"]) == 2
    assert "'top' needs the package 'textual': pip install 'durable-cache[top]'" in said[0]

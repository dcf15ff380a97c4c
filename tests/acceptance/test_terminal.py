"""What a table and a bar look like on a terminal, and that nothing of it goes into a pipe."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from durable_cache.service.output import Progress

TABLE = """
from durable_cache.service.output import write_table
write_table(
    [{"key": "fleet/[bold]7[/]", "samples": 5}, {"key": "a\\x1b[31m", "samples": 1000}],
    ["key", "samples"],
)
"""
PROGRESS = """
from durable_cache.service.output import Progress
with Progress("copied [b]x[/b]", 20) as progress:
    for _ in range(20):
        progress.advance()
"""

ANEW = """
from durable_cache.service.output import write_anew
for samples in 5, 6:
    write_anew([{"samples": samples}], ["samples"], as_json=False)
"""
TOP = """
import sys
from durable_cache.service.cli import main
from durable_cache.service.verbs import observe

sys.stdin = sys.stdout
observe._top_view = lambda arguments: print("drawn") or 0
observe._top_lines = lambda arguments: print("line by line") or 0
assert main(["top"]) == 0
"""


def on_a_terminal(program: str, columns: int, kind: str = "xterm") -> str:
    """Run a program on a terminal of so many columns; returns what it drew there."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")},
        "TERM": kind,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env=environment,
    )
    os.close(terminal)
    drawn = b"".join(_read(screen))
    assert process.wait(30) == 0, drawn
    os.close(screen)
    return drawn.decode()


def _read(screen: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(screen, 65536)
        except OSError:
            return
        if not part:
            return
        yield part


def plain(drawn: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)


def test_a_table_is_drawn_with_every_cell_as_it_is() -> None:
    drawn = on_a_terminal(TABLE, 80)
    assert "\x1b[1m" in drawn, "the heading is bold"
    assert "\x1b[31m" not in drawn, "what was published colours nothing"
    lines = [line.split() for line in plain(drawn).splitlines()]
    assert ["key", "samples"] in lines
    assert ["fleet/[bold]7[/]", "5"] in lines
    assert ["a\\x1b[31m", "1000"] in lines


def test_a_table_that_is_too_wide_is_written_line_by_line_and_whole() -> None:
    lines = [line.split() for line in plain(on_a_terminal(TABLE, 25)).splitlines()]
    assert ["key", "fleet/[bold]7[/]"] in lines
    assert ["samples", "1000"] in lines


def test_a_bar_says_how_far_work_has_come() -> None:
    drawn = plain(on_a_terminal(PROGRESS, 100))
    assert "copied [b]x[/b]" in drawn
    assert "20/20" in drawn


@pytest.mark.parametrize("program", [TABLE, PROGRESS, ANEW], ids=["table", "bar", "anew"])
def test_a_terminal_that_draws_nothing_gets_lines(program: str) -> None:
    drawn = on_a_terminal(program, 80, "dumb")
    assert "\x1b" not in drawn
    assert (
        "bold" in drawn or "20 of 20" in drawn or drawn.split() == ["samples", "5", "samples", "6"]
    )


@pytest.mark.parametrize(("kind", "said"), [("xterm", "drawn"), ("dumb", "line by line")])
def test_top_draws_where_a_terminal_can(kind: str, said: str) -> None:
    assert on_a_terminal(TOP, 80, kind).strip() == said


def test_a_pipe_gets_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    exec(TABLE)
    assert capsys.readouterr().out == (
        "key               samples\nfleet/[bold]7[/]        5\na\\x1b[31m            1000\n"
    )
    said = io.StringIO()
    with Progress("copied", 20, said) as progress:
        progress.advance(20)
    assert re.fullmatch(r"copied: 20 of 20, \d+/s\n", said.getvalue())

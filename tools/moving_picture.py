"""Records a command in a terminal and writes it as a moving picture: one SVG that plays by itself.

``python tools/moving_picture.py docs/pictures/demo.svg durable-cache demo`` runs the command in a
pseudo-terminal of 96 columns and keeps each line with the moment at which it stood there; a pause
is shown as 3 seconds at most. The picture loops; where nothing moves (reduced motion, a printer),
it shows the end.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

COLUMNS, ROWS = 96, 26
_CELL_WIDTH, _LINE_HEIGHT, _MARGIN, _BAR_HEIGHT = 8.0, 18, 14, 28
_TYPING_SECONDS = 1.5
_LAST_SECONDS = 5.0
"""How long the end stands before it begins again."""
_PAUSE_SECONDS_MAX = 3.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>]")
_COLOURS = {"back": "#12161d", "bar": "#222933", "text": "#d7dde5", "quiet": "#8b98a8"}


class Line(NamedTuple):
    """What stood in a row of the terminal, and from when until when, in seconds."""

    row: int
    text: str
    begin: float
    end: float | None
    """None where it stays."""


def record(command: Sequence[str]) -> list[Line]:
    """Run a command to its end in a terminal and return its lines.

    Raises SystemExit when the command fails: such a picture shows nothing that is wanted.
    """
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"},
    )
    os.close(terminal)
    told: list[tuple[float, str]] = []
    while True:
        try:
            part = os.read(screen, 65536)
        except OSError:
            break  # the other end is closed
        if not part:
            break
        told.append((time.monotonic() - began, part.decode("utf-8", "replace")))
    code = process.wait()
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}; nothing is written")
    return lines_of(told)


def lines_of(told: Sequence[tuple[float, str]]) -> list[Line]:
    """Return what stood in each row when; a return to the row's beginning writes it anew."""
    found: list[Line] = []
    row, current, begin = 0, "", 0.0

    def leave(end: float | None) -> None:
        if current:
            found.append(Line(row, current, begin, end))

    for at, text in told:
        for piece in re.split(r"(\r\n|\n|\r)", text):
            match piece:
                case "\r\n" | "\n":
                    leave(None)
                    row, current = row + 1, ""
                case "\r":
                    leave(at)
                    current = ""
                case _ if plain := _CONTROL.sub("", piece):
                    if current:
                        leave(at)
                    current, begin = (current + plain)[:COLUMNS], at
    leave(None)
    found = _hurried(found)
    return [line for line in found if line.end is None or line.end - line.begin > 0.05]


def _hurried(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with every pause in which nothing happens cut to `_PAUSE_SECONDS_MAX`."""
    moments = sorted({at for line in lines for at in (line.begin, line.end) if at is not None})
    moved, before, cut = {}, 0.0, 0.0
    for at in moments:
        cut += max(0.0, at - before - _PAUSE_SECONDS_MAX)
        moved[at], before = at - cut, at
    return [
        line._replace(begin=moved[line.begin], end=None if line.end is None else moved[line.end])
        for line in lines
    ]


def picture(command: str, lines: Sequence[Line]) -> str:
    """Return the SVG."""
    shift = _TYPING_SECONDS
    took = max((line.begin for line in lines), default=0.0)
    whole = shift + took + _LAST_SECONDS
    rows = max((line.row for line in lines), default=0) + 2
    width = COLUMNS * _CELL_WIDTH + 2 * _MARGIN
    shown = min(rows, ROWS)
    height = shown * _LINE_HEIGHT + 2 * _MARGIN + _BAR_HEIGHT
    styles, texts = [], []
    typed = f"$ {command}"
    texts.append(_text(0, typed, "quiet"))
    for number, line in enumerate(lines):
        begin = f"{100 * (shift + line.begin) / whole:.3f}%{{visibility:visible}}"
        end, without_motion = "", ""
        if line.end is not None:
            end = f"{100 * (shift + line.end) / whole:.3f}%,100%{{visibility:hidden}}"
            without_motion = ";visibility:hidden"
        styles.append(
            f"@keyframes l{number}{{0%{{visibility:hidden}}{begin}{end}}}"
            f".l{number}{{animation:l{number} {whole:.1f}s step-end infinite{without_motion}}}"
        )
        texts.append(_text(line.row + 1, line.text, "text", f"l{number}"))
    steps = [
        f"{100 * (shift + line.begin) / whole:.3f}%"
        f"{{transform:translateY({-(line.row + 2 - ROWS) * _LINE_HEIGHT}px)}}"
        for line in lines
        if line.row + 2 > ROWS
    ]
    last = max(0, rows - ROWS) * _LINE_HEIGHT
    styles.append(f"@keyframes roll{{0%{{transform:none}}{''.join(steps)}}}")
    styles.append(
        f".roll{{transform:translateY({-last}px);animation:roll {whole:.1f}s step-end infinite}}"
    )
    dots = "".join(
        f'<circle cx="{18 + 18 * at}" cy="{_BAR_HEIGHT / 2}" r="5.5" fill="{colour}"/>'
        for at, colour in enumerate(("#e5695f", "#e2b340", "#5bb567"))
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}"
 width="{width:.0f}" height="{height}" role="img" aria-label="{escape(command)}">
<style>
text{{font:13.3px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}}
.text{{fill:{_COLOURS["text"]}}}.quiet{{fill:{_COLOURS["quiet"]}}}
{chr(10).join(styles)}
@media (prefers-reduced-motion:reduce){{*{{animation:none!important}}}}
@media print{{*{{animation:none!important}}}}
</style>
<rect width="100%" height="100%" rx="8" fill="{_COLOURS["back"]}"/>
<path d="M0 {_BAR_HEIGHT}V8a8 8 0 0 1 8-8H{width - 8:.0f}a8 8 0 0 1 8 8V{_BAR_HEIGHT}z"
 fill="{_COLOURS["bar"]}"/>{dots}
<svg y="{_BAR_HEIGHT}" width="{width:.0f}" height="{height - _BAR_HEIGHT}"><g class="roll">
{chr(10).join(texts)}
</g></svg>
</svg>
"""


def _text(row: int, text: str, kind: str, name: str = "") -> str:
    y = _MARGIN + row * _LINE_HEIGHT + 13
    length = f' textLength="{len(text) * _CELL_WIDTH:.0f}"' if len(text) > 1 else ""
    return f'<text class="{kind} {name}" x="{_MARGIN}" y="{y}"{length}>{escape(text)}</text>'


def main(target: str, *command: str) -> None:
    """Record and write."""
    lines = record(command)
    Path(target).write_text(picture(" ".join(command), lines), encoding="utf-8")
    print(f"{target}: {len(lines)} lines, {Path(target).stat().st_size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])

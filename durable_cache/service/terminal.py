"""How tables and progress look on a terminal, with rich; nothing here is used where none is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

_REDRAW_SECONDS = 0.1
Cells = Sequence[Sequence[str]]


def show_table(cells: Cells, columns: Sequence[str], numeric: Sequence[bool]) -> None:
    """Write rows to stdout; one below the other, a line for each column, where they are too wide.

    Nothing is cut off and nothing in a cell is markup.
    """
    console = Console(highlight=False)
    widths = [
        max(cell_len(text) for text in (name, *(row[at] for row in cells)))
        for at, name in enumerate(columns)
    ]
    if sum(widths) + 2 * len(widths) <= console.width:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        for name, is_number in zip(columns, numeric, strict=True):
            table.add_column(Text(name), justify="right" if is_number else "left", no_wrap=True)
        for row in cells:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    for row in cells:
        console.print(Rule(style="dim"))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in zip(columns, row, strict=True):
            if text:
                table.add_row(Text(name), Text(text))
        console.print(table)


class _Rate(ProgressColumn):
    """How much is done a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.completed / max(task.elapsed or 0.0, 1e-6):.0f}/s")


class Bar:
    """A bar on a terminal; drawn while it is moved on, by nobody else's thread."""

    def __init__(self, label: str, total: int | None, stream: TextIO) -> None:
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
        ]
        counting = MofNCompleteColumn() if total else TextColumn("{task.completed}")
        self._progress = Progress(
            *columns, counting, _Rate(), console=Console(file=stream), auto_refresh=False
        )
        self._task = self._progress.add_task(label, total=total or None)
        self._drawn = 0.0

    def start(self) -> None:
        """Draw it for the first time."""
        self._progress.start()

    def advance(self, amount: int) -> None:
        """Count units as done; it is drawn anew at most ten times a second."""
        self._progress.advance(self._task, amount)
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_SECONDS:
            self._drawn = now
            self._progress.refresh()

    def say(self, text: str) -> None:
        """Write one line above it."""
        self._progress.console.print(Text(text))

    def stop(self) -> None:
        """Draw how it ended and leave it there."""
        self._progress.refresh()
        self._progress.stop()

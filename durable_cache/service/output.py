"""How verbs speak to people and to other programs: data to stdout, everything else to stderr."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TextIO

from durable_cache.model.payloads import printable

if TYPE_CHECKING:
    from durable_cache.service.terminal import Bar

Row = Mapping[str, object]
_DUMB = frozenset({"dumb", "unknown"})
"""Terminals that show escape sequences rather than obey them, as those of editors do."""


def say(text: str) -> None:
    """Write one line for people to stderr."""
    print(text, file=sys.stderr, flush=True)


def can_draw(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal that moves its cursor; lines are written elsewhere."""
    return stream.isatty() and os.environ.get("TERM", "") not in _DUMB


def counted(count: int, thing: str) -> str:
    """Return ``1 sample``, ``2 samples``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def table_lines(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return aligned lines, a heading first; numbers to the right."""
    return growing_table(rows, columns, {})


def growing_table(rows: Sequence[Row], columns: Sequence[str], widths: dict[str, int]) -> list[str]:
    """Return lines as `table_lines` does, aligned with those before as far as these were as wide.

    `widths` is empty before the first, where a heading is due, and remembers them.
    """
    cells = _cells(rows, columns)
    shown = cells if widths else [list(columns), *cells]
    for at, column in enumerate(columns):
        longest = max((len(line[at]) for line in shown), default=0)
        widths[column] = max(widths.get(column, 0), longest)
    numeric = _numeric(rows, columns)
    lines = []
    for line in shown:
        parts = [
            text.rjust(widths[column]) if right else text.ljust(widths[column])
            for text, column, right in zip(line, columns, numeric, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def _cells(rows: Sequence[Row], columns: Sequence[str]) -> list[list[str]]:
    return [[cell_text(row.get(column, "")) for column in columns] for row in rows]


def _numeric(rows: Sequence[Row], columns: Sequence[str]) -> list[bool]:
    return [
        bool(rows) and all(isinstance(row.get(column, 0), int | float) for row in rows)
        for column in columns
    ]


def write_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write a table to stdout: drawn on a terminal, aligned lines and nothing else elsewhere."""
    if can_draw(sys.stdout):
        from durable_cache.service.terminal import show_table

        show_table(_cells(rows, columns), columns, _numeric(rows, columns))
        return
    for line in table_lines(rows, columns):
        print(line)


def write_rows(rows: Sequence[Row], columns: Sequence[str], form: str) -> None:
    """Write rows to stdout as ``--format`` says: ``json``, all they hold, or else a table."""
    if form == "json":
        write_json(rows)
    else:
        write_table(rows, columns)


def write_anew(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool) -> None:
    """Write rows that are written again and again: a terminal shows the newest table alone."""
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False), flush=True)
        return
    if can_draw(sys.stdout):
        print("\x1b[H\x1b[2J", end="")
    print("\n".join(table_lines(rows, columns)), flush=True)


def write_json(value: object) -> None:
    """Write one value as indented JSON to stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def write_result(text: str, values: Mapping[str, object], *, as_json: bool) -> None:
    """Write what a verb did to stdout: a line for people, or its `values` as one JSON object."""
    print(json.dumps(values, ensure_ascii=False, default=str) if as_json else text)


def write_csv(rows: Iterable[Row], columns: Sequence[str], *, heading: bool, to: TextIO) -> None:
    """Write rows as CSV."""
    writer = csv.DictWriter(to, columns, extrasaction="ignore", lineterminator="\n")
    if heading:
        writer.writeheader()
    writer.writerows(rows)


def cell_text(value: object) -> str:
    """Return a value on one line, without what would move a terminal's cursor."""
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}".rstrip("0").rstrip(".")
        case None:
            return ""
        case _:
            return printable(str(value))


class Progress:
    """Says on stderr how far long work has come: a bar on a terminal, a line at the end elsewhere.

    A context manager; `total` None means unknown.
    """

    def __init__(self, label: str, total: int | None = None, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = total
        self._stream = stream or sys.stderr
        self._bar: Bar | None = None
        self._done = 0
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if can_draw(self._stream):
            from durable_cache.service.terminal import Bar

            self._bar = Bar(self._label, self._total, self._stream)
            self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            return
        seconds = max(time.monotonic() - self._began, 1e-6)
        of_all = f" of {self._total}" if self._total else ""
        rate = f"{self._done / seconds:.0f}/s"
        print(f"{self._label}: {self._done}{of_all}, {rate}", file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """Write one line, above the bar where there is one."""
        if self._bar is None:
            print(text, file=self._stream, flush=True)
        else:
            self._bar.say(text)

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more units of work as done."""
        self._done += amount
        if self._bar is not None:
            self._bar.advance(amount)

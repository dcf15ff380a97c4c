"""How the first rows of a DataFrame are shown on a terminal or to another program."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING

from durable_cache.model.payloads import printable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def show(rows: DataFrame, limit: int, form: str) -> None:
    """Print at most `limit` rows as a ``table`` or ``json`` lines; only those are collected."""
    found = rows.limit(limit + 1).collect()
    shown = [row.asDict(recursive=True) for row in found[:limit]]
    if form == "json":
        for row in shown:
            _write(json.dumps({name: _plain(value) for name, value in row.items()}))
    else:
        _print_table(rows.columns, [[str(_plain(row[c])) for c in rows.columns] for row in shown])
    if len(found) > limit:
        sys.stderr.write(f"only the first {limit} rows are shown; --limit shows more\n")


def _plain(value: object) -> object:
    match value:
        case bytes() | bytearray():
            return bytes(value[:32]).hex() + ("…" if len(value) > 32 else "")
        case float():
            return value if math.isfinite(value) else str(value)
        case None | bool() | int():
            return value
        case _:
            return printable(str(value))


def _print_table(names: list[str], rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        _write("  ".join(cells).rstrip())


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")

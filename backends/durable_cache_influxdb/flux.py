"""How is a query written in Flux? The only place where text becomes part of one.

What comes in are names of our own (measurements, ids made of safe letters), numbers, and the
bucket's name, which is escaped. Keys and payloads never do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

TIME_MIN_NS = 0
TIME_MAX_NS = (1 << 63) - 2
"""The last nanosecond the server can name as the end of a range."""

COLUMNS = ("_time", "_value", "_field", "key_id", "source_id", "epoch", "n")


_STORED = "/^(meta|encoding|(payload|attachment)[0-9]*)$/"


def literal(text: str) -> str:
    """Return `text` as a Flux string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{escaped}"'


class Scan(NamedTuple):
    """One pass over some series of a measurement, ends of the time range included."""

    fields: tuple[str, ...] = ()
    """Empty: every field."""
    key_ids: tuple[str, ...] = ()
    """Empty: every key; likewise for the following."""
    source_ids: tuple[str, ...] = ()
    epochs: tuple[int, ...] = ()
    ordinals: tuple[int, ...] = ()
    first_ns: int = TIME_MIN_NS
    last_ns: int = TIME_MAX_NS - 1
    stored: bool = False
    """Every field that makes a sample, and none of those made for charts."""
    value_first: int | None = None
    """With one integer field: only values from here ..."""
    value_last: int | None = None
    """... to here."""


class Source(NamedTuple):
    """A measurement of a bucket."""

    bucket: str
    measurement: str

    def rows(self, scan: Scan, *steps: str, columns: Sequence[str] = COLUMNS) -> str:
        """Return a pipeline of `scan` and further steps that ends in `columns`."""
        keep = f"keep(columns: [{', '.join(map(literal, columns))}])"
        return "\n  |> ".join((*self._head(scan), *steps, keep))

    def _head(self, scan: Scan) -> Sequence[str]:
        start, stop = scan.first_ns, min(scan.last_ns + 1, TIME_MAX_NS)
        return (
            f"from(bucket: {literal(self.bucket)})",
            f"range(start: time(v: {start}), stop: time(v: {stop}))",
            f"filter(fn: (r) => {self._predicate(scan)})",
        )

    def _predicate(self, scan: Scan) -> str:
        terms = [f"r._measurement == {literal(self.measurement)}"]
        terms += _any("_field", scan.fields)
        if scan.stored:
            terms.append(f"r._field =~ {_STORED}")
        terms += _any("key_id", scan.key_ids)
        terms += _any("source_id", scan.source_ids)
        terms += _any("epoch", map(str, scan.epochs))
        terms += _any("n", map(str, scan.ordinals))
        if scan.value_first is not None:
            terms.append(f"r._value >= {scan.value_first}")
        if scan.value_last is not None:
            terms.append(f"r._value <= {scan.value_last}")
        return " and ".join(terms)


def _any(column: str, values: Iterable[str]) -> list[str]:
    tests = [f"r.{column} == {literal(value)}" for value in values]
    return [f"({' or '.join(tests)})"] if tests else []


def union(pipelines: Sequence[str]) -> str:
    """Return one query that yields every pipeline's rows."""
    return "\n".join(f'{text}\n  |> yield(name: "{at}")' for at, text in enumerate(pipelines))

"""How do lines reach the server in requests, and what happens to a line it will not take?"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from durable_cache.errors import StorageCorrupt, StorageUnavailable
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.errors import FieldConflict, Rejected
from durable_cache_influxdb.options import InfluxDbOptions

_log = logging.getLogger(__name__)

_REFUSALS_MAX = 100  # of one append: more than that is no bad line but a bad server
_LINE_SHOWN_MAX = 65_536
_LineT = TypeVar("_LineT")


class Line(NamedTuple):
    """A line of a sample and the sample's place in its batch."""

    at: int
    text: str


class DeadLetters:
    """A file of refused lines, one JSON document each; full at its bound."""

    def __init__(self, options: InfluxDbOptions) -> None:
        self._path = Path(options.dead_letter) if options.dead_letter else None
        self._bytes_max = options.dead_letter_bytes_max
        self.count = 0

    def add(self, line: str, reason: str) -> None:
        """Keep a line; where that fails, say so in the log: the caller reports it in any case."""
        self.count += 1
        _log.warning("the server refused a line", extra={"reason": reason})
        if self._path is None:
            return
        letter = {"time": time.time(), "reason": reason, "line": line[:_LINE_SHOWN_MAX]}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                if file.tell() < self._bytes_max:
                    file.write(json.dumps(letter) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            _log.warning("a refused line could not be kept", extra={"error": str(error)})


class LineWriter:
    """Sends lines in bounded requests, each confirmed before the next; one thread at a time."""

    def __init__(
        self,
        client: Client,
        options: InfluxDbOptions,
        letters: DeadLetters,
        conflict: Callable[[str | None], None],
    ) -> None:
        self._client = client
        self._options = options
        self._letters = letters
        self._conflict = conflict

    def plain(self, lines: Iterable[str]) -> None:
        """Send lines of our own measurements; a rejected one is our bug or a foreign writer."""
        for chunk in _chunks(lines, len, self._options):
            try:
                self._client.write("\n".join(chunk).encode("utf-8"))
            except Rejected as error:
                raise StorageCorrupt(f"{self._client.subject}: {error.message}") from error

    def again(self, lines: Iterable[str]) -> None:
        """Send parts of points that are there; what is rejected the bucket's retention removes."""
        for chunk in _chunks(lines, len, self._options):
            try:
                self._client.write("\n".join(chunk).encode("utf-8"))
            except Rejected as error:
                _log.info("the server takes a point no more", extra={"reason": error.message})

    def samples(self, lines: Iterable[Line], bare: Callable[[int], str]) -> dict[int, str]:
        """Send the lines of samples; returns the refused ones' places with the reasons.

        `bare` makes a sample's line again without what is made for charts.
        """
        refused: dict[int, str] = {}
        for chunk in _chunks(lines, lambda line: len(line.text), self._options):
            self._send(chunk, bare, refused)
        return refused

    def _send(
        self, lines: Sequence[Line], bare: Callable[[int], str], refused: dict[int, str]
    ) -> None:
        try:
            self._client.write("\n".join(line.text for line in lines).encode("utf-8"))
        except FieldConflict as error:
            self._conflict(error.field)
            self._without_typed(lines, bare, refused)
        except Rejected as error:
            self._bisect(lines, bare, error, refused)

    def _without_typed(
        self, chunk: Sequence[Line], bare: Callable[[int], str], refused: dict[int, str]
    ) -> None:
        """Send again what the server dropped in part: the same points, without typed fields."""
        plain = [Line(line.at, bare(line.at)) for line in chunk]
        try:
            self._client.write("\n".join(line.text for line in plain).encode("utf-8"))
        except FieldConflict as error:
            raise StorageCorrupt(
                f"{self._client.subject}: another program wrote field {error.field!r} into this"
                " storage's measurement with another type; give the storage a bucket of its own"
            ) from error
        except Rejected as error:
            self._bisect(plain, bare, error, refused)

    def _bisect(
        self,
        lines: Sequence[Line],
        bare: Callable[[int], str],
        error: Rejected,
        refused: dict[int, str],
    ) -> None:
        """Find the lines the server will not take; everything else goes in."""
        if len(lines) == 1:
            if len(refused) >= _REFUSALS_MAX:
                raise StorageUnavailable(
                    f"{self._client.subject}: more than {_REFUSALS_MAX} lines of one batch were"
                    f" rejected, the last with: {error.message}"
                ) from error
            refused[lines[0].at] = error.message
            self._letters.add(lines[0].text, error.message)
            return
        middle = len(lines) // 2
        for half in (lines[:middle], lines[middle:]):
            self._send(half, bare, refused)


def _chunks(
    lines: Iterable[_LineT], size: Callable[[_LineT], int], options: InfluxDbOptions
) -> Iterator[list[_LineT]]:
    chunk: list[_LineT] = []
    held = 0
    for line in lines:
        length = size(line) + 1
        if chunk and (
            len(chunk) >= options.batch_lines_max or held + length > options.batch_bytes_max
        ):
            yield chunk
            chunk, held = [], 0
        chunk.append(line)
        held += length
    if chunk:
        yield chunk

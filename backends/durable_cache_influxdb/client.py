"""How do requests reach the server, and how do its answers and errors come back?

Nothing is retried here: the journal in front of every backend does that. After a Retry-After no
request leaves until its time is over.
"""

from __future__ import annotations

import gzip
import io
import time
from collections.abc import Iterator, Sequence

from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache_influxdb.driver import Driver, Response
from durable_cache_influxdb.errors import (
    DRIVER_ERRORS,
    InfluxBusy,
    Rejected,
    as_storage_error,
    status_of,
    translated,
)
from durable_cache_influxdb.flux import union
from durable_cache_influxdb.options import InfluxDbOptions

_CHUNK_BYTES = 1 << 16
_PIPELINES_MAX = 40
_GZIP_LEVEL = 1  # ten times faster than the driver's 9 for a tenth more bytes

Row = list[str]
"""The values of one line of an answer, in the order of the columns asked for."""


class Client:
    """Writes, queries and deletions in one bucket; any thread."""

    def __init__(self, options: InfluxDbOptions) -> None:
        self._options = options
        self.subject = f"influxdb {options.where()} bucket {options.bucket}"
        self._driver = Driver(options)
        self._silent_until = 0.0

    def close(self) -> None:
        """Give the connections back."""
        self._driver.close()

    def write(self, lines: bytes) -> None:
        """Send line protocol and wait for the server's word that it is on disk.

        Raises `StorageError`, or `Rejected` when the lines themselves are at fault.
        """
        compress = self._options.gzip
        body = gzip.compress(lines, _GZIP_LEVEL) if compress else lines
        self._wait_over()
        try:
            self._driver.write(body, "gzip" if compress else "identity")
        except DRIVER_ERRORS as error:
            raise self._translated(error) from error

    def rows(self, pipelines: Sequence[str], columns: Sequence[str]) -> Iterator[Row]:
        """Run pipelines and yield their rows as they arrive, values in the order of `columns`.

        The values must be free of commas, quotes and line ends: those we ask for are.
        """
        for at in range(0, len(pipelines), _PIPELINES_MAX):
            yield from self._rows(union(pipelines[at : at + _PIPELINES_MAX]), columns)

    def _rows(self, query: str, columns: Sequence[str]) -> Iterator[Row]:
        self._wait_over()
        try:
            answer = self._driver.query(query)
            try:
                yield from _parsed(_lines(answer), columns)
            except BaseException:
                answer.close()
                raise
            finally:
                answer.release_conn()
        except DRIVER_ERRORS as error:
            problem = self._translated(error)
            if isinstance(problem, Rejected):
                raise as_storage_error(problem, self.subject) from error
            raise problem from error

    def delete(self, predicate: str, first_ns: int, last_ns: int) -> None:
        """Delete the points of a predicate in a time range, both ends included."""
        self._wait_over()
        try:
            self._driver.delete(predicate, rfc3339(first_ns), rfc3339(last_ns))
        except DRIVER_ERRORS as error:
            problem = self._translated(error)
            if isinstance(problem, Rejected):
                raise as_storage_error(problem, self.subject) from error
            raise problem from error

    def ensure_bucket(self, create: bool) -> bool:
        """Tell whether the bucket is there, creating it if asked; ConfigError if that fails."""
        try:
            if self._driver.has_bucket():
                return True
            if not create:
                return False
            self._driver.create_bucket(self._options.shard_group_seconds)
        except DRIVER_ERRORS as error:
            if status_of(error) in (400, 401, 403, 404, 422):
                raise ConfigError(
                    f"{self.subject}: HTTP {status_of(error)}; name an organisation and bucket"
                    " that exist, and a token that may read and write them"
                ) from error
            raise self._translated(error) from error
        return True

    def _wait_over(self) -> None:
        left = self._silent_until - time.monotonic()
        if left > 0:
            raise InfluxBusy(f"{self.subject}: asked to pause, {left:.1f} s are left", left)

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, DurableCacheError):
            return error
        problem = translated(error, self.subject, self._options.retry_after_seconds_max)
        if isinstance(problem, InfluxBusy):
            self._silent_until = time.monotonic() + problem.retry_after_seconds
        return problem


def _lines(answer: Response) -> Iterator[str]:
    """Cut an answer into lines without ever holding more than one chunk and one line."""
    pending = io.BytesIO()
    for chunk in answer.stream(_CHUNK_BYTES, decode_content=True):
        head, end, tail = chunk.rpartition(b"\n")
        pending.write(head + end)
        if end:
            whole = pending.getvalue()
            pending = io.BytesIO()
            yield from whole.decode("utf-8").splitlines()
        pending.write(tail)
    yield from pending.getvalue().decode("utf-8").splitlines()


def _parsed(lines: Iterator[str], columns: Sequence[str]) -> Iterator[Row]:
    places: list[int] | None = None
    for line in lines:
        if not line:
            places = None
            continue
        values = line.split(",")
        if places is None:
            if "error" in values and "reference" in values:
                raise ValueError(next(lines, "the query failed"))
            places = [values.index(c) if c in values else 0 for c in columns]
            continue
        yield [values[place] for place in places]


def rfc3339(unix_ns: int) -> str:
    """Write Unix nanoseconds as the server wants them."""
    seconds, fraction = divmod(unix_ns, 1_000_000_000)
    moment = time.gmtime(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{fraction:09d}Z"

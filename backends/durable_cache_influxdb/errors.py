"""Which of our errors is one of the server's or of its driver?"""

from __future__ import annotations

import email.utils
import re
import time

import urllib3
from influxdb_client.client.exceptions import InfluxDBError

from durable_cache.errors import StorageError, StorageFull, StorageUnavailable

DRIVER_ERRORS = (InfluxDBError, urllib3.exceptions.HTTPError, OSError, ValueError)
_MESSAGE_LENGTH_MAX = 400
_CONFLICT = re.compile(r'input field "((?:[^"\\]|\\.)*)" on measurement', re.DOTALL)


class InfluxBusy(StorageUnavailable):
    """The server asks to be left alone; try again after `retry_after_seconds`."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)


class Rejected(Exception):
    """The server will never take this request as it is; stays within the backend."""

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


class FieldConflict(Rejected):
    """A field has another type in the server than in a line; the server dropped such points."""

    @property
    def field(self) -> str | None:
        """The field's name, where the server told it."""
        found = _CONFLICT.search(self.message)
        return found[1] if found else None


def status_of(error: BaseException) -> int:
    """Return the HTTP status an error carries, or 0."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else 0


def _message(error: BaseException) -> str:
    if isinstance(error, InfluxDBError):
        text = error.message
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        text = str(text or getattr(error, "reason", "") or type(error).__name__)
    else:
        text = f"{type(error).__name__}: {error}"
    return text[:_MESSAGE_LENGTH_MAX]


def translated(error: BaseException, subject: str, pause_seconds_max: float) -> Exception:
    """Return what to raise for a driver's error: a `StorageError`, or `Rejected`."""
    status, message = status_of(error), _message(error)
    text = f"{subject}: {f'HTTP {status}, ' if status else ''}{message}"
    if "field type conflict" in message:
        return FieldConflict(message)
    if "no space left" in message or status == 507:
        return StorageFull(text)
    if status in (429, 503):
        return InfluxBusy(text, _pause_seconds(error, pause_seconds_max))
    if status in (400, 413, 422):
        return Rejected(message)
    if status in (401, 403):
        return StorageUnavailable(f"{text}; the token may not do this, correct its permissions")
    if status == 404:
        return StorageUnavailable(f"{text}; create the organisation or bucket again")
    return StorageUnavailable(text)


def _pause_seconds(error: BaseException, most: float) -> float:
    """Return the seconds a Retry-After asks for, as a number or a date; at most `most`."""
    asked = getattr(error, "retry_after", None)
    if not isinstance(asked, str):
        return min(1.0, most)
    if asked.strip().isdigit():
        return min(float(asked), most)
    try:
        moment = email.utils.parsedate_to_datetime(asked).timestamp()
    except ValueError:
        return min(1.0, most)
    return min(max(0.0, moment - time.time()), most)


def as_storage_error(error: Rejected, subject: str) -> StorageError:
    """Return what a rejected query or deletion is to a caller: an unknown outcome, to retry."""
    return StorageUnavailable(f"{subject}: the server rejected a request: {error.message}")

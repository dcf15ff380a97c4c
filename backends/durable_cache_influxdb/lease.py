"""Who may write to a storage? InfluxDB has no locks, so there are two barriers.

On one machine a locked file: it goes with the process that held it, however that ended. Between
machines a lease on the server, renewed while something is written: every writer leaves its own
point first and reads the others' after, so that of two at least one sees the other. A lease is
judged by wall clocks; machines whose clocks differ by more than it lasts must not share a storage.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

from durable_cache.errors import ConfigError, StorageError, StorageLocked
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.errors import Rejected
from durable_cache_influxdb.flux import Scan, Source
from durable_cache_influxdb.options import InfluxDbOptions

_COLUMNS = ("_field", "_value", "holder")
_TOKEN_BYTES = 16


class WriterLease:
    """The right to write to one storage, from `acquire` to `release`; one thread at a time."""

    def __init__(self, client: Client, source: Source, options: InfluxDbOptions) -> None:
        self._client = client
        self._source = source
        self._seconds = options.lease_seconds
        name = f"{options.where()}\n{options.org}\n{options.bucket}\n{source.measurement}"
        digest = blake2b(name.encode(), digest_size=12).hexdigest()
        folder = Path(options.lock_directory or tempfile.gettempdir())
        self._path = folder / f"durable-cache-influxdb-{digest}.lock"
        self._file: int | None = None
        self._holder = ""
        self._since_ns = 0
        self._renewed = 0.0

    def acquire(self) -> None:
        """Take the lock and the lease, or raise `StorageLocked` naming what bars."""
        self._lock_file()
        try:
            self._bar(self._others())
            self._since_ns = time.time_ns()
            self._renew()
            self._bar(
                {h: o for h, o in self._others().items() if o < (self._since_ns, self._holder)}
            )
        except BaseException:
            self.release()
            raise

    def confirm(self, *, surely: bool = False) -> None:
        """Renew the lease where a third of it is over, or now; `StorageLocked` if it was lost."""
        age = time.monotonic() - self._renewed
        if age < self._seconds / 3 and not surely:
            return
        if age >= self._seconds:
            self._bar(self._others())
        self._renew()

    def release(self) -> None:
        """Give both up; where the server is away the lease runs out by itself."""
        if self._file is None:
            return
        try:
            if self._since_ns:
                self._write(0)
        except StorageError:
            pass
        finally:
            os.close(self._file)
            self._file = None

    def _lock_file(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            token = os.pread(self._file, 2 * _TOKEN_BYTES, 0)
            if len(token) != 2 * _TOKEN_BYTES or not token.isalnum():
                token = secrets.token_hex(_TOKEN_BYTES).encode()
                os.pwrite(self._file, token, 0)
        except BlockingIOError as error:
            if self._file is not None:
                os.close(self._file)
                self._file = None
            raise StorageLocked(
                f"storage {self._source.measurement!r}: another writer of this machine has"
                f" {self._path}; close it, or open with writer=False"
            ) from error
        except OSError as error:
            raise ConfigError(f"influxdb lock_directory {self._path.parent}: {error}") from error
        self._holder = token.decode("ascii")

    def _bar(self, others: dict[str, tuple[int, str]]) -> None:
        for holder in others:
            raise StorageLocked(
                f"storage {self._source.measurement!r}: a writer elsewhere holds lease"
                f" {holder[:8]}; close it, or wait {self._seconds:g} s after it ended"
            )

    def _others(self) -> dict[str, tuple[int, str]]:
        """Return the other leases that are not over, with when and by whom they were taken."""
        fields: dict[str, dict[str, int]] = {}
        query = self._source.rows(Scan(("until", "since"), last_ns=0), columns=_COLUMNS)
        for name, value, holder in self._client.rows([query], _COLUMNS):
            fields.setdefault(holder, {})[name] = int(value)
        now_ns = time.time_ns()
        return {
            holder: (found.get("since", 0), holder)
            for holder, found in fields.items()
            if holder != self._holder and found.get("until", 0) > now_ns
        }

    def _renew(self) -> None:
        started = time.monotonic()
        self._write(time.time_ns() + round(self._seconds * 1e9))
        self._renewed = started

    def _write(self, until_ns: int) -> None:
        line = (
            f"{self._source.measurement},holder={self._holder}"
            f" since={self._since_ns}i,until={until_ns}i 0"
        )
        try:
            self._client.write(line.encode())
        except Rejected as error:
            raise StorageLocked(f"{self._client.subject}: {error.message}") from error

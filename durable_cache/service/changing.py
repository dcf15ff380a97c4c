"""How storages are put and removed through the admin space while a service runs.

``config/storages/NAME`` takes a storage as the configuration has it, or a delete, and
``config/storages/NAME/retention`` a storage's retention. Zenoh's own permission to write is needed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from durable_cache.endpoints.session import Session, hear_writes, undeclare
from durable_cache.endpoints.workers import Pool
from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.arguments import wrong_at
from durable_cache.service.config import Settings, with_retention, with_storage
from durable_cache.service.document import parse_json5
from durable_cache.service.logs import CHANGES
from durable_cache.service.sections import SECTION

_changes_log = logging.getLogger(CHANGES)
NOT_ALLOWED = (
    "is not allowed here; set adminspace: {permissions: {write: true}} in the service's "
    "configuration, or start it with --adminspace-permissions rw"
)
_WAITING_MAX = 64
_OUTCOMES_MAX = 64
_BYTES_MAX = 64 * 1024
"""Of one storage's settings."""
Change = Callable[[Settings], Settings]


class StorageChanges:
    """Takes what is put and deleted below `prefix`, one after the other, until closed.

    `change(make)` makes the service what `make(settings)` says, or raises having changed nothing.
    """

    def __init__(
        self,
        session: Session,
        prefix: str,
        change: Callable[[Change], object],
        pool: Pool,
        *,
        writable: bool,
    ) -> None:
        self._prefix = f"{prefix}/config/storages/"
        self._change = change
        self._writable = writable
        self._outcomes: deque[dict[str, object]] = deque(maxlen=_OUTCOMES_MAX)
        self._lane = pool.lane("changes", running_max=1, waiting_max=_WAITING_MAX)
        self._declared = hear_writes(session, f"{self._prefix}**", self._take)

    def outcomes(self) -> list[dict[str, object]]:
        """Return what was asked for lately, oldest first, and what became of it."""
        return list(self._outcomes)

    def close(self, timeout_seconds: float) -> None:
        """Take nothing more; idempotent."""
        undeclare(self._declared)
        self._lane.close(timeout_seconds)

    def _take(self, key: str, payload: bytes | None) -> None:
        if not self._lane.submit(partial(self._make, key, payload)):
            self._refused(key, "too many changes wait here; put it again later")

    def _make(self, key: str, payload: bytes | None) -> None:
        try:
            if not self._writable:
                raise ConfigError(f"changing storages {NOT_ALLOWED}")
            self._change(_meant(key.removeprefix(self._prefix), payload))
        except DurableCacheError as error:
            self._refused(key, str(error))
        else:
            self._outcomes.append({"time": _now(), "key": key, "error": ""})

    def _refused(self, key: str, reason: str) -> None:
        self._outcomes.append({"time": _now(), "key": key, "error": reason})
        about = {"key": key, "reason": reason}
        _changes_log.warning("a change of storages was refused, nothing was changed", extra=about)


def _meant(path: str, payload: bytes | None) -> Change:
    """Return what a put or a delete means. Raises ConfigError for one that means nothing."""
    match path.split("/"):
        case [name]:
            raw = None if payload is None else _table(payload, f"storages.{name}")
            return partial(with_storage, name=name, raw=raw)
        case [name, "retention"] if payload is not None:
            where = f"storages.{name}.retention"
            return partial(with_retention, name=name, raw=_table(payload, where))
        case [_, "retention"]:
            raise ConfigError(f"{SECTION}.storages.{path}: put {{}} to keep everything")
        case _:
            raise ConfigError(
                f"{path[:80]!r} is no setting that can be changed; put storages/NAME or "
                "storages/NAME/retention"
            )


def _table(payload: bytes, where: str) -> Mapping[str, object]:
    if len(payload) > _BYTES_MAX:
        raise ConfigError(f"{SECTION}.{where}: at most {_BYTES_MAX} bytes")
    with wrong_at(f"{SECTION}.{where}"):
        found = parse_json5(payload.decode("utf-8"))
    if not isinstance(found, dict):
        raise ConfigError(f"{SECTION}.{where}: expected a table {{…}}")
    return found


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")

"""How the terminal view asks running services, and goes on trying while none is in reach."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from durable_cache.errors import DurableCacheError

if TYPE_CHECKING:
    from durable_cache.endpoints.session import Session

_ASK_SECONDS_MAX = 5.0
_ANEW_AFTER = 3
Row = Mapping[str, object]


class Reach:
    """One session that is opened when something is asked, and anew after it led to nobody.

    Any thread, one at a time; others wait. Every question raises DurableCacheError, to be retried.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._stack = ExitStack()
        self._session: Session | None = None
        self._lock = Lock()
        self._in_vain = 0

    def reports(self) -> list[Row]:
        """Return every service's report, without its events."""
        with self._lock:
            found = [cast("Row", value) for _, value in self._ask("status", {"events": "0"})]
            self._in_vain = 0 if found else self._in_vain + 1
            if self._in_vain >= _ANEW_AFTER:
                self._close()
        if not found:
            raise DurableCacheError("no durable-cache service is in reach; is --connect right?")
        return sorted(found, key=lambda report: str(report["zid"]))

    def page(self, zid: str, storage: str, what: str, parameters: Mapping[str, str]) -> Row:
        """Return one page of a storage's keys, sources or samples."""
        encoded = {name: quote(text, safe="/*:") for name, text in parameters.items()}
        return cast("Row", self._one(zid, storage, what, encoded))

    def peers(self, zid: str, storage: str) -> list[Row]:
        """Return how a storage stands with each other cache."""
        return cast("list[Row]", self._one(zid, storage, "alignment", {}))

    def _one(self, zid: str, storage: str, what: str, parameters: Mapping[str, str]) -> object:
        with self._lock:
            found = self._ask(f"storages/{storage}/{what}", parameters, zid=zid)
        if not found:
            raise DurableCacheError(f"the service of storage {storage!r} does not answer")
        return found[0][1]

    def _ask(
        self, path: str, parameters: Mapping[str, str], zid: str = "*"
    ) -> list[tuple[str, object]]:
        from durable_cache.service.client import admin_values, client_session

        if self._session is None:
            self._session = self._stack.enter_context(client_session(self._arguments))
        return admin_values(
            self._session, path, parameters, zid=zid, timeout_seconds=_ASK_SECONDS_MAX
        )

    def close(self) -> None:
        """Close the session; idempotent."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._session = None
        self._in_vain = 0
        self._stack.close()

"""The call `durable_cache.read`: whose history, which part of it, as which columns."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import KeyExpr, Session, read_text, zid_of
from durable_cache.errors import ConfigError
from durable_cache.frame.decoding import PayloadDecoder
from durable_cache.frame.history import HistoryFrame
from durable_cache.frame.pages import cache_pages, storage_pages
from durable_cache.frame.times import When, read_times
from durable_cache.model.arguments import wrong_at
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Selection, parse_source
from durable_cache.service.config import Settings
from durable_cache.service.layers import Overrides, load_settings
from durable_cache.service.places import Place, find_place, reading
from durable_cache.storage.contract import Storage
from durable_cache.storage.memory import MemoryBackend
from durable_cache.storage.plugins import open_storage

_log = logging.getLogger(__name__)
_EMBEDDED_FILE = "samples.db"
"""What `durable-cache serve` keeps in its state directory when no file configures it."""


def read(  # noqa: PLR0913  # one call for one frame
    history: str | Path | Storage | Session,
    key_expr: str | KeyExpr = "**",
    *,
    since: When | None = None,
    until: When | None = None,
    source: str | SourceId | None = None,
    latest: bool = False,
    storage: str = "",
    columns: Sequence[str] | None = None,
    value: PayloadDecoder | None = None,
    timeout_seconds: float = 10.0,
) -> HistoryFrame:
    """Return history as a stream of Arrow record batches; nothing is read before it is asked.

    `history` is a session (the caches in reach, of a running service or any, united), a service's
    configuration file or state directory, a Delta table's folder, or an open `Storage`, which
    stays the caller's. `storage` names one of the file's: ``"fleet"`` or ``"volume/fleet"``; it
    may be left out where there is one. Files are read without a lock beside a running service, and
    what its journal still holds is left out, with a warning in the log: ask it over a session. A
    journal that no service is at is moved into its backend first.

    `since` and `until`, both included, go by the timestamp: RFC 3339, a date, a `datetime` with a
    zone, or how long ago, ``"1h 30m"`` or a `timedelta`. `source` is ``"<zid>"`` or
    ``"<zid>:<eid>"``. With `latest`, what each key holds now, by the samples asked for: wildcard
    updates applied, deleted keys left out. `columns` are some of `durable_cache.frame.COLUMNS`;
    `value` adds a column of that name (`json_values`, `cdr_values`, `decoded_by`).
    `timeout_seconds` bounds each question to caches.

    Raises ConfigError, never to be retried as is, naming the argument; `BackendNotInstalled` where
    a driver is missing.
    """
    selection = _selection(key_expr, since, until, source)
    if value is not None and not isinstance(value, PayloadDecoder):
        raise ConfigError(
            f"value: {str(value)[:60]!r} is no decoder; make one with json_values(...) or the like"
        )
    if isinstance(history, (str, Path)):
        place = _place(Path(history), storage, selection.key_expr)

        def pages() -> Iterator[list[Sample]]:
            with _opened(place) as opened:
                yield from storage_pages(opened, selection, latest=latest)

    elif storage:
        raise ConfigError(f"storage={storage!r}: only a configuration file has storages to choose")
    elif isinstance(history, Storage):
        opened = history

        def pages() -> Iterator[list[Sample]]:
            return storage_pages(opened, selection, latest=latest)

    elif isinstance(history, Session):
        if not timeout_seconds > 0:
            raise ConfigError(f"timeout_seconds={timeout_seconds!r}: write a number above 0")
        asking = Asking(history, zid_of(history), timeout_seconds=timeout_seconds)

        def pages() -> Iterator[list[Sample]]:
            return cache_pages(asking, selection, latest=latest)

    else:
        raise ConfigError(
            f"history: {type(history).__name__} is no history; give a session, the path of a "
            "configuration file, of a state directory or of a Delta table, or an open Storage"
        )
    return HistoryFrame(pages, columns, value)


def _selection(
    key_expr: object, since: When | None, until: When | None, source: str | SourceId | None
) -> Selection:
    text = read_text(key_expr, "key_expr")
    with wrong_at(f"key_expr={text[:80]!r}"):
        asked = KeyExpression(text)
    with wrong_at("source"):
        zid, eid = (None, None) if source is None else parse_source(str(source))
    times = read_times(since, until, time.time_ns())
    return Selection(key_expr=asked, zid=zid, eid=eid, times=times)


def _place(path: Path, storage: str, key_expr: KeyExpression) -> Place | _Table:
    """Return what a path means, having read what configures it and opened nothing."""
    if (table := _table(path)) is not None:
        if storage:
            raise ConfigError(f"storage={storage!r}: {path} is one storage's table; leave it out")
        return table
    if path.is_dir():
        if not (path / _EMBEDDED_FILE).exists():
            raise ConfigError(
                f"{path}: neither a Delta table nor a state directory; name the folder of a "
                "storage of the delta backend (<volume path>/<storage name>), or the service's "
                "configuration file"
            )
        settings = load_settings(Overrides(state_dir=str(path)))
    else:
        settings = load_settings(Overrides(config=str(path)))
    return _configured(settings, path, storage, key_expr)


class _Table(NamedTuple):
    """A Delta table that is read where it is, whichever service writes it."""

    volume: Path
    name: str


def _table(path: Path) -> _Table | None:
    folder = path.resolve()
    if not (folder / "samples" / "_delta_log").is_dir():
        if not (folder / "_delta_log").is_dir() or folder.name != "samples":
            return None
        folder = folder.parent
    return _Table(folder.parent, folder.name)


def _configured(settings: Settings, path: Path, storage: str, key_expr: KeyExpression) -> Place:
    storages = settings.cache.storages
    if not storage:
        if len(storages) != 1:
            raise ConfigError(f"storage: {path} has {', '.join(storages)}; name one of them")
        storage = next(iter(storages))
    place = find_place(settings, storage)
    if place.volume.backend.name == MemoryBackend.name:
        raise ConfigError(
            f"{place} is in the memory of its service; give a session that is connected to it"
        )
    configured = storages.get(place.storage)
    kept = () if configured is None else configured.key_exprs
    if kept and not any(KeyExpression(text).intersects(key_expr) for text in kept):
        raise ConfigError(
            f"key_expr={str(key_expr)!r}: {place} keeps {', '.join(kept)}; ask for keys of these"
        )
    return place


@contextmanager
def _opened(place: Place | _Table) -> Iterator[Storage]:
    if isinstance(place, Place):
        with reading(place, _log.warning) as storage:
            yield storage
        return
    with open_storage("delta", place.name, {"path": str(place.volume)}, writer=False) as storage:
        yield storage

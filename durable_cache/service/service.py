"""How a cache service comes up, tells what it does, and goes down without losing anything.

Order up: state directory, session, HTTP's addresses, caches, admin space, HTTP's answers; the
reverse down. The first step that fails undoes those before it, before a cache has written
anything where an address is taken. At most 10 s pass between the first signal and the end.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Self, cast

from durable_cache.endpoints.cache import ReliabilityCache, declare_reliability_cache
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.session import (
    Session,
    close_session,
    neighbours,
    open_session,
    run_within,
    start_thread,
    zid_of,
)
from durable_cache.endpoints.workers import Lane, Pool
from durable_cache.errors import ConfigError, DurableCacheError, StorageError
from durable_cache.service.admin import (
    AdminSpace,
    alignment_rows,
    may_write,
    prefix_of,
    skip_rows,
)
from durable_cache.service.advised import Advised
from durable_cache.service.building import check_all
from durable_cache.service.changes import Changes, Weight
from durable_cache.service.changing import StorageChanges
from durable_cache.service.config import Settings, StorageSettings
from durable_cache.service.differences import Difference, difference_of
from durable_cache.service.http import HttpServer, Server, StatusServer, http_lane
from durable_cache.service.identity import FILE_NAME, kept_zid
from durable_cache.service.kept import keep_changes
from durable_cache.service.logs import CHANGES
from durable_cache.service.looking import Looking
from durable_cache.service.measured import Measured
from durable_cache.service.piping import Piping, pipe_options
from durable_cache.service.ports import with_ports
from durable_cache.service.report import ServiceReport, Timeline, report_values
from durable_cache.service.rest import RestServer, Writing
from durable_cache.service.volumes import Volume
from durable_cache.storage.journaled.locks import DirectoryLock

_log = logging.getLogger(__name__)
_changes_log = logging.getLogger(CHANGES)
STOP_SECONDS_MAX = 10.0
_POOL_THREADS = 3
"""Shared by all storages: queries, look-ups, fetches, retention, admin space, HTTP. A storage whose
`pool_threads` is higher raises it."""
_CLOSING_SECONDS = 1.5
"""Kept back from the stop for closing files and the session."""


class Service:
    """A running cache service; a context manager that stops gracefully.

    Raises ConfigError and other DurableCacheErrors from the constructor, having undone everything.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.volumes, options = check_all(settings)
        self._began = time.monotonic()
        self._timeline = Timeline()
        self._changes = Changes(_endpoints(settings.zenoh, "connect"))
        self.looking = Looking()
        self.caches: dict[str, ReliabilityCache] = {}
        self.status: StatusServer | None = None
        self.rest: RestServer | None = None
        self._http: HttpServer | None = None
        self._stopping = False
        self._changing = Lock()
        with ExitStack() as undo:
            directory = Path(settings.cache.state_dir)
            if not directory.exists():
                undo.callback(_remove_empty, directory)
            self._lock = DirectoryLock(directory)
            undo.callback(self._lock.release)
            self._pool = Pool("service", threads=_pool_threads(options.values()))
            undo.callback(self._pool.close, 1.0)
            zenoh = with_ports(_with_id(settings.zenoh, directory))
            self.listening = _endpoints(zenoh, "listen")
            """The endpoints that Zenoh was told to listen on."""
            self.session = _open(zenoh)
            undo.callback(self.session.close)
            self._writing = Writing(
                self.session,
                settings.cache.domain,
                self._stored,
            )
            undo.callback(self._writing.close)
            lane = http_lane(self._pool)
            servers = self._listen(undo, lane)
            for name, chosen in options.items():
                self.caches[name] = self._declare(settings, self.volumes, chosen)
                undo.callback(self.caches[name].close, 1.0)
            self.zid = zid_of(self.session)
            self._advised = Advised(self.session, settings.cache.domain)
            undo.callback(self._advised.close)
            self._measured = Measured(self.session, settings.cache.domain)
            self._declare_admin(undo, writable=may_write(settings.zenoh))
            pipes = {name: pipe_options(settings, name) for name in settings.cache.pipes}
            self._piping = Piping(self.session, settings.cache.pipes, pipes)
            undo.callback(self._piping.close, 1.0)
            if servers:
                self._http = HttpServer(servers, lane)
            undo.pop_all()

    def _listen(self, undo: ExitStack, lane: Lane) -> list[Server]:
        """Listen where the settings say; who connects waits until the service is up."""
        cache = self.settings.cache
        servers: list[Server] = []
        if (address := cache.http.address) is not None:
            hosts = cache.http.hosts
            self.status = StatusServer(address, hosts, self.report, self.look_into, lane)
            undo.callback(self.status.server_close)
            servers.append(self.status)
        if cache.rest.listen:
            self.rest = RestServer(cache.rest, self._writing, lane)
            undo.callback(self.rest.server_close)
            servers.append(self.rest)
        return servers

    def _declare_admin(self, undo: ExitStack, *, writable: bool) -> None:
        self._puts = StorageChanges(
            self.session, prefix_of(self.session), self.change, self._pool, writable=writable
        )
        undo.callback(self._puts.close, 1.0)
        pages: dict[str, Callable[[Mapping[str, str]], object]] = {
            "status": lambda asked: report_values(
                self.report(), with_events=asked.get("events") != "0"
            ),
            "config": lambda _: self.settings.effective(),
            "changes": lambda _: self._puts.outcomes(),
        }
        self._admin = AdminSpace(
            self.session,
            lambda: self.caches,
            pages,
            self._pool,
            looking=self.looking,
            writable=writable,
        )
        undo.callback(self._admin.close)

    def _stored(self) -> Iterable[StorageSettings]:
        return self.settings.cache.storages.values()

    def _declare(
        self, settings: Settings, volumes: Mapping[str, Volume], options: CacheOptions
    ) -> ReliabilityCache:
        name = options.name
        storage = settings.cache.storages[name]
        volume = volumes[storage.volume]
        try:
            return declare_reliability_cache(
                self.session,
                storage.key_exprs,
                exclude=storage.excluded,
                backend=volume.backend.name,
                backend_options=volume.raw,
                options=options,
                pool=self._pool,
            )
        except StorageError as error:
            said = str(error)
            where = "" if volume.place in said else f" on {volume.place}"
            raise StorageError(f"storage {name!r}{where}: {said}") from error

    def change(self, make: Callable[[Settings], Settings]) -> Difference:
        """Become what `make(settings)` says: add, remove and keep otherwise, all or nothing.

        Samples of the storages that stay are not held up; one that is removed stores what it has
        received, and its data stays where it is. What `make` keeps is durable before anything is
        removed. Raises ConfigError for what is wrong or takes a restart, and other
        DurableCacheErrors where a storage cannot be opened; nothing has changed then.
        """
        with self._changing:
            if self._stopping:
                raise DurableCacheError("the service is stopping")
            settings = make(self.settings)
            volumes, options = check_all(settings)
            difference = difference_of(self.settings, settings)
            self._check_threads(options)
            before = self.caches
            with ExitStack() as undo:
                added = {}
                for name in difference.added:
                    added[name] = self._declare(settings, volumes, options[name])
                    undo.callback(added[name].close, 1.0)
                for name in difference.kept_otherwise:
                    undo.callback(before[name].keep_by, before[name].options.retention)
                    before[name].keep_by(options[name].retention)
                if settings.kept != self.settings.kept:
                    keep_changes(Path(settings.cache.state_dir), settings.kept)
                undo.pop_all()
            self.settings, self.volumes = settings, volumes
            self.caches = {name: added.get(name) or before[name] for name in options}
            self._tell(difference)
            for name in difference.removed:
                self._remove(name, before[name])
            return difference

    def _check_threads(self, options: Mapping[str, CacheOptions]) -> None:
        for name, chosen in options.items():
            if chosen.pool_threads > self._pool.threads:
                raise ConfigError(
                    f"storages.{name}.limits.pool_threads: {self._pool.threads} run; more take a "
                    "restart"
                )

    def _tell(self, difference: Difference) -> None:
        for name in difference.added:
            _changes_log.info("a storage was added", extra={"storage": name})
        if difference.kept_otherwise:
            about = {"storages": ", ".join(difference.kept_otherwise)}
            _changes_log.info("storages keep otherwise", extra=about)

    def _remove(self, name: str, cache: ReliabilityCache) -> None:
        left: dict[str, int] = {}
        _close(cache, name, time.monotonic() + STOP_SECONDS_MAX, left)
        about = {"storage": name, "samples_left_in_its_journal": left.get(name, 0)}
        _changes_log.info("a storage was removed", extra=about)

    def report(self) -> ServiceReport:
        """Return what the service does at this moment; cheap."""
        statuses = tuple(cache.status() for cache in self.caches.values())
        self._timeline.note(statuses)
        return ServiceReport(
            version=version("durable-cache"),
            zid=self.zid,
            domain=self.settings.cache.domain,
            state_dir=self.settings.cache.state_dir,
            listening=self.listening,
            uptime_seconds=time.monotonic() - self._began,
            storages=statuses,
            events=self._timeline.events(),
            source_events=self._timeline.source_events(),
            subscribers_lost=self._advised.lost,
            **self._measured.look()._asdict(),
            pipes=self._piping.reports(),
            disk_free_bytes=_free_bytes(self.settings.cache.state_dir),
        )

    def look_into(self, what: str, parameters: Mapping[str, str]) -> object:
        """Return what the page shows of a storage's inside; the parameter ``storage`` names it.

        Raises ValueError for a wrong question, and StorageError.
        """
        cache = self.caches.get(parameters.get("storage", ""))
        if cache is None:
            raise ValueError(f"storage={parameters.get('storage', '')[:80]!r}: there is none")
        looks: dict[str, Callable[[ReliabilityCache, Mapping[str, str]], object]] = {
            "keys": self.looking.keys,
            "sources": self.looking.sources,
            "samples": self.looking.samples,
            "peers": alignment_rows,
            "losses": skip_rows,
        }
        return looks[what](cache, parameters)

    def look(self) -> str:
        """Log what changed since the last look, and note it for the page.

        Returns why a cache gave up, empty while all are at work.
        """
        statuses = [cache.status() for cache in self.caches.values()]
        self._timeline.note(statuses)
        around = neighbours(self.session)
        now = time.monotonic()
        changes = [
            *self._changes.of(statuses, around, now),
            *self._changes.of_pipes(self._piping.reports(), now),
        ]
        for change in changes:
            level = logging.WARNING if change.weight is Weight.WARNING else logging.INFO
            _changes_log.log(level, change.sentence, extra=dict(change.about))
        for name, cache in self.caches.items():
            is_ours = self.caches.get(name) is cache and not self._stopping
            if cache.stopped and is_ours:
                return f"storage {name!r}: {cache.status().last_error or 'stopped'}"
        return ""

    def stop(self, timeout_seconds: float = STOP_SECONDS_MAX) -> dict[str, int]:
        """Undeclare, drain, acknowledge, close; idempotent.

        Returns how many samples of each storage stay in its journal for the next start.
        """
        if self._stopping:
            return {}
        self._stopping = True
        deadline = time.monotonic() + timeout_seconds

        def seconds() -> float:
            return max(0.5, deadline - time.monotonic())

        late = self._close_doors(deadline)
        left: dict[str, int] = {}
        closing = [
            start_thread(partial(_close, cache, name, deadline, left), f"dc-close-{name}")
            for name, cache in list(self.caches.items())  # a change may be under way still
        ]
        for thread in closing:
            thread.join(seconds())
        late += [thread.name for thread in closing if thread.is_alive()]
        if self.rest is not None:
            late += _try_within(self.rest.streams.close, "streams", seconds())
        if self._http is not None:
            late += _try_within(self._http.close, "http", seconds())
        late += self._pool.close(seconds())
        late += _try_within(partial(close_session, self.session), "session", seconds())
        if late:
            _log.error("not ended in time, left behind", extra={"threads": ", ".join(late)})
        self._lock.release()
        return left

    def _close_doors(self, deadline: float) -> list[str]:
        """Take in nothing more but by the caches; returns what did not end in time.

        Each has half of the time that is left, so that one which hangs leaves some to the caches.
        """

        def seconds() -> float:
            return max(0.1, (deadline - time.monotonic()) / 2)

        late: list[str] = []
        steps: dict[str, Callable[[], None]] = {
            "changes": lambda: self._puts.close(1.0),
            "changing": self._await_change,
            "pipes": lambda: self._piping.close(seconds()),  # while caches take last positions
            "admin": self._admin.close,
            "advisories": self._advised.close,
            "rest": self._writing.close,
        }
        for what, close in steps.items():
            late += _try_within(close, what, seconds())
        return late

    def _await_change(self) -> None:
        with self._changing:
            pass  # a change that was under way is made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def _remove_empty(directory: Path) -> None:
    """Remove a state directory that a start which failed has made, unless something is in it."""
    try:
        for name in ("lock", FILE_NAME):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()
    except OSError as error:
        _log.debug("a state directory is left", extra={"reason": str(error)})


def _free_bytes(directory: str) -> int:
    """Return the room on the disk of the journals; -1 where it cannot be told."""
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return -1


def _pool_threads(options: Iterable[CacheOptions]) -> int:
    return max(_POOL_THREADS, *(chosen.pool_threads for chosen in options))


def _close(cache: ReliabilityCache, name: str, deadline: float, left: dict[str, int]) -> None:
    try:
        cache.close(max(0.5, deadline - time.monotonic() - _CLOSING_SECONDS))
    except DurableCacheError as error:
        _log.error("storage %r did not end as it should: %s", name, error)
    finally:
        remaining = cache.store.backlog.samples
        if remaining:
            left[name] = remaining


def _try_within(step: Callable[[], None], what: str, seconds: float) -> list[str]:
    """Carry out one step of stopping; returns the thread that is left behind with it, if one is.

    What the step raises is logged: it keeps no other from being carried out.
    """

    def tried() -> None:
        try:
            step()
        except BaseException:  # a panic in Zenoh is no Exception
            _log.exception("closing %s failed", what)

    name = f"dc-close-{what}"
    return [] if run_within(tried, name, seconds) else [name]


def _with_id(zenoh: Mapping[str, object], directory: Path) -> Mapping[str, object]:
    """Return Zenoh's settings with the id that they name, or else the one of `directory`."""
    return zenoh if "id" in zenoh else {**zenoh, "id": kept_zid(directory)}


def _open(zenoh: Mapping[str, object]) -> Session:
    try:
        return open_session(zenoh)
    except ConfigError as error:
        remedy = (
            "is the other side running, is --connect right?"
            if "nobody answers" in str(error)
            else "choose other endpoints with --listen"
        )
        raise DurableCacheError(f"{error}; {remedy}") from error


def _endpoints(zenoh: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Return the endpoints of ``listen`` or ``connect``, which may differ by mode."""
    section = zenoh.get(name)
    found = section.get("endpoints") if isinstance(section, Mapping) else None
    if isinstance(found, Mapping):
        mode = str(zenoh.get("mode", "peer"))
        found = found.get(mode, [])
    return tuple(map(str, cast("list[object]", found))) if isinstance(found, list) else ()

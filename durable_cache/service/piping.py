"""The pipes of a service: each is opened, watched, and opened again when something is away.

A network that is away is no mistake of the configuration: the service runs, and its pipe waits. A
pipe onto itself is one, wherever both networks are in reach when the service starts.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from threading import Event
from typing import Any

from durable_cache.endpoints.pipe import (
    PipeOptions,
    PipeStatus,
    ReliablePipe,
    declare_reliable_pipe,
    refuse_loop,
)
from durable_cache.endpoints.session import (
    Session,
    close_session,
    open_session,
    read_config,
    start_thread,
)
from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.arguments import wrong_at
from durable_cache.service.config import Settings
from durable_cache.service.masking import mask_text
from durable_cache.service.pipe_settings import Network, PipeSettings, check_ends, zenoh_of
from durable_cache.service.sections import SECTION
from durable_cache.service.strict import Findings, check_names

_log = logging.getLogger(__name__)
_FIRST_LOOK_SECONDS = 3.0
"""How long a start waits to see whether a pipe leads onto itself."""
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 1.0, 30.0
"""Before a pipe that could not be opened is tried again; pauses double."""
_WATCH_SECONDS = 0.5
_OWN_SETTINGS = frozenset({"acknowledgements"})


def pipe_limit_names() -> dict[str, type]:
    """Return every name that a pipe's ``limits`` may hold, with int or float."""
    kinds = {
        field.name: type(getattr(PipeOptions(), field.name))
        for field in dataclasses.fields(PipeOptions)
    }
    return {
        name: kind
        for name, kind in sorted(kinds.items())
        if kind in (int, float) and name not in _OWN_SETTINGS
    }


def pipe_options(settings: Settings, name: str) -> PipeOptions:
    """Return the options of a pipe; ConfigError says where a mistake stands."""
    pipe, domain = settings.cache.pipes[name], settings.cache.domain
    where = f"{SECTION}.pipes.{name}"
    check_names(pipe.limits, pipe_limit_names(), f"{where}.limits")
    limits: dict[str, Any] = dict(pipe.limits)
    options = PipeOptions(
        name=name,
        acknowledgements=pipe.acknowledgements,
        level=pipe.level,
        mode=pipe.mode,
        processed_by=pipe.processed_by,
        source_domain=pipe.from_domain or domain,
        target_domain=pipe.to_domain or domain,
    )
    try:
        return dataclasses.replace(options, **limits).checked()
    except ConfigError as error:
        named = str(error).partition(":")[0]
        within = f"{where}.limits." if named in limits else f"{where}: "
        raise ConfigError(f"{within}{error}") from error


def note_pipe_mistakes(settings: Settings, findings: Findings) -> dict[str, PipeOptions]:
    """Return the options of all pipes, and note what is wrong with the others; opens nothing."""
    found: dict[str, PipeOptions] = {}
    for name, pipe in settings.cache.pipes.items():
        with findings.noting():
            found[name] = pipe_options(settings, name)
        with findings.noting():
            check_ends(pipe, settings.zenoh, f"{SECTION}.pipes.{name}")
        for end, network in (("from", pipe.source), ("to", pipe.target)):
            for setting, value in zenoh_of(network).items() if network else ():
                with findings.noting(), wrong_at(f"{SECTION}.pipes.{name}.{end}"):
                    read_config({setting: value})
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class PipeReport:
    """How one pipe of a service stands."""

    name: str
    key_expr: str
    mode: str
    """Its delivery mode."""
    between: str
    """Both networks, as in ``here -> tcp/hub:7447``."""
    is_running: bool
    """Whether both networks are open and the pipe is declared."""
    failure: str
    """Why it does not run, or why a cache did not take the last frame; empty where neither."""
    status: PipeStatus | None
    """Its counts since it was opened, the last ones where it does not run; None before."""

    def values(self) -> Mapping[str, object]:
        """Return the report as plain values for JSON."""
        status = self.status
        counts: dict[str, object] = {}
        if status is not None:
            counts = {**status._asdict(), "under_way": status.under_way}
            counts |= {"rates": status.rates._asdict(), "route": status.route._asdict()}
        return {
            **counts,
            **{name: getattr(self, name) for name in ("name", "key_expr", "mode", "between")},
            "is_running": self.is_running,
            "failure": self.failure,
        }


class Piping:
    """The pipes of a service while it runs; `own` is the session of its network.

    Raises ConfigError where a pipe leads onto itself, having closed all of them.
    """

    def __init__(
        self,
        own: Session,
        pipes: Mapping[str, PipeSettings],
        options: Mapping[str, PipeOptions],
    ) -> None:
        self._kept = [_Kept(own, pipes[name], chosen) for name, chosen in options.items()]
        deadline = time.monotonic() + _FIRST_LOOK_SECONDS
        for kept in self._kept:
            kept.looked.wait(max(0.0, deadline - time.monotonic()))
        refused = [str(kept.refused) for kept in self._kept if kept.refused is not None]
        if refused:
            self.close(_FIRST_LOOK_SECONDS)
            raise ConfigError("; ".join(f"{SECTION}.pipes: {text}" for text in refused))

    def reports(self) -> tuple[PipeReport, ...]:
        """Return how each pipe stands; cheap."""
        return tuple(kept.report() for kept in self._kept)

    def close(self, timeout_seconds: float) -> None:
        """Close the pipes, which write what they confirmed; idempotent."""
        deadline = time.monotonic() + timeout_seconds
        for kept in self._kept:
            kept.ended.set()
        for kept in self._kept:
            kept.thread.join(max(0.1, deadline - time.monotonic()))
            if kept.thread.is_alive():
                _log.error("a pipe did not end in time", extra={"pipe": kept.options.name})


class _Kept:
    """One pipe that is kept open by a thread of its own."""

    def __init__(self, own: Session, settings: PipeSettings, options: PipeOptions) -> None:
        self._own = own
        self._settings = settings
        self.options = options
        self.looked, self.ended = Event(), Event()
        """Set when it was tried once to open both networks; to be set for its end."""
        self.refused: ConfigError | None = None
        """Why the first look found that it leads onto itself."""
        self._pipe: ReliablePipe | None = None
        self._last: PipeStatus | None = None
        self._failure = ""
        self.thread = start_thread(self._run, f"dc-keep-pipe-{options.name}")

    def report(self) -> PipeReport:
        """Return how the pipe stands."""
        pipe = self._pipe
        status = self._last if pipe is None else pipe.status()
        failure = self._failure if pipe is None or status is None else status.failure
        settings = self._settings
        return PipeReport(
            self.options.name,
            settings.key_expr,
            settings.mode,
            settings.is_between,
            pipe is not None,
            failure,
            status,
        )

    def _run(self) -> None:
        pause = _PAUSE_SECONDS
        while not self.ended.is_set():
            try:
                self._carry()
                pause = _PAUSE_SECONDS
            except DurableCacheError as error:
                self._failure = mask_text(str(error))
            except Exception as error:
                _log.exception("pipe %r failed", self.options.name)
                self._failure = f"{type(error).__name__}: {error}"
            self.looked.set()
            if self.refused is not None:
                return
            self.ended.wait(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _carry(self) -> None:
        """Open both networks, and carry until the end or until something fails."""
        with ExitStack() as stack:
            source = self._session(stack, self._settings.source)
            target = self._session(stack, self._settings.target)
            try:
                refuse_loop(source, target, self.options)
            except ConfigError as error:
                self.refused = error if not self.looked.is_set() else None
                raise
            self.looked.set()
            pipe = declare_reliable_pipe(
                source, target, self._settings.key_expr, options=self.options
            )
            stack.enter_context(pipe)
            self._pipe, self._failure = pipe, ""
            try:
                while not self.ended.wait(_WATCH_SECONDS) and pipe.error is None:
                    pass
            finally:
                self._last, self._pipe = pipe.status(), None
                self._failure = self._last.failure

    def _session(self, stack: ExitStack, network: Network) -> Session:
        """Return the session of one end; one that was opened for it is closed with the stack."""
        if not network:
            return self._own
        session = open_session(zenoh_of(network))
        stack.callback(close_session, session)
        return session

"""How a cache service is run in the foreground: the verb ``serve``."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from durable_cache.errors import DurableCacheError
from durable_cache.service.layers import Overrides, load_settings
from durable_cache.service.logs import CHANGES, write_log
from durable_cache.service.masking import mask_text
from durable_cache.service.notify import notify
from durable_cache.service.output import say
from durable_cache.service.stopping import Stop
from durable_cache.service.verbs.options import add_config_options, overrides_of
from durable_cache.service.verbs.parsing import Verbs, add_verb
from durable_cache.storage.contract import Durability

if TYPE_CHECKING:
    from durable_cache.service.service import Service

_WATCH_SECONDS = 0.5
_NAME = "durable-cache"


def add_verbs(verbs: Verbs) -> None:
    """Add ``serve``."""
    parser = add_verb(
        verbs,
        "serve",
        examples=(
            "durable-cache serve",
            "durable-cache serve --key-expr 'fleet/**' --state-dir history",
            "durable-cache serve --config fleet.json5 --http 127.0.0.1:8088",
        ),
    )
    add_config_options(parser)
    parser.add_argument(
        "--log",
        default="warning",
        choices=["debug", "info", "warning", "error"],
        help="from where on is logged; what changes is logged with `warning`, too",
    )
    parser.add_argument("--log-format", choices=["text", "json"], default="text")
    parser.add_argument("--json", action="store_const", dest="log_format", const="json")
    parser.set_defaults(run=_serve)


class _Hangups:
    """SIGHUP asks for the configuration to be read again; where the terminal is gone, to stop."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._is_on_terminal = sys.stderr.isatty()
        self._hangups = 0
        signal.signal(signal.SIGHUP, self._hung_up)

    def _hung_up(self, number: int, frame: FrameType | None) -> None:
        if self._is_on_terminal and not sys.stderr.isatty():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            self._stop.ask(number)
        self._hangups += 1

    def take(self) -> bool:
        """Tell whether SIGHUP came since the last call."""
        hangups, self._hangups = self._hangups, 0
        return hangups > 0


def _serve(arguments: argparse.Namespace) -> int:
    write_log(arguments.log, arguments.log_format)
    stop = Stop()
    hangups = _Hangups(stop)
    from durable_cache.endpoints.session import log_as_environment_says
    from durable_cache.service.building import note_mistakes
    from durable_cache.service.service import Service

    settings = load_settings(overrides_of(arguments), note_mistakes)
    log_as_environment_says()
    tell = _tell_json if arguments.log_format == "json" else say
    service = Service(settings)
    if arguments.log_format == "json":
        _introduce_json(service)
    else:
        _introduce(service)
    notify("READY=1", f"STATUS=serving {', '.join(settings.cache.storages)}")
    failure = ""
    while not failure and not stop.wait(_WATCH_SECONDS):
        if hangups.take():
            _read_again(service, overrides_of(arguments))
        failure = service.look()
        notify("WATCHDOG=1")
    notify("STOPPING=1")
    if not failure:
        tell("stopping: what was received is being stored; a second signal ends at once")
    left = service.stop()
    for name, samples in left.items():
        tell(
            f"{name}: {samples} samples stay in the journal and go to the backend at the next start"
        )
    if failure:
        raise DurableCacheError(failure)
    durable = all(status.level > Durability.MEMORY for status in service.report().storages)
    tell("stopped; everything acknowledged is stored" if durable else "stopped")
    return 0


def _read_again(service: Service, overrides: Overrides) -> None:
    """Let the service become what the configuration says now; it goes on where that is wrong."""
    from durable_cache.service.building import note_mistakes

    log = logging.getLogger(CHANGES)
    try:
        difference = service.change(lambda _: load_settings(overrides, note_mistakes))
    except DurableCacheError as error:
        log.warning(
            "the configuration was read again and nothing was changed",
            extra={"reason": mask_text(" ".join(str(error).split()))},
        )
    else:
        log.info("the configuration was read again", extra={"is_changed": bool(difference)})


def _tell_json(sentence: str) -> None:
    logging.getLogger(CHANGES).info(sentence)


def _introduce_json(service: Service) -> None:
    log, cache = logging.getLogger(CHANGES), service.settings.cache
    for note in service.settings.notes():
        log.warning(note)
    log.info(
        "serving",
        extra={
            "zid": service.zid,
            "mode": service.settings.zenoh.get("mode", "peer"),
            "listening": ", ".join(service.listening),
            "storages": ", ".join(cache.storages),
            "pipes": ", ".join(cache.pipes),
            "state_dir": cache.state_dir,
            "status_url": "" if service.status is None else service.status.url,
        },
    )


def _introduce(service: Service) -> None:
    cache = service.settings.cache
    mode = service.settings.zenoh.get("mode", "peer")
    where = ", ".join(service.listening) or f"where Zenoh listens as a {mode} by default"
    say(f"durable-cache is serving as {mode} {service.zid}")
    say(f"  listening  {where}")
    for name, storage in cache.storages.items():
        volume = service.volumes[storage.volume]
        level = service.caches[name].status().level
        say(f"  storing    {name}: {', '.join(storage.key_exprs)}, acknowledged at level {level}")
        say(f"             in {volume.backend.name}: {volume.place}")
    for name, pipe in cache.pipes.items():
        say(f"  pipe       {name}: {pipe.key_expr}, {pipe.is_between}")
    say(f"  journal    {cache.state_dir}")
    if service.status is not None:
        say(f"  status     {service.status.url}")
    if service.rest is not None:
        say(f"  REST       {service.rest.url}")
    for note in service.settings.notes():
        say(f"  note       {note}")
    key_expr = next(iter(cache.storages.values())).key_exprs[0]
    say("try from another terminal:")
    say(f"  {_own_command()} query {shlex.quote(key_expr)}{_connect(service.listening)}")


def _own_command() -> str:
    """Return how this very program is called from another terminal."""
    called = Path(sys.argv[0])
    if called.name != _NAME:
        return f"{shlex.quote(sys.executable)} -m durable_cache"
    found = shutil.which(_NAME)
    is_found = found is not None and Path(found).resolve() == called.resolve()
    return _NAME if is_found else shlex.quote(str(called))


def _connect(listening: tuple[str, ...]) -> str:
    if not listening:
        return ""
    endpoint = listening[0].replace("[::]", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")  # noqa: S104
    return f" --connect {shlex.quote(endpoint)}"

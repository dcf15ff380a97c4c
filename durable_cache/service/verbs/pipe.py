"""A reliable pipe between two networks as a process, until it is stopped."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.arguments import wrong_at
from durable_cache.model.key_expression import parse_short
from durable_cache.service.document import read_document
from durable_cache.service.logs import write_log
from durable_cache.service.output import Progress, can_draw, counted, say, write_result
from durable_cache.service.stopping import Stop
from durable_cache.service.verbs.options import add_guarantee_options
from durable_cache.service.verbs.parsing import Verbs, add_verb, in_words_of

if TYPE_CHECKING:
    from durable_cache.endpoints.pipe import PipeOptions, PipeStatus, ReliablePipe
    from durable_cache.endpoints.session import Session

_WATCH_SECONDS = 0.2
_COUNTS = ("taken", "passed", "confirmed", "given_up", "repeated", "lost", "unnumbered", "missed")


_OPTIONS = {
    "name": "--name",
    "acknowledgements": "--acknowledgements",
    "processed_by": "--processed-by",
    "source_domain": "--from-domain",
    "target_domain": "--to-domain",
}
"""Which option sets which field of `PipeOptions`."""


def add_verbs(verbs: Verbs) -> None:
    """Add the verb."""
    pipe = add_verb(
        verbs,
        "pipe",
        examples=(
            "durable-cache pipe --from tcp/site:7447 --to tcp/hub:7447 --key 'fleet/**' "
            "--name site-7",
            "durable-cache pipe --from tcp/p1:7447 --to tcp/p2:7447 --key 'fleet/**' "
            "--processed-by billing",
            "durable-cache pipe --from tcp/site:7447 --to-config hub.json5 --key 'fleet/**' "
            "--idle 5",
        ),
        description=(
            "Carry samples from the caches of one network to those of another, under their own "
            "identity: all that is stored, then what is published. What caches there hold is "
            "confirmed; who starts a pipe again under its name goes on behind that."
        ),
    )
    _add_ends(pipe)
    pipe.add_argument("--key", required=True, metavar="KEY_EXPR", help="what is carried")
    pipe.add_argument(
        "--name",
        default="pipe",
        help="what its positions are kept by; each pipe needs its own; `pipe` by default",
    )
    add_guarantee_options(pipe)
    pipe.add_argument(
        "--mode",
        choices=["exactly-once", "at-least-once", "at-most-once", "unreliable"],
        default="exactly-once",
        help="what may be lost, and what is carried again; the last two carry what arrives live",
    )
    pipe.add_argument(
        "--processed-by",
        default=None,
        metavar="CONSUMER",
        help="confirm only what this durable consumer there, the next pipe perhaps, confirmed, too",
    )
    pipe.add_argument(
        "--idle",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="end when nothing came for so long and nothing is under way; 0 runs until stopped",
    )
    pipe.add_argument(
        "--interval",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how often it is said how far it has come, where that is no terminal",
    )
    pipe.add_argument("--json", action="store_true", help="the counts at the end as JSON")
    pipe.set_defaults(run=_pipe)


def _add_ends(pipe: argparse.ArgumentParser) -> None:
    pipe.add_argument(
        "--from",
        dest="source",
        action="append",
        default=[],
        metavar="ENDPOINT",
        help="a router, or a cache that listens, of the network that samples come from",
    )
    pipe.add_argument(
        "--to",
        dest="target",
        action="append",
        default=[],
        metavar="ENDPOINT",
        help="the same of the network that they go to",
    )
    for end, network in (("from", "come from"), ("to", "go to")):
        pipe.add_argument(
            f"--{end}-config",
            default="",
            metavar="FILE",
            help=f"Zenoh's configuration for the network that samples {network}, TLS and all",
        )
        pipe.add_argument(
            f"--{end}-domain",
            default="default",
            metavar="DOMAIN",
            help=f"the domain of the caches that samples {network}",
        )


def _pipe(arguments: argparse.Namespace) -> int:
    from durable_cache.endpoints.pipe import PipeOptions, declare_reliable_pipe

    if not arguments.idle >= 0:
        raise ConfigError(f"--idle: expected seconds, 0 or above, got {arguments.idle:g}")
    if not arguments.interval > 0:
        raise ConfigError(f"--interval: expected seconds above 0, got {arguments.interval:g}")
    with in_words_of(_OPTIONS):
        options = PipeOptions(
            name=arguments.name,
            acknowledgements=arguments.acknowledgements,
            level=arguments.level,
            mode=arguments.mode,
            processed_by=arguments.processed_by,
            source_domain=arguments.from_domain,
            target_domain=arguments.to_domain,
        ).checked()
    with wrong_at("--key"):
        parse_short(arguments.key)
    write_log("warning", "text")
    stop = Stop()
    with (
        _session("--from", arguments.source, arguments.from_config) as source,
        _session("--to", arguments.target, arguments.to_config) as target,
    ):
        pipe = declare_reliable_pipe(source, target, arguments.key, options=options)
        say(f"pipe {pipe.name}: carrying {pipe.key_expr}")
        try:
            _watch(pipe, stop, arguments)
        finally:
            pipe.close()
        return _tell(pipe, options, as_json=arguments.json)


@contextmanager
def _session(option: str, endpoints: list[str], file: str) -> Iterator[Session]:
    """Open the session of one end, closed at the end of the block."""
    from durable_cache.endpoints.session import close_session, open_session, read_config

    if not (endpoints or file):
        raise ConfigError(f"{option}: name an endpoint, as in tcp/127.0.0.1:7447")
    settings: dict[str, object] = dict(_of_file(file))
    if endpoints:
        settings["connect"] = {"endpoints": endpoints}
        settings.setdefault("mode", "client")
        settings.setdefault("scouting", {"multicast": {"enabled": False}})
    with wrong_at(option):
        read_config(settings)
    try:
        session = open_session(settings)
    except ConfigError as error:
        where = ", ".join(endpoints) or file
        remedy = "does a router or a cache listen there?"
        if "listen" in settings and "cannot listen" in str(error):
            remedy = f"a pipe need not listen, leave `listen` out of {file}"
        raise DurableCacheError(f"{option} {where}: {error}; {remedy}") from error
    try:
        yield session
    finally:
        close_session(session)


def _of_file(file: str) -> Mapping[str, object]:
    if not file:
        return {}
    document = read_document(Path(file))
    document.pop("plugins", None)
    return document


def _watch(pipe: ReliablePipe, stop: Stop, arguments: argparse.Namespace) -> None:
    """Say how far the pipe has come, until it is stopped, failed, or idle for long enough."""
    moved = told = time.monotonic()
    before = shown = pipe.status()
    is_drawn, reason = can_draw(sys.stderr), ""
    with Progress(f"pipe {pipe.name}") as progress:
        while not stop.wait(_WATCH_SECONDS) and pipe.error is None:
            status, now = pipe.status(), time.monotonic()
            progress.advance(status.confirmed - before.confirmed)
            if status.taken != before.taken or status.under_way:
                moved = now
            before = status
            if now - told >= arguments.interval:
                waits = status.under_way or status.failure
                if status.failure != reason if is_drawn else (waits or status != shown):
                    progress.say(_line(arguments, status, shown, now - told))
                told, shown, reason = now, status, status.failure
            if arguments.idle and now - moved >= arguments.idle and pipe.is_caught_up:
                return


def _line(
    arguments: argparse.Namespace, status: PipeStatus, before: PipeStatus, seconds: float
) -> str:
    rate, processed_by = (status.confirmed - before.confirmed) / seconds, arguments.processed_by
    line = f"pipe {arguments.name}: {status.confirmed} confirmed, {status.under_way} under way"
    if processed_by and status.unprocessed:
        line += f", {status.unprocessed} of them not confirmed by {processed_by!r}"
    return f"{line}, {rate:.0f}/s" + (f"; {status.failure}" if status.failure else "")


def _tell(pipe: ReliablePipe, options: PipeOptions, *, as_json: bool) -> int:
    status = pipe.status()
    values: dict[str, object] = {name: getattr(status, name) for name in _COUNTS}
    about = {"pipe": pipe.name, "key_expr": str(pipe.key_expr), "mode": pipe.mode.words}
    values = {**about, **values}
    values["under_way"], values["failure"] = status.under_way, status.failure
    values["rates"], values["route"] = status.rates._asdict(), status.route._asdict()
    text = f"{counted(status.confirmed, 'sample')} carried and confirmed"
    unprocessed = status.unprocessed if options.processed_by else 0
    if unheld := status.under_way - unprocessed:
        text += f", {unheld} not known to be held by {counted(options.acknowledgements, 'cache')}"
    if unprocessed:
        text += f", {unprocessed} not confirmed by {options.processed_by!r}"
    text += ": they come again" if status.under_way and pipe.mode.is_reliable else ""
    for name in ("given_up", "lost", "missed", "unnumbered"):
        if count := getattr(status, name):
            text += f", {count} {name.replace('_', ' ')}"
    text += f"; {status.failure}" if status.failure else ""
    write_result(text, values, as_json=as_json)
    return 1 if status.given_up or (status.missed and pipe.mode.is_reliable) else 0

"""Which verb the command line names, and which exit code its end has.

0 fine, 1 failure, 2 usage or configuration, 130 and 143 interrupted. Data goes to stdout, all else
to stderr. Nothing but the verb that was named is imported.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from argparse import _SubParsersAction
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from durable_cache.errors import (
    BackendNotFound,
    BackendNotInstalled,
    ConfigError,
    DurableCacheError,
)
from durable_cache.service.masking import mask_text
from durable_cache.service.output import say
from durable_cache.service.stopping import Terminated, unwinding_on_signals
from durable_cache.service.verbs import VERBS
from durable_cache.service.verbs.parsing import Parser, nearest

FAILED, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143
_FAMILIES = {
    "lake": ("add_lake_verbs", "durable-cache lake status lake/fleet"),
    "spark": ("add_spark_verbs", "durable-cache spark sql lake/fleet 'select * from gaps'"),
}
"""Verbs that have verbs of their own: the function that adds these, and an example of one."""
INTRODUCTION = "A durable history for Eclipse Zenoh: acknowledged samples survive power cuts."
FIRST_STEPS = """begin with:
  durable-cache serve                          store everything under ./durable-cache-data
  durable-cache put fleet/7/pose 'x=1 y=2'     in another terminal; acknowledged once on disk
  durable-cache query 'fleet/**'               what is stored; --follow shows what comes, too
  durable-cache demo                           see a cache being killed, and nothing lost

durable-cache --help lists every verb, durable-cache VERB --help its options."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the process's exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_files()
    _write_all_letters()
    try:
        with unwinding_on_signals():
            code = _run(given)
            sys.stdout.flush()
    except Terminated:
        return TERMINATED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ConfigError, BackendNotFound, BackendNotInstalled) as error:
        return _failed(error, USAGE)
    except DurableCacheError as error:
        return _failed(error, FAILED)
    except OSError as error:
        # What names no file was written to standard output, to a full disk as a rule.
        reason = f"{error.filename or 'standard output'}: {error.strerror or error}"
        return _failed(DurableCacheError(reason), FAILED)
    return code


def _open_standard_files() -> None:
    """Put /dev/null where the caller closed a standard file, so that no other file gets its
    number, and what a native library writes there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _write_all_letters() -> None:
    """Let keys and payloads pass whatever the locale is: programs read UTF-8, and a terminal shows
    what it cannot write as ``\\u…``.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = None if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _run(given: Sequence[str]) -> int:
    match list(given[:1]):
        case []:
            print(f"{INTRODUCTION}\n\n{FIRST_STEPS}")
            return 0
        case ["help"] if given[1:] and given[1] in VERBS:
            return _run([given[1], "--help"])
        case ["-h" | "--help" | "help"]:
            print(_overview())
            return 0
        case ["-V" | "--version"]:
            from importlib.metadata import version

            print(version("durable-cache"))
            return 0
        case [name] if name in VERBS:
            chosen = build_parser(name).parse_args(given)
            return int(chosen.run(chosen) or 0)
        case [name, *_]:
            kind = "option" if name.startswith("-") else "verb"
            near = nearest(name, ["--help", "--version", *VERBS])
            say(
                f"durable-cache: {name[:80]!r}: no such {kind}{near}; durable-cache --help lists "
                "every verb"
            )
    return USAGE


def _overview() -> str:
    lines = [INTRODUCTION, "", "usage: durable-cache VERB [options]"]
    heading = ""
    for name, verb in VERBS.items():
        if verb.group != heading:
            heading = verb.group
            lines += ["", f"{heading}:"]
        lines.append(f"  {name:<13} {verb.summary}")
    return "\n".join([*lines, "", FIRST_STEPS])


def build_parser(verb: str) -> Parser:
    """Return the parser of one verb. Raises BackendNotInstalled where its driver is missing."""
    parser, verbs = _parser_without_verbs()
    _add(verbs, verb)
    return parser


def whole_parser() -> Parser:
    """Return the parser of every verb whose driver is there; takes as long as importing them."""
    parser, verbs = _parser_without_verbs()
    for verb in VERBS:
        if verb not in verbs.choices:
            with suppress(BackendNotInstalled):
                _add(verbs, verb)
    return parser


def parsers_of(verb: str) -> Iterator[Parser]:
    """Yield the parsers that take a verb's options: its own, or those of the verbs below it.

    Raises BackendNotInstalled where its driver is missing.
    """
    (action,) = _below(build_parser(verb))
    waiting = [action.choices[verb]]
    while waiting:
        parser = waiting.pop(0)
        below = _below(parser)
        if not below:
            yield parser
        for action in below:
            waiting += action.choices.values()


def _parser_without_verbs() -> tuple[Parser, Any]:
    parser = Parser(prog="durable-cache")
    return parser, parser.add_subparsers(metavar="verb", required=True, parser_class=Parser)


def _add(verbs: Any, verb: str) -> None:
    """Add the verbs of a verb's module, which is imported."""
    family = _FAMILIES.get(verb)
    try:
        module = importlib.import_module(VERBS[verb].module)
    except ModuleNotFoundError as error:
        if family is None:
            raise
        extra = verb.replace("lake", "delta")
        raise BackendNotInstalled(verb, extra, error.name or "?") from error
    if family is None:
        module.add_verbs(verbs)
    else:
        summary = VERBS[verb].summary
        add_below, example = family
        parser = verbs.add_parser(
            verb, help=summary, description=f"{summary}.", examples=(example,)
        )
        getattr(module, add_below)(parser.add_subparsers(metavar="verb", required=True))


def _below(parser: Parser) -> list[Any]:
    return [action for action in parser._actions if isinstance(action, _SubParsersAction)]


def _failed(error: Exception, code: int) -> int:
    for text in getattr(error, "mistakes", (str(error) or type(error).__name__,)):
        say(f"durable-cache: {mask_text(' '.join(text.split()))}")
    return code

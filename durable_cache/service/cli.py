"""Which verb the command line names, and which exit code its end has.

0 fine, 1 failure, 2 usage or configuration, 130 interrupted. Data goes to stdout, all else to
stderr. Nothing heavy is imported before the verb is known.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from durable_cache.errors import (
    BackendNotFound,
    BackendNotInstalled,
    ConfigError,
    DurableCacheError,
)
from durable_cache.service.masking import mask_text
from durable_cache.service.output import say

__all__ = ["build_parser", "main"]

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_VERB_MODULES = (
    "serve",
    "query",
    "observe",
    "align",
    "replay",
    "storages",
    "check",
    "backends",
    "demo",
)
_FAMILIES = {
    "lake": ("durable_cache.service.verbs.lake", "add_lake_verbs", "look after Delta tables"),
    "spark": ("durable_cache.spark.verbs", "add_spark_verbs", "query the history with Spark"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every verb that needs no driver to be parsed."""
    parser = argparse.ArgumentParser(
        prog="durable-cache",
        description="A durable history for Eclipse Zenoh: acknowledged samples survive power cuts.",
    )
    parser.add_argument("--version", action="version", version=version("durable-cache"))
    verbs = parser.add_subparsers(metavar="verb", required=True)
    for name in _VERB_MODULES:
        importlib.import_module(f"durable_cache.service.verbs.{name}").add_verbs(verbs)
    for family, (_, _, summary) in _FAMILIES.items():
        verbs.add_parser(family, help=summary, add_help=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the process's exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser = _family_parser(given[0]) if given[:1] and given[0] in _FAMILIES else build_parser()
        chosen = parser.parse_args(given[1:] if given[:1] and given[0] in _FAMILIES else given)
        code = int(chosen.run(chosen) or 0)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ConfigError, BackendNotFound, BackendNotInstalled) as error:
        return _failed(error, USAGE)
    except (DurableCacheError, OSError) as error:
        return _failed(error, FAILED)
    return code


def _family_parser(family: str) -> argparse.ArgumentParser:
    module, function, summary = _FAMILIES[family]
    parser = argparse.ArgumentParser(prog=f"durable-cache {family}", description=summary)
    try:
        add_verbs = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise BackendNotInstalled(
            family, family.replace("lake", "delta"), error.name or "?"
        ) from error
    add_verbs(parser.add_subparsers(metavar="verb", required=True))
    return parser


def _failed(error: Exception, code: int) -> int:
    text = str(error) or type(error).__name__
    say(f"durable-cache: {mask_text(' '.join(text.split()))}")
    return code

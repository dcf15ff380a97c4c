"""Which services are meant where a verb is not told: the verb ``context``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from durable_cache.errors import ConfigError
from durable_cache.service.contexts import Context, Contexts, contexts_file, read_contexts
from durable_cache.service.output import say, write_json, write_result, write_table
from durable_cache.service.verbs.options import add_format_option, add_json_option
from durable_cache.service.verbs.parsing import Parser, Verbs, add_verb

_COLUMNS = ("used", "name", "connect", "config")


def add_verbs(verbs: Verbs) -> None:
    """Add ``context`` and the verbs below it."""
    context = add_verb(
        verbs,
        "context",
        examples=(
            "durable-cache context add lab --connect tcp/10.0.0.7:7447 --use",
            "durable-cache context add plant --config plant-tls.json5",
            "durable-cache context use plant",
            "durable-cache context list",
            "durable-cache context remove lab",
        ),
        description="Name services, and which of them are asked where --connect and --config are "
        "not given. Options and environment go before it; DURABLE_CACHE_CONTEXT and --context "
        "choose another for one command.",
    )
    below: Any = context.add_subparsers(metavar="what", required=True, parser_class=Parser)

    def verb(name: str, summary: str, given: str = "") -> Parser:
        opening = f"{summary[0].upper()}{summary[1:]}."
        examples = (f"durable-cache context {name}{given}",)
        found: Parser = below.add_parser(name, help=summary, description=opening, examples=examples)
        return found

    what = "name endpoints, a file of Zenoh's settings, or both"
    add = verb("add", what, " lab --connect tcp/10.0.0.7:7447")
    add.add_argument("name")
    add.add_argument("-e", "--connect", action="append", default=[], metavar="ENDPOINT")
    add.add_argument("-c", "--config", default="", metavar="FILE", help="Zenoh's configuration")
    add.add_argument("--use", action="store_true", help="use it from now on")
    add_json_option(add)
    add.set_defaults(run=_add)
    use = verb("use", "use one from now on; without a name, none", " lab")
    use.add_argument("name", nargs="?", default="")
    add_json_option(use)
    use.set_defaults(run=_use)
    listed = verb("list", "list the contexts there are")
    add_format_option(listed)
    listed.set_defaults(run=_list)
    remove = verb("remove", "forget one", " lab")
    remove.add_argument("name")
    add_json_option(remove)
    remove.set_defaults(run=_remove)


def _file() -> Path:
    path = contexts_file(os.environ)
    if path is None:
        raise ConfigError("contexts are kept in your home: set HOME or XDG_CONFIG_HOME")
    return path


def _add(arguments: argparse.Namespace) -> int:
    if not arguments.connect and not arguments.config:
        raise ConfigError("context add: name --connect ENDPOINT, --config FILE or both")
    context = Context(
        tuple(arguments.connect),
        str(Path(arguments.config).resolve()) if arguments.config else "",
    )
    _check(context)
    contexts = read_contexts(os.environ).with_one(arguments.name, context, use=arguments.use)
    contexts.write(_file())
    write_result(
        f"{arguments.name} is known" + (" and used" if arguments.use else ""),
        {"name": arguments.name, "current": contexts.current},
        as_json=arguments.json,
    )
    if not arguments.use and not arguments.json:
        say(f"durable-cache context use {arguments.name} uses it")
    return 0


def _check(context: Context) -> None:
    """Raise ConfigError where Zenoh does not take what a profile says."""
    from durable_cache.endpoints.session import read_config
    from durable_cache.service.document import read_document

    settings: dict[str, object] = {}
    if context.config:
        settings = read_document(Path(context.config))
        settings.pop("plugins", None)
    if context.connect:
        settings["connect"] = {"endpoints": list(context.connect)}
    read_config(settings)


def _use(arguments: argparse.Namespace) -> int:
    contexts = read_contexts(os.environ).using(arguments.name)
    contexts.write(_file())
    write_result(
        f"{arguments.name} is used" if arguments.name else "no context is used",
        {"current": contexts.current},
        as_json=arguments.json,
    )
    return 0


def _list(arguments: argparse.Namespace) -> int:
    contexts = read_contexts(os.environ)
    rows = _rows(contexts)
    if arguments.format == "json":
        write_json(rows)
        return 0
    if not rows:
        say("there is no context; durable-cache context add NAME --connect ENDPOINT makes one")
        return 0
    shown = [{**row, "connect": ", ".join(contexts.contexts[row["name"]].connect)} for row in rows]
    write_table([{**row, "used": "*" if row["used"] else ""} for row in shown], _COLUMNS)
    return 0


def _rows(contexts: Contexts) -> list[dict[str, Any]]:
    return [
        {
            "used": name == contexts.current,
            "name": name,
            "connect": context.connect,
            "config": context.config,
        }
        for name, context in sorted(contexts.contexts.items())
    ]


def _remove(arguments: argparse.Namespace) -> int:
    contexts = read_contexts(os.environ).without(arguments.name)
    contexts.write(_file())
    write_result(
        f"{arguments.name} is forgotten", {"current": contexts.current}, as_json=arguments.json
    )
    return 0

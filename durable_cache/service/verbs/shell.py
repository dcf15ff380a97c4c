"""What makes the command at home on a machine: the verbs ``completion`` and ``man``."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

from durable_cache.errors import BackendNotInstalled, ConfigError
from durable_cache.service.output import say, write_json, write_result
from durable_cache.service.verbs import VERBS
from durable_cache.service.verbs.options import add_json_option
from durable_cache.service.verbs.parsing import Verbs, add_verb, nearest

_COMMAND = "durable-cache"
_FILES, _FOLDERS = frozenset({"FILE"}), frozenset({"DIR", "FOLDER"})
"""What an option is called where a file or a folder is to be named."""


def add_verbs(verbs: Verbs) -> None:
    """Add ``completion`` and ``man``."""
    completion = add_verb(
        verbs,
        "completion",
        examples=(
            "durable-cache completion bash",
            "durable-cache completion zsh",
            "durable-cache completion fish",
        ),
        description="Print a script that completes verbs, options, choices and files. It knows "
        "them by itself and\nstarts nothing: print it anew after an update. Shells look for it in\n"
        "  bash  ~/.local/share/bash-completion/completions/durable-cache\n"
        "  zsh   _durable-cache in a folder of $fpath\n"
        "  fish  ~/.config/fish/completions/durable-cache.fish",
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    completion.add_argument("--json", action="store_true", help="the script as a JSON string")
    completion.set_defaults(run=_complete)
    man = add_verb(
        verbs,
        "man",
        examples=(
            "durable-cache man query",
            "durable-cache man --to ~/.local/share/man/man1",
        ),
        description="Print the manual page of the command or of one verb, for `man -l -`, or write "
        "them all.",
    )
    man.add_argument("verb", nargs="?", default="")
    man.add_argument("--to", default="", metavar="DIR", help="write every page into this folder")
    add_json_option(man)
    man.set_defaults(run=_man)


def _complete(arguments: argparse.Namespace) -> int:
    from durable_cache.service.cli import whole_parser

    try:
        shtab: Any = import_module("shtab")
    except ModuleNotFoundError as error:
        raise BackendNotInstalled("completion", "", error.name or "shtab") from error
    parser = whole_parser()
    waiting: list[argparse.ArgumentParser] = [parser]
    while waiting:
        for action in waiting.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            elif action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    script = shtab.complete(parser, shell=arguments.shell)
    if arguments.json:
        write_json(script)
    else:
        print(script)
    return 0


def _man(arguments: argparse.Namespace) -> int:
    from durable_cache.service.manual import command_page, verb_page

    if not arguments.to:
        if arguments.verb and arguments.verb not in VERBS:
            raise ConfigError(
                f"{arguments.verb[:80]!r}: no such verb{nearest(arguments.verb, VERBS)}"
            )
        page = verb_page(arguments.verb) if arguments.verb else command_page()
        if arguments.json:
            write_json(page)
        else:
            print(page, end="")
        return 0
    if arguments.verb:
        raise ConfigError("--to writes the pages of all verbs; name none")
    folder = Path(arguments.to)
    folder.mkdir(parents=True, exist_ok=True)
    pages = {f"{_COMMAND}.1": command_page()}
    for verb in VERBS:
        try:
            pages[f"{_COMMAND}-{verb}.1"] = verb_page(verb)
        except BackendNotInstalled as error:
            say(f"{verb}: left out: {error}")
    for name, page in pages.items():
        (folder / name).write_text(page, encoding="utf-8")
    write_result(
        f"{len(pages)} pages written into {folder}",
        {"folder": str(folder), "pages": [*pages]},
        as_json=arguments.json,
    )
    return 0

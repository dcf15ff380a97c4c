"""How a verb's help becomes a manual page, in the language of ``man`` (roff)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version

from durable_cache.service.cli import FIRST_STEPS, INTRODUCTION, parsers_of
from durable_cache.service.verbs import VERBS
from durable_cache.service.verbs.parsing import Parser

_COMMAND = "durable-cache"
_EXIT_CODES = (
    ("0", "fine"),
    ("1", "it failed: one line on stderr says what, where and what to do"),
    ("2", "wrong usage or configuration; nothing was done"),
    ("130", "interrupted by Ctrl-C"),
)


def command_page() -> str:
    """Return the page of the command itself: its verbs, and how to begin."""
    lines = [
        *_head(_COMMAND, INTRODUCTION),
        ".SH SYNOPSIS",
        f".B {_text(_COMMAND)}",
        "VERB [options]",
    ]
    heading = ""
    for name, verb in VERBS.items():
        if verb.group != heading:
            heading = verb.group
            lines.append(f".SH {_text(heading.upper())}")
        lines += [".TP", f".BR {_text(_COMMAND)}\\-{_text(name)} (1)", _text(verb.summary)]
    lines += [".SH FIRST STEPS", *_shown(FIRST_STEPS.splitlines()), *_exit_codes()]
    return "\n".join(lines) + "\n"


def verb_page(verb: str) -> str:
    """Return the page of a verb, with those below it; BackendNotInstalled without its driver."""
    parsers = [*parsers_of(verb)]
    lines = [*_head(f"{_COMMAND}-{verb}", VERBS[verb].summary), ".SH SYNOPSIS"]
    for parser in parsers:
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        lines += [".PP", f".B {_text(parser.prog)}", _text(usage.removeprefix(parser.prog).strip())]
    for parser in parsers:
        alone = len(parsers) == 1
        lines.append(".SH DESCRIPTION" if alone else f".SH {_text(parser.prog.upper())}")
        lines += [_text(parser.description or VERBS[verb].summary), *_options(parser, alone=alone)]
        if parser.examples:
            lines += [".SH EXAMPLES" if alone else ".SS Examples", *_shown(parser.examples)]
    lines += [*_exit_codes(), ".SH SEE ALSO", f".BR {_text(_COMMAND)} (1)"]
    return "\n".join(lines) + "\n"


def _head(name: str, summary: str) -> list[str]:
    made_by = f"durable-cache {version('durable-cache')}"
    return [
        f'.TH "{_text(name.upper())}" "1" "" "{_text(made_by)}" "User Commands"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(summary)}",
    ]


def _options(parser: Parser, *, alone: bool) -> Iterator[str]:
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if a.help is not argparse.SUPPRESS]
        if not actions:
            continue
        title = group.title or "options"
        yield f".SH {_text(title.upper())}" if alone else f".SS {_text(title)}"
        if group.description:
            yield _text(group.description)
        for action in actions:
            yield ".TP"
            yield _named(action)
            yield _explained(parser, action)


def _named(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _value(action)
    if not action.option_strings:
        return f"\\fI{_text(value)}\\fR"
    names = ", ".join(f"\\fB{_text(name)}\\fR" for name in action.option_strings)
    return f"{names} \\fI{_text(value)}\\fR" if value else names


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _explained(parser: Parser, action: argparse.Action) -> str:
    if not action.help:
        return "\\&"
    return _text(parser._get_formatter()._expand_help(action))


def _exit_codes() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in _EXIT_CODES:
        yield from (".TP", f".B {code}", _text(meaning))


def _shown(lines: Sequence[str]) -> Iterator[str]:
    yield from (".nf", *map(_text, lines), ".fi")


def _text(text: str) -> str:
    """Return a text as roff takes it: no line of it is a request, no dash a hyphen."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)

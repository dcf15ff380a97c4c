"""Are the remedies that messages name there to be followed, in a clone and in an install alike?

Every text of the source is read, whether or not a test provokes it.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache

import pytest

from durable_cache.service.cli import build_parser, parsers_of
from durable_cache.service.verbs import VERBS
from tests.tree import ROOT, named, parsed, source_files

_OF_TESTS = "durable_cache/testing/"
_COMMAND = re.compile(r"durable-cache ([a-z][a-z-]*)((?: (?!--)[\\w*'/.…-]+)*(?: --[a-z-]+)*)")
_OPTION = re.compile(r"(?<![\w(-])--[a-z][a-z-]+(?![\w:-])")
"""Names in style sheets stand behind a bracket or before a colon."""
_EXTRA = re.compile(r"pip install '[^'\[]*\[([^\]]*)\]'")
_SENTENCES = {"already", "are", "has", "history", "in", "is", "schema", "service", "services"}
"""What stands behind our name in sentences."""


def documentation(tree: ast.AST) -> set[int]:
    """Return which constants are docstrings and the like: nobody is shown them."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def texts() -> Iterator[tuple[str, str]]:
    """Yield where a text stands and the text; what is filled in is ``…``."""
    for path in source_files():
        if named(path).startswith(_OF_TESTS):
            continue
        tree = parsed(path)
        inside = documentation(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                inside |= {id(part) for part in node.values}
                parts = (
                    str(part.value) if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                )
                yield f"{named(path)}:{node.lineno}", "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                where = f"{named(path)}:{node.lineno}"
                yield from [(where, node.value)] * (id(node) not in inside)


@cache
def options_of(verb: str) -> frozenset[str]:
    return frozenset(
        option for parser in parsers_of(verb) for option in parser._option_string_actions
    )


def test_every_command_that_a_message_names_exists_with_its_options() -> None:
    read, wrong = 0, []
    for where, text in texts():
        for verb, rest in _COMMAND.findall(text):
            if verb in _SENTENCES:
                continue
            read += 1
            if verb not in VERBS:
                wrong.append(f"{where}: durable-cache {verb}: no such verb")
                continue
            unknown = set(_OPTION.findall(rest)) - options_of(verb)
            wrong += [f"{where}: durable-cache {verb} {option}" for option in sorted(unknown)]
    assert read > 60, "messages and examples name commands"
    assert not wrong, "\n".join(wrong)


def test_every_option_that_a_message_names_is_one() -> None:
    known = frozenset[str]().union(*map(options_of, VERBS))
    wrong = [
        f"{where}: {option}"
        for where, text in texts()
        if " " in text and where.startswith("durable_cache/")
        for option in _OPTION.findall(text)
        if option not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_every_extra_that_a_message_names_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {*project["optional-dependencies"], "…"}
    wrong = [
        f"{where}: {extra}"
        for where, text in texts()
        for extras in _EXTRA.findall(text)
        for extra in extras.split(",")
        if extra not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_no_message_wants_a_clone() -> None:
    wrong = [
        f"{where}: {text[:80]}" for where, text in texts() if re.search(r"`make |: make ", text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_has_examples_that_are_understood(verb: str) -> None:
    for parser in parsers_of(verb):
        assert parser.examples, parser.prog
        for example in parser.examples:
            command = re.split(r" [|>&;]+ ?| #", example.partition("durable-cache ")[2])[0]
            build_parser(verb).parse_args(shlex.split(command))

"""Is every option reached by some test? One that no test names may do nothing at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tree import named, parsed, python_files, source_files

_OPTIONS = re.compile(r"(Options|Settings|Retention)$")
_OF_TESTS = "durable_cache/testing/"


def options_of(path: Path) -> Iterator[tuple[str, str]]:
    """Return (class, field) of every option that a file of the product declares."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef) and _OPTIONS.search(node.name):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield node.name, item.target.id


def words_of(path: Path) -> set[str]:
    """Return the names that a test passes, reads or writes in a configuration; no prose."""
    words: set[str] = set()
    for node in ast.walk(parsed(path)):
        match node:
            case ast.keyword(arg=str(name)) | ast.Attribute(attr=name):
                words.add(name)
            case ast.Constant(value=str(text)) if len(text) < 2000:
                words.update(re.findall(r"[a-z][a-z0-9_]+", text))
    return words


def test_every_option_is_reached_by_a_test() -> None:
    options = [
        (named(path), *option)
        for path in source_files()
        if not named(path).startswith(_OF_TESTS)
        for option in options_of(path)
    ]
    assert len(options) > 80
    tests = {path for path in python_files("tests") if path != Path(__file__)}
    conformance = {path for path in source_files() if named(path).startswith(_OF_TESTS)}
    reached = set[str]().union(*map(words_of, tests | conformance))
    missing = [f"{where}: {owner}.{name}" for where, owner, name in options if name not in reached]
    assert not missing, "no test reaches:\n" + "\n".join(missing)

"""Do the names in the code keep to the words of docs/naming.md?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tree import ROOT, named, parsed, source_files

_ROW = re.compile(r"^\|(?P<say>[^|]*)\|(?P<means>[^|]*)\|(?P<instead>[^|]*)\|$", re.MULTILINE)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
IN_OTHER_SENSES = {
    *("origin", "seq", "offset", "generation", "session", "id", "channel", "loss", "buffer"),
    *("driver", "store", "flush", "expire", "checksum", "sync", "wal", "tail", "brain", "door"),
    *("hole", "void", "quiet", "refile", "bury"),
}
"""Words that are right elsewhere, or that still wait to be replaced."""


def not_to_say() -> set[str]:
    """Return the words that the page tells to leave out and that have no other sense here."""
    page = (ROOT / "docs" / "naming.md").read_text(encoding="utf-8").split("## Shapes")[0]
    rows = [row for row in _ROW.finditer(page) if "do not say" not in row["instead"]]
    words = {
        word.strip().lower() for row in rows for part in row["instead"].split(",") if (word := part)
    }
    return {word for word in words if re.fullmatch(r"[a-z]+", word)} - IN_OTHER_SENSES


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(parsed(path)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name


def test_no_name_uses_a_word_that_has_a_better_one() -> None:
    banned = not_to_say()
    assert {"watermark", "tombstone", "producer"} <= banned
    found = [
        f"{named(path)}:{line}: {name}"
        for path in source_files()
        for line, name in names_in(path)
        if banned.intersection(word.lower() for word in _WORD.findall(name))
    ]
    assert not found, "docs/naming.md has a better word:\n" + "\n".join(sorted(set(found)))

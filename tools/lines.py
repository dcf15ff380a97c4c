"""How many lines of the product are code? Prints them by room: `python tools/lines.py [folder]`.

Counted is a line on which some token of code stands; blank lines, comments and docstrings are not,
nor is what is shipped for the tests of others (`durable_cache/testing`). Migrations are counted.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("durable_cache", "backends", "migrations")
LEFT_OUT = ("durable_cache", "testing")
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def code_lines(source: str) -> int:
    """Return how many lines of a source text hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of all strings that stand alone: docstrings and those below a field."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def room_of(path: Path) -> str:
    """Return the room of a file, given relative to the root: its folder below the package."""
    return "/".join(path.parts[: min(2, len(path.parts) - 1)])


def lines_by_room(root: Path) -> Counter[str]:
    """Return the lines of code of each room of the product below `root`."""
    rooms: Counter[str] = Counter()
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*.py")):
            inside = path.relative_to(root)
            if inside.parts[:2] != LEFT_OUT:
                rooms[room_of(inside)] += code_lines(path.read_text(encoding="utf-8"))
    return rooms


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    rooms = lines_by_room(parser.parse_args().root)
    for room, lines in sorted(rooms.items()):
        print(f"{lines:>7,}  {room}")
    print(f"{sum(rooms.values()):>7,}  all")


if __name__ == "__main__":
    main()

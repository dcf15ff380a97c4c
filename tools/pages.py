"""Puts the pages in order: prose wraps at 100 columns, the list of decisions is complete.

    python tools/pages.py            rewrites README.md, docs/*.md and docs/adr/README.md
    python tools/pages.py --check    says what it would change, and exits with 1 if anything

Tables, code and headings are left as they are.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DECISIONS = ROOT / "docs" / "adr"
COLUMNS = 100

_ITEM = re.compile(r"(\s*(?:[-*+]|\d+[.)])\s+)(?=\S)")
_NO_PROSE = re.compile(r"\s*(?:#|\||>|<|!\[|\[[^\]]+\]:|---|===)")
_MARKS = re.compile(r" (?=(?:[-*+#>|]|\d+[.)])(?:\s|$))")
"""A space after which a new line would begin with what Markdown reads as a mark."""
_TITLE = re.compile(r"# (\d{4}):? (\S.*)")
_STATUS = re.compile(
    r"^(?:Date: )?(\d{4}-\d\d-\d\d)[.,] (?:Status: )?([a-z][^.\n]*)(\.?$|\. )", re.MULTILINE
)
"""Written in one form, read in the forms that hands give it."""

INTRODUCTION = """\
# Decisions

Each file says what was to be decided, what was decided, and what follows from it. Numbers go by
subject, not by date. This list is written by `python tools/pages.py`.

| number | title | status | date |
|---|---|---|---|
"""


class Decision(NamedTuple):
    """What the list says of one decision."""

    path: Path
    number: str
    title: str
    status: str
    date: str


def read_decision(path: Path) -> Decision:
    """Read one decision; ValueError says what it lacks."""
    text = path.read_text(encoding="utf-8")
    title, status = _TITLE.match(text), _STATUS.search(text)
    if title is None or title[1] != path.name[:4]:
        raise ValueError(f"{path.name}: begin with '# {path.name[:4]} Title'")
    if status is None:
        raise ValueError(f"{path.name}: lacks 'Date: YYYY-MM-DD. Status: accepted.'")
    return Decision(path, title[1], title[2], status[2], status[1])


def decisions() -> list[Decision]:
    """Return all decisions by number."""
    return [read_decision(path) for path in sorted(DECISIONS.glob("[0-9]*.md"))]


def index() -> str:
    """Return the page that lists the decisions."""
    rows = [
        f"| {one.number} | [{one.title}]({one.path.name}) | {one.status} | {one.date} |\n"
        for one in decisions()
    ]
    return INTRODUCTION + "".join(rows)


def blocks(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield the lines of a page in blocks, with whether each is prose that may be wrapped."""
    fenced = False
    block: list[str] = []
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        if fence or fenced or not line.strip() or _NO_PROSE.match(line):
            if block:
                yield True, block
                block = []
            yield False, [line]
            fenced = fenced != fence
        elif _ITEM.match(line) and block:
            yield True, block
            block = [line]
        else:
            block.append(line)
    if block:
        yield True, block


def headed(text: str) -> str:
    """Return a decision whose title, date and status are in the one form."""
    text = _TITLE.sub(r"# \1 \2", text, count=1)
    return _STATUS.sub(
        lambda found: f"Date: {found[1]}. Status: {found[2]}." + " " * found[3].endswith(" "),
        text,
        count=1,
    )


def wrapped(text: str) -> str:
    """Return a page whose prose is no wider than `COLUMNS`."""
    lines: list[str] = []
    for prose, block in blocks(text):
        if not prose or max(map(len, block)) <= COLUMNS:
            lines += block
            continue
        item = _ITEM.match(block[0])
        begin = item[1] if item else block[0][: len(block[0]) - len(block[0].lstrip())]
        words = " ".join(" ".join([block[0][len(begin) :], *block[1:]]).split())
        filled = textwrap.wrap(
            _MARKS.sub("\0", words),
            COLUMNS,
            initial_indent=begin,
            subsequent_indent=" " * len(begin),
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [line.replace("\0", " ") for line in filled]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Return every page with the text that it should have."""
    listed = DECISIONS / "README.md"
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {path: path.read_text(encoding="utf-8") for path in paths if path != listed}
    found = {
        path: wrapped(headed(text) if path.parent == DECISIONS else text)
        for path, text in texts.items()
    }
    return {**found, listed: index()}


def main() -> int:
    """Rewrite the pages, or only say which are not as they should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    wrong = 0
    for path, text in pages().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        wrong += 1
        print(path.relative_to(ROOT))
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

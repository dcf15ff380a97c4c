"""Does the moving picture show what was printed, when, and does README show that of the demo?"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from durable_cache.service.demo.show import Outcome
from tests.tree import ROOT
from tools.moving_picture import Line, lines_of, picture, record

PICTURE = ROOT / "docs/pictures/demo.svg"
BYTES_MAX = 1 << 20


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.text]


def test_a_line_stands_from_when_it_was_printed_until_it_is_written_anew() -> None:
    told = [(1.0, "one\r\n"), (2.0, "\r\x1b[Khalf"), (2.5, "\r\x1b[Kwhole\r\n"), (60.0, "end\n")]
    assert lines_of(told) == [
        Line(0, "one", 1.0, None),
        Line(1, "half", 2.0, 2.5),
        Line(1, "whole", 2.5, None),
        Line(2, "end", 5.5, None),
    ]


def test_what_is_printed_is_shown_as_text_and_nothing_of_it_is_markup() -> None:
    svg = picture("a <b>", [Line(0, "x < y & z", 0.0, None), Line(1, "</svg>", 1.0, 2.0)])
    assert {"$ a <b>", "x < y & z", "</svg>"} <= set(texts(svg))


def test_a_command_is_recorded_and_one_that_fails_is_not(tmp_path: Path) -> None:
    lines = record([sys.executable, "-c", "print('there')"])
    assert [line.text for line in lines] == ["there"]
    with pytest.raises(SystemExit, match="ended with 3"):
        record([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_readme_shows_the_demonstration_that_there_is() -> None:
    assert "](docs/pictures/demo.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")
    svg = PICTURE.read_text(encoding="utf-8")
    assert len(svg.encode()) < BYTES_MAX
    shown = texts(svg)
    assert shown.count("$ durable-cache demo") == 1
    columns = next(line.split() for line in shown if line.startswith("publisher "))
    assert columns == [*Outcome.__slots__], "record it anew: tools/moving_picture.py"
    assert re.fullmatch(r"nothing lost, nothing doubled, in \d+ s", shown[-1].strip())

"""Are the pages in order: no line of prose too long, every decision in the list, dated?"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.tree import ROOT, named


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages_tool", ROOT / "tools" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def test_the_pages_are_in_order() -> None:
    wrong = [
        named(path)
        for path, text in tool.pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not wrong, "run python tools/pages.py for:\n" + "\n".join(wrong)


def test_every_decision_is_accepted_or_names_its_successor() -> None:
    for decision in tool.decisions():
        assert decision.status == "accepted" or "superseded by" in decision.status, decision.path


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("a\nb\n", "a\nb\n"),
        ("word " * 30, ("word " * 20).strip() + "\n" + ("word " * 10).strip() + "\n"),
        (
            "- item " + "word " * 25,
            "- item " + ("word " * 18).strip() + "\n  " + ("word " * 7).strip() + "\n",
        ),
        ("| " + "cell " * 40 + "|\n", "| " + "cell " * 40 + "|\n"),
        ("```\n" + "x" * 200 + "\n```\n", "```\n" + "x" * 200 + "\n```\n"),
        ("x" * 98 + " - no list\n", "x" * 98 + " -\nno list\n"),
    ],
)
def test_prose_alone_is_wrapped(text: str, wrapped: str) -> None:
    assert tool.wrapped(text) == wrapped


def test_a_decision_without_a_date_is_named(tmp_path: Path) -> None:
    page = tmp_path / "0001-x.md"
    page.write_text("# 0001 A title\n\n## Context\n")
    with pytest.raises(ValueError, match="0001-x"):
        tool.read_decision(page)
    page.write_text("# 0002 A title\n\nDate: 2026-11-22. Status: accepted.\n")
    with pytest.raises(ValueError, match="# 0001"):
        tool.read_decision(page)
    page.write_text("# 0001 A title\n\nDate: 2026-11-22. Status: accepted.\n")
    assert tool.read_decision(page)[1:] == ("0001", "A title", "accepted", "2026-11-22")

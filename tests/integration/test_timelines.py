"""Do the pictures of docs/profiles.md still show what a run gives?"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tree import ROOT
from tools.timelines import PICTURES, Timeline, draw, load, observe

PAGE = ROOT / "docs" / "profiles.md"


def texts(svg: Path) -> list[str]:
    return [element.text for element in ElementTree.parse(svg).iter() if element.text]


def told(timelines: list[Timeline]) -> list[str]:
    """Return what a picture of timelines says, but for when it was seen."""
    return sorted(
        text
        for timeline in timelines
        for text in (
            timeline.title,
            *(step.event for step in timeline.steps),
            *(entry.name for step in timeline.steps for entry in step.history),
            *(f"lost {step.lost}" for step in timeline.steps if step.lost),
            *(step.instance for step in timeline.steps),
        )
    )


def test_a_run_shows_what_was_recorded() -> None:
    found: dict[str, list[tuple[str, object]]] = {}
    for name, timeline in observe():
        found.setdefault(name, []).append((timeline.title, timeline.steps))
    assert found == {
        name: [(timeline.title, timeline.steps) for timeline in timelines]
        for name, timelines in load().items()
    }


def test_the_record_has_the_timelines_of_the_text() -> None:
    ends = [
        " ".join(entry.name for entry in timeline.steps[-1].history) or timeline.steps[-1].lost
        for timelines in load().values()
        for timeline in timelines
    ]
    assert ends == [
        "S(t1) D(t2) S(t1)",
        "S(t1) NW(t2) S(t1)",
        "S(t1) S(t2)",
        "S(t2)",
        "S(t1): consumed",
    ]


def test_the_pictures_show_the_record_and_the_page_shows_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = PAGE.read_text(encoding="utf-8")
    for name, timelines in load().items():
        assert f"(pictures/{name}.svg)" in page
        draw(timelines, tmp_path / f"{name}.svg")
        for drawn in (tmp_path, PICTURES):
            said = texts(drawn / f"{name}.svg")
            for text in told(timelines):
                assert said.count(text) >= told(timelines).count(text), text

"""Do the engines do what the stories say? `make golden` writes the stories anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.engines import TELLERS, retell
from tests.golden.stories import numbers, play, stories
from tests.golden.subscriber_teller import SubscriberTeller

STORIES = stories(Path(__file__).parent)
STORY = """\
# A number is missing.
start
live a 0
    deliver a 0
live a 2
    {fetch}
"""


@pytest.mark.parametrize("path", STORIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_engine_does_what_its_story_says(path: Path) -> None:
    assert retell(path) == path.read_text(encoding="utf-8")


def test_every_engine_has_stories_and_every_story_says_what_it_is_about() -> None:
    assert {path.parent.name for path in STORIES} == set(TELLERS)
    assert [path.name for path in STORIES if not path.read_text().startswith("# ")] == []


def test_what_an_engine_does_replaces_what_a_story_says() -> None:
    true = STORY.format(fetch="fetch 1: a 1")
    assert play(true, SubscriberTeller()) == true
    assert play(STORY.format(fetch="missed a 1"), SubscriberTeller()) == true


def test_an_event_that_no_engine_knows_is_an_error_that_names_its_line() -> None:
    with pytest.raises(ValueError, match="no event 'sing'") as raised:
        play("# A song.\nsing\n", SubscriberTeller())
    assert raised.value.__notes__ == ["the story was at 'sing'"]


def test_numbers_are_read_as_written() -> None:
    assert numbers("0..2,5,5") == [0, 1, 2, 5, 5]
    assert numbers("2^32-2..2^32-1") == [2**32 - 2, 2**32 - 1]

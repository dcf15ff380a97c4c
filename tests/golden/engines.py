"""Which engine plays the stories of which folder, and the command that writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.golden.alignment_teller import AlignmentTeller
from tests.golden.cache_teller import CacheTeller
from tests.golden.publisher_teller import PublisherTeller
from tests.golden.stories import Teller, play
from tests.golden.subscriber_teller import SubscriberTeller

TELLERS: dict[str, Callable[[], Teller]] = {
    "alignment": AlignmentTeller,
    "cache": CacheTeller,
    "publisher": PublisherTeller,
    "subscriber": SubscriberTeller,
}


def retell(path: Path) -> str:
    """Return a story with what its engine does now."""
    return play(path.read_text(encoding="utf-8"), TELLERS[path.parent.name]())

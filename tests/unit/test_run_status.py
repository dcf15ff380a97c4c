"""What a run of a durable consumer is said to be behind."""

from __future__ import annotations

import pytest

from durable_cache.endpoints.subscriber.overview import RunStatus
from durable_cache.model.sample import SourceId

SOURCE = SourceId("ab12", 7)


@pytest.mark.parametrize(
    ("reached", "waiting", "newest", "behind"),
    [(-1, 0, None, 0), (9, 2, None, 2), (-1, 0, 0, 1), (4, 1, 9, 6), (9, 0, 4, 0)],
)
def test_only_numbers_that_caches_show_are_behind(
    reached: int, waiting: int, newest: int | None, behind: int
) -> None:
    assert RunStatus(SOURCE, 5, -1, reached, waiting, newest).behind == behind

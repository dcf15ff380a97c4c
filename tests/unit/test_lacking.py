"""Is it said, once, that samples wait for caches which are not in reach?"""

from __future__ import annotations

import pytest

from durable_cache.endpoints.publisher.lacking import Lacking
from durable_cache.model.key_expression import KeyExpression

SECOND_NS = 1_000_000_000


@pytest.fixture
def lacking() -> Lacking:
    return Lacking(KeyExpression("fleet/*"), 2)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return texts


def test_what_waits_in_vain_is_said_once_and_so_is_its_end(
    lacking: Lacking, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(5):
        lacking.look(0, second * SECOND_NS, waits=True)
    assert said(caplog) == []
    lacking.look(0, 5 * SECOND_NS, waits=True)
    (line,) = said(caplog)
    assert line.startswith("samples on fleet/* wait for 2 caches to acknowledge them: none is in")
    assert "a session with a namespace reaches those of its namespace alone" in line
    lacking.look(1, 99 * SECOND_NS, waits=True)
    assert said(caplog) == []
    lacking.look(2, 100 * SECOND_NS, waits=True)
    assert said(caplog) == ["caches that can acknowledge fleet/* are in reach again"]
    lacking.look(2, 200 * SECOND_NS, waits=True)
    assert said(caplog) == []


def test_a_cache_that_was_away_for_a_moment_is_no_matter(
    lacking: Lacking, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(0, 100, 4):
        lacking.look(1, second * SECOND_NS, waits=True)
        lacking.look(2, second * SECOND_NS, waits=True)
    assert said(caplog) == []


def test_nobody_is_lacking_where_nothing_waits(
    lacking: Lacking, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(100):
        lacking.look(0, second * SECOND_NS, waits=False)
    assert said(caplog) == []

"""Two runs that two answerers call by one epoch are not read as one (ADR 0304, 0322)."""

from __future__ import annotations

import pytest

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.events import AnswerPart
from durable_cache.protocol.subscriber.twins import parted
from durable_cache.protocol.wire import Incarnation

SOURCE = SourceId("ab12", 7)
EPOCH = 9


def run_of(began: int, sns: range, epoch: int = EPOCH, *, stamped: bool = False) -> list[Sample]:
    return [
        Sample("a", SOURCE, epoch, sn, b"%d" % began, ntp64=(began + sn) << 32, stamped=stamped)
        for sn in sns
    ]


def epochs(parts: tuple[AnswerPart, ...]) -> list[set[tuple[int, bytes]]]:
    """Return by which epochs each part calls which run."""
    return [{(sample.epoch, sample.payload) for sample in part.samples} for part in parts]


@pytest.mark.parametrize("later_first", [False, True])
def test_the_later_of_two_runs_goes_by_the_next_epoch(later_first: bool) -> None:
    parts = [AnswerPart(run_of(100, range(4))), AnswerPart(run_of(200, range(9)))]
    expected = [{(EPOCH, b"100")}, {(EPOCH + 1, b"200")}]
    if later_first:
        parts.reverse()
        expected.reverse()
    assert epochs(parted(parts)) == expected


def test_what_another_has_of_the_later_run_under_that_epoch_is_of_it() -> None:
    earlier = [*run_of(100, range(4)), *run_of(200, range(3, 4), EPOCH + 1)]
    parts = parted([AnswerPart(run_of(200, range(9))), AnswerPart(earlier)])
    assert epochs(parts)[0] == {(EPOCH + 1, b"200")}


@pytest.mark.parametrize("why", ["a token", "a number in common", "another run", "stamped"])
def test_runs_are_left_as_they_are_called(why: str) -> None:
    stamped = why == "stamped"
    one = run_of(100, range(4), stamped=stamped)
    two = run_of(200, range(9), stamped=stamped)
    if why == "a number in common":
        two[2] = one[2]
    if why == "another run":
        one += run_of(300, range(9), EPOCH + 1)
    names = (Incarnation(SOURCE, EPOCH, "0a0a0a0a"),) if why == "a token" else ()
    parts = AnswerPart(one), AnswerPart(two, incarnations=names)
    assert parted(parts) == parts

"""What answers say of numbers that history lacks."""

from __future__ import annotations

import pytest

from durable_cache.model.ranges import RangeSet
from durable_cache.protocol.subscriber.events import Answer, AnswerPart, DeliveryOptions, Missed
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.pages import Called, Group
from durable_cache.protocol.subscriber.reading import Reading, Readings
from durable_cache.protocol.subscriber.subjects import Subjects
from durable_cache.protocol.wire import AbsenceReason, Incarnation
from tests.unit.subscriber_reader import FRESH, SOURCE, Reader, absent, sample

NAMES = (Incarnation(SOURCE, FRESH, "0000000a"),)
GIVEN_UP = AnswerPart((), (absent(2, 3, AbsenceReason.SKIPPED, FRESH),), NAMES)
OF_ANOTHER_KEY = AnswerPart((), (absent(2, 3, AbsenceReason.OTHER_KEY, FRESH),), NAMES)


@pytest.mark.parametrize(
    "parts", [(GIVEN_UP, OF_ANOTHER_KEY), (OF_ANOTHER_KEY, GIVEN_UP)], ids=["behind", "before"]
)
def test_a_number_of_another_key_is_no_loss_though_somebody_gave_it_up(
    parts: tuple[AnswerPart, ...],
) -> None:
    """It was reported where the one that gave it up was heard first (seed 2822)."""
    reader = Reader(history=True)
    reader.page([sample(1, FRESH), sample(4, FRESH)], names=NAMES)
    assert reader.wanted == [(2, 3)]
    reader.answer_of(*parts)
    assert reader.story == [1, 4]


def test_what_filled_a_hole_is_reported_where_its_run_comes_too_late() -> None:
    """Somebody has it, so it is lost to whoever can no longer be given it in order."""
    key, outputs = (SOURCE, FRESH), Outputs(Subjects(DeliveryOptions()))
    group = Group(Reading(1, 1), [sample(1, FRESH), sample(3, FRESH)], RangeSet([(2, 2)]))
    answer = Answer((AnswerPart((sample(2, FRESH),)),), 1, whole=True, cut_after=None)
    assert group.fill(answer, Called(key, "", set()), 0, ({key: group}, Readings()))
    group.report_all(key, outputs)
    assert outputs.done == [Missed(SOURCE, FRESH, 1, 3)]

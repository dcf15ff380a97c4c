"""Which runs of a source wait behind which."""

from __future__ import annotations

import pytest

from durable_cache.model.sample import SourceId
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering

SOURCE = SourceId("ab", 1)


def run(epoch: int, next_sn: int | None, *, top: int = -1, resumed: bool = False) -> Numbering:
    first = None if next_sn is None else 0
    numbering = Numbering(SOURCE, epoch, f"{epoch:08x}", epoch, first_sn=first, next_sn=next_sn)
    numbering.top, numbering.resumed = top, resumed
    return numbering


@pytest.mark.parametrize(
    ("later", "is_let_in"),
    [
        (run(9, 0), True),
        (run(9, 0, top=2), True),  # they wait
        (run(9, 3, resumed=True), False),  # an earlier life was given them
        (run(9, 3), False),  # reported as missed
    ],
)
@pytest.mark.parametrize("earlier", [run(3, 5), run(3, 0, top=4)])
def test_a_run_between_two_is_let_in_unless_the_later_one_was_passed_on(
    earlier: Numbering, later: Numbering, is_let_in: bool
) -> None:
    followed = Followed(SOURCE, [earlier, later])
    followed.let_follow(6, "00000006", DeliveryOptions(), 0)
    expected = [3, 6, 9] if is_let_in else [3, 9]
    assert [one.epoch for one in followed.numberings] == expected

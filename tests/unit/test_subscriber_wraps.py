"""Which run is it whose numbers come behind those of a publisher that wrapped?"""

from __future__ import annotations

import pytest

from durable_cache.model.sample import Sample
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import TokenGone
from durable_cache.protocol.wire import Incarnation, incarnation_after
from tests.unit.subscriber_reader import EPOCH, FRESH, SOURCE, Reader, sample

NAME = "aaaaaaaa"
LAST = SOURCE_SN_MODULUS - 1


def behind(sn: int, epoch: int = 0) -> Sample:
    """Return a number behind the wrap: a frame and more later than the token's epoch says."""
    return sample(sn, epoch, at=20 + sn / 1000)


def near_its_wrap(*, by_history: bool) -> Reader:
    """Return one that was given all but the last number of a run whose token is there."""
    reader = Reader(history=by_history)
    if by_history:
        given = [sample(sn, EPOCH, at=sn - LAST + 3) for sn in (LAST - 2, LAST - 1)]
        reader.page(given, names=(Incarnation(SOURCE, EPOCH, NAME),))
    reader.declared(EPOCH, NAME)
    if not by_history:
        reader.live(sample(LAST - 2, at=1), sample(LAST - 1, at=2))
    return reader


@pytest.mark.parametrize("by_history", [True, False])
@pytest.mark.parametrize("first_comes", ["before the token", "behind the token", "never"])
def test_what_overtook_the_token_of_the_run_behind_a_wrap_is_of_that_run(
    first_comes: str, *, by_history: bool
) -> None:
    """Its clock says an earlier time than its samples do to us (seed 107720)."""
    reader = near_its_wrap(by_history=by_history)
    assert reader.delivered == [LAST - 2, LAST - 1]
    reader.seconds = 21
    if first_comes == "before the token":
        reader.live(behind(0))
    reader.live(behind(1), behind(2))
    reader.declared(FRESH, incarnation_after(NAME))
    reader.handle(TokenGone(SOURCE, NAME, reader.now))
    if first_comes == "behind the token":
        reader.live(behind(0))
    names = Incarnation(SOURCE, EPOCH, NAME), Incarnation(SOURCE, FRESH, incarnation_after(NAME))
    had = [sample(LAST, EPOCH, at=3), *(behind(sn, FRESH) for sn in range(3))]
    for _ in range(10):
        while reader.fetches:
            wanted = reader.fetches[0]
            last = LAST if wanted.last is None else wanted.last
            reader.answer(*(one for one in had if wanted.first <= one.sn <= last), names=names)
        reader.wait(2)
    assert reader.delivered == [LAST - 2, LAST - 1, LAST, 0, 1, 2]
    assert reader.missed == []


def test_what_caches_lack_before_a_wrap_is_asked_for_while_history_is_read() -> None:
    """Of a run that ends at the wrap the last number is known (seed 173239)."""
    following = incarnation_after(NAME)
    names = (Incarnation(SOURCE, EPOCH, NAME), Incarnation(SOURCE, FRESH, following))
    reader = Reader(history=True)
    before = [sample(sn, EPOCH, at=1) for sn in (LAST - 3, LAST - 2)]
    reader.page([*before, sample(0, FRESH, at=2), sample(1, FRESH, at=3)], names=names)
    assert reader.wanted == [(LAST - 1, LAST)]
    reader.answer(sample(LAST - 1, EPOCH, at=1), names=names)
    reader.wait(60)
    while reader.fetches:
        reader.answer(names=names)
        reader.wait(60)
    assert reader.story == [LAST - 3, LAST - 2, LAST - 1, (LAST, LAST), 0, 1]

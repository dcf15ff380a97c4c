"""What is here without an epoch on one side of a wrap, and there on the other (ADR 0399, 0401)."""

from __future__ import annotations

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, frame
from durable_cache.protocol.cache.agreement import Agreement
from durable_cache.protocol.cache.events import Alias
from tests.unit.test_agreeing import EARLY, LATE, Cache, of_run, timed
from tests.unit.test_engine import SOURCE

ENDED = [timed(sn, SOURCE_SN_MODULUS - 3 + sn) for sn in range(3)]
"""What others have of before the wrap."""


def behind(*begun: Sample) -> Cache:
    """Return a cache that has the run behind the wrap."""
    cache = Cache()
    cache.live(*begun)
    cache.shell.engine.known(SOURCE).numberings[EPOCH_UNKNOWN].foreign = True  # it was restarted
    return cache


def beginning(seconds: float) -> Cache:
    return behind(*(timed(seconds + sn, sn) for sn in range(3)))


def test_a_run_that_nobody_names_gets_the_name_of_its_time() -> None:
    """Who has the run before the wrap may never take any of it (seed 36031)."""
    cache = beginning(60)
    assert cache.given(*ENDED) == 0
    assert cache.agreed == []
    cache.answered()
    assert cache.agreed == [Alias(SOURCE, EPOCH_UNKNOWN, 0, frame(60 * 10**9))]


def test_it_is_the_beginning_of_the_run_that_goes_on_behind_it() -> None:
    cache = beginning(60)
    assert cache.given(*(timed(60 + sn, sn, LATE) for sn in range(3, 6))) == 3
    assert cache.given(*ENDED) == 0
    cache.answered()
    assert cache.agreed == [Alias(SOURCE, EPOCH_UNKNOWN, 0, LATE)]


def test_it_waits_for_the_whole_answer() -> None:
    cache = beginning(60)
    assert cache.given(*ENDED) == 0
    cache.talk(cache.agreeing.answered(cache.asked[-1][0], whole=False))
    assert cache.agreed == []


def test_it_waits_where_their_run_did_not_come_before() -> None:
    """Numbers may lie far apart where a publisher chose them."""
    cache = beginning(1)
    assert cache.given(*ENDED) == 0
    cache.answered()
    assert cache.agreed == []


def test_it_waits_where_nothing_is_stored_that_shows_its_time() -> None:
    cache = beginning(60)
    assert cache.given(*ENDED) == 0
    cache.store = Cache().store
    cache.answered()
    assert cache.agreed == []


BEGUN = [timed(10 + sn, sn) for sn in range(4)]
"""What others have of behind the wrap, without an epoch."""


def under(epoch: int, given: list[Sample]) -> list[Sample]:
    return [msgspec.structs.replace(one, epoch=epoch) for one in given]


def test_what_is_given_of_both_sides_of_a_wrap_is_taken_apart() -> None:
    """A backend was put back under the cache that gives it (seed 49670)."""
    cache = Cache()
    cache.live(*ENDED[:2])
    assert cache.given(*under(LATE, BEGUN)) == 4
    cache.now = 100
    assert cache.given(*BEGUN, ENDED[2]) == 5
    assert of_run(cache, EPOCH_UNKNOWN).last == SOURCE_SN_MODULUS - 1
    assert of_run(cache, LATE) == RangeSet([(0, 3)])


def test_what_lies_on_the_side_of_some_that_is_here_comes_in() -> None:
    cache = Cache()
    cache.live(*ENDED[:1])
    cache.store.commit(SampleBatch(BEGUN))  # the backend had it: the index is read anew
    for one in BEGUN:
        cache.shell.engine.known(SOURCE).numberings[EPOCH_UNKNOWN].window.accept(one.sn, one.sn)
    assert cache.given(*ENDED[1:]) == 2


def test_what_is_here_by_two_names_behind_the_wrap_holds_nothing_back_of_before_it() -> None:
    cache = Cache()
    cache.live(*ENDED[:2])
    for epoch, given in ((EARLY, BEGUN[:2]), (LATE, BEGUN[2:])):
        assert cache.given(*under(epoch, given)) == 2
    cache.now = 100
    assert cache.given(*BEGUN) == 0
    assert cache.given(ENDED[2]) == 1


def test_what_nobody_can_tell_waits_for_half_of_what_the_cache_waits_for_a_number() -> None:
    """It waited for half a minute however short that was, and was reported (seed 35733)."""
    cache = behind(timed(9, 10), timed(10, 11))
    cache.agreeing = Agreement(cache.shell.engine.known, gap_timeout_seconds=10.0)
    overtaken = timed(5, 12)
    assert cache.given(overtaken) == 0
    cache.answered()
    cache.now = 4.9
    assert cache.given(overtaken) == 0
    cache.now = 11.0  # behind the inquiry's pause
    assert cache.given(overtaken) == 1
    assert cache.shell.held(0) == RangeSet([(10, 12)])

"""What a cache tells subscribers of a source whose token has gone (ADR 0347).

They ask for its last numbers a second after its token went, and not again.
"""

from __future__ import annotations

from msgspec.structs import replace

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import SnRange
from durable_cache.model.sample import SampleBatch
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import EngineOptions, EpochDeclared, Origin, SendAck
from durable_cache.protocol.cache.numbering import KnownSource
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.announcing import Announcing
from durable_cache.runtime.effects import Announce, Arrived, TokenGone
from tests.unit.driven import BEGAN_NS, DrivenCache
from tests.unit.test_core import ONE, TWO, run_of, sample

EPOCH, NAME = frame(BEGAN_NS), "c09aa21f"


def declared(cache: DrivenCache, name: str = NAME) -> EpochDeclared:
    return EpochDeclared(ONE, EPOCH, True, cache.now, name)


def told(cache: DrivenCache) -> list[tuple[str, int]]:
    """Return of which keys something was told, and up to which number."""
    return [
        (effect.key_expr, effect.sn) for effect in cache.effects if isinstance(effect, Announce)
    ]


def followed() -> DrivenCache:
    cache = DrivenCache()
    cache.give(declared(cache))
    cache.take(run_of(ONE, 0, 3))
    return cache


def test_what_came_behind_the_token_of_its_source_is_told_once_it_is_durable() -> None:
    cache = followed()
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.take([sample(ONE, 4)])
    cache.wait(0.5)
    assert told(cache) == [], "it may be the first of the next run"
    cache.appends = False
    cache.wait(1.0)
    assert told(cache) == []
    cache.answer_all()
    assert told(cache) == [("k", 4)]


def test_what_was_on_its_way_to_the_disk_as_the_token_went_is_told() -> None:
    cache = followed()
    cache.appends = False
    cache.take([sample(ONE, 4), sample(TWO, 0)])
    cache.take([sample(ONE, 5)])
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.answer_one()
    assert told(cache) == [("k", 4)]
    cache.answer_all()
    assert told(cache) == [("k", 4), ("k", 5)]


def test_nothing_is_told_of_a_source_whose_token_is_there() -> None:
    cache = followed()
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.take([sample(ONE, 4)])
    cache.wait(0.5)
    cache.give(declared(cache))
    cache.wait(2)
    assert told(cache) == []
    cache.take(run_of(ONE, 5, 9))
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.wait(2)
    assert told(cache) == [], "all of it was durable when its token went"


def test_of_each_key_the_last_number_is_told() -> None:
    cache = followed()
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.take([sample(ONE, 4), sample(ONE, 5, key="l"), sample(ONE, 6), sample(ONE, 7, key="l")])
    cache.wait(1.5)
    assert sorted(told(cache)) == [("k", 6), ("l", 7)]


def test_what_others_give_of_it_later_is_not_told() -> None:
    cache = followed()
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.take([sample(TWO, 0)])
    cache.take(run_of(ONE, 4, 9), Origin.ALIGNED)
    cache.wait(1.5)
    assert told(cache) == []


def test_what_is_durable_as_the_token_goes_is_not_told_with_what_comes_behind_it() -> None:
    cache = followed()
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.take([sample(ONE, 4, key="l")])
    cache.wait(1.5)
    assert told(cache) == [("l", 4)]


def test_of_many_keys_what_covers_them_is_told_once() -> None:
    cache = followed()
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.take([sample(ONE, sn, key=f"fleet/{sn}/pose") for sn in range(4, 104)])
    cache.wait(1.5)
    assert told(cache) == [("fleet/**", 103)]


def going(cache: DrivenCache, name: str = NAME) -> TokenGone:
    return TokenGone(ONE, name, cache.now, "k/**")


def test_as_a_token_goes_the_last_number_of_its_run_is_told() -> None:
    cache = followed()
    later = "d09aa21f"
    cache.give(EpochDeclared(ONE, EPOCH + 1, True, cache.now, later))
    cache.take(run_of(ONE, 0, 1))
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.give(going(cache, later))
    assert [effect for effect in cache.effects if isinstance(effect, Announce)] == [
        Announce("k/**", ONE, EPOCH + 1, 1)
    ]


def test_a_token_that_goes_behind_the_next_one_is_told_of_its_own_run() -> None:
    cache = followed()
    cache.give(EpochDeclared(ONE, EPOCH + 1, True, cache.now, "d09aa21f"))
    cache.take(run_of(ONE, 0, 1))
    cache.give(going(cache))
    assert told(cache) == [("k/**", 3)]


def test_what_becomes_durable_of_a_run_is_told_though_the_next_one_shows_its_token() -> None:
    """Subscribers asked where it ended as the next one began (seed 107546)."""
    cache = followed()
    cache.appends = False
    cache.take([sample(ONE, 4)])
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.give(EpochDeclared(ONE, EPOCH + 1, True, cache.now, "d09aa21f"))
    cache.answer_all()
    cache.appends = True
    cache.take(run_of(ONE, 0, 1))
    assert told(cache) == [("k", 4)]


def test_of_a_run_of_which_nothing_came_nothing_is_told() -> None:
    cache = DrivenCache()
    cache.give(declared(cache))
    cache.give(going(cache))
    assert told(cache) == []


def test_a_number_that_no_heartbeat_can_tell_is_not_told() -> None:
    """Numbers on the wire have four bytes; another session may give higher ones."""
    cache = DrivenCache()
    given = replace(sample(ONE, SOURCE_SN_MODULUS), epoch=EPOCH)
    names = (Incarnation(ONE, EPOCH, NAME),)
    cache.give(Arrived(SampleBatch([given]), Origin.ALIGNED, cache.now, names))
    cache.wait(2)
    assert [stored.sn for stored in cache.all()] == [SOURCE_SN_MODULUS]
    cache.give(declared(cache))
    cache.give(going(cache))
    assert told(cache) == []
    resent = Announcing(10, lambda _: (), lambda: ())
    resent.note(SampleBatch([given]), Origin.RESENT)
    acked = SendAck(ONE, EPOCH, (SnRange(given.sn, given.sn),), incarnation=NAME)
    assert [*resent.durable(acked)] == []


def test_what_waited_for_a_look_up_as_the_token_went_is_told_when_it_is_stored() -> None:
    """Others are stored before: the backend could not be read (seed 158009)."""
    doubted = {ONE}
    announcing = Announcing(10, lambda _: (), lambda: doubted)
    known = KnownSource(ONE, EngineOptions(), Epochs())
    assert [*announcing.gone(TokenGone(ONE, NAME, Moment(0, 0), "a"), known)] == []
    announcing.appends(SampleBatch([sample(TWO, 7)]))
    doubted.clear()
    late = replace(sample(ONE, 3), epoch=EPOCH)
    announcing.appends(SampleBatch([late]))
    acked = SendAck(ONE, EPOCH, (SnRange(3, 3),), incarnation=NAME)
    assert [*announcing.durable(acked)] == [Announce(late.key, ONE, EPOCH, 3)]
    announcing.appends(SampleBatch([replace(late, sn=4)]))
    acked = SendAck(ONE, EPOCH, (SnRange(4, 4),), incarnation=NAME)
    assert [*announcing.durable(acked)] == [], "that came behind it and is told as such"

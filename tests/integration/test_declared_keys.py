"""Which keys are declared on a session, so that Zenoh need not look for their subscribers?"""

from __future__ import annotations

import weakref
from typing import cast

import pytest
import zenoh

from durable_cache import open_session
from durable_cache.endpoints.session import DeclaredKeys, Decoder, close_session

MANY = 40


class Held:
    """What a session gives for a key that is declared."""


class Declaring:
    """A session that notes what is declared on it, and what of that is still held."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.held: weakref.WeakSet[Held] = weakref.WeakSet()
        self.closes = False

    def declare_publisher(self, key: str, *, allowed_destination: zenoh.Locality) -> Held:
        assert allowed_destination == zenoh.Locality.SESSION_LOCAL
        if self.closes:
            raise zenoh.ZError("the session is closing")
        self.keys.append(key)
        held = Held()
        self.held.add(held)
        return held


def declared_on(session: Declaring) -> DeclaredKeys:
    return DeclaredKeys(cast("zenoh.Session", session))


@pytest.mark.parametrize("together", [1, MANY])
def test_a_decoder_declares_each_key_that_comes_once(together: int) -> None:
    declaring = Declaring()
    decoder = Decoder("ab12", 1000, declared_on(declaring))
    alone = {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    session = open_session({**alone, "timestamping": {"enabled": True}})
    subscriber = session.declare_subscriber("t/**", zenoh.handlers.FifoChannel(3 * MANY))
    publishers = [session.declare_publisher(f"t/{name}") for name in "ab"]
    for at in range(2 * MANY):
        publisher = publishers[at % 2 if at >= MANY else 0]
        publisher.put(b"value", source_info=zenoh.SourceInfo(publisher.id, at))
    taken = list(iter(subscriber.handler.try_recv, None))
    for first in range(0, 2 * MANY, together):
        assert len(decoder.decode(taken[first : first + together], 0)) == together
    close_session(session)
    assert declaring.keys == ["t/a", "t/b"]
    assert len(declaring.held) == 2


def test_they_are_given_back_once_they_are_many() -> None:
    declaring = Declaring()
    keys = declared_on(declaring)
    for at in range(32):
        keys.meet((f"t/{at}", "t/0"))
    assert len(declaring.keys) == len(declaring.held) == 32
    keys.meet(("t/one-more",))
    keys.meet(("t/0",))
    assert (len(declaring.keys), len(declaring.held)) == (32, 0)


def test_what_is_no_key_or_cannot_be_declared_is_left() -> None:
    declaring = Declaring()
    keys = declared_on(declaring)
    keys.meet(("t/*",))
    declaring.closes = True
    keys.meet(("t/a",))
    assert declaring.keys == []

"""Do members of one consumer process everything, and nothing twice that is held? Histories.

One seed is one history: members that come, leave and are killed between any two steps, networks
that part and heal, caches that die, positions that are lost, doubled and late, clocks that differ.
Some consumers are exclusive: nothing that a majority held is processed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import pytest

from durable_cache.protocol.consumers import Position
from durable_cache.protocol.fences import Fences
from durable_cache.protocol.members import Sharing
from durable_cache.protocol.subscriber.positions import Positions
from durable_cache.protocol.takeovers import Takeovers, Twice
from durable_cache.testing.simulation import members
from durable_cache.testing.simulation.member_history import MEMBER_KINDS, MemberHistory
from tests.simulation.playing import nightly_seeds, play_each

IN_CI = 2_000
"""A history takes 25 ms of a core."""
FOUND_BY = 150
SHARE_MIN = 0.5
"""In percent of the histories."""
play = partial(play_each, MemberHistory, "--members")


def test_members_skip_nothing_and_repeat_nothing_that_is_held() -> None:
    occurred: Counter[str] = Counter()
    assert play(range(IN_CI), occurred) == {}
    rare = {kind for kind in MEMBER_KINDS if 100 * occurred[kind] / IN_CI < SHARE_MIN}
    assert not rare, "nothing is known of what hardly any history shows"


@pytest.mark.nightly
def test_nightly_histories_of_members_keep_the_promise() -> None:
    assert play(nightly_seeds(IN_CI, 20_000)) == {}


def test_a_seed_is_one_history_of_members() -> None:
    one, two = MemberHistory(3), MemberHistory(3)
    assert one.run() == two.run()
    assert one.world.events == two.world.events > 0
    assert one.world.occurred == two.world.occurred


Plant = Callable[[pytest.MonkeyPatch], None]


def agrees_at_once(patch: pytest.MonkeyPatch) -> None:
    """A member begins what it gains before the others stopped it."""
    patch.setattr(Sharing, "agreed", property(lambda sharing: not sharing.must_stop))


def confirms_what_it_hands_out(patch: pytest.MonkeyPatch) -> None:
    """A position leaves out what is open."""

    class Hasty(Positions):
        def take(self) -> list[Position]:
            return [msgspec.structs.replace(one, open=()) for one in super().take()]

    patch.setattr(members, "Positions", Hasty)


def reads_nothing(patch: pytest.MonkeyPatch) -> None:
    """A member begins what it gains from the beginning."""
    patch.setattr(members, "join_positions", lambda _: [])


def judges_no_fence(patch: pytest.MonkeyPatch) -> None:
    """A cache takes what an earlier owner writes."""
    patch.setattr(Fences, "_refusal", lambda *_: None)


def counts_on_one_cache(patch: pytest.MonkeyPatch) -> None:
    """Any cache is a majority."""
    patch.setattr(members, "majority_of", lambda _: 1)


def says_nothing(patch: pytest.MonkeyPatch) -> None:
    """Nobody says what was processed twice."""

    def silent(takeovers: Takeovers, sharing: Sharing, stands: Sequence[Position]) -> list[Twice]:
        return []

    patch.setattr(Takeovers, "compare", silent)


def writes_nothing_anew(patch: pytest.MonkeyPatch) -> None:
    """What another one hid stays hidden."""
    patch.setattr(Takeovers, "unsaid", lambda *_: [])


PLANTED: tuple[Plant, ...] = (
    agrees_at_once,
    confirms_what_it_hands_out,
    counts_on_one_cache,
    judges_no_fence,
    reads_nothing,
    says_nothing,
    writes_nothing_anew,
)


@pytest.mark.parametrize("plant", PLANTED)
def test_members_that_are_wrong_are_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(MemberHistory(seed).run() for seed in range(FOUND_BY))

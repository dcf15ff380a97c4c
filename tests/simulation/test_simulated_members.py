"""Do members of one consumer process everything, and nothing twice that is held? Histories.

One seed is one history: members that come, leave and are killed between any two steps, networks
that part and heal, caches that die, positions that are lost, doubled and late, clocks that differ.
Some consumers are exclusive: nothing that a majority held is processed again. Members and operators
rewind at any moment; what no handler can process becomes a dead letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import pytest
from msgspec.structs import replace

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol import consumers
from durable_cache.protocol.consumers import Position, position_key
from durable_cache.protocol.fences import Fences
from durable_cache.protocol.members import Sharing
from durable_cache.protocol.subscriber import positions as positions_of
from durable_cache.protocol.subscriber.positions import Point, Positions, rewound
from durable_cache.protocol.takeovers import Takeovers, Twice
from durable_cache.testing.simulation import member_keeping, member_rewinds, members
from durable_cache.testing.simulation.member_history import MEMBER_KINDS, MemberHistory
from durable_cache.testing.simulation.member_keeping import Thread
from durable_cache.testing.simulation.member_rewinds import Points, SimOperator
from durable_cache.testing.simulation.members import SimMember
from durable_cache.testing.simulation.truth import Publication
from tests.simulation.playing import nightly_seeds, play_each

IN_CI = 2_000
"""A history takes 25 ms of a core."""
FOUND_BY = 200
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


def test_what_a_member_took_over_twice_is_reported_from_the_first_time_on() -> None:
    assert MemberHistory(3159).run() == []


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
    patch.setattr(member_keeping, "majority_of", lambda _: 1)


def says_nothing(patch: pytest.MonkeyPatch) -> None:
    """Nobody says what was processed twice."""

    def silent(takeovers: Takeovers, sharing: Sharing, stands: Sequence[Position]) -> list[Twice]:
        return []

    patch.setattr(Takeovers, "compare", silent)


def writes_nothing_anew(patch: pytest.MonkeyPatch) -> None:
    """What another one hid stays hidden, where all share a key."""
    patch.setattr(consumers, "_WRITERS_KEYS", 1)
    patch.setattr(Takeovers, "unsaid", lambda *_: [])


def forgets_that_it_rewound(patch: pytest.MonkeyPatch) -> None:
    """A rewind is not counted, so that an older confirmation outweighs it."""

    def uncounted(positions: Iterable[Position], points: Points) -> list[Position]:
        return [replace(one, rewinds=one.rewinds - 1) for one in rewound(positions, points)]

    patch.setattr(positions_of, "rewound", uncounted)
    patch.setattr(member_rewinds, "rewound", uncounted)


def writes_a_rewind_under_the_key_of_before(patch: pytest.MonkeyPatch) -> None:
    """What is stamped later hides it, though it was confirmed before, where all share a key."""

    def of_the_run(
        domain: str, consumer: str, source: SourceId, epoch: int, _: int, __: SourceId | None
    ) -> str:
        return position_key(domain, consumer, source, epoch)

    patch.setattr(member_keeping, "position_key", of_the_run)


def rewinds_a_number_too_few(patch: pytest.MonkeyPatch) -> None:
    """What was asked for does not come again."""

    def short(positions: Iterable[Position], points: Points) -> list[Position]:
        later = {source: Point(at.epoch, at.sn + 1) for source, at in (points or {}).items()}
        return rewound(positions, None if points is None else later)

    patch.setattr(positions_of, "rewound", short)


def rewinds_more_than_was_asked_for(patch: pytest.MonkeyPatch) -> None:
    """All of a source comes again."""

    def whole(positions: Iterable[Position], points: Points) -> list[Position]:
        begin = {source: Point(at.epoch, 0) for source, at in (points or {}).items()}
        return rewound(positions, None if points is None else begin)

    patch.setattr(positions_of, "rewound", whole)


def resets_what_it_did_not_claim(patch: pytest.MonkeyPatch) -> None:
    """An operator rewinds where an exclusive consumer stood when it was read, unclaimed."""

    def as_read(operator: SimOperator, read: list[Position]) -> Thread[list[Position]]:
        yield 0.0
        return [replace(one, fence=1 + max(two.fence for two in read)) for one in read]

    patch.setattr(SimOperator, "_read_in_claims", as_read)


def passes_over_a_letter_that_is_not_held(patch: pytest.MonkeyPatch) -> None:
    """The position passes over a sample, and its dead letter is nowhere."""

    def unheld(member: SimMember, publication: Publication, attempts: int) -> Thread[bool]:
        yield 0.0
        member._promise.buried(member._promise.burying(member, publication.sample))
        return True

    patch.setattr(SimMember, "_is_buried", unheld)


def stops_at_a_letter(patch: pytest.MonkeyPatch) -> None:
    """What is in the dead letters stays open, and what follows it waits."""

    def never(member: SimMember, publication: Publication, attempts: int) -> Thread[bool]:
        while True:
            yield 1.0

    patch.setattr(SimMember, "_is_buried", never)


def tries_again_whoever_has_it(patch: pytest.MonkeyPatch) -> None:
    """A handler is called again with a sample that another member has by then."""

    def admits(member: SimMember, sample: Sample) -> Thread[bool]:
        yield 0.0
        return True

    patch.setattr(SimMember, "_admits", admits)


PLANTED: tuple[Plant, ...] = (
    agrees_at_once,
    forgets_that_it_rewound,
    passes_over_a_letter_that_is_not_held,
    resets_what_it_did_not_claim,
    rewinds_a_number_too_few,
    rewinds_more_than_was_asked_for,
    stops_at_a_letter,
    tries_again_whoever_has_it,
    writes_a_rewind_under_the_key_of_before,
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

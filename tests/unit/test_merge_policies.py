"""Is what a merge policy decides the same for everybody, after restarts, and told twice?"""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.newest import comes_after
from durable_cache.model.sample import Kind, Sample, SampleBatch, SourceId
from durable_cache.model.timestamp import ntp64_at
from durable_cache.protocol.alignment import (
    Facts,
    MergePolicy,
    SplitBrain,
    SplitBrainOptions,
    SplitBrainToken,
    corrections,
    parse_split_brain_token,
    split_brain_token,
)

SECOND = 1_000_000_000
CUT, HEALED = 1_000 * SECOND, 2_000 * SECOND
NEAR, FAR = SourceId("a1", 1), SourceId("b2", 1)
OTHER = SplitBrainToken("0b", "f00d", 0)
CATCH_UP = SplitBrainOptions(MergePolicy.CATCH_UP)


def sample(
    at: float, *, value: str | None = "x", key: str = "k", source: SourceId = NEAR, sn: int = 0
) -> Sample:
    """Return what was published and received `at` so many seconds; None deletes."""
    return Sample(
        key,
        source,
        9,
        sn,
        (value or "").encode(),
        Kind.DELETE if value is None else Kind.PUT,
        ntp64=ntp64_at(round(at * SECOND)),
        timestamp_id=source.zid,
        received_ns=round(at * SECOND),
    )


class Kept:
    """A cache that starts again with what it kept."""

    def __init__(self, options: SplitBrainOptions = CATCH_UP, peers_max: int = 8) -> None:
        self._options, self._peers_max = options, peers_max
        self.facts: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        self.state = SplitBrain(self._options, "0a", self.facts, self._peers_max)

    def take(self, facts: Facts) -> None:
        for name in facts.gone:
            self.facts.pop(name, None)
        self.facts |= facts.kept

    def part(self, token: SplitBrainToken = OTHER, at: int = CUT) -> None:
        self.take(self.state.seen(token, at - SECOND))
        self.take(self.state.gone(token, at))

    def store(self, *samples: Sample) -> None:
        self.take(self.state.storing(SampleBatch(samples)))

    def meet(self, token: SplitBrainToken = OTHER, at: int = HEALED) -> None:
        self.take(self.state.seen(token, at))

    @property
    def theirs(self) -> dict[str, list[tuple[int, int]]]:
        return {
            stream.key: [(first, last) for first, last in runs]
            for stream, runs in self.state.theirs.items()
        }


# What the master's side had, what the other side published later, and what stands then.
BOTH = [
    # policy, mine, newest, whether that is theirs, what is published behind it
    (MergePolicy.MERGE, "m", "t", True, []),
    (MergePolicy.IGNORE, "m", "t", True, []),
    (MergePolicy.DELETE, "m", "t", True, [None]),
    (MergePolicy.DELETE, "m", "m", False, [None]),
    (MergePolicy.DELETE, None, None, False, []),
    (MergePolicy.REPLACE, "m", "t", True, [None, "m"]),
    (MergePolicy.REPLACE, "m", None, True, ["m"]),
    (MergePolicy.REPLACE, None, "t", True, [None]),
    (MergePolicy.REPLACE, "m", "m", False, [None, "m"]),
    (MergePolicy.REPLACE, None, None, True, []),
    (MergePolicy.CATCH_UP, "m", "t", True, ["m"]),
    (MergePolicy.CATCH_UP, "m", None, True, ["m"]),
    (MergePolicy.CATCH_UP, None, "t", True, [None]),
    (MergePolicy.CATCH_UP, None, None, True, []),
    (MergePolicy.CATCH_UP, "m", "m", False, []),
]


@pytest.mark.parametrize(("policy", "mine", "newest", "is_theirs", "made"), BOTH)
@pytest.mark.parametrize("unknown", [False, True])
def test_corrections(
    policy: MergePolicy,
    mine: str | None,
    newest: str | None,
    is_theirs: bool,
    made: list[str | None],
    unknown: bool,
) -> None:
    last = sample(1_500, value=newest, source=FAR if is_theirs else NEAR)
    own = None if unknown and mine is None else sample(1_400, value=mine)
    found = corrections(policy, last, own, is_theirs=is_theirs, healed_ns=HEALED)
    values = [None if c.kind is Kind.DELETE else c.value.payload.decode() for c in found]
    assert values == made
    published = [
        msgspec.structs.replace(last, ntp64=ntp64_at(c.unix_ns), timestamp_id="1") for c in found
    ]
    for before, after in zip([last, *published], published, strict=False):
        assert comes_after(after, before)


@pytest.mark.parametrize("policy", MergePolicy)
def test_what_was_published_after_the_healing_stands(policy: MergePolicy) -> None:
    newest = sample(2_001, source=FAR)
    assert not corrections(policy, newest, None, is_theirs=True, healed_ns=HEALED)


@pytest.mark.parametrize("policy", [MergePolicy.DELETE, MergePolicy.CATCH_UP])
def test_a_correction_is_not_made_twice(policy: MergePolicy) -> None:
    newest = sample(1_500, source=FAR)
    (made,) = corrections(policy, newest, None, is_theirs=True, healed_ns=HEALED)
    done = msgspec.structs.replace(sample(0, value=None), ntp64=ntp64_at(made.unix_ns))
    assert not corrections(policy, done, done, is_theirs=False, healed_ns=HEALED)


def test_what_comes_of_the_time_of_the_partition_is_theirs() -> None:
    cache = Kept()
    cache.part()
    cache.store(sample(1_500, key="mine"))
    cache.meet()
    late = msgspec.structs.replace(sample(1_999.9, key="on its way"), received_ns=HEALED + 1)
    cache.store(
        *(sample(at, key="theirs", source=FAR, sn=round(at)) for at in (1_001, 1_002, 1_400)),
        sample(900, key="before", source=FAR),
        sample(2_100, key="after", source=FAR),
        late,
        sample(1_500, key="a/**", source=FAR),
    )
    assert cache.theirs == {"theirs": [(1_001, 1_002), (1_400, 1_400)]}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_restart_forgets_nothing(restarts: bool) -> None:
    cache = Kept()

    def again() -> None:
        if restarts:
            cache.start()

    cache.part()
    again()
    cache.store(sample(1_500))
    again()
    cache.meet()
    again()
    cache.store(sample(1_600, source=FAR, sn=3))
    again()
    assert cache.theirs == {"k": [(3, 3)]}
    assert any(name == "healing" for name in cache.facts)
    cache.take(cache.state.ended())
    assert not cache.facts
    again()
    assert not cache.theirs


def test_a_side_that_published_nothing_is_no_side() -> None:
    cache = Kept()
    cache.part()
    cache.store(sample(999))  # was on its way
    cache.meet()
    cache.store(sample(1_500, source=FAR))
    assert cache.state.healing is None
    assert not cache.facts


def test_a_link_that_is_cut_is_noticed_late_and_a_restart_at_once() -> None:
    for incarnation, expected in (("f00d", {"k": [(0, 0)]}), ("beef", {})):
        cache = Kept()
        cache.part()
        cache.store(sample(1_500, key="mine"))
        cache.meet(OTHER._replace(incarnation=incarnation))
        cache.store(sample(990, source=FAR))
        assert cache.theirs == expected


def test_a_peer_that_goes_once_more_still_owes_what_it_had() -> None:
    cache = Kept()
    cache.part()
    cache.store(sample(1_500, key="mine"))
    cache.meet()
    cache.take(cache.state.gone(OTHER, HEALED + SECOND))
    cache.meet(at=HEALED + 9 * SECOND)
    cache.store(sample(1_500, source=FAR))
    assert cache.theirs == {"k": [(0, 0)]}
    assert cache.state.healing is not None
    assert cache.state.healing.healed_ns == HEALED + 9 * SECOND


def test_corrections_of_ones_own_are_not_theirs() -> None:
    cache = Kept()
    cache.part()
    cache.store(sample(1_500, key="mine"))
    cache.meet()
    cache.state.own_sources.add(FAR)
    cache.store(sample(1_500, source=FAR))
    assert not cache.theirs


def test_what_was_published_as_a_correction_is_known_after_a_crash() -> None:
    cache = Kept()
    cache.part()
    cache.store(sample(1_500, key="mine"))
    cache.meet()
    cache.take(cache.state.correcting(NEAR, 9, 40))
    assert not cache.state.correcting(NEAR, 9, 41), "the first of a run says it for all"
    cache.start()
    assert cache.state.made == {(NEAR, 9): 40}
    cache.store(sample(1_500, source=NEAR, sn=40))
    assert not cache.theirs
    cache.take(cache.state.ended())
    assert not cache.facts


@pytest.mark.parametrize(
    ("priority", "peers", "expected"),
    [
        (0, [("0b", 0)], False),
        (1, [("0b", 0)], True),
        (0, [("09", 0)], True),
        (1, [("0b", 0), ("0c", 2)], False),
        (0, [], True),
    ],
)
def test_the_master_is_the_greatest_in_reach(
    priority: int, peers: list[tuple[str, int]], expected: bool
) -> None:
    cache = Kept(SplitBrainOptions(MergePolicy.CATCH_UP, priority))
    for name, rank in peers:
        cache.meet(SplitBrainToken(name, "f00d", rank))
    assert cache.state.is_master(name for name, _ in peers) is expected
    assert cache.state.is_master([])  # with nobody else who keeps some of the same keys


def test_ignore_remembers_what_is_left_with_whom() -> None:
    cache = Kept(SplitBrainOptions(MergePolicy.IGNORE))
    cache.part()
    cache.store(sample(1_500))
    cache.meet()
    cache.start()
    assert cache.state.ignored == {"0b": HEALED}
    assert cache.state.healing is None
    merging = SplitBrain(CATCH_UP, "0a", cache.facts, 8)
    assert not merging.ignored


def test_bounds() -> None:
    cache = Kept(SplitBrainOptions(MergePolicy.CATCH_UP, streams_max=2), peers_max=2)
    for at, name in enumerate(("01", "02", "03")):
        cache.part(OTHER._replace(cache_id=name), CUT + at)
    assert sorted(cache.facts) == ["away 02", "away 03"]
    cache.store(sample(1_500))
    cache.meet(OTHER._replace(cache_id="03"))
    cache.store(*(sample(1_500, key=key, source=FAR) for key in "abc"))
    assert [*cache.theirs] == ["a", "b"]
    assert cache.state.left_out == 1


def test_tokens() -> None:
    token = SplitBrainToken("0a", "f00d", 7)
    text = split_brain_token("home", token)
    assert parse_split_brain_token(text, "home") == token
    for other in (text.replace("home", "away"), text + "/x", text + "x", "@durable/v1/home/pub/x"):
        assert parse_split_brain_token(other, "home") is None

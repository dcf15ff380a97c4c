"""What members of one consumer promise together, compared with the truth as it happens.

Nothing is skipped: what a member passes over was confirmed, and no position says more. What caches
are known to hold as confirmed is not processed again, unless a partition is the reason: somebody
wrote later who did not know. Of an exclusive consumer it never is. Where two members confirmed the
same who began with each other before, one of them says so.

What a rewind asked for comes again, once caches held it, and no older confirmation outweighs it;
what it leaves alone does not. A dead letter is held before its sample is passed over, and one life
of a member writes it once under each fence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import (
    Position,
    dead_letter_key,
    decode_dead_letter,
    decode_position,
    is_claim_key,
)
from durable_cache.protocol.takeovers import Twice
from durable_cache.testing.simulation.keepers import DOMAIN, Receipt, SimKeeper
from durable_cache.testing.simulation.member_keeping import CONSUMER, KeepingNode
from durable_cache.testing.simulation.member_rewinds import Points, Rewinds, Rewound
from durable_cache.testing.simulation.members import SimMember
from durable_cache.testing.simulation.truth import Publication, Truth
from durable_cache.testing.simulation.world import World


class _Held(NamedTuple):
    """A position that caches acknowledged to its writer."""

    position: Position
    ntp64: int
    key: str
    acked: frozenset[str]
    held_ns: int


class _Written(NamedTuple):
    """A position that left: when, how it is stamped, what it says is confirmed."""

    written_ns: int
    ntp64: int
    told: frozenset[Publication]
    level: int
    key: str

    def hides(self, held: _Held) -> bool:
        """Tell whether who reads this one goes by it, and not by one that is held."""
        if self.level != held.position.rewinds:
            return self.level > held.position.rewinds
        return self.key == held.key and self.ntp64 >= held.ntp64


class _Begun(NamedTuple):
    """When and from which caches a member read where a source stood."""

    read_ns: int
    read_from: frozenset[str]


class _Confirmed(NamedTuple):
    """What was confirmed, and at which level."""

    publication: Publication
    level: int


class Burial(NamedTuple):
    """A dead letter: of what, by which life of a member, under which fence and at which level.

    What is open when its member rewinds comes again: `rewinds` are those of the member, so far.
    """

    publication: Publication
    member: SourceId
    fence: int
    level: int
    rewinds: int


class MemberPromise:
    """What all members of a consumer have done, over all their lives."""

    def __init__(self, world: World, truth: Truth, *, exclusive: bool) -> None:
        self._world, self._truth, self._exclusive = world, truth, exclusive
        self.members: Sequence[SimMember] = ()
        self.keepers: Sequence[SimKeeper] = ()
        self.rows: dict[SourceId, list[Publication]] = {}
        """What each source published, run after run."""
        self._places: dict[Publication, int] = {}
        self.confirmed: set[Publication] = set()
        """What a program was done with and said so."""
        self._confirmed_by: dict[_Confirmed, dict[SourceId, int]] = defaultdict(dict)
        self._levels: dict[Publication, set[int]] = defaultdict(set)
        """At which levels each was confirmed: after how many rewinds of its run."""
        self._rewinds = Rewinds()
        self._required: dict[Publication, int] = {}
        """By a rewind that caches held: the level at which one is to be confirmed once more."""
        self._done: dict[tuple[SourceId, SourceId], dict[Publication, int]] = defaultdict(dict)
        """What each life of a member confirmed of a source since it began that, at which level."""
        self.poison: set[Publication] = set()
        """What no handler can process."""
        self._buried: set[Burial] = set()
        self._turns: Counter[SourceId] = Counter()
        """How many rewinds each life of a member began."""
        self._processed: dict[SourceId, set[Publication]] = defaultdict(set)
        """By each life of a member."""
        self._reached: dict[tuple[SourceId, SourceId], int] = {}
        self._held: dict[tuple[SourceId, int], list[_Held]] = defaultdict(list)
        self._begun: dict[SourceId, dict[SourceId, _Begun]] = defaultdict(dict)
        self._fences: dict[SourceId, dict[SourceId, int]] = defaultdict(dict)
        """Under which fence each life of a member began each source last."""
        self._written: dict[tuple[SourceId, int], list[_Written]] = defaultdict(list)
        """By run, all positions."""
        self._shared: dict[tuple[SourceId, SourceId], int] = {}
        """Who began with whom as a member, and when first."""
        self._owed: dict[_Confirmed, None] = {}
        """What two members confirmed who began with each other before."""
        self._reports: list[Twice] = []

    def published(self, publication: Publication) -> None:
        """Hear of a publication; those of a source come in their order, run after run."""
        row = self.rows[publication.sample.source]
        self._places[publication] = len(row)
        row.append(publication)

    # Members

    def begun(self, member: SimMember, fence: int, read_ns: int) -> None:
        """Hear that a member begins what is its own; under no new fence: it gained nothing."""
        own = member.writer.source
        for source in self.rows:
            if member.owns(source) and source not in self._begun[own] and fence:
                self._judge_levels(member, source, read_ns)
                self._done.pop((own, source), None)
        for other in member.sharing.members:
            self._shared.setdefault((own, other), self._world.now_ns)
        for source in self.rows:
            if member.owns(source) and source not in self._begun[own] and fence:
                self._begun[own][source] = _Begun(read_ns, member.read_from)
                self._fences[source][own] = fence
                self._reached.pop((own, source), None)

    def _judge_levels(self, member: SimMember, source: SourceId, read_ns: int) -> None:
        """Judge with which rewinds a source is begun: no older position outweighs one."""
        for publication in self.rows[source]:
            level = member.level_of(publication.sample)
            for one in self._held[_run(publication)]:
                reads = self._exclusive or one.acked & member.read_from
                if one.position.rewinds > level and one.held_ns < read_ns and reads:
                    self._fail(f"is begun by {member.name} without a rewind", publication)
                    return

    def gave_up(self, member: SimMember) -> None:
        """Hear that a member goes on with what is its own by now, and with nothing else."""
        begun = self._begun[member.writer.source]
        for source in list(begun):
            if not member.owns(source):
                del begun[source]

    def passed_over(self, member: SimMember, publication: Publication) -> None:
        """Judge what a member takes for confirmed."""
        level = member.level_of(publication.sample)
        if publication in self._processed[member.writer.source]:
            return
        if not self._is_confirmed(publication, level):
            self._fail("is passed over, and nobody confirmed it", publication)

    def _is_confirmed(self, publication: Publication, level: int) -> bool:
        """Tell whether somebody confirmed it at a level, or before and no rewind took it back."""
        return any(
            before <= level and self._rewinds.keep(publication, before, level)
            for before in self._levels[publication]
        )

    def processed(self, member: SimMember, publication: Publication) -> None:
        """Judge what a member is given."""
        own, source = member.writer.source, publication.sample.source
        place, at = self._places[publication], (own, source)
        if place <= self._reached.get(at, -1):
            self._fail(f"comes to {member.name} out of order", publication)
        self._reached[at] = place
        self._judge_owner(member, publication)
        if publication in self.confirmed:
            self._world.occur("processed again")
        self._judge_again(member, publication)
        self._processed[own].add(publication)

    def attempted(self, member: SimMember, publication: Publication) -> None:
        """Judge that a handler is called with a sample once more, for it raised."""
        self._judge_owner(member, publication)
        self._judge_again(member, publication)

    def burying(self, member: SimMember, sample: Sample) -> Burial:
        """Return as whose and of which level a sample becomes a dead letter."""
        own = member.writer.source
        fence = self._fences[sample.source].get(own, 0)
        return Burial(self.of(sample), own, fence, member.level_of(sample), self._turns[own])

    def buried(self, burial: Burial) -> None:
        """Judge a dead letter that caches hold."""
        self._world.occur("dead letter")
        if burial in self._buried:
            self._fail("is a dead letter of one member twice", burial.publication)
        self._buried.add(burial)

    def _judge_owner(self, member: SimMember, publication: Publication) -> None:
        source = publication.sample.source
        for other in self.members:
            if other is not member and other.owns(source):
                self._world.occur("two members have a source")
                since_ns = max(member.since_ns, other.since_ns)
                never_parted = member.network.calm(member.name, other.name, since_ns)
                if never_parted or (other.knows(member) and member.knows(other)):
                    self._fail(f"comes to {member.name}, and {other.name} has it", publication)

    def _judge_again(self, member: SimMember, publication: Publication) -> None:
        source, level = publication.sample.source, member.level_of(publication.sample)
        done = self._done[member.writer.source, source].get(publication)
        if done is not None and not self._rewinds.take_back(publication, done, level):
            self._fail(f"comes to {member.name} again, who confirmed it", publication)
        held = [
            one
            for one in self._held[_run(publication)]
            if _confirms(one, publication)
            and not self._rewinds.take_back(publication, one.position.rewinds, level)
        ]
        if held and self._exclusive:
            self._fail(f"comes to {member.name}, and a majority held it", publication)
            return
        begun = self._begun[member.writer.source].get(source)
        if begun is None:
            return  # it is new, or what stood there was read at an earlier begin
        known = [one for one in held if one.held_ns < begun.read_ns]
        seen = [one for one in known if one.acked & begun.read_from]
        hiding = [
            one
            for one in self._written[_run(publication)]
            if one.written_ns < begun.read_ns and publication not in one.told
        ]
        if any(not any(other.hides(one) for other in hiding) for one in seen):
            self._fail(f"comes to {member.name}, and was known to be held", publication)
        elif seen:
            self._world.occur("processed again after a partition")
        elif known:
            self._world.occur("processed again while a cache was away")

    def confirms(self, member: SimMember, sample: Sample) -> None:
        """Hear that a program confirmed a sample."""
        publication, level = self.of(sample), member.level_of(sample)
        at = _Confirmed(publication, level)
        own, before = member.writer.source, self._confirmed_by[at]
        others = (
            one
            for one, confirmed_ns in before.items()
            if one != own and (self._shared_ns(own, one) < confirmed_ns)
        )
        if any(others):
            self._owed[at] = None
        self.confirmed.add(publication)
        self._levels[publication].add(level)
        self._done[own, sample.source][publication] = level
        before.setdefault(own, self._world.now_ns)

    def of(self, sample: Sample) -> Publication:
        """Return which publication a sample is."""
        publication = self._truth.of(sample)
        assert publication is not None
        return publication

    def is_poison(self, sample: Sample) -> bool:
        """Tell whether no handler can process a sample."""
        return bool(self.poison) and self.of(sample) in self.poison

    def _shared_ns(self, one: SourceId, other: SourceId) -> float:
        """Return since when two began with each other."""
        return max(self._shared.get(pair, inf) for pair in ((one, other), (other, one)))

    def reported(self, twice: Twice) -> None:
        """Hear what a member says may have been processed twice."""
        self._reports.append(twice)

    # Rewinds

    def rewound(
        self, member: SimMember, moved: Iterable[Position], points: Points
    ) -> list[Rewound]:
        """Hear that a member goes on behind a rewind; all that is not confirmed comes again."""
        own = member.writer.source
        self._turns[own] += 1
        self._processed[own].clear()
        for source in self.rows:
            self._reached.pop((own, source), None)
        return self._rewinds.note(moved, points)

    def reset(self, moved: Iterable[Position], points: Points) -> list[Rewound]:
        """Hear that an operator rewinds."""
        return self._rewinds.note(moved, points)

    def rewind_held(self, taken_back: Iterable[Rewound]) -> None:
        """Hear that who asked for a rewind was told that caches hold it."""
        for one in taken_back:
            for publication in self.rows[one.source]:
                if _run(publication) == (one.source, one.epoch) and (
                    publication.sample.sn >= one.first
                ):
                    before = self._required.get(publication, 0)
                    self._required[publication] = max(before, one.level)

    def _has_come_again(self, publication: Publication, level: int) -> bool:
        """Tell whether one was confirmed after a rewind, or another one of then left it alone."""
        return max(self._levels[publication], default=-1) >= level or self._rewinds.keep(
            publication, level - 1, level
        )

    @property
    def rewinds_wait(self) -> bool:
        """Whether nothing is missing but what a rewind asked for."""
        if len(self.confirmed) < len(self._truth.publications):
            return False
        come = all(self._has_come_again(*one) for one in self._required.items())
        return not come or any(self._is_unknown(one) for one in self.keepers[0].positions())

    def _is_unknown(self, position: Position) -> bool:
        """Tell whether nobody goes on with what caches hold of a rewind: it came late."""
        return any(
            member.owns(position.source) and member.level_at(position) < position.rewinds
            for member in self.members
        )

    # Positions

    def writes(self, member: KeepingNode, key: str, position: Position, ntp64: int) -> None:
        """Judge a position that leaves: it says no more than was confirmed."""
        told = frozenset(self._told(position))
        for publication in told:
            if not self._is_confirmed(publication, position.rewinds):
                self._fail(f"is confirmed by {member.name}'s position, never so", publication)
        own, source = member.writer.source, position.source
        written = _Written(self._world.now_ns, ntp64, told, position.rewinds, key)
        self._written[source, position.epoch].append(written)
        others = (fence for one, fence in self._fences[source].items() if one != own)
        if max(others, default=-1) >= position.fence:
            self._world.occur("an earlier owner writes")

    def held(self, receipt: Receipt) -> None:
        """Hear that a writer knows that enough caches hold a position."""
        if not is_claim_key(DOMAIN, receipt.sample.key):
            position = decode_position(receipt.sample.payload)
            sample = receipt.sample
            acked = frozenset(receipt.acked)
            held = _Held(position, sample.ntp64, sample.key, acked, self._world.now_ns)
            self._held[position.source, position.epoch].append(held)

    def _told(self, position: Position) -> Iterator[Publication]:
        """Yield what a position says is confirmed."""
        still_open = RangeSet(position.open)
        for publication in self.rows[position.source]:
            sn, at = publication.sample.sn, _run(publication)
            if at[1] == position.epoch and sn <= position.reached and sn not in still_open:
                yield publication

    # The end

    @property
    def all_over(self) -> bool:
        """Whether everything is confirmed, nobody wants anything, and caches are alike."""
        return (
            len(self.confirmed) == len(self._truth.publications)
            and all(member.at_rest for member in self.members if member.running)
            and all(
                keeper.stored.keys() == self.keepers[0].stored.keys() for keeper in self.keepers
            )
            and not self.rewinds_wait
        )

    def check(self) -> None:
        """Judge the end: everything was processed, and each cache knows it."""
        for publication in self._truth.publications:
            if publication not in self.confirmed:
                self._fail("is not confirmed at the end", publication)
        for publication, level in self._required.items():
            if not self._has_come_again(publication, level):
                self._fail(f"never comes again by rewind {level}", publication)
        self._check_letters()
        for member in self.members:
            if member.running and not member.at_rest:
                self._world.fail(f"{member.name} never comes to rest")
        for keeper in self.keepers:
            told = {one for position in keeper.positions() for one in self._told(position)}
            for publication in self._truth.publications:
                if publication not in told and self._is_hidden_by_a_clock(publication):
                    self._world.occur("hidden by a clock that is ahead")
                elif publication not in told:
                    self._fail(f"is not confirmed in {keeper.name} at the end", publication)
        self._check_reports()

    def _check_letters(self) -> None:
        """Judge dead letters: each is held and holds its sample whole."""
        buried = {one.publication for one in self._buried}
        for publication in sorted(buried, key=lambda one: one.at):
            key = dead_letter_key(DOMAIN, CONSUMER, publication.sample)
            found = [keeper.letters().get(key) for keeper in self.keepers]
            if not any(found):
                self._fail("is a dead letter that no cache holds", publication)
            for payload in found:
                if payload and decode_dead_letter(payload).sample != publication.sample:
                    self._fail("is another one in its dead letter", publication)

    def _is_hidden_by_a_clock(self, publication: Publication) -> bool:
        """Tell whether what hides it was written before what says it, and is stamped later."""
        all_written = self._written[_run(publication)]
        level = max((one.level for one in all_written), default=0)
        written = [one for one in all_written if one.level == level]
        says = [one for one in written if publication in one.told]
        hides = [one for one in written if publication not in one.told]
        if self._exclusive or not says or not hides:
            return False
        last = max(says, key=lambda one: one.written_ns)
        return any(
            one.key == last.key and one.ntp64 > last.ntp64 and one.written_ns < last.written_ns
            for one in hides
        )

    def _check_reports(self) -> None:
        """Judge what several members confirmed who live on: one of them said so."""
        lives = {member.writer.source for member in self.members if member.running}
        for at in () if self._exclusive else self._owed:
            publication = at.publication
            if lives.issuperset(self._confirmed_by[at]):
                self._world.occur("confirmed by two who live on")
                sn, source = publication.sample.sn, publication.sample.source
                if not any(
                    one.source == source and one.first <= sn <= one.last for one in self._reports
                ):
                    self._fail("was confirmed twice, and nobody says so", publication)

    def _fail(self, finding: str, publication: Publication) -> None:
        run, sample = publication.numbering, publication.sample
        self._world.fail(f"{sample.source} run {run.at} number {sample.sn} {finding}")


def _run(publication: Publication) -> tuple[SourceId, int]:
    return publication.sample.source, publication.sample.epoch


def _confirms(held: _Held, publication: Publication) -> bool:
    position, sn = held.position, publication.sample.sn
    return sn <= position.reached and not any(first <= sn <= last for first, last in position.open)

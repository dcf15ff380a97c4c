"""How a seed becomes a history of members that share a consumer, and what must hold at its end.

Members begin, leave, rewind and are killed; networks are parted and heal; caches that keep
positions are killed; positions and acknowledgements are lost, doubled and late; clocks differ. An
operator who sees no member rewinds all. What no handler can process goes to the dead letters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.testing.simulation.keepers import SimKeeper, Writer
from durable_cache.testing.simulation.member_keeping import MemberOptions
from durable_cache.testing.simulation.member_promises import MemberPromise
from durable_cache.testing.simulation.member_rewinds import SimOperator
from durable_cache.testing.simulation.members import SimMember
from durable_cache.testing.simulation.network import Node
from durable_cache.testing.simulation.seeded import SeededHistory
from durable_cache.testing.simulation.truth import Numbering
from durable_cache.testing.simulation.world import START_NS

MEMBER_KINDS = frozenset(
    {
        "a handler raises",
        "a member rewinds",
        "an earlier owner is refused",
        "an earlier owner writes",
        "cache killed",
        "dead letter",
        "link cut",
        "member killed",
        "member left",
        "no majority",
        "overtaken",
        "processed again",
        "processed twice, and reported",
        "publisher restarts",
        "pulled",
        "reset",
        "sample doubled",
        "sample late",
        "sample lost",
        "sources of one who is gone are begun",
        "two members have a source",
    }
)
"""What histories must show, for nothing is known of what none does."""

_SETTLE_SECONDS = 120.0
_PARTED_SECONDS = (0.3, 2.0, 6.0, 12.0)
"""An exclusive source changes hands in more than a lease: what is shorter shows nothing of it."""
_PARTINGS: tuple[Literal["in two", "two nodes", "members", "a member and a cache"], ...] = (
    *("in two", "in two", "two nodes", "a member and a cache", "a member and a cache"),
    *("members", "members", "members"),
)
"""Who is parted from whom; each as often as it stands here."""
_POISON = 0.04
"""How often nobody can process what is published."""
_SKEWS_NS = (-200_000_000, 0, 200_000_000)
"""Clocks that Zenoh lets differ: it replaces stamps further ahead."""


class MemberHistory(SeededHistory):
    """One seeded history; `run` plays it and returns what went wrong."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        world, network, random = self.world, self.network, self.random
        query_loss = random.choice((0.0, 0.05))
        network.conditions = replace(network.conditions, query_loss=query_loss)
        exclusive = random.random() < 0.5
        caches = random.choice((1, 3, 3)) if exclusive else random.choice((1, 2, 2, 3))
        options = MemberOptions(
            acknowledgements=random.randint(1, min(2, caches)),
            caches=caches if exclusive else None,
            by_itself=random.random() < 0.5,
            handover_seconds=random.choice((0.2, 1.0)),
            attempts_max=random.choice((None, 2, 3)),
            attempt_seconds=random.choice((0.2, 1.5)),
        )
        self._buries = options.attempts_max is not None or not options.by_itself
        self.promise = promise = MemberPromise(world, self.truth, exclusive=exclusive)
        writers: dict[SourceId, Writer] = {}
        self.keepers = [SimKeeper(world, network, f"cache{at}", writers) for at in range(caches)]
        for keeper in self.keepers:
            keeper.peers = [one for one in self.keepers if one is not keeper]
        self.members = [
            SimMember(world, network, at, options, promise, self.keepers, writers)
            for at in range(random.choice((2, 2, 3)))
        ]
        self.operator = SimOperator(world, network, options, promise, self.keepers, writers)
        promise.keepers, promise.members = self.keepers, self.members
        self._current: dict[SourceId, Numbering] = {}
        self._runs = 0
        for at in range(random.randint(1, 4)):
            self._begin(SourceId(f"{at + 1:x}e", 7))
        for keeper in self.keepers:
            keeper.start()
        for member in self.members:
            member.skew_ns = random.choice(_SKEWS_NS)
            world.at(random.choice((0.0, 0.3)), member.start)

    def run(self) -> list[str]:
        """Play the history, heal, and return what broke the promise."""
        self._play(
            (
                (10, self._publish),
                (1, self._restart),
                (3, self._kill_member),
                (1, self._leave),
                (2, self._kill_cache),
                (4, self._part),
                (2, self._rewind),
                (1, self._reset),
            )
        )
        self._heal()
        self._wait(lambda: self.promise.all_over, _SETTLE_SECONDS)
        if self.promise.rewinds_wait:
            self._start_anew()
        self.promise.check()
        return self.world.wrong

    # What happens

    def _begin(self, source: SourceId) -> None:
        """Begin a run of a publisher; some name none of theirs."""
        self._runs += 1
        name = f"{self._runs:08x}" if source.zid != "1e" else ""
        now_ns, epoch = self.world.now_ns, 1_000 + self._runs
        self._current[source] = self.truth.begin(source, epoch, "publisher", name, now_ns)
        self.promise.rows.setdefault(source, [])

    def _restart(self) -> None:
        self.world.occur("publisher restarts")
        self._begin(self.random.choice(list(self._current)))

    def _publish(self) -> None:
        for _ in range(self.random.choice((1, 3, 8))):
            self._put(self._current[self.random.choice(list(self._current))])

    def _put(self, numbering: Numbering) -> None:
        now_ns = self.world.now_ns
        sample = Sample(
            "a/b",
            numbering.source,
            numbering.epoch,
            len(numbering.published),
            b"",
            attachment=self.truth.mark(),
            ntp64=ntp64_from_ns(START_NS + now_ns),
        )
        publication = self.truth.publish(numbering, sample, now_ns)
        self.promise.published(publication)
        if self._buries and self.random.random() < _POISON:
            self.promise.poison.add(publication)

    def _kill_member(self) -> None:
        member = self.random.choice(self.members)
        member.died("killed")
        self.world.at(self.random.choice((0.1, 1.0, 5.0)), self._starting(member))

    def _starting(self, member: SimMember) -> Callable[[], None]:
        """Return how a member starts: once it sees nobody else who has the name alone."""

        def start() -> None:
            operator = self.operator
            if operator.running and self.network.reaches(operator.name, member.name):
                self.world.at(0.5, start)
            else:
                member.start()

        return start

    def _rewind(self) -> None:
        member = self.random.choice(self.members)
        if member.running:
            member.rewind()

    def _reset(self) -> None:
        """Rewind by an operator who sees no member, for all were killed or he is cut off."""
        if self.random.random() < 0.5:
            for member in self.members:
                member.died("killed")
                self.world.at(self.random.choice((0.1, 1.0, 5.0)), self._starting(member))
        else:
            links = [(self.operator.name, member.name) for member in self.members]
            self.network.cut([way for a, b in links for way in ((a, b), (b, a))], 6.0)
        self.operator.start()

    def _start_anew(self) -> None:
        """Let members begin who read where it stood while the cache that knew more was away."""
        self.world.occur("a rewind waits for the next start")
        for member in self.members:
            member.died("killed")
            member.start()
        self._wait(lambda: self.promise.all_over, _SETTLE_SECONDS)

    def _leave(self) -> None:
        member = self.random.choice(self.members)
        member.leave()
        self.world.at(self.random.choice((3.0, 6.0)), self._starting(member))

    def _kill_cache(self) -> None:
        keeper = self.random.choice(self.keepers)
        keeper.died("killed")
        self.world.at(self.random.choice((0.1, 1.0, 5.0)), keeper.start)

    def _part(self) -> None:
        """Part the network in two, two nodes alone, or two members that both reach all caches."""
        members: list[Node] = [*self.members]
        keepers: list[Node] = [*self.keepers]
        nodes = [*members, *keepers]
        for some in (members, keepers, nodes):
            self.random.shuffle(some)
        match self.random.choice(_PARTINGS):
            case "in two":
                at = self.random.randrange(1, len(nodes))
                one, rest = nodes[:at], nodes[at:]
            case "two nodes":
                one, rest = nodes[:1], nodes[1:2]
            case "members":
                one, rest = members[:1], members[1:]
            case "a member and a cache":
                one, rest = [members[0], keepers[0]], [*members[1:], *keepers[1:]]
        pairs = [(left.name, right.name) for left in one for right in rest]
        ways = [way for a, b in pairs for way in ((a, b), (b, a))]
        self.network.cut(ways, self.random.choice(_PARTED_SECONDS))

    def _heal(self) -> None:
        self.network.heal()
        self.operator.died("left")
        for keeper in self.keepers:
            keeper.start()
        for member in self.members:
            if member.failed or member.leaving:
                member.died("killed")
            member.start()

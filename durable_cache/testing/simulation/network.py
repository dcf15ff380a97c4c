"""A network that loses, delays, doubles, reorders and parts, as Zenoh's callers see it.

Samples are carried one by one and may be lost, doubled and overtaken. Tokens are seen while their
owner can be reached, in order. A question goes to every answerer that can be reached; each answers
in parts, and an answer that breaks off is one that never ends, so that the asker's time runs out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from durable_cache.errors import DurableCacheError
from durable_cache.testing.simulation.world import SECOND_NS, Crash, World

PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True)
class Conditions:
    """How bad the network is until everything heals."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_seconds: float = 0.02
    reordering: float = 0.0
    """How often a sample takes another way, and with it up to `detour_seconds`."""
    detour_seconds: float = 0.6
    query_loss: float = 0.0
    """How often an answer breaks off, before its first part or later."""
    query_detour: float = 0.0
    """How often an answer is slower than its asker waits."""


@dataclass(frozen=True, slots=True)
class Token:
    """A liveliness token: who declared it and what it says."""

    owner: str
    value: object


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a question ended: who answered it whole, and who did not."""

    whole: int
    errors: tuple[str, ...] = ()


class Node:
    """A process on the network; what it scheduled dies with it."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        self.world, self.network, self.name = world, network, name
        self.life = 0
        self.running = False
        self.since_ns = 0
        """Since when this process has run, or not."""
        self.skew_ns = 0
        network.nodes[name] = self

    def later(self, delay_seconds: float, action: Callable[[], None]) -> None:
        """Do something after so much time, in this process."""
        self.world.at(delay_seconds, action, self)

    def guard(self, action: Callable[[], None]) -> None:
        """Do something of this process: a crash ends the process, an error the promise."""
        try:
            action()
        except Crash as crash:
            self.world.occur(str(crash))
            self.died(str(crash))
        except Exception as error:
            self.world.fail(f"{self.name} raised {type(error).__name__}: {error} {_place(error)}")
            if self.world.tracing:
                raise

    def died(self, how: str) -> None:
        """Lose everything in memory."""

    def token_changed(self, token: Token, alive: bool) -> None:
        """See another's token come or go."""


def _place(error: BaseException) -> str:
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"({code.co_filename.rpartition('durable_cache/')[2]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


class Network:
    """Who can reach whom, and what is on its way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.conditions = Conditions()
        self.nodes: dict[str, Node] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.questions = 0
        """Questions for samples that were sent so far; aligners have their own rhythm."""
        self._tokens: dict[str, list[Token]] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._troubled_ns: dict[tuple[str, str], int] = {}

    def reaches(self, source: str, target: str) -> bool:
        """Tell whether what `source` sends arrives at `target` as long as the link lives."""
        return (source, target) not in self.blocked

    def calm(self, one: str, two: str, since_ns: int) -> bool:
        """Tell whether two processes ran and could talk, both ways, all the time since."""
        nodes = self.nodes[one], self.nodes[two]
        return (
            all(node.running and node.since_ns <= since_ns for node in nodes)
            and self.reaches(one, two)
            and self.reaches(two, one)
            and self._troubled_ns.get(_pair(one, two), -1) < since_ns
        )

    def trouble(self, one: str, two: str) -> None:
        """Remember that two could not talk just now."""
        self._troubled_ns[_pair(one, two)] = self.world.now_ns

    def block(self, source: str, target: str) -> None:
        """Cut one direction; the target loses sight of the source's tokens."""
        if self.reaches(source, target):
            self.blocked.add((source, target))
            self.world.occur("link cut")
            if self.world.tracing:
                self.world.say(f"{target} hears no more of {source}")
            for token in self._tokens.get(source, ()):
                self._show(token, target, alive=False)

    def unblock(self, source: str, target: str) -> None:
        """Mend one direction."""
        if not self.reaches(source, target):
            self.blocked.discard((source, target))
            self.trouble(source, target)
            if self.world.tracing:
                self.world.say(f"{target} hears {source} again")
            for token in self._tokens.get(source, ()):
                self._show(token, target, alive=True)

    def cut(self, ways: Iterable[tuple[str, str]], seconds: float) -> None:
        """Cut some directions, and mend them after a while."""
        ways = list(ways)
        for way in ways:
            self.block(*way)

        def mend() -> None:
            for way in ways:
                self.unblock(*way)

        self.world.at(seconds, mend)

    def heal(self) -> None:
        """Mend all links; from now on nothing goes wrong any more."""
        self.world.healed = True
        for way in sorted(self.blocked):
            self.unblock(*way)

    def carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Bring a sample over, or lose it, or bring it twice, or late."""
        world, conditions = self.world, self.conditions
        if not self.reaches(source, target):
            return
        if world.chance(conditions.loss):
            world.occur("sample lost")
            return
        copies = 1
        if world.chance(conditions.duplication):
            world.occur("sample doubled")
            copies = 2
        for _ in range(copies):
            delay = world.random.random() * conditions.delay_seconds
            if world.chance(conditions.reordering):
                world.occur("sample late")
                delay += world.random.random() * conditions.detour_seconds
            self._arrive(target, delay, deliver)

    def tell(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Bring a control message over, in order and once, unless the link is cut."""
        if self.reaches(source, target):
            when_ns = self._in_order(source, target)
            self._arrive(target, (when_ns - self.world.now_ns) / SECOND_NS, deliver)

    def declare(self, token: Token) -> None:
        """Show a token to everybody who can see its owner."""
        self._tokens.setdefault(token.owner, []).append(token)
        for name in self.nodes:
            if name != token.owner and self.reaches(token.owner, name):
                self._show(token, name, alive=True)

    def undeclare(self, token: Token) -> None:
        """Take a token back."""
        self._tokens[token.owner].remove(token)
        for name in self.nodes:
            if name != token.owner and self.reaches(token.owner, name):
                self._show(token, name, alive=False)

    def withdraw(self, owner: str) -> None:
        """Take back all tokens of a process that ended."""
        for token in list(self._tokens.get(owner, ())):
            self.undeclare(token)

    def show_all(self, watcher: str) -> None:
        """Show a process that began what it can see."""
        for owner, tokens in self._tokens.items():
            if owner != watcher and self.reaches(owner, watcher):
                for token in tokens:
                    self._show(token, watcher, alive=True)

    def _show(self, token: Token, watcher: str, *, alive: bool) -> None:
        node = self.nodes[watcher]
        delay = (self._in_order(token.owner, watcher) - self.world.now_ns) / SECOND_NS
        self._arrive(watcher, delay, lambda: node.token_changed(token, alive))

    def _in_order(self, source: str, target: str) -> int:
        delay = self.world.random.random() * self.conditions.delay_seconds
        when_ns = self.world.now_ns + round(delay * SECOND_NS)
        when_ns = max(when_ns, self._seen.get((source, target), 0) + 1)
        self._seen[source, target] = when_ns
        return when_ns

    def _arrive(self, target: str, delay: float, deliver: Callable[[], None]) -> None:
        node = self.nodes[target]
        if node.running:
            self.world.events += 1
            node.later(delay, deliver)

    def ask(
        self,
        asker: Node,
        answerers: Iterable[tuple[Node, Callable[[], Iterator[PartT]]]],
        timeout_seconds: float,
        hear: Callable[[PartT], None],
        end: Callable[[Outcome], None],
        *,
        counted: bool = True,
    ) -> None:
        """Put one question to several answerers; `hear` each part of an answer, then `end` once.

        An answerer's iterator is run in its own process; a storage error is an error reply. Who is
        heard by the asker and does not hear it is waited for, as on a link that is dead one way.
        """
        self.questions += counted
        heard = [
            (node, answer)
            for node, answer in answerers
            if node.running and node is not asker and self.reaches(node.name, asker.name)
        ]
        Asking(self, asker, len(heard), hear, end).start(heard, timeout_seconds)


class Asking(Generic[PartT]):
    """One question under way."""

    def __init__(
        self,
        network: Network,
        asker: Node,
        expected: int,
        hear: Callable[[PartT], None],
        end: Callable[[Outcome], None],
    ) -> None:
        self._network, self._asker = network, asker
        self._life = asker.life
        self._hear, self._end = hear, end
        self._expected = expected
        self._whole = 0
        self._errors: list[str] = []
        self._over = False

    def start(
        self,
        answerers: Sequence[tuple[Node, Callable[[], Iterator[PartT]]]],
        timeout_seconds: float,
    ) -> None:
        if not answerers:
            self._asker.later(0.001, self._finish)
            return
        self._asker.later(timeout_seconds, self._time_out)
        for node, answer in answerers:
            if self._network.reaches(self._asker.name, node.name):
                self._put(node, answer)

    def _put(self, node: Node, answer: Callable[[], Iterator[PartT]]) -> None:
        network = self._network
        delay = network.world.random.random() * network.conditions.delay_seconds
        if network.world.chance(network.conditions.query_detour):
            network.world.occur("answer late")
            network.trouble(self._asker.name, node.name)
            delay += network.world.random.random() * 10.0
        node.later(delay, lambda: self._answer(node, answer()))

    def _answer(self, node: Node, parts: Iterator[PartT]) -> None:
        """Run in the answerer: send every part, then say that it was the last."""
        network = self._network
        world = network.world
        delay = 0.0
        try:
            for part in parts:
                if self._breaks_off(node):
                    return
                delay += world.random.random() * network.conditions.delay_seconds
                self._reply(node, delay, part)
        except DurableCacheError as error:
            world.occur("answer is an error")
            reason = f"{node.name}: {error}"
            self._back(node, delay, lambda: self._ended(reason))
            return
        if not self._breaks_off(node):
            self._back(node, delay, lambda: self._ended(""))

    def _breaks_off(self, node: Node) -> bool:
        network = self._network
        if not network.world.chance(network.conditions.query_loss):
            return False
        network.world.occur("answer broken off")
        network.trouble(self._asker.name, node.name)
        return True

    def _reply(self, node: Node, delay: float, part: PartT) -> None:
        def heard() -> None:
            if not self._over:
                self._hear(part)

        self._back(node, delay, heard)

    def _back(self, node: Node, delay: float, arrive: Callable[[], None]) -> None:
        """Bring something back to the process that asked, unless that has ended."""
        here = self._asker.life == self._life
        if here and self._network.reaches(node.name, self._asker.name):
            self._network.world.events += 1
            self._asker.later(delay, arrive)

    def _ended(self, error: str) -> None:
        if self._over:
            return
        if error:
            self._errors.append(error)
        else:
            self._whole += 1
        if self._whole + len(self._errors) >= self._expected:
            self._finish()

    def _time_out(self) -> None:
        if not self._over:
            self._errors.append("timeout")
            self._finish()

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            world = self._network.world
            if world.tracing:
                asked = f"{self._whole} of {self._expected} answered {self._asker.name}"
                world.say(f"{asked} {'; '.join(self._errors)}")
            self._end(Outcome(self._whole, tuple(self._errors)))


def _pair(one: str, two: str) -> tuple[str, str]:
    return (one, two) if one < two else (two, one)

"""A pipe in a mode without recovery on the simulated network, and what it promises.

It takes what the source network brings it, which may be lost, doubled and late on the way there,
and sends each sample to each cache once. What it says of itself, R and UR too, is compared with
what really came to it and with what caches told it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

from durable_cache.model.delivery import DeliveryRates
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.modes import Mode
from durable_cache.protocol.pipe.engine import PipeEngine
from durable_cache.protocol.pipe.events import Claimed, EngineOptions, Event, Taken, Withdraw
from durable_cache.protocol.publisher.events import AckReceived, Resend
from durable_cache.protocol.wire import Ack
from durable_cache.storage.contract import Durability
from durable_cache.testing.simulation.listening import Listening
from durable_cache.testing.simulation.network import Network, Token
from durable_cache.testing.simulation.pipe_ends import Kept, SimTarget
from durable_cache.testing.simulation.pipe_promises import PipePromise
from durable_cache.testing.simulation.pipes import SimPipe
from durable_cache.testing.simulation.publishers import PublisherToken
from durable_cache.testing.simulation.truth import Publication, Truth
from durable_cache.testing.simulation.world import SECOND_NS, World

_LISTED_NS = 500_000_000
"""How long after a start tokens may be those that were there before."""
_HELD_UP_NS = 2 * SECOND_NS
"""How long a slow taker holds up the network; what waits longer is dropped."""


class PassingPromise(PipePromise):
    """What such a pipe promises in one life; the next knows nothing of it."""

    def __init__(
        self, world: World, truth: Truth, acknowledgements: int, *, retry_seconds: float, once: bool
    ) -> None:
        super().__init__(world, truth, acknowledgements)
        self._retry_ns = round(retry_seconds * SECOND_NS)
        self._once = once
        """Whether no sample is taken a second time, as in at-most-once."""
        self.began()

    def began(self) -> None:
        super().began()
        self._copies: Counter[Publication] = Counter()
        self._settled: Counter[Publication] = Counter()
        """How often each was handed to the pipe, and how often it was done with it."""
        self._times: Counter[Publication] = Counter()
        """How often each is to be sent to a cache: more than once where it was lost and came again.
        """
        self._taken_ns: dict[Publication, int] = {}
        self._taken_to: dict[tuple[SourceId, str], int] = defaultdict(lambda: -1)
        self._sent: Counter[tuple[str, Publication]] = Counter()
        self._acked: dict[Publication, set[str]] = defaultdict(set)
        self._shown: set[tuple[SourceId, str]] = set()
        self._lost_now: set[Publication] = set()

    def handed_out(self, publication: Publication) -> None:
        """Hear that the pipe is given a sample."""
        if self._once and self._copies[publication]:
            self._fail("is handed to the pipe twice in one life", publication)
        if not self._copies[publication] or publication in self._lost_now:
            self._times[publication] += 1
            self._taken_ns[publication] = self._world.now_ns
            self._lost_now.discard(publication)
            if self._copies[publication]:
                self._world.occur("a lost sample came again")
        else:
            self._world.occur("a repeat goes no further")
        self._copies[publication] += 1
        run, sn = self._run(publication), publication.sample.sn
        self._taken_to[run] = max(self._taken_to[run], sn)

    def shown(self, source: SourceId, name: str) -> None:
        """Hear that a run is shown as carried: acknowledgements of it are heard from now on."""
        self._shown.add((source, name))

    def withdrawn(self, source: SourceId, name: str) -> None:
        """Hear that it is shown no more."""
        self._shown.discard((source, name))

    def heard(self, ack: Ack) -> None:
        """Hear what a cache says that it holds, of what the pipe has come to."""
        run = ack.source, ack.incarnation
        if run not in self._shown or ack.level < Durability.DISK:
            return
        for publication in self.rows[ack.source]:
            sn = publication.sample.sn
            held = any(first <= sn <= last for first, last in ack.runs)
            if held and self._run(publication) == run and sn <= self._taken_to[run]:
                self._acked[publication].add(ack.cache_id)

    def sent(self, resend: Resend) -> None:
        if self._once:
            super().sent(resend)
        for sample in resend.samples:
            publication = self._truth.of(sample)
            if publication is None:
                continue  # the cache says so
            to = resend.cache_id, publication
            self._sent[to] += 1
            if self._sent[to] > self._times[publication]:
                self._fail(f"goes to {resend.cache_id} {self._sent[to]} times", publication)
            if resend.cache_id in self._acked[publication]:
                self._fail(f"goes to {resend.cache_id}, which said that it holds it", publication)
            if self._is_held(publication):
                self._fail("goes over, and enough caches said that they hold it", publication)

    def _is_held(self, publication: Publication) -> bool:
        """Tell whether the pipe knows that enough caches hold it."""
        return len(self._acked[publication]) >= self._enough

    def _is_over(self, publication: Publication) -> bool:
        return publication in self._lost_now or super()._is_over(publication)

    def confirms(self, samples: Iterable[Sample], kept: Kept | None) -> None:
        """Hear what the pipe is done with; what nobody acknowledged is lost, and not too early."""
        for sample in samples:
            publication = self._truth.of(sample)
            assert publication is not None
            self._settled[publication] += 1
            if self._settled[publication] > self._copies[publication]:
                self._fail("is settled more often than it came", publication)
            if self._settled[publication] < self._copies[publication]:
                continue  # a repeat of what is under way
            if publication in self._given_up_now or self._is_held(publication):
                continue
            self._world.occur("lost behind the pipe")
            self._lost_now.add(publication)
            if self._world.now_ns < self._taken_ns[publication] + self._retry_ns:
                self._fail("is lost before its time", publication)

    def check_counts(self, engine: PipeEngine) -> None:
        """Judge what the pipe says of itself once nothing is under way, R and UR too."""
        taken, given_up = {*self._copies}, self._given_up_now
        held = {one for one in taken - given_up if self._is_held(one)}
        wanted = len(taken), len(held), len(given_up), len(taken - held - given_up), 0
        said = engine.taken, engine.passed, engine.given_up, engine.lost, engine.repeated
        if said != wanted:
            self._world.fail(
                f"the pipe took, passed on, gave up, lost and sent again {said}, not {wanted}"
            )
        if engine.confirmed != len(held | given_up):
            self._world.fail(f"{engine.confirmed} are held or given up, not {len(held | given_up)}")
        if self._settled != self._copies:
            self._world.fail("the pipe is not done with everything at the end")
        if held:
            rates = DeliveryRates.measured(len(taken), len(held), len(held))
            done = engine.passed + engine.given_up + engine.lost
            if DeliveryRates.measured(done, engine.passed, engine.passed) != rates:
                self._world.fail(f"the pipe has other R and UR than {rates}")

    def check(self) -> None:
        """Judge the end: what the pipe says is held, enough caches hold."""
        for publication in self._copies:
            if self._is_held(publication) and self.holders(publication) < self._enough:
                self._fail("is said to be held, and is not", publication)

    def _run(self, publication: Publication) -> tuple[SourceId, str]:
        return publication.sample.source, self.name_of(publication.numbering)


class PassingPipe(SimPipe):
    """One pipe in a mode that takes what arrives, and remembers nothing."""

    def __init__(
        self,
        world: World,
        network: Network,
        truth: Truth,
        options: EngineOptions,
        promise: PassingPromise,
        targets: Sequence[SimTarget],
        unconfirmed_max: int,
        mode: Mode,
    ) -> None:
        super().__init__(
            world, network, truth, options, promise, targets, None, unconfirmed_max, remembers=False
        )
        self._passing = promise
        self._mode = mode
        self._heard = Listening(world, truth, self.name, mode)
        self._inbox: deque[tuple[int, Publication]] = deque()
        self._in_hand = 0

    def start(self) -> None:
        if not self.running:
            self._heard = Listening(self.world, self._truth, self.name, self._mode)
            self._inbox.clear()
            self._in_hand = 0
            super().start()

    def died(self, how: str) -> None:
        if self.running:
            self.check_before()
        super().died(how)

    def check_before(self) -> None:
        """Judge what came to the pipe in this life, and what it made of it."""
        for numberings in self._truth.numberings.values():
            self._heard.check(numberings)

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits or is under way."""
        return not (self._inbox or self._in_hand)

    def token_changed(self, token: Token, alive: bool) -> None:
        if not isinstance(token.value, PublisherToken):
            super().token_changed(token, alive)
        elif alive:
            listed = self.world.now_ns < self.since_ns + _LISTED_NS
            self._heard.declared(token.value, listed=listed)

    def arrived(self, publication: Publication) -> None:
        """Take a sample off the network, as soon as there is room for it."""
        self._inbox.append((self.world.now_ns, publication))

    def _take(self) -> None:
        while self._inbox and self._in_hand < self._unconfirmed_max:
            came_ns, publication = self._inbox.popleft()
            if self.world.now_ns > came_ns + _HELD_UP_NS:
                self.world.occur("dropped before the pipe")
                continue
            passed = self._heard.arrived(publication)
            for sample in passed:
                self._in_hand += 1
                self._passing.handed_out(publication)
                self._handle(Taken((sample,), self._now))
        if self._inbox:
            self.world.occur("no room under way")

    def _handle(self, event: Event) -> None:
        if isinstance(event, AckReceived):
            self._passing.heard(event.ack)
        if isinstance(event, Claimed):
            self._passing.shown(event.source, event.incarnation)
        super()._handle(event)

    def _settle(self, samples: Sequence[Sample]) -> None:
        self._in_hand -= len(samples)

    def _withdraw(self, withdraw: Withdraw) -> None:
        super()._withdraw(withdraw)
        self._passing.withdrawn(withdraw.source, withdraw.incarnation)

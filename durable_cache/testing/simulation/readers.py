"""A subscriber with a profile on the simulated network: engine and reader's cache that ship."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.reader.cache import ReaderCache
from durable_cache.protocol.reader.instances import (
    InstanceSample,
    InstanceState,
    SampleState,
    ViewState,
)
from durable_cache.protocol.reader.profile import Profile
from durable_cache.protocol.reader.tokens import Unregistered
from durable_cache.protocol.subscriber.events import (
    Deliver,
    Event,
    Fetched,
    HistoryPage,
    Missed,
    Output,
)
from durable_cache.testing.simulation.network import Network, Token
from durable_cache.testing.simulation.promises import SubscriberPromise
from durable_cache.testing.simulation.publishers import PublisherToken
from durable_cache.testing.simulation.reader_promises import ReaderPromise
from durable_cache.testing.simulation.subscribers import SimSubscriber, SubscriberPlan
from durable_cache.testing.simulation.truth import Truth
from durable_cache.testing.simulation.world import World
from durable_cache.testing.simulation.writers import Disposing

ALL_STATES = (
    SampleState.READ | SampleState.NOT_READ,
    ViewState.NEW | ViewState.NOT_NEW,
    InstanceState.ALIVE | InstanceState.NOT_ALIVE_DISPOSED | InstanceState.NOT_ALIVE_NO_WRITERS,
)
_LOOK_SECONDS = 0.2
_WAITING_MAX = 5_000
"""No history holds up as many; more is a reader that hangs."""


class SimReader(SimSubscriber):
    """One reader; what its cache has no room for waits until something is taken."""

    def __init__(
        self,
        world: World,
        network: Network,
        plan: SubscriberPlan,
        truth: Truth,
        promise: SubscriberPromise,
        profile: Profile,
    ) -> None:
        super().__init__(world, network, plan, promise)
        self.profile = profile
        self.cache = ReaderCache(profile)
        self.reading = ReaderPromise(world, truth, plan.name, profile)
        self._pending: deque[list[Sample] | Callable[[], None]] = deque()
        """What is to go into the cache, in order."""
        self._taking_soon = False
        self._tokens: dict[SourceId, set[PublisherToken]] = {}
        self._disposing: set[SourceId] = set()

    @property
    def is_comparable(self) -> bool:
        """Tell whether it must end as all of its kind do."""
        return not self.profile.inconsistencies

    # What the shell of a reader does

    def token_changed(self, token: Token, alive: bool) -> None:
        match token.value:
            case Disposing(source) if alive:
                self._disposing.add(source)
                if source in self._tokens:
                    self._soon(lambda: self.cache.disposes(source))
            case Disposing(source):
                self._disposing.discard(source)
            case Unregistered(source, ntp64, key) if alive:
                self._soon(lambda: self.cache.unregistered(source, key, ntp64))
            case Unregistered(source, _, key):
                self._soon(lambda: self.cache.registered(source, key))
            case _:
                super().token_changed(token, alive)

    def _told(self, token: PublisherToken, *, alive: bool) -> Event:
        source = token.source
        tokens = self._tokens.setdefault(source, set())
        if alive:
            tokens.add(token)
            disposes = source in self._disposing
            self._soon(lambda: self.cache.appeared(source, auto_dispose=disposes))
        else:
            tokens.discard(token)
            if not tokens:
                del self._tokens[source]
                left = ntp64_from_ns(self._now.unix_ns)
                self._soon(lambda: self.cache.disappeared(source, left))
        return super()._told(token, alive=alive)

    def _handle(self, event: Event) -> None:
        if isinstance(event, (Fetched, HistoryPage)):
            for part in event.answer.parts:
                for named in part.incarnations:
                    if named.source not in self._tokens:
                        self._note_absent(named.source)
        super()._handle(event)

    def _note_absent(self, source: SourceId) -> None:
        self._soon(lambda: self.cache.absent(source))

    def _do(self, outputs: Iterable[Output]) -> None:
        super()._do(outputs)
        for output in outputs:
            match output:
                case Deliver(samples):
                    self._pending.append([*samples])
                case Missed(source, epoch, first, last):
                    self._miss(source, epoch, first, last)
        self._insert()

    def _miss(self, source: SourceId, epoch: int, first: int, last: int) -> None:
        self.reading.missed(last - first + 1)
        self._pending.append(lambda: self.cache.missed(source, epoch, first, last))

    def _soon(self, change: Callable[[], None]) -> None:
        """Change the cache behind what came before."""
        self._pending.append(change)
        self._insert()

    def _insert(self) -> None:
        """Do what waits, as far as there is room."""
        while self._pending:
            first = self._pending[0]
            if callable(first):
                first()
                self.reading.changed(self.cache)
            else:
                taken = self.cache.insert(first)
                self.reading.inserted(first[:taken], self.cache)
                del first[:taken]
                if first:
                    self._wait_for_room()
                    return
            self._pending.popleft()

    def _wait_for_room(self) -> None:
        self.world.occur("reader without room")
        if len(self._pending) > _WAITING_MAX:
            self.world.fail(f"{self.name} hangs")
        if not self._taking_soon:
            self._taking_soon = True
            self.later(_LOOK_SECONDS, self._make_room)

    def _make_room(self) -> None:
        self._taking_soon = False
        self.look(*ALL_STATES, take=True)

    # What the program does

    def look(
        self, samples: SampleState, views: ViewState, states: InstanceState, *, take: bool
    ) -> list[InstanceSample]:
        """Read or take what is in these states, and see that it is in order."""
        self.world.occur("take" if take else "read")
        collect = self.cache.take if take else self.cache.read
        found = collect(samples, views, states)
        whole = not take and (samples, views, states) == ALL_STATES
        self.reading.saw(found, take=take, whole=whole)
        self._insert()
        return found

    def check(self) -> None:
        """See, when all is quiet, that nothing went silently."""
        if self._pending:
            self.world.fail(f"{self.name} still waits for room")
        found = self.cache.read(*ALL_STATES)
        self.reading.saw(found, take=False, whole=True)
        self.reading.check(found, self.cache)

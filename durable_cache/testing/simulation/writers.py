"""Publishers of a history with profiles: their tokens say what becomes of their keys."""

from __future__ import annotations

from dataclasses import dataclass

from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.protocol.reader.tokens import Unregistered
from durable_cache.testing.simulation.network import Network, Token
from durable_cache.testing.simulation.publishers import Answerers, OwnPublisher, PublisherPlan
from durable_cache.testing.simulation.truth import Truth
from durable_cache.testing.simulation.world import SECOND_NS, World

_TOKEN_SECONDS = 0.25
"""By then everybody in reach saw its token: what overtakes one is another history's trouble."""


@dataclass(frozen=True, slots=True)
class Disposing:
    """The token of a publisher whose instances are disposed when it leaves."""

    source: SourceId


class SimWriter(OwnPublisher):
    """One of ours that may dispose its instances, and unregister some."""

    def __init__(
        self,
        world: World,
        network: Network,
        truth: Truth,
        plan: PublisherPlan,
        answerers: Answerers,
        *,
        auto_dispose: bool,
    ) -> None:
        super().__init__(world, network, truth, plan, answerers)
        self.auto_dispose = auto_dispose
        self.leaves_for_good = False
        self._tokens: dict[str, Token] = {}
        """Of the keys that it writes no more."""
        self._kind: Kind | None = None
        self._declared_ns = 0

    def _begin(self, sn: int) -> None:
        self._tokens.clear()
        if self.auto_dispose:
            self.network.declare(Token(self.name, Disposing(self.source)))
        super()._begin(sn)

    def _declare(self, epoch: int, incarnation: str) -> None:
        self._declared_ns = self.world.now_ns
        super()._declare(epoch, incarnation)

    def put(self, count: int = 1, key: str | None = None) -> None:
        if self.world.now_ns >= self._declared_ns + _TOKEN_SECONDS * SECOND_NS:
            super().put(count, key)

    def put_of(self, kind: Kind, key: str) -> None:
        """Publish one sample of a kind."""
        self._kind = kind
        self.put(1, key)
        self._kind = None

    def unregister(self, key: str) -> None:
        """Write a key no more, until it is written again; one that disposes deletes it first."""
        if not (self.running and self._ready) or key in self._tokens:
            return
        self.world.occur("unregister")
        if self.auto_dispose:
            self.put_of(Kind.DELETE, key)
        token = Token(self.name, Unregistered(self.source, self._timestamp(), key))
        self._tokens[key] = token
        self.network.declare(token)

    def _take(self, key: str) -> Sample | None:
        taken = super()._take(key)
        if taken is not None and key in self._tokens:
            self.network.undeclare(self._tokens.pop(key))
        return taken

    def _value(self) -> tuple[Kind, bytes]:
        kind, payload = super()._value()
        if self._kind is None or self._kind is kind:
            return kind, payload
        return self._kind, b"" if self._kind is Kind.DELETE else b"x"

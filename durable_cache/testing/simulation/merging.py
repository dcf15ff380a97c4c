"""A cache's merge policy on the simulated network: what decides is what ships.

As `endpoints.alignment.merging` does with a session, a thread and a publisher, this does in virtual
time: notes are kept in the journal before what they are about is stored, and corrections are
samples of a publisher of the cache's own, which goes with its process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_cache.endpoints.alignment.corrected import Corrected
from durable_cache.endpoints.alignment.correcting import Correcting, Theirs
from durable_cache.model.sample import Kind, SampleBatch
from durable_cache.model.timestamp import ntp64_at
from durable_cache.protocol.alignment import (
    Correction,
    Facts,
    Healing,
    PeerStatus,
    SplitBrain,
    SplitBrainOptions,
    SplitBrainToken,
)
from durable_cache.testing.simulation.network import Network, Token
from durable_cache.testing.simulation.publishers import Answerers, OwnPublisher, PublisherPlan
from durable_cache.testing.simulation.truth import Publication, Truth
from durable_cache.testing.simulation.world import SECOND_NS, World

if TYPE_CHECKING:
    from durable_cache.testing.simulation.caches import SimCache
    from durable_cache.testing.simulation.composition import Composition

_KIND = "split_brain"
_PEERS_MAX = 64
_RETRY_SECONDS = 5.0
_STORED_SECONDS_MAX = 30.0
_LOOK_SECONDS = 0.1
_JOB_SECONDS = 0.05


class SimCorrector(OwnPublisher):
    """The publisher of a cache's corrections."""

    def __init__(
        self,
        world: World,
        network: Network,
        truth: Truth,
        plan: PublisherPlan,
        answerers: Answerers,
    ) -> None:
        super().__init__(world, network, truth, plan, answerers)
        self._correction: Correction | None = None

    @property
    def is_declared(self) -> bool:
        """Whether it may put by now."""
        return self.running and self._ready

    def begins(self, state: SplitBrain) -> Facts:
        """Say which number the next correction has."""
        assert self.numbering is not None
        return state.correcting(self.source, self.numbering.epoch, self._engine.next_sn)

    def correct(self, key: str, correction: Correction) -> Publication | None:
        """Publish a correction; None where that failed."""
        before = len(self.truth.publications)
        self._correction = correction
        self.put(1, key)
        made = self.truth.publications[before:]
        return made[0] if made else None

    def _value(self) -> tuple[Kind, bytes]:
        assert self._correction is not None
        kind, value, _ = self._correction
        return kind, b"" if kind is Kind.DELETE else value.payload

    def _timestamp(self) -> int:
        assert self._correction is not None
        return ntp64_at(self._correction.unix_ns)


class SimMerging:
    """The policy of one process of a cache; gone with it."""

    def __init__(
        self,
        cache: SimCache,
        process: Composition,
        options: SplitBrainOptions,
        corrector: SimCorrector,
        quiet_seconds: float,
    ) -> None:
        self._cache, self._process, self._options = cache, process, options
        self._corrector = corrector
        self._quiet_ns = round(quiet_seconds * SECOND_NS)
        kept = process.journal.kept(_KIND)
        self._state = SplitBrain(options, process.cache_id, kept, _PEERS_MAX)
        self._due_ns = 0
        self.corrected = Corrected()
        process.before_commit.append(self.storing)

    def start(self) -> None:
        """Let other caches see that this one has a policy."""
        cache, options = self._cache, self._options
        incarnation = f"{cache.world.random.getrandbits(32):08x}"
        token = SplitBrainToken(self._process.cache_id, incarnation, options.master_priority)
        cache.network.declare(Token(cache.name, token))

    @property
    def ignored(self) -> tuple[tuple[str, int], ...]:
        """Before when what each peer first received is left with it."""
        return tuple(self._state.ignored.items())

    def seen(self, token: SplitBrainToken, alive: bool) -> None:
        """See another cache with a policy come or go."""
        now_ns, before = self._cache.unix_ns, self._state.healing
        self._keep(self._state.seen(token, now_ns) if alive else self._state.gone(token, now_ns))
        if before is None and self._state.healing is not None:
            self._cache.world.occur("both sides went on")
            for hear in self._cache.on_healing:
                hear()

    def storing(self, batch: SampleBatch) -> None:
        """Note what of a batch is the other side's, before it is stored."""
        self._keep(self._state.storing(batch))

    def _keep(self, facts: Facts) -> None:
        if facts:
            self._process.journal.keep(_KIND, facts.kept, facts.gone)

    def tick(self, peers: tuple[PeerStatus, ...]) -> None:
        """Correct, once the sides hold the same."""
        world, healing = self._cache.world, self._state.healing
        if healing is None or world.now_ns < self._due_ns:
            return
        is_master = self._state.decides(peers, self._cache.unix_ns, self._quiet_ns)
        if is_master is None:
            return
        self._due_ns = world.now_ns + round(_RETRY_SECONDS * SECOND_NS)
        pause = world.random.random() * _JOB_SECONDS
        self._cache.later(pause, lambda: self._heal(healing, is_master=is_master))

    def _heal(self, healing: Healing, *, is_master: bool) -> None:
        theirs = {stream: runs.copy() for stream, runs in self._state.theirs.items()}
        if not (is_master and theirs):
            self._end(healing, theirs)
        elif self._corrector.is_declared:
            self._correct(healing, theirs)
        elif not self._corrector.running:
            self._corrector.start()

    def _correct(self, healing: Healing, theirs: Theirs) -> None:
        policy, store = self._options.policy, self._process.store
        core = self._process.core
        made_before = dict(self._state.made)
        correcting = Correcting(policy, store, lambda: core.epochs, healing, theirs, made_before)
        self._keep(self._corrector.begins(self._state))
        disposed = restored = 0
        published: set[Publication] = set()
        for key, made in correcting.corrections():
            for correction in made:
                publication = self._corrector.correct(key, correction)
                if publication is None:
                    return  # all of it once more, later
                published.add(publication)
            restored += any(one.kind is Kind.PUT for one in made)
            disposed += made[-1].kind is Kind.DELETE
        changed = Corrected(1, disposed, restored)
        until_ns = self._cache.world.now_ns + round(_STORED_SECONDS_MAX * SECOND_NS)
        self._due_ns = until_ns
        self._cache.world.occur("corrected")

        def look() -> None:
            if published <= self._cache.held_ns.keys():
                self._remove(healing, theirs, correcting, changed)
            elif self._cache.world.now_ns < until_ns:
                self._cache.later(_LOOK_SECONDS, look)

        look()

    def _remove(
        self, healing: Healing, theirs: Theirs, correcting: Correcting, changed: Corrected
    ) -> None:
        """Purge what was overruled where that is wanted; then the sides are one."""
        cache, before = self._cache, set(self._cache.held_ns)

        def done() -> None:
            removed = len(before - cache.held_ns.keys())
            self.corrected = self.corrected.plus(changed._replace(removed=removed))
            for hear in cache.on_corrected:
                hear(self.corrected)
            self._end(healing, theirs)

        if self._options.remove_history:
            cache.purge(correcting.overruled())
            cache.world.occur("history removed")
        cache.tell(done)

    def _end(self, healing: Healing, theirs: Theirs) -> None:
        if self._state.healing is healing and self._state.theirs == theirs:
            self._keep(self._state.ended())

"""Caches that keep the positions of a consumer, with the real fences; their disks are played.

A cache judges what it is sent, commits it a while later and acknowledges it then; what it did not
commit is lost when it is killed. Caches pull from each other what they lack, and judge none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.consumers import (
    Position,
    dead_letters_in,
    decode_position,
    is_claim_key,
    is_position_key,
)
from durable_cache.protocol.fences import Fences
from durable_cache.protocol.resends import RefusalReason
from durable_cache.protocol.subscriber.positions import join_positions
from durable_cache.testing.simulation.network import Network, Node, Token
from durable_cache.testing.simulation.world import World

DOMAIN = "default"
_COMMIT_SECONDS, _READ_SECONDS, _ALIGN_SECONDS, _AGAIN_SECONDS = 0.05, 0.3, 1.0, 1.0
_At = tuple[SourceId, int]


@dataclass(slots=True, eq=False)
class Receipt:
    """A position that is being written, and who said what of it."""

    sample: Sample
    acked: set[str] = field(default_factory=set)
    refused: dict[str, RefusalReason] = field(default_factory=dict)


class Writer:
    """The publisher of one member's positions, played: what is not acknowledged is sent again."""

    def __init__(
        self, node: Node, source: SourceId, keepers: Sequence[SimKeeper], wanted: int
    ) -> None:
        self.source, self.wanted = source, wanted
        self._node, self._keepers = node, keepers
        self._receipts: dict[int, Receipt] = {}
        self._next_sn = 0

    def put(self, key: str, payload: bytes, ntp64: int) -> Receipt:
        """Send a position to all caches."""
        sample = Sample(key, self.source, 1, self._next_sn, payload, ntp64=ntp64)
        self._next_sn += 1
        receipt = self._receipts[sample.sn] = Receipt(sample)
        self._send(receipt, resent=False)
        return receipt

    def _send(self, receipt: Receipt, *, resent: bool) -> None:
        for keeper in self._keepers:
            if keeper.name not in receipt.acked and keeper.name not in receipt.refused:
                self._carry(keeper, receipt, resent=resent)
        self._node.later(_AGAIN_SECONDS, lambda: self._again(receipt))

    def _carry(self, keeper: SimKeeper, receipt: Receipt, *, resent: bool) -> None:
        take = lambda: keeper.take(receipt.sample, self, resent=resent)  # noqa: E731
        self._node.network.carry(self._node.name, keeper.name, take)

    def _again(self, receipt: Receipt) -> None:
        if len(receipt.acked) < self.wanted:
            self._send(receipt, resent=True)
        else:
            self._receipts.pop(receipt.sample.sn, None)

    def told(self, keeper: str, sn: int, reason: RefusalReason | None) -> None:
        """Bring what a cache says of a position to its writer."""

        def hear() -> None:
            receipt = self._receipts.get(sn)
            if receipt is None:
                return
            if reason is None:
                receipt.acked.add(keeper)
            else:
                receipt.refused[keeper] = reason

        self._node.network.carry(keeper, self._node.name, hear)


class SimKeeper(Node):
    """One cache that stores positions; what it committed outlives its processes."""

    def __init__(
        self, world: World, network: Network, name: str, writers: dict[SourceId, Writer]
    ) -> None:
        super().__init__(world, network, name)
        self._writers = writers
        self.peers: Sequence[SimKeeper] = ()
        self.stored: dict[_At, Sample] = {}
        self._newest: dict[str, Sample] = {}
        self._fences = Fences(DOMAIN)
        self._token = Token(name, "history")

    def start(self) -> None:
        """Begin a process; what is stored is read a while later."""
        if self.running:
            return
        self.life += 1
        self.running, self.since_ns = True, self.world.now_ns
        self._fences = Fences(DOMAIN)
        self._fences.unread = True
        self.network.declare(self._token)
        self.later(self.world.random.random() * _READ_SECONDS, self._read)
        self.later(self.world.random.random() * _ALIGN_SECONDS, self._align)

    def died(self, how: str) -> None:
        if self.running:
            self.world.occur("cache killed")
            self.running, self.since_ns = False, self.world.now_ns
            self.life += 1
            self.network.withdraw(self.name)

    def _read(self) -> None:
        fences = self._fences
        claims = (one for one in self.stored.values() if is_claim_key(DOMAIN, one.key))
        known = fences.read_all([*self._newest.values(), *claims])
        fences.stored, fences.stored_claims = known
        fences.unread = False

    # What comes

    def take(self, sample: Sample, writer: Writer, *, resent: bool) -> None:
        """Judge a position, store it and say so; who sends it once more is told of a refusal."""
        reason = self._fences.refusal(sample)
        if (sample.source, sample.sn) in self.stored and reason is None:
            self._acknowledge(sample)
        elif len(self._fences.admit(SampleBatch([sample]), judged=True)):
            pause = self.world.random.random() * _COMMIT_SECONDS
            self.later(pause, lambda: self._commit(sample))
        elif resent and reason is RefusalReason.FENCED:
            self.world.occur("an earlier owner is refused")
            writer.told(self.name, sample.sn, reason)

    def _commit(self, sample: Sample) -> None:
        self._store(sample)
        self._acknowledge(sample)

    def _store(self, sample: Sample) -> None:
        self.stored[sample.source, sample.sn] = sample
        known = self._newest.get(sample.key)
        if known is None or _order(sample) > _order(known):
            self._newest[sample.key] = sample

    def _acknowledge(self, sample: Sample) -> None:
        """Say that a position is stored, unless it is an earlier owner's and came from a cache."""
        if len(self._fences.acknowledged(sample.source, [(sample.sn, sample.sn)])):
            self._writers[sample.source].told(self.name, sample.sn, None)

    def _align(self) -> None:
        """Pull what another cache holds and this one does not."""
        self.later(self.world.random.random() * _ALIGN_SECONDS, self._align)
        if not self.peers:
            return
        peer = self.world.random.choice(self.peers)
        back = self.network

        def answer() -> None:
            held = list(peer.stored.values())
            back.carry(peer.name, self.name, lambda: self._pulled(held))

        self.network.carry(self.name, peer.name, answer)

    def _pulled(self, held: Iterable[Sample]) -> None:
        lacking = [one for one in held if (one.source, one.sn) not in self.stored]
        if not lacking:
            return
        self.world.occur("pulled")
        self._fences.admit(SampleBatch(lacking), judged=False)
        for sample in lacking:
            self._commit(sample)

    # What is asked

    def answer(self) -> Iterator[tuple[str, list[Sample]]]:
        """Yield the newest of each key."""
        newest = self._newest.values()
        yield self.name, [one for one in newest if not _is_letter(one)]

    def answer_all(self) -> Iterator[tuple[str, list[Sample]]]:
        """Yield positions and claims, as deep as they are."""
        yield self.name, [one for one in self.stored.values() if not _is_letter(one)]

    def letters(self) -> dict[str, bytes]:
        """Return the dead letters that this cache holds, by their keys."""
        return {key: one.payload for key, one in self._newest.items() if _is_letter(one)}

    def positions(self) -> list[Position]:
        """Return where the consumer stands by this cache alone."""
        read = (one for one in self._newest.values() if is_position_key(DOMAIN, one.key))
        return join_positions(decode_position(one.payload) for one in read)


def _is_letter(sample: Sample) -> bool:
    return dead_letters_in(SampleBatch([sample]), DOMAIN) == 1


def _order(sample: Sample) -> tuple[int, SourceId, int]:
    return sample.ntp64, sample.source, sample.sn

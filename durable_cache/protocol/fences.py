"""Which positions of durable consumers a cache refuses: those of an earlier owner (ADR 0163).

A member that others took for dead may write where it stood long after its sources went to another
one. It does not know, and its stamp is the later one: to who asks for the newest position of a run,
it would hide what the owner confirmed since. So a cache takes no position that an earlier fence
wrote than the one it knows of that run. What other caches hold is taken as it is, or caches would
never be alike.

Of an exclusive consumer a cache takes no position of an earlier fence than the one that was claimed
there (ADR 0196), whichever run it is of and however often it was rewound. Of two claims of one
fence it takes the first. What it holds of an earlier owner because other caches held it, it does
not acknowledge: a majority that acknowledged is one that took it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Kind, Sample, SampleBatch, SourceId
from durable_cache.protocol.consumers import (
    Position,
    Weight,
    claim_of,
    decode_position,
    is_claim_key,
    is_position_key,
    run_key_of,
)
from durable_cache.protocol.majority import CLAIM_MARGIN_NTP64
from durable_cache.protocol.resends import RefusalReason

FENCES_MAX = 100_000
"""Runs whose fence a cache knows, about 20 MB; of those met first, any position is taken then. As
many sources may be claimed; claims to further ones are refused."""
_WITHHELD_MAX = 10_000
"""Writers some of whose positions are not acknowledged."""
_UNKNOWN = Weight(0, 0)
_OURS = "@durable/"


class Claim(NamedTuple):
    """Who has a source of an exclusive consumer, as far as a cache knows."""

    fence: int
    ntp64: int
    """The latest stamp that goes with the fence."""
    writer: SourceId


class Known(NamedTuple):
    """What is known by the keys of runs, as `run_key_of` gives them, and by those of claims."""

    weights: dict[str, Weight]
    claims: dict[str, Claim]


class Fences:
    """The rewinds and the fence of each position that is known; `admit` owned by one thread.

    `refusal` may be asked, and what was stored be told, by any thread.
    """

    def __init__(self, domain: str, fences_max: int = FENCES_MAX) -> None:
        self._domain, self._fences_max = domain, fences_max
        self._newest: dict[str, Weight] = {}
        self._claims: dict[str, Claim] = {}
        self._withheld: dict[SourceId, RangeSet] = {}
        """Numbers of positions and claims of earlier owners that other caches held."""
        self.stored: Mapping[str, Weight] = {}
        """What was stored before anything was admitted; replaced, never changed."""
        self.stored_claims: Mapping[str, Claim] = {}
        self.unread = False
        """What is stored is not known yet: nothing of exclusive consumers can be judged."""
        self.refused = 0
        """Positions that were not admitted."""

    def admit(self, batch: SampleBatch, *, judged: bool) -> SampleBatch:
        """Return a batch without positions of earlier owners; all of it where not `judged`."""
        older: set[int] = set()
        for sample in batch:
            position = self._read(sample)
            if position is None:
                continue
            reason = self._refusal(sample, position)
            if reason is None:
                self._learn(sample, position)
                continue
            older.add(id(sample))
            if not judged:
                if position.exclusive:
                    self._withhold(sample)
                self._learn(sample, position)
        if not older or not judged:
            return batch
        self.refused += len(older)
        return SampleBatch(sample for sample in batch if id(sample) not in older)

    def refusal(self, sample: Sample) -> RefusalReason | None:
        """Tell why a sample is not taken that its publisher sends; None where it is."""
        position = self._read(sample)
        return None if position is None else self._refusal(sample, position)

    def acknowledged(self, writer: SourceId, runs: Iterable[tuple[int, int]]) -> RangeSet:
        """Return which numbers of a publisher may be acknowledged of those that are held."""
        held, withheld = RangeSet(runs), self._withheld.get(writer)
        return held if withheld is None else held.difference(withheld)

    def read_all(self, samples: Iterable[Sample], found: Known | None = None) -> Known:
        """Return what positions and claims among samples say, with what was found before."""
        found = found or Known({}, {})
        for sample in samples:
            position = self._read(sample)
            if position is None:
                continue
            if not is_claim_key(self._domain, sample.key):
                key = run_key_of(sample.key)
                found.weights[key] = _heavier(found.weights.get(key, _UNKNOWN), position.weight)
            if position.exclusive:
                key = self._claim_key(sample)
                found.claims[key] = _later(found.claims.get(key), _claim(sample, position))
        return found

    def _refusal(self, sample: Sample, position: Position) -> RefusalReason | None:
        if position.exclusive and self.unread:
            return RefusalReason.LATER
        key = self._claim_key(sample)
        claim = self._claim_to(key)
        if not is_claim_key(self._domain, sample.key):
            older = position.weight.is_less(self._known(run_key_of(sample.key)))
            older |= claim is not None and position.fence < claim.fence
            return RefusalReason.FENCED if older else None
        if claim is None:
            has_room = len(self._claims) + len(self.stored_claims) < self._fences_max
            return None if has_room else RefusalReason.FULL
        return RefusalReason.FENCED if _is_taken(claim, _claim(sample, position)) else None

    def _known(self, key: str) -> Weight:
        return _heavier(self._newest.get(key, _UNKNOWN), self.stored.get(key, _UNKNOWN))

    def _claim_to(self, key: str) -> Claim | None:
        stored = self.stored_claims.get(key)
        known = self._claims.get(key)
        return known if stored is None else _later(known, stored)

    def _claim_key(self, sample: Sample) -> str:
        is_claim = is_claim_key(self._domain, sample.key)
        return sample.key if is_claim else claim_of(sample.key)

    def _learn(self, sample: Sample, position: Position) -> None:
        if position.exclusive:
            key = self._claim_key(sample)
            if key in self._claims or len(self._claims) < self._fences_max:
                self._claims[key] = _later(self._claims.get(key), _claim(sample, position))
        if is_claim_key(self._domain, sample.key):
            return
        key = run_key_of(sample.key)
        if key not in self._newest and len(self._newest) >= self._fences_max:
            del self._newest[next(iter(self._newest))]
        self._newest[key] = _heavier(self._newest.get(key, _UNKNOWN), position.weight)

    def _withhold(self, sample: Sample) -> None:
        withheld = self._withheld.setdefault(sample.source, RangeSet())
        withheld.add(sample.sn, sample.sn)
        if len(self._withheld) > _WITHHELD_MAX:
            del self._withheld[next(iter(self._withheld))]

    def _read(self, sample: Sample) -> Position | None:
        """Return the position or the claim that a sample is; None for anything else."""
        if not sample.key.startswith(_OURS):  # nearly every sample, and each is looked at
            return None
        is_ours = is_position_key(self._domain, sample.key) or is_claim_key(
            self._domain, sample.key
        )
        if not is_ours or sample.kind is not Kind.PUT:
            return None
        try:
            return decode_position(sample.payload)
        except RemoteProtocolError:
            return None  # it is stored as any sample; who reads it says what is wrong


def _heavier(known: Weight, other: Weight) -> Weight:
    return other if known.is_less(other) else known


def _claim(sample: Sample, position: Position) -> Claim:
    return Claim(position.fence, sample.ntp64, sample.source)


def _later(known: Claim | None, other: Claim) -> Claim:
    """Return what is known of a source that two claims are to, or positions."""
    if known is None or other.fence > known.fence:
        return other
    if other.fence < known.fence:
        return known
    return known._replace(ntp64=max(known.ntp64, other.ntp64))


def _is_taken(known: Claim, wanted: Claim) -> bool:
    """Tell whether a claim cannot be had: the source is claimed by such a fence, or a later one."""
    if known.writer == wanted.writer:
        return wanted.fence < known.fence
    return wanted.fence <= known.fence or wanted.ntp64 < known.ntp64 + CLAIM_MARGIN_NTP64

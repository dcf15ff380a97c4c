"""What becomes of two sides of a network that both went on while they could not see each other.

A *partition* is a cache's token that went and came back while both sides stored something. *Theirs*
is then every sample from the time of the partition that this cache did not have when the token was
back; it is noted before it is stored, so that a crash loses no note. When the sides hold the same
samples, the *master* corrects what the union says: with deletes and puts of its own, which are
samples like any other and stand right behind the newest one they overrule. So whoever reads goes by
the one order of samples and needs to know nothing of policies (ADR 0142).

Pure: `SplitBrain` is told what happened and returns what is to be kept durably; `corrections` is a
function of three samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, assert_never

import msgspec

from durable_cache.model.newest import is_update
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Kind, Sample, SampleBatch, SourceId, Stream
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.protocol.alignment.announcements import PeerStatus
from durable_cache.protocol.wire import own_key

_NOTICED_NS = 30_000_000_000
"""A link that went silent is noticed after Zenoh's lease, 10 s unless configured, and later where
three leases are awaited; a cache that was restarted says so at once."""
_ON_ITS_WAY_NS = 1_000_000_000
"""So long before the healing a live sample of this side may have been published that comes after
it; what another cache gives says when it was first received."""
_HEALING = "healing"


class MergePolicy(Enum):
    """What healing does with instances, by OpenSplice's names."""

    IGNORE = "ignore"
    """Alignment leaves the sides as they are."""
    MERGE = "merge"
    """Both sides hold the union, and the newest sample of a key is its value."""
    DELETE = "delete"
    """Every instance of both sides is disposed."""
    REPLACE = "replace"
    """Every instance is disposed and then has the value it had on the master's side, if any."""
    CATCH_UP = "catch-up"
    """Every instance has the value it had on the master's side; those it had not are disposed."""

    @property
    def decides(self) -> bool:
        """Whether a master corrects what the union says."""
        return self not in (MergePolicy.IGNORE, MergePolicy.MERGE)


@dataclass(frozen=True, slots=True)
class SplitBrainOptions:
    """What one cache does about partitions; the same policy is meant for all of a domain."""

    policy: MergePolicy = MergePolicy.MERGE
    master_priority: int = 0
    """The cache in reach with the greatest is the master; of equal ones the greatest cache_id."""
    remove_history: bool = False
    """Purge what the policy overruled; False keeps every sample."""
    streams_max: int = 100_000
    """Streams of the other side that are noted; samples of further ones merge."""


class Correction(NamedTuple):
    """A sample that the master publishes under the key of `stands_behind`."""

    kind: Kind
    value: Sample
    """Whose payload, encoding and attachment a put has."""
    unix_ns: int
    """Its timestamp: right behind the newest sample of the key."""


def corrections(
    policy: MergePolicy, newest: Sample, mine: Sample | None, *, is_theirs: bool, healed_ns: int
) -> tuple[Correction, ...]:
    """Return what makes the newest sample of a key what the policy says.

    `newest` is the key's newest sample in the union and `mine` the newest that the master's side
    had; `is_theirs` tells whether `newest` is the other side's. What was published after
    `healed_ns` stands. Where the corrections were made already there are none, except for
    `replace`, which disposes again.
    """
    at = ntp64_to_ns(newest.ntp64) + 1
    if at > healed_ns:
        return ()
    dispose = (Correction(Kind.DELETE, newest, at),) if newest.kind is Kind.PUT else ()
    value = None if mine is None or mine.kind is Kind.DELETE else mine
    match policy:
        case MergePolicy.IGNORE | MergePolicy.MERGE:
            return ()
        case MergePolicy.DELETE:
            return dispose
        case MergePolicy.REPLACE:
            return dispose if value is None else (*dispose, Correction(Kind.PUT, value, at + 1))
        case MergePolicy.CATCH_UP:
            if not is_theirs:
                return ()
            return dispose if value is None else (Correction(Kind.PUT, value, at),)
        case _:
            assert_never(policy)


class Facts(NamedTuple):
    """What is to be kept durably, by name, and which names are to be forgotten."""

    kept: dict[str, str]
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.kept or self.gone)


class _Away(msgspec.Struct, frozen=True):
    """A cache whose token went."""

    since_ns: int
    incarnation: str
    went_on: bool = False
    """This side stored something since."""


class Healing(msgspec.Struct, frozen=True):
    """Caches that are back after both sides went on, and what is theirs is still to come."""

    since_ns: int
    """What was published before is nobody's in particular."""
    healed_ns: int
    peers: tuple[str, ...]


class SplitBrainToken(NamedTuple):
    """A cache that has a policy, and how its master is chosen."""

    cache_id: str
    incarnation: str
    """New with each start of the process: one that comes back was cut off, not restarted."""
    priority: int


def split_brain_token(domain: str, token: SplitBrainToken) -> str:
    """Return the liveliness token of a cache with a policy."""
    return own_key(domain, "split_brain", token.cache_id, token.incarnation, str(token.priority))


def parse_split_brain_token(key: str, domain: str) -> SplitBrainToken | None:
    """Read such a token; None when it is none of this domain or malformed."""
    prefix = own_key(domain, "split_brain", "")
    parts = key.removeprefix(prefix).split("/") if key.startswith(prefix) else []
    if len(parts) != 3 or not re.fullmatch(r"[0-9]{1,9}", parts[2]):
        return None
    return SplitBrainToken(parts[0], parts[1], int(parts[2]))


class SplitBrain:
    """What one cache knows of partitions; its owner's lock keeps callers apart.

    Times are Unix nanoseconds of this cache's clock. What a method returns is to be durable before
    what it was told of is stored; telling it again does no harm.
    """

    def __init__(
        self, options: SplitBrainOptions, cache_id: str, kept: Mapping[str, str], peers_max: int
    ) -> None:
        self.options = options
        self._own = (options.master_priority, cache_id)
        self._peers_max = peers_max
        self._present: dict[str, SplitBrainToken] = {}
        self._away: dict[str, _Away] = {}
        self.healing: Healing | None = None
        self.ignored: dict[str, int] = {}
        """Before when what each peer first received is not pulled; only with `ignore`."""
        self.theirs: dict[Stream, RangeSet] = {}
        """The other side's samples that came since."""
        self.left_out = 0
        """Samples of streams beyond `streams_max`: they merge."""
        self.own_sources: set[SourceId] = set()
        """Whose samples are corrections of this cache's own."""
        self.made: dict[tuple[SourceId, int], int] = {}
        """From which number on the samples of a source and epoch correct what is healed now."""
        for name, value in kept.items():
            self._read(name, value)

    def _read(self, name: str, value: str) -> None:
        kind, _, rest = name.partition(" ")
        if kind == "away":
            self._away[rest] = msgspec.json.decode(value, type=_Away)
        elif kind == _HEALING:
            self.healing = msgspec.json.decode(value, type=Healing)
        elif kind == "ignored" and self.options.policy is MergePolicy.IGNORE:
            self.ignored[rest] = msgspec.json.decode(value, type=int)
        elif kind == "theirs":
            key, zid, eid, epoch = msgspec.json.decode(rest, type=tuple[str, str, int, int])
            runs = msgspec.json.decode(value, type=list[tuple[int, int]])
            self.theirs[Stream(key, SourceId(zid, eid), epoch)] = RangeSet(runs)
        elif kind == "made":
            zid, eid, epoch = msgspec.json.decode(rest, type=tuple[str, int, int])
            self.made[SourceId(zid, eid), epoch] = msgspec.json.decode(value, type=int)
            self.own_sources.add(SourceId(zid, eid))

    def gone(self, token: SplitBrainToken, now_ns: int) -> Facts:
        """Another cache's token went."""
        cache_id, incarnation, _ = token
        present = self._present.get(cache_id)
        if present is None or present.incarnation != incarnation:
            return Facts({})
        del self._present[cache_id]
        away = _Away(now_ns, incarnation)
        healing = self.healing
        if healing is not None and cache_id in healing.peers:
            # What it had alone may still be to come: it counts from the earlier parting on.
            away = _Away(healing.since_ns + _NOTICED_NS, incarnation, went_on=True)
        forgotten: tuple[str, ...] = ()
        if len(self._away) >= self._peers_max and cache_id not in self._away:
            oldest = min(self._away, key=lambda name: self._away[name].since_ns)
            del self._away[oldest]
            forgotten = (f"away {oldest}",)
        self._away[cache_id] = away
        return Facts({f"away {cache_id}": _text(away)}, forgotten)

    def seen(self, token: SplitBrainToken, now_ns: int) -> Facts:
        """Another cache's token came."""
        cache_id, incarnation, _ = token
        self._present[cache_id] = token
        away = self._away.pop(cache_id, None)
        if away is None:
            return Facts({})
        gone = (f"away {cache_id}",)
        if not away.went_on:
            return Facts({}, gone)
        if self.options.policy is MergePolicy.IGNORE:
            return self._ignore(cache_id, now_ns, gone)
        # A process that went on had its link cut, and that is noticed late.
        late = _NOTICED_NS if away.incarnation == incarnation else 0
        since_ns, peers = away.since_ns - late, {cache_id}
        if self.healing is not None:
            since_ns = min(since_ns, self.healing.since_ns)
            peers |= {*self.healing.peers}
        self.healing = Healing(since_ns, now_ns, tuple(sorted(peers)))
        return Facts({_HEALING: _text(self.healing)}, gone)

    def _ignore(self, cache_id: str, now_ns: int, gone: tuple[str, ...]) -> Facts:
        if len(self.ignored) >= self._peers_max and cache_id not in self.ignored:
            oldest = min(self.ignored, key=self.ignored.__getitem__)
            del self.ignored[oldest]
            gone = (*gone, f"ignored {oldest}")
        self.ignored[cache_id] = now_ns
        return Facts({f"ignored {cache_id}": _text(now_ns)}, gone)

    def storing(self, batch: SampleBatch) -> Facts:
        """These are about to be stored, and were not before."""
        kept: dict[str, str] = {}
        for cache_id, away in self._away.items():
            if not away.went_on and any(s.received_ns >= away.since_ns for s in batch):
                self._away[cache_id] = msgspec.structs.replace(away, went_on=True)
                kept[f"away {cache_id}"] = _text(self._away[cache_id])
        if self.healing is not None:
            for stream in self._note(self.healing, batch):
                kept[_name(stream)] = _text([*self.theirs[stream]])
        return Facts(kept)

    def _note(self, healing: Healing, batch: SampleBatch) -> set[Stream]:
        noted: set[Stream] = set()
        for sample in batch:
            if not _is_theirs(sample, healing) or is_update(sample.key):
                continue
            if sample.source in self.own_sources:
                continue
            stream = sample.stream
            if stream not in self.theirs and len(self.theirs) >= self.options.streams_max:
                self.left_out += 1
                continue
            self.theirs.setdefault(stream, RangeSet()).add(sample.sn, sample.sn)
            noted.add(stream)
        return noted

    def in_reach(self, cache_id: str) -> bool:
        """Tell whether a cache is there that has a policy that decides."""
        return cache_id in self._present

    def is_master(self, in_common: Iterable[str]) -> bool:
        """Tell whether this cache corrects, of those in reach that keep some of the same keys."""
        ranks = [
            (self._present[name].priority, name) for name in in_common if name in self._present
        ]
        return all(rank < self._own for rank in ranks)

    def decides(self, peers: Iterable[PeerStatus], now_ns: int, quiet_ns: int) -> bool | None:
        """Tell whether this cache is the one to correct; None while that is not to be said yet.

        It is once what both sides had when they met is in their announced roots, `quiet_ns` later,
        and the roots of all in reach are equal.
        """
        healing = self.healing
        if healing is None or now_ns < healing.healed_ns + quiet_ns:
            return None
        sharing = [peer for peer in peers if peer.live and peer.in_common and not peer.refused]
        there = any(map(self.in_reach, healing.peers))
        if not there or any(peer.equal is not True for peer in sharing):
            return None
        return self.is_master(peer.cache_id for peer in sharing)

    def correcting(self, source: SourceId, epoch: int, sn: int) -> Facts:
        """A correction of this number is about to be published.

        One may be stored and the next lost in a crash: what this cache had itself is then to be
        told from what it published.
        """
        if (source, epoch) in self.made:
            return Facts({})
        self.own_sources.add(source)
        self.made[source, epoch] = sn
        return Facts({_made(source, epoch): _text(sn)})

    def ended(self) -> Facts:
        """The sides are one again: what was theirs was corrected, or another cache does that."""
        gone = [_HEALING, *map(_name, self.theirs), *(_made(*run) for run in self.made)]
        self.healing, self.theirs, self.made = None, {}, {}
        return Facts({}, tuple(gone))


def _is_theirs(sample: Sample, healing: Healing) -> bool:
    published_ns = ntp64_to_ns(sample.ntp64)
    if not healing.since_ns <= published_ns <= healing.healed_ns:
        return False
    return (
        sample.received_ns < healing.healed_ns or published_ns < healing.healed_ns - _ON_ITS_WAY_NS
    )


def _name(stream: Stream) -> str:
    return f"theirs {_text((stream.key, *stream.source, stream.epoch))}"


def _made(source: SourceId, epoch: int) -> str:
    return f"made {_text((*source, epoch))}"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()

"""What a comparison still has to get: from its peer, and from whoever else may have it.

Theory of operation (ADR 0043, 0045). `asks` holds, for each peer, the runs that are still to come
from it. A page asks for a part of them, newest first, and what the reply says of a number ends the
asking in one of three ways: the sample itself (*served*), "I do not retain it" (*absent*), "it is
older than you want" (*old*). What a reply does not mention means nothing and is asked for again,
unless the whole reply brought nothing: then the rest is given up for this comparison, so that it
ends. Nothing beyond the question is believed. What this cache does not take, as its payload is too
large here, is refused once and not asked for again (ADR 0280).

What the peer compared with knows and does not retain becomes a *quest*: every other peer whose
scope has the stream is asked, and only when each said *absent* for all of it is the rest
unrecoverable. A peer that fails, or leaves numbers open, ends the quest without a conclusion. What
is old is unrecoverable for this cache at once: it is beyond its age limit.

No name tells the runs of a foreign publisher apart: two caches may have two of them without an
epoch, or by one. With what is missing of a run that no sample here names, and no token as far as
the peer said, the numbers are asked for that lie next to it and are here: whoever lets samples in
compares them (ADR 0214, 0301, 0288).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Stream
from durable_cache.protocol.alignment.events import AlignerOptions
from durable_cache.protocol.alignment.knowledge import FlatRuns, count_of, flat, ranges
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.packing import unsqueeze
from durable_cache.protocol.alignment.wire import PullReply
from durable_cache.protocol.wire import decode_batch, with_own_names

Items = tuple[tuple[int, FlatRuns], ...]
"""(place, flat runs) of what is asked for."""
_RUNS_ASKED_MAX = 2048
_SN_END = 1 << 36
_NOTHING = RangeSet()


class _Quest:
    """Numbers that one peer knows and does not retain, until every other was asked."""

    __slots__ = ("absent", "peers")

    def __init__(self, absent: RangeSet, peers: set[str]) -> None:
        self.absent = absent
        self.peers = peers


class Pulls:
    """Runs to ask for, by peer; owned by its comparison."""

    def __init__(self, ledger: Ledger, peer: str, options: AlignerOptions) -> None:
        self._ledger, self._peer, self._options = ledger, peer, options
        self.asks: dict[str, OrderedDict[int, RangeSet]] = {peer: OrderedDict()}
        self.latest: OrderedDict[int, int] = OrderedDict()
        """Streams new here: their newest sample comes first, so that they are of use early."""
        self.quests: dict[int, _Quest] = {}
        self.names: dict[int, Stream] = {}
        self._names_max = 2 * options.wants_max
        self._beside: dict[int, RangeSet] = {}
        """What the last page asks for though it is here."""
        self._leaves_no_room: set[int] = set()
        """Where what is here filled a page: it is not asked for again."""
        self.offered = self.unrecoverable = 0
        self.refused = 0
        """Samples that came and were left out, for no storage can hold them, or not this one."""
        self.refusal = ""
        """Why the last of them was."""

    @property
    def full(self) -> bool:
        """Whether nothing more should be looked for before some of this has come."""
        return len(self.asks[self._peer]) >= self._options.wants_max

    @property
    def left(self) -> bool:
        """Whether there is anything to ask for."""
        return any(self.asks.values())

    def stream(self, place: int) -> Stream | None:
        """Return the stream at a place, as far as it is known by name."""
        record = self._ledger.records.get(place)
        return record.stream if record is not None else self.names.get(place)

    def name(self, place: int, stream: Stream) -> None:
        """Remember a stream's name until it is known otherwise."""
        self.names[place] = stream
        if len(self.names) > self._names_max:
            known = self._ledger.records
            self.names = {at: name for at, name in self.names.items() if at not in known}
            self._names_max = max(self._names_max, 2 * len(self.names))

    def want(self, place: int, runs: RangeSet, *, fresh: bool = False) -> None:
        """Ask the peer compared with for runs; the newest first where the stream is new here."""
        self.asks[self._peer].setdefault(place, RangeSet()).update(runs)
        if fresh:
            self.latest[place] = runs.last or 0

    def seek(self, place: int, absent: RangeSet, peers: set[str]) -> None:
        """Ask every other peer that may have what this one does not retain.

        What none of them retains is unrecoverable.
        """
        if not peers:
            self.add_unrecoverable(place, absent)
            return
        quest = self.quests.get(place)
        if quest is not None:
            quest.absent.update(absent)
        else:
            self.quests[place] = _Quest(absent.copy(), peers)
        for peer in sorted(peers):
            items = self.asks.setdefault(peer, OrderedDict())
            items.setdefault(place, RangeSet()).update(absent)

    def next_latest(self) -> Items:
        """Take the newest samples of fresh streams, one page of them."""
        count = min(len(self.latest), self._options.page_items_max)
        chosen = [self.latest.popitem(last=False) for _ in range(count)]
        return tuple((place, (sn, sn)) for place, sn in chosen)

    def next_page(self) -> tuple[str, Items] | None:
        """Return whom to ask for what next; it stays asked for until it came."""
        for peer, asks in self.asks.items():
            items = []
            left = self._options.page_samples_max
            self._beside.clear()
            for place, runs in islice(asks.items(), self._options.page_items_max):
                if left <= 0:
                    break
                left -= runs.count
                asked = ranges(flat(runs)[-2 * _RUNS_ASKED_MAX :])
                if beside := self._held_beside(place, asked):
                    self._beside[place] = beside
                    asked.update(beside)
                items.append((place, flat(asked)))
            if items:
                return peer, tuple(items)
        return None

    def take(self, peer: str, items: Items, reply: PullReply) -> SampleBatch:
        """Take a page that was asked for with `items`; returns its samples."""
        asks: dict[int, RangeSet] = self.asks.get(peer, OrderedDict())
        need = {place: ranges(runs) for place, runs in items}
        given, refused = self._screened(
            self._asked_for(unsqueeze(reply.batch, reply.unpacked), need)
        )
        self._ledger.hear_names(with_own_names(reply.incarnations, given))
        batch = self._missing(given)
        for place, beside in self._beside.items():
            if place in need:
                need[place] = need[place].difference(beside)
        served = {
            self._ledger.place(stream): RangeSet.of(sample.sn for sample in samples)
            for stream, samples in batch.by_stream.items()
        }
        absent = _clipped(reply.absent, need)
        old = _clipped(reply.old, need)
        progress = bool(len(batch) or absent or old or refused)
        if len(given) and not progress:  # the page had room for nothing else
            self._leaves_no_room.update(self._beside)
            return batch
        for place in need:
            left = asks.get(place)
            if left is None:
                continue
            for runs in (parts.get(place) for parts in (served, absent, old, refused)):
                for first, last in runs or ():
                    left.remove(first, last)
            if not left or not progress:
                del asks[place]
                self.latest.pop(place, None)
            self._answered(place, peer, served.get(place), open_still=bool(left and not progress))
            if not left:
                self._lacks(place, peer)
        for place, runs in old.items():
            self.add_unrecoverable(place, runs)
        self.offered += len(batch)
        for place, runs in refused.items():
            stream = self.stream(place)
            if stream is not None:
                self.refused += self._ledger.refuse(stream, runs)
        return given if len(batch) else batch

    def _screened(self, given: SampleBatch) -> tuple[SampleBatch, dict[int, RangeSet]]:
        """Return what this cache takes, and the numbers of the rest by place."""
        reasons = [self._ledger.refusal(sample) for sample in given]
        if not any(reasons):
            return given, {}
        taken, refused = [], dict[int, RangeSet]()
        for sample, reason in zip(given, reasons, strict=True):
            if not reason:
                taken.append(sample)
                continue
            self.refusal = reason
            place = self._ledger.place(sample.stream)
            refused.setdefault(place, RangeSet()).add(sample.sn, sample.sn)
        return SampleBatch(taken), refused

    def _held_beside(self, place: int, asked: RangeSet) -> RangeSet:
        """Return the numbers next to what is asked for that are here, of a run without a token."""
        record = self._ledger.records.get(place)
        first, last = asked.first, asked.last
        if record is None or first is None or last is None:
            return RangeSet()
        if self._ledger.is_named(record) or place in self._leaves_no_room:
            return RangeSet()
        held = self._ledger.current(record)
        beside = (held.clip(0, first - 1).last, held.clip(last + 1, _SN_END).first)
        return RangeSet.of(sn for sn in beside if sn is not None)

    def _missing(self, given: SampleBatch) -> SampleBatch:
        """Return what was given without what is here and was asked for beside it."""
        if not self._beside:
            return given
        places = {stream: self._ledger.place(stream) for stream in given.by_stream}
        return SampleBatch(
            sample
            for sample in given
            if sample.sn not in self._beside.get(places[sample.stream], _NOTHING)
        )

    def split(self, batch: SampleBatch) -> tuple[SampleBatch, SampleBatch]:
        """Return what is not retained here now, and what is."""
        new: list[Sample] = []
        known: list[Sample] = []
        for stream, samples in batch.by_stream.items():
            record = self._ledger.records.get(self._ledger.place(stream))
            held = RangeSet() if record is None else self._ledger.current(record)
            for sample in samples:
                (known if sample.sn in held else new).append(sample)
        return SampleBatch(new), SampleBatch(known)

    def _asked_for(self, packed: bytes, need: dict[int, RangeSet]) -> SampleBatch:
        if not packed:
            return SampleBatch()
        refused: list[str] = []
        batch = decode_batch(packed, samples_max=self._options.page_samples_max, refused=refused)
        self.refused += len(refused)
        self.refusal = refused[-1] if refused else self.refusal
        chosen = []
        for stream, samples in batch.by_stream.items():
            place = self._ledger.place(stream)
            runs = need.get(place)
            if runs is None or not self._ledger.scope.holds(stream.key):
                continue
            self.name(place, stream)
            chosen += [sample for sample in samples if sample.sn in runs]
        return SampleBatch(chosen)

    def _answered(
        self, place: int, peer: str, served: RangeSet | None, *, open_still: bool
    ) -> None:
        quest = self.quests.get(place)
        if quest is None or peer == self._peer:
            return
        for first, last in served or ():
            quest.absent.remove(first, last)
        if open_still:
            del self.quests[place]  # no answer is not "I have none"

    def _lacks(self, place: int, peer: str) -> None:
        quest = self.quests.get(place)
        if quest is not None and peer != self._peer:
            quest.peers.discard(peer)

    def drop_peer(self, cache_id: str) -> None:
        """Do not ask another peer any more; what it was to be asked for stays open."""
        for place in self.asks.pop(cache_id, {}):
            self.quests.pop(place, None)

    def conclude(self) -> None:
        """Call unrecoverable what every other peer was asked for in vain."""
        for place, quest in self.quests.items():
            if not quest.peers:
                self.add_unrecoverable(place, quest.absent)

    def add_unrecoverable(self, place: int, runs: RangeSet) -> None:
        """Note that nobody reachable has `runs`."""
        stream = self.stream(place)
        if stream is not None and self._options.pull:
            self.unrecoverable += self._ledger.add_unrecoverable(stream, runs)


def _clipped(
    items: tuple[tuple[int, tuple[int, ...]], ...], need: dict[int, RangeSet]
) -> dict[int, RangeSet]:
    """Return what of an answer was asked for: never believe more."""
    found = {}
    for place, runs in items:
        if place in need and count_of(runs):
            part = need[place].intersection(ranges(runs))
            if part:
                found[place] = part
    return found

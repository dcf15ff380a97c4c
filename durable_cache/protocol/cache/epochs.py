"""The one table that says under which epoch stored samples count.

A cache may store samples before it knows their epoch: a publisher's token can come after its first
samples, and two caches can name one restart of a foreign publisher differently. What is learned
later is an alias from the epoch they are stored under to the one that stands (ADR 0002, 0048).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream, zid_number
from durable_cache.protocol.cache.events import Alias, Found

_Names = dict[SourceId, tuple[Alias, ...]]
Moving = tuple[SourceId, int]
"""A source and an epoch under which samples of another one are stored."""
_NUMBER_END = 1 << 64
_MOVED_MAX = 4096
"""Epochs that nothing is stored under any more, for who read of them before they were moved."""


def found_under_any_name(found: Sequence[Found], count: int) -> list[Found]:
    """Return what a look-up of `with_other_names` says of its `count` samples themselves."""
    others = {
        (sample.source, sample.sn): stored
        for sample, stored, _ in found[:-count]
        if stored is not None
    }
    return [
        one
        if one.stored is not None
        or (other := others.get((one.sample.source, one.sample.sn))) is None
        else Found(one.sample, msgspec.structs.replace(other, epoch=one.sample.epoch))
        for one in found[-count:]
    ]


class Epochs:
    """The aliases of a cache: few, for only first samples come before their token.

    The owner's thread changes it; any thread reads, without a lock: a change puts a new table in
    place of the old one.
    """

    __slots__ = ("_moved", "_names")

    def __init__(self, aliases: Iterable[Alias] = ()) -> None:
        self._names: _Names = {}
        self._moved: dict[Moving, int] = {}
        for alias in aliases:
            self.learn(alias)

    def learn(self, alias: Alias) -> None:
        """Take an alias in place of an older one for the same stored epoch."""
        self._moved = {at: to for at, to in self._moved.items() if at != alias[:2]}
        names = self._names.get(alias.source, ())
        kept = tuple(name for name in names if name[1:3] != alias[1:3])
        self._names = {**self._names, alias.source: (*kept, alias)}

    def free(self, source: SourceId, stored: int) -> None:
        """Forget where samples stored under an epoch went: nothing is stored under it any more."""
        kept = tuple(name for name in self._names.get(source, ()) if name.stored != stored)
        names = {**self._names, source: kept}
        if not kept:
            del names[source]
        self._names = names

    def reuse(self, source: SourceId, stored: int) -> None:
        """Forget that an epoch was another's name: it is the name of another run from now on."""
        self.free(source, stored)
        self._moved = {at: to for at, to in self._moved.items() if at != (source, stored)}

    def moved(self, alias: Alias) -> None:
        """See that nothing is stored under an epoch any more: it is all under the other."""
        moved = {**self._moved, (alias.source, alias.stored): alias.epoch}
        if len(moved) > _MOVED_MAX:
            del moved[next(iter(moved))]
        self._moved = moved

    def now(self) -> Epochs:
        """Return the table as it is at this moment; it does not change."""
        epochs = Epochs()
        epochs._names, epochs._moved = self._names, self._moved
        return epochs

    def __bool__(self) -> bool:
        """Tell whether any epoch has or had another name."""
        return bool(self._names or self._moved)

    def is_same(self, other: Epochs) -> bool:
        """Tell whether nothing changed since."""
        return self._names is other._names

    def unmoved(self) -> Iterator[Moving]:
        """Yield each epoch under which samples of another one may be stored."""
        for source, names in self._names.items():
            for stored in {name.stored for name in names}:
                if (source, stored) not in self._moved:
                    yield source, stored

    def moved_to(self, source: SourceId, epoch: int) -> int | None:
        """Return where all that was stored under an epoch went; None: nowhere, or unknown."""
        return self._moved.get((source, epoch))

    def renamed_from(self, source: SourceId, stored: int) -> list[int]:
        """Return the numbers at which what is stored under an epoch becomes another's."""
        return [name.from_sn for name in self._names.get(source, ()) if name.stored == stored]

    def lost(self, source: SourceId) -> list[int]:
        """Return the epochs of a source whose samples count under another one."""
        return [name.stored for name in self._names.get(source, ())]

    def numbers_of(self, epoch: int, stored: Stream, runs: RangeSet) -> RangeSet:
        """Return those of `runs`, stored in a stream, that count under an epoch."""
        source = stored.source
        cuts = {0, *(name.from_sn for name in self._names.get(source, ()))}
        counted = RangeSet()
        for first, following in pairwise([*sorted(cuts), _NUMBER_END]):
            if self.canonical(source, stored.epoch, first) == epoch:
                counted.update(runs.clip(first, following - 1))
        return counted

    def find_source(self, zid: object, eid: object) -> SourceId | None:
        """Return the source of these numbers if any of its epochs has or had another name."""
        for source in chain(self._names, (source for source, _ in self._moved)):
            if source.eid == eid and zid_number(source.zid) == zid:
                return source
        return None

    def calls_alike(self, before: Epochs, source: SourceId, epoch: int) -> bool:
        """Tell whether what was read under an epoch is still all of that epoch and called so."""
        now, then = set(self._names.get(source, ())), set(before._names.get(source, ()))
        changed = now ^ then
        unsaid = (name for name in then - now if name.epoch == epoch)
        return all(name.stored != epoch for name in changed) and all(
            (source, name.stored) in self._moved for name in unsaid
        )

    def canonical(self, source: SourceId, epoch: int, sn: int = 0) -> int:
        """Return the epoch that stands for a number stored under `epoch`."""
        names = self._names.get(source, ())
        for _ in names:  # a chain is at most as long as there are aliases; a circle ends too
            found = next((n for n in names if n.stored == epoch and sn >= n.from_sn), None)
            if found is None:
                break
            epoch = found.epoch
        return epoch

    def with_other_names(self, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Return samples, and before them each under the epochs it may still be stored under.

        What is moved is stored anew before it is removed: looked up in this order it is found.
        """
        others = [
            msgspec.structs.replace(sample, epoch=stored)
            for sample in (samples if self._names else ())
            for stored in dict.fromkeys(self.lost(sample.source))
            if stored != sample.epoch
            and self.moved_to(sample.source, stored) is None
            and self.canonical(sample.source, stored, sample.sn) == sample.epoch
        ]
        return (*others, *samples)

    def canonical_stream(self, stream: Stream) -> Stream:
        """Return a stream under the epoch that stands for it."""
        epoch = self.canonical(stream.source, stream.epoch)
        return stream if epoch == stream.epoch else stream._replace(epoch=epoch)

    def canonical_batch(self, batch: SampleBatch) -> SampleBatch:
        """Give samples the epochs that stand for those they are stored under."""
        names = self._names
        if not names or not any(sample.source in names for sample in batch):
            return batch
        return SampleBatch(
            sample
            if (epoch := self.canonical(sample.source, sample.epoch, sample.sn)) == sample.epoch
            else msgspec.structs.replace(sample, epoch=epoch)
            for sample in batch
        )

    def stored_epochs(self, source: SourceId, epoch: int) -> list[int]:
        """Return the epochs under which samples that count under `epoch` may be stored."""
        names = self._names.get(source, ())
        others = (name.stored for name in names if self.canonical(source, name.stored) == epoch)
        return [epoch, *(stored for stored in others if stored != epoch)]

"""What a cache that is the master has to correct, read from what it stores.

It publishes and purges nothing: it says what is to be published behind which key, and below which
numbers a policy's history is to go. So the simulator plays the same with a network of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.newest import comes_after, is_update
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId, Stream
from durable_cache.model.selection import Order, Selection
from durable_cache.model.timestamp import ntp64_at
from durable_cache.protocol.alignment import Correction, Healing, MergePolicy, corrections
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.sized_pages import pages

_PAGE_SAMPLES = 2_000
_OURS = "@durable/"
"""Positions of durable consumers and the like: no instances of anybody."""
Theirs = dict[Stream, RangeSet]
Made = Mapping[tuple[SourceId, int], int]
"""From which number on the samples of a source and epoch are corrections."""


class Correcting:
    """One correction: `theirs` are the other side's samples, as they were noted until now.

    `made` names what an earlier try published already, which is nobody's side.
    """

    def __init__(
        self,
        policy: MergePolicy,
        store: JournaledStorage,
        epochs: Callable[[], Epochs],
        healing: Healing,
        theirs: Theirs,
        made: Made,
    ) -> None:
        self._policy, self._store, self._epochs = policy, store, epochs
        self._healing, self._made = healing, made
        self._theirs: dict[str, Theirs] = {}
        """By key, under the epochs that stand."""
        table = epochs()
        for stream, runs in theirs.items():
            canonical = table.canonical_stream(stream)
            of_key = self._theirs.setdefault(canonical.key, {})
            of_key.setdefault(canonical, RangeSet()).update(runs)

    def corrections(self) -> Iterator[tuple[str, tuple[Correction, ...]]]:
        """Yield keys with what is to be published behind them; StorageError as of a read."""
        for key in self._keys():
            theirs = self._theirs.get(key, {})
            newest, mine = self._sides(key, theirs)
            if newest is None:
                continue
            is_theirs = newest.sn in theirs.get(newest.stream, ())
            made = corrections(
                self._policy,
                newest,
                mine,
                is_theirs=is_theirs,
                healed_ns=self._healing.healed_ns,
            )
            if made:
                yield key, made

    def overruled(self) -> list[Floor]:
        """Return below what history goes, once corrections are stored; a key's newest stays."""
        floors: dict[Stream, int] = {}
        last = ntp64_at(self._healing.healed_ns)
        for key in self._keys():
            theirs = self._theirs.get(key, {})
            found: dict[Stream, int] = {s: (runs.last or 0) + 1 for s, runs in theirs.items()}
            newest = None
            for sample in self._read(Selection(KeyExpression(key), order=Order.TIME)):
                newest = sample
                if self._policy is MergePolicy.DELETE and sample.ntp64 <= last:
                    found[sample.stream] = max(found.get(sample.stream, 0), sample.sn + 1)
            if newest is not None and newest.stream in found:
                found[newest.stream] = min(found[newest.stream], newest.sn)
            floors |= found
        return [Floor(stream, sn) for stream, sn in floors.items() if sn]

    def _keys(self) -> Iterable[str]:
        """Return the keys that the policy is about, each once."""
        return self._theirs if self._policy is MergePolicy.CATCH_UP else self._every_key()

    def _every_key(self) -> Iterator[str]:
        last = ""
        for sample in self._read(Selection(newest=1)):
            if sample.key != last:  # a correction made meanwhile is found behind its key once more
                last = sample.key
                if not is_update(last) and not last.startswith(_OURS):
                    yield last

    def _sides(self, key: str, theirs: Theirs) -> tuple[Sample | None, Sample | None]:
        """Return the newest sample of a key, and the newest that is of the master's side."""
        count = 1 + sum(runs.count for runs in theirs.values())
        while True:
            read = [*self._read(Selection(KeyExpression(key), newest=count))]
            mine = newest_of(one for one in read if not self._is_overruled(one, theirs))
            if mine is not None or len(read) < count:
                return newest_of(read), mine
            count *= 2  # corrections of earlier tries lie before it

    def _is_overruled(self, sample: Sample, theirs: Theirs) -> bool:
        made = self._made.get((sample.source, sample.epoch))
        correction = made is not None and sample.sn >= made
        return correction or sample.sn in theirs.get(sample.stream, ())

    def _read(self, selection: Selection) -> Iterator[Sample]:
        for page in pages(self._store.read, selection, _PAGE_SAMPLES):
            yield from self._epochs().canonical_batch(page)


def newest_of(samples: Iterable[Sample]) -> Sample | None:
    """Return the newest of samples by the one order, if there is one."""
    newest = None
    for sample in samples:
        if newest is None or comes_after(sample, newest):
            newest = sample
    return newest

"""What the aligner needs of a cache's storage: reading for peers, taking from them, purging."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from durable_cache.endpoints.alignment.pulled import PulledStreams
from durable_cache.model.key_expression import EVERY_KEY, KeyExpression, is_verbatim
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream, sample_digest
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.alignment import Appended, RaisePurge, StreamLoaded, Trimmed
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Origin
from durable_cache.protocol.cache.names import are_twins
from durable_cache.protocol.restarts import is_later
from durable_cache.protocol.wire import Incarnation
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.index_pages import timestamps_between
from durable_cache.storage.journaled.purge_times import note_told, purged_until
from durable_cache.storage.journaled.storage import JournaledStorage

_log = logging.getLogger(__name__)
_PAGE_SAMPLES = 2_000
_FIRST_SAMPLES = 256
_PAGE_BYTES = 4 << 20
"""What is read at once, once the samples' size is known: few large ones, many small ones."""
_READ_SECONDS = 5.0
"""A page of a slow storage is what was read by then: the asker gives up after half a minute."""
_NEAR = 128
"""So many samples that nobody asked for cost less to read than another question."""
_STRETCH = 4_096
Wanted = Iterable[tuple[Stream, RangeSet]]
_NOTHING = RangeSet()
_NO_SAMPLES = SampleBatch()


class Door(Protocol):
    """Where samples of others come in, and which epochs are one."""

    @property
    def epochs(self) -> Epochs:
        """The table as it stands."""

    def offer(
        self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        """Queue what others gave, and by which epochs they call the runs of its sources."""

    def pulled_again(self, source: SourceId, epoch: int) -> None:
        """Say that another cache does not keep a run by its epoch here."""


class AlignedStore:
    """A cache's storage under the epochs that were learned for what is in it; any thread."""

    def __init__(self, store: JournaledStorage, door: Door) -> None:
        self._store = store
        self._door = door
        self._pulled = PulledStreams()
        self.pulled = 0
        self.conflicts = 0

    def streams(self) -> tuple[StreamLoaded, ...]:
        """Return what is stored of every stream, the backlog included."""
        loaded: dict[Stream, StreamLoaded] = {}
        until = purged_until(self._store.index)
        for info in self._store.index.all_infos():
            stream = self._door.epochs.canonical_stream(info.stream)
            known = loaded.get(stream)
            if known is None:
                loaded[stream] = StreamLoaded(
                    stream, info.held, info.floor, info.purged, until.get(stream, 0)
                )
            else:
                known.runs.update(info.held)
        for stored, runs in self._store.backlog.runs(Selection(EVERY_KEY)).items():
            stream = self._door.epochs.canonical_stream(stored)
            known = loaded.get(stream) or StreamLoaded(stream, RangeSet())
            known.runs.update(runs)
            loaded[stream] = known
        return tuple(loaded.values())

    def pages(self) -> Iterator[SampleBatch]:
        """Yield everything that is stored."""
        keys = {info.stream.key: None for info in self._store.index.all_infos()}
        for key in ("**", *filter(is_verbatim, keys)):
            for page in self._store.pages(Selection(KeyExpression(key)), _PAGE_SAMPLES):
                batch = page if key == "**" else SampleBatch(s for s in page if s.key == key)
                yield self._door.epochs.canonical_batch(batch)

    def canonical(self, stream: Stream) -> Stream:
        """Return a stream under the epoch that stands."""
        return self._door.epochs.canonical_stream(stream)

    def renamed(self, source: SourceId) -> Iterator[Trimmed | Appended]:
        """Yield what lets a source's samples count under the epochs that were learned for them.

        Page by page, and the storage is read no further than they are taken. Raises StorageError,
        to be tried again from the start: repeats do no harm.
        """
        for epoch in dict.fromkeys(self._door.epochs.lost(source)):
            for info in self._store.index.infos_of(source, epoch):
                stream, held = info.stream, info.held
                canonical = self._door.epochs.canonical_stream(stream)
                if canonical == stream:
                    continue
                yield Trimmed(((stream, (held.last or 0) + 1),))
                for page in _paged(self.stored([(canonical, held)])):
                    yield Appended(page)

    def stored(self, wanted: Wanted) -> Iterator[Sample]:
        """Yield what is stored of streams, under whichever epoch it was first stored.

        Newest first, stretch by stretch: numbers that lie near each other are one question, over
        all keys where several streams of a source are wanted. What is stored under two epochs that
        are one, while it is moved, comes once. The storage is read no further than the samples are
        taken.
        """
        numberings: dict[tuple[SourceId, int, str], dict[str, RangeSet]] = {}
        for stream, runs in wanted:
            # No wildcard names a verbatim key, and one timestamp's id may stamp very many keys.
            alone = is_verbatim(stream.key) or is_unnumbered(stream.source)
            keys = numberings.setdefault(
                (stream.source, stream.epoch, stream.key if alone else ""), {}
            )
            keys.setdefault(stream.key, RangeSet()).update(runs)
        for (source, epoch, _), keys in numberings.items():
            for first, last in reversed(self._stretches_of(source, epoch, keys)):
                parts = {key: runs.clip(first, last) for key, runs in keys.items()}
                asked = {key: runs for key, runs in parts.items() if runs}
                key_expr = next(iter(asked)) if len(asked) == 1 else "**"
                given: set[tuple[str, int]] = set()
                for stored in self._door.epochs.stored_epochs(source, epoch):
                    selection = Selection(
                        key_expr=KeyExpression(key_expr),
                        zid=source.zid,
                        eid=source.eid,
                        epoch=stored,
                        sns=SnBounds(first, last),
                    )
                    for sample in self._all_of(selection):
                        name = sample.key, sample.sn
                        if sample.sn in asked.get(sample.key, _NOTHING) and name not in given:
                            given.add(name)
                            yield sample

    def to_pull(
        self, wanted: Wanted, names: Iterable[Incarnation], now_seconds: float
    ) -> Iterator[Sample]:
        """Yield what another cache pulls, as `stored` does; `names` are those of its sources.

        What is pulled again the other does not keep by its name here; the door is told (ADR 0355).
        """
        asked = [*wanted]
        declared = {(source, epoch) for source, epoch, _ in names}
        nameless = (one for one in asked if (one[0].source, one[0].epoch) not in declared)
        for source, epoch in self._pulled.again(nameless, now_seconds):
            self._door.pulled_again(source, epoch)
        return self.stored(asked)

    def _stretches_of(
        self, source: SourceId, epoch: int, keys: Mapping[str, RangeSet]
    ) -> list[tuple[int, int]]:
        if not is_unnumbered(source):
            return _stretches(keys.values())
        # Between two timestamps lie very many numbers and few samples: those count here.
        ((key, wanted),) = keys.items()
        stream = Stream(key, source, epoch)
        first, last = wanted.first or 0, wanted.last or 0
        held = timestamps_between(self._store.index, stream, first, last)
        return _stretches_among(wanted, held)

    def _all_of(self, selection: Selection) -> Iterator[Sample]:
        limit = _FIRST_SAMPLES
        cursor = None
        while True:
            page = self._store.read(selection, limit, cursor)
            yield from self._door.epochs.canonical_batch(page.samples)
            cursor = page.cursor
            if cursor is None:
                return
            mean = max(1, page.samples.size // max(1, len(page.samples)))
            limit = max(1, min(_PAGE_SAMPLES, _PAGE_BYTES // mean))

    def names(self, sources: Iterable[SourceId]) -> list[Incarnation]:
        """Return by which epochs runs go here; raises StorageError, to be tried again."""
        return self._store.index.incarnations(dict.fromkeys(sources))

    def offer(
        self,
        batch: SampleBatch,
        held: SampleBatch = _NO_SAMPLES,
        names: tuple[Incarnation, ...] = (),
    ) -> SampleBatch:
        """Hand samples to the door of live ones; return what of `held` is to be compared.

        What a peer calls by the epoch that another run has here is no copy of what is held: it goes
        through the door, which knows the run by its name. So does what is here of a run that no
        token named beside what is new: it shows whether both are of one run (ADR 0214, 0301).
        Raises StorageError, to be tried again.
        """
        sources = [*(source for source, _, _ in names), *(sample.source for sample in held)]
        ours = {(source, epoch): name for source, epoch, name in self.names(sources)}
        other = {
            (source, epoch)
            for source, epoch, name in names
            if ours.get((source, epoch), name) != name
        }
        of_others = [sample for sample in held if (sample.source, sample.epoch) in other]
        new = {sample.source for sample in batch}
        named = ours.keys() | {(source, epoch) for source, epoch, _ in names}
        beside = [s for s in held if s.source in new and (s.source, s.epoch) not in named]
        self.pulled += len(batch)
        self._door.offer([*batch, *of_others, *beside], Origin.ALIGNED, names)
        if not of_others:
            return held
        return SampleBatch(s for s in held if (s.source, s.epoch) not in other)

    def compare(self, batch: SampleBatch, *, named: bool = True) -> SampleBatch:
        """Count what has another content here under the same identity; nothing is overwritten.

        Two runs of a foreign publisher that have no epoch yet, or one that caches made for each,
        contradict each other until they have their names. With `named` False such samples are
        returned, to be compared once more when there was time for that. Raises StorageError, to be
        tried again, where the storage cannot be read.
        """
        theirs = {sample.identity: sample for sample in batch}
        wanted = [
            (stream, RangeSet.of(sample.sn for sample in samples))
            for stream, samples in batch.by_stream.items()
        ]
        pairs = [(mine, theirs.get(mine.identity)) for mine in self.stored(wanted)]
        unlike = [
            (mine, other)
            for mine, other in pairs
            if other is not None and sample_digest(mine) != sample_digest(other)
        ]
        by_tokens = {name[:2] for name in self.names(mine.source for mine, _ in unlike)}
        different: list[Sample] = []
        nameless: list[Sample] = []
        for mine, other in unlike:
            if (mine.source, mine.epoch) in by_tokens or _is_of_one_put(mine, other):
                different.append(mine)
            elif not self._stored_under_another(other):
                (different if named else nameless).append(mine if named else other)
        self.conflicts += len(different)  # all at once: a comparison that fails is made again
        for mine in different:
            _log.warning("another payload at a peer", extra={"key": repr(mine.key)})
        return SampleBatch(nameless)

    def _stored_under_another(self, sample: Sample) -> bool:
        """Tell whether a sample is here, as it is, under another epoch."""
        states, _ = self._store.load(sample.source)
        others = [
            msgspec.structs.replace(sample, epoch=state.epoch)
            for state in states
            if state.epoch not in (EPOCH_UNKNOWN, sample.epoch) and sample.sn in state.held
        ]
        found = (stored for _, stored in self._store.find(others))
        return any(stored is not None and are_twins(sample, stored) for stored in found)

    def purge_times(self, streams: Iterable[Stream]) -> tuple[tuple[Stream, int], ...]:
        """Return until when what was purged was published, where that is known.

        Raises StorageError, to be tried again: a purge of a nameless run without its time would be
        carried out on whichever run another cache has so.
        """
        nameless = {stream for stream in streams if stream.epoch == EPOCH_UNKNOWN}
        found = purged_until(self._store.index) if nameless else {}
        return tuple((stream, found[stream]) for stream in nameless if stream in found)

    def purge(self, raised: RaisePurge) -> None:
        """Remove what is below, durably; raises StorageError, to be tried again."""
        self._store.purge(self.to_purge(raised))

    def to_purge(self, raised: RaisePurge) -> list[Floor]:
        """Return what of another cache's purge is to be carried out here.

        Of two runs without an epoch numbers do not tell which was purged. What is later than all of
        that run is of another, and stays; while a run gets its name, such a purge waits (ADR 0260).
        Raises StorageError, to be tried again.
        """
        until = dict(raised.purged_ntp64)
        floors = [
            Floor(stream, sn)
            for stream, sn in raised.floors
            if self._door.epochs.canonical_stream(stream) == stream
            and not self._is_of_later_run(stream, sn, until.get(stream, 0))
        ]
        told = [(f, until.get(f.stream, 0)) for f in floors if f.stream.epoch == EPOCH_UNKNOWN]
        if told:
            with self._store.index.transaction() as database:
                note_told(database, told)
        return [
            Floor(stream._replace(epoch=epoch), sn)
            for stream, sn in floors
            for epoch in self._door.epochs.stored_epochs(stream.source, stream.epoch)
        ]

    def _is_of_later_run(self, stream: Stream, floor: int, purged_ntp64: int) -> bool:
        if stream.epoch != EPOCH_UNKNOWN or not purged_ntp64 or is_unnumbered(stream.source):
            return False
        epochs = self._door.epochs.stored_epochs(stream.source, stream.epoch)
        streams = [stream._replace(epoch=epoch) for epoch in epochs]
        its_own = Selection(EVERY_KEY, *stream.source, sns=SnBounds(None, floor - 1))
        backlog = self._store.backlog.runs(its_own, frozenset(streams))
        below = RangeSet()
        for stored, info in self._store.index.infos(streams).items():
            for runs in (info.held, backlog.get(stored, _NOTHING)):
                below.update(runs.clip(0, floor - 1))
        if below.last is None:
            return False
        last = self.stored([(stream, RangeSet([(below.last, below.last)]))])
        return any(is_later(sample, purged_ntp64) for sample in last)


def _is_of_one_put(mine: Sample, other: Sample) -> bool:
    """Tell whether samples under one number have one time: those of two runs have not."""
    return (mine.ntp64, mine.timestamp_id) == (other.ntp64, other.timestamp_id)


def in_time(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield samples while there is time for more; at least one."""
    deadline = time.monotonic() + _READ_SECONDS
    for sample in samples:
        yield sample
        if time.monotonic() > deadline:
            return


def _paged(samples: Iterable[Sample]) -> Iterator[SampleBatch]:
    """Yield samples in pages of a bounded number and size."""
    page: list[Sample] = []
    size = 0
    for sample in samples:
        page.append(sample)
        size += sample.size
        if len(page) >= _PAGE_SAMPLES or size >= _PAGE_BYTES:
            yield SampleBatch(page)
            page, size = [], 0
    if page:
        yield SampleBatch(page)


def _stretches_among(wanted: RangeSet, held: RangeSet) -> list[tuple[int, int]]:
    """Return what covers unnumbered samples, where few others are held between two."""
    found: list[tuple[int, int]] = []
    count = 0
    for first, last in wanted:
        between = held.clip(found[-1][1] + 1, first - 1).count if found else 0
        count += between + 1
        if found and between <= _NEAR and count < _STRETCH:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
            count = 1
    return found


def _stretches(every: Iterable[RangeSet]) -> list[tuple[int, int]]:
    """Return what covers the numbers, in order: runs that lie near each other together."""
    union = RangeSet()
    for runs in every:
        union.update(runs)
    found: list[tuple[int, int]] = []
    for first, last in union:
        if found and first - found[-1][1] <= _NEAR and last - found[-1][0] < _STRETCH:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found

"""Reads of a cache's storage under the epochs that stand, also while samples are moved to them.

Theory of operation. Samples that are stored under an epoch that lost are stored anew under the one
that stands, and then removed (`runtime.core`, ADR 0048, 0118). Meanwhile a sample is stored once or
twice, and under its old epoch it does not stand where it belongs. So a page is merged: what is
stored under each epoch that is being moved is read by itself, renamed, and put among the rest by
the place at which it will stand; of a sample that is stored twice one is taken. Where a page ended
is always told in names that stand, so that the next page goes on right whatever was moved since.

What is moved is read before the rest: a sample is removed only where its twin is stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import msgspec

from durable_cache.errors import StorageUnavailable
from durable_cache.model.key_expression import KeyExpression, parse_update
from durable_cache.model.newest import newest_per_key
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream, zid_number
from durable_cache.model.selection import Cursor, Order, Selection, SnBounds
from durable_cache.model.sequence import UNNUMBERED_SN_MAX
from durable_cache.protocol.cache.epochs import Epochs, Moving
from durable_cache.storage.contract import Page
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.sized_pages import pages

_Read = Callable[[Selection, int, Cursor | None], Page]
_Found = dict[Cursor, Sample]
_MOVING_MAX = 1024
"""Epochs that one page is merged from; each costs a read of the backend."""
_KEYS_MAX = 1024
"""Keys whose newest samples are looked for one by one while some of them are moved."""
_PART_SAMPLES_MIN = 64


class _Missed(Exception):
    """Streams turned up that are to be read by themselves."""

    def __init__(self, streams: set[Stream]) -> None:
        self.streams = streams


class _Part(NamedTuple):
    """Numbers that are stored under one epoch and are of another."""

    source: SourceId
    stored: int
    sns: SnBounds
    epoch: int


class NamedReading:
    """Reads under the epochs that stand; any thread.

    `read` reads a page of `store` as it is stored, perhaps less of it than there is.
    """

    def __init__(self, store: JournaledStorage, epochs: Epochs, read: _Read) -> None:
        self._store = store
        self._epochs = epochs
        self._read = read

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return a page as `Storage.read` does, each sample once and in order.

        Raises StorageUnavailable, ask again, where too much is being moved at this moment, or where
        it cannot be told any more where the page begins.
        """
        epochs = self._epochs.now()
        if cursor is not None and epochs:
            cursor = self._where(epochs, selection, cursor)
        streams = self._moving(epochs, selection)
        while True:
            moving = frozenset((stream.source, stream.epoch) for stream in streams)
            if len(moving) > _MOVING_MAX:
                raise StorageUnavailable(f"{len(moving)} epochs are being moved; ask again")
            reading = _Reading(self._read, epochs, moving, selection)
            try:
                if selection.newest is None:
                    return reading.all(limit, cursor)
                keys = {stream.key for stream in streams}
                return reading.newest(selection.newest, keys, limit, cursor)
            except _Missed as missed:  # they were stored since
                streams |= missed.streams

    def _moving(self, epochs: Epochs, selection: Selection) -> set[Stream]:
        """Return the streams that are being moved, as they are stored."""
        return {
            stream
            for moving in epochs.unmoved()
            if _may_hold(selection, moving)
            for stream in self._store.streams_of(*moving)
            if selection.key_expr.concerns(stream.key)
        }

    def _where(self, epochs: Epochs, selection: Selection, cursor: Cursor) -> Cursor:
        """Return a place under the name that stands for it.

        A page that ended in an epoch that is another now goes on in that one. In order of identity
        whole numberings may lie between the two: then it is not known what was given.
        """
        *_, zid, eid, epoch, sn = cursor
        source = epochs.find_source(zid, eid)
        if source is None or not isinstance(epoch, int) or not isinstance(sn, int):
            return cursor
        stands = epochs.canonical(source, epoch, max(sn, 0))
        moved_to = epochs.moved_to(source, epoch)
        if stands == epoch and moved_to and not self._store.streams_of(source, epoch):
            stands = epochs.canonical(source, moved_to)
        if stands == epoch:
            return cursor
        low, high = sorted((stands, epoch))
        states, _ = self._store.load(source)
        if selection.order is Order.IDENTITY and any(low < s.epoch < high for s in states):
            raise StorageUnavailable(
                f"numbers of {source} were given under epoch {epoch}, which is {stands} now; "
                "ask again"
            )
        return (*cursor[:-2], stands, sn)


class _Reading:
    """One read, while some epochs are moved; `epochs` does not change meanwhile."""

    def __init__(
        self, read: _Read, epochs: Epochs, moving: frozenset[Moving], selection: Selection
    ) -> None:
        self._read = read
        self._epochs = epochs
        self._moving = moving
        self._selection = selection
        self._parts = [part for moved in sorted(moving) for part in _parts(epochs, moved)]

    def all(self, limit: int, cursor: Cursor | None) -> Page:
        """Return a page of everything that is selected."""
        if not self._parts:
            page = self._read(self._selection, limit, cursor)
            self._check(page.samples)
            return page
        place = self._selection.place
        share = max(_PART_SAMPLES_MIN, limit // len(self._parts))
        while True:
            found: _Found = {}
            ends = [self._take(part, found, share, cursor) for part in self._parts]
            page = self._read(self._selection, limit, cursor)
            found.update((place(sample), sample) for sample in self._standing(page.samples))
            end = min((end for end in (*ends, page.cursor) if end is not None), default=None)
            places = heapq.nsmallest(limit + 1, (at for at in found if end is None or at <= end))
            if places or end is None:
                break
            cursor = end
        return _page(found, places, limit, end)

    def newest(self, newest: int, keys: set[str], limit: int, cursor: Cursor | None) -> Page:
        """Return a page of the newest samples of each key; of `keys` some are being moved."""
        if len(keys) > _KEYS_MAX:
            raise StorageUnavailable(f"samples of {len(keys)} keys are being moved; ask again")
        place = self._selection.place
        moved: _Found = {}
        for key in keys:
            moved.update((place(sample), sample) for sample in self._newest_of(key, newest))
        while True:
            page = self._read(self._selection, limit, cursor)
            others = SampleBatch(sample for sample in page.samples if sample.key not in keys)
            self._check(others)
            end = page.cursor
            found = {place(sample): sample for sample in others}
            found.update(
                (at, sample)
                for at, sample in moved.items()
                if (cursor is None or at > cursor) and (end is None or at <= end)
            )
            if found or end is None:
                break
            cursor = end
        return _page(found, heapq.nsmallest(limit + 1, found), limit, end)

    def _newest_of(self, key: str, newest: int) -> Iterable[Sample]:
        """Return the newest samples of one key, each of which may be stored several times."""
        epoch = self._selection.epoch
        copies = replace(
            self._selection,
            key_expr=parse_update(key) or KeyExpression(key),
            newest=newest * (len(self._parts) + 1) if epoch is None else None,
            epoch=None,
            order=Order.IDENTITY,
        )
        read = chain.from_iterable(pages(self._read, copies, 1000))
        stored = [sample for sample in read if sample.key == key]
        named = {s.identity: s for s in map(self._named, stored) if epoch in (None, s.epoch)}
        return newest_per_key(named.values(), newest)

    def _take(self, part: _Part, found: _Found, limit: int, cursor: Cursor | None) -> Cursor | None:
        """Add a page of what is stored under another epoch; returns how far it went."""
        selection, place = self._selection, self._selection.place
        sns = _both(selection.sns, part.sns)
        if sns is None or selection.epoch not in (None, part.epoch):
            return None
        zid, eid = part.source
        stored = replace(selection, zid=zid, eid=eid, epoch=part.stored, sns=sns)
        begin = None if cursor is None else _before_renaming(part, cursor)
        page = self._read(stored, limit, begin)
        for sample in page.samples:
            renamed = msgspec.structs.replace(sample, epoch=part.epoch)
            found[place(renamed)] = renamed
        return None if page.cursor is None else (*page.cursor[:-2], part.epoch, page.cursor[-1])

    def _standing(self, samples: SampleBatch) -> Iterator[Sample]:
        """Yield what is stored under the epoch that stands; the rest was read by itself."""
        self._check(samples)
        for sample in samples:
            if self._named(sample) is sample:
                yield sample

    def _check(self, samples: SampleBatch) -> None:
        """See that nothing is left that ought to be read by itself."""
        if not self._epochs:
            return
        missed = {
            sample.stream
            for sample in samples
            if (sample.source, sample.epoch) not in self._moving
            if self._named(sample) is not sample
        }
        if missed:
            raise _Missed(missed)

    def _named(self, sample: Sample) -> Sample:
        epoch = self._epochs.canonical(sample.source, sample.epoch, sample.sn)
        return sample if epoch == sample.epoch else msgspec.structs.replace(sample, epoch=epoch)


class OneState:
    """The reads of one answer: they end with an error where what was given is called otherwise
    since, so that no answer holds a numbering under two names. One thread.
    """

    def __init__(self, read: _Read, epochs: Epochs) -> None:
        self._read = read
        self._epochs = epochs
        self._begun = epochs.now()
        self._given: set[Moving] = set()

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return a page; raises StorageUnavailable, ask again, where epochs changed meanwhile."""
        page = self._read(selection, limit, cursor)
        now = self._epochs.now()
        if self._given and not now.is_same(self._begun):
            for source, epoch in self._given:
                if not now.calls_alike(self._begun, source, epoch):
                    raise StorageUnavailable(
                        f"epoch {epoch} of {source} is called otherwise since this answer began; "
                        "ask again"
                    )
        if page.cursor is not None:
            self._given.update((stream.source, stream.epoch) for stream in page.samples.places)
        return page


def _page(found: _Found, places: list[Cursor], limit: int, end: Cursor | None) -> Page:
    """Return the first of what was found; `end` is how far was looked, None: to the end."""
    more = len(places) > limit or end is not None
    chosen = places[:limit]
    return Page(SampleBatch(found[at] for at in chosen), chosen[-1] if chosen and more else None)


def _may_hold(selection: Selection, moving: Moving) -> bool:
    source, _ = moving
    return selection.zid in (None, source.zid) and selection.eid in (None, source.eid)


def _parts(epochs: Epochs, moving: Moving) -> Iterator[_Part]:
    """Yield the numbers stored under an epoch that are of another, those of each by themselves."""
    source, stored = moving
    begins = sorted({0, *epochs.renamed_from(source, stored)})
    for first, after in zip(begins, [*begins[1:], None], strict=True):
        epoch = epochs.canonical(source, stored, first)
        if epoch != stored:
            last = UNNUMBERED_SN_MAX if after is None else after - 1
            yield _Part(source, stored, SnBounds(first, last), epoch)


def _both(one: SnBounds, two: SnBounds) -> SnBounds | None:
    """Return what is within both bounds; None for nothing."""
    firsts = [bound for bound in (one.first, two.first) if bound is not None]
    lasts = [bound for bound in (one.last, two.last) if bound is not None]
    both = SnBounds(max(firsts, default=None), min(lasts, default=None))
    if both.first is not None and both.last is not None and both.first > both.last:
        return None
    return both


def _before_renaming(part: _Part, cursor: Cursor) -> Cursor:
    """Return behind which place samples are stored that stand behind `cursor` once renamed."""
    *_, zid, eid, epoch, sn = cursor
    if (zid, eid) != (zid_number(part.source.zid), part.source.eid) or epoch == part.epoch:
        return (*cursor[:-2], part.stored, sn)
    is_below = isinstance(epoch, int) and epoch < part.epoch
    return (*cursor[:-2], part.stored, -1 if is_below else UNNUMBERED_SN_MAX)


def newest_of_streams(
    store: JournaledStorage, epochs: Epochs, page: Page, samples_max: int | None
) -> Page:
    """Leave out of a page what is beyond the newest `samples_max` samples of its stream.

    Retention removes in its own time; a reader of the queue does not see what must go. Counted are
    all that count under the epoch that stands, wherever they are stored (ADR 0281).
    """
    if samples_max is None:
        return page
    parts = {
        stream: {stream, *(stream._replace(epoch=one) for one in epochs.lost(stream.source))}
        for stream in page.samples.by_stream
    }
    held = store.held([*set().union(*parts.values())])
    floors: dict[Stream, int] = {}
    for stream, stored in parts.items():
        runs = RangeSet()
        for part in stored:
            runs.update(epochs.numbers_of(stream.epoch, part, held[part]))
        floors[stream] = runs.nth_last(samples_max) or 0
    kept = [sample for sample in page.samples if sample.sn >= floors[sample.stream]]
    return Page(SampleBatch(kept), page.cursor)

"""Backend and backlog read as one.

The backlog is looked at before the backend each time: what is drained meanwhile is then in both,
never in neither. A page takes at most its own length of the backlog into memory, wherever that
lies, and never more than a page of the backend.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from durable_cache.model.key_expression import KeyExpression, is_verbatim, parse_update
from durable_cache.model.newest import is_update, newest_per_key
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Identity, Sample, SampleBatch, SourceId, Stream, key_bytes
from durable_cache.model.selection import Cursor, Order, Selection, SnBounds
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.storage.contract import Page, Storage
from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.sized_pages import pages

_Placed = dict[Cursor, Sample]
_NEAR_NTP64 = 1 << 30


class MergedReading:
    """Reads of a storage whose newest samples wait in a backlog; any thread.

    `updates` returns the wildcard updates that concern a selection, all of them: a backend finds
    them only under their own expressions. `streams_of` returns the streams of a numbering: what is
    stored behind a verbatim chunk no wildcard names, so it is read key by key.
    """

    def __init__(
        self,
        backend: Storage,
        backlog: Backlog,
        updates: Callable[[Selection], Sequence[Sample]],
        streams_of: Callable[[SourceId, int], Sequence[Stream]] = lambda *_: (),
    ) -> None:
        self._backend = backend
        self._backlog = backlog
        self._updates = updates
        self._streams_of = streams_of

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return a page as `Storage.read` does, of backend and backlog together."""
        waiting = self._backlog.matching(selection) if self._backlog.samples else None
        updates = self._updates(selection)
        if waiting is None:
            if not updates:
                return self._backend.read(selection, limit, cursor)
            waiting = iter(())
        if selection.newest is None:
            return self._read_all(selection, chain(waiting, updates), limit, cursor)
        recent = _newest_of_keys(chain(waiting, updates), selection.newest)
        if not recent:
            return self._backend.read(selection, limit, cursor)
        if selection.order is Order.TIME:
            return self._read_newest_by_time(selection, selection.newest, recent, limit, cursor)
        return self._read_newest_by_key(selection, selection.newest, recent, limit, cursor)

    def _read_all(
        self, selection: Selection, waiting: Iterable[Sample], limit: int, cursor: Cursor | None
    ) -> Page:
        place = selection.place
        recent = heapq.nsmallest(
            limit + 1,
            (
                (at, sample)
                for sample in waiting
                for at in (place(sample),)
                if cursor is None or at > cursor
            ),
            key=_first,
        )
        page = self._backend.read(selection, limit, cursor)
        if not recent:
            return page
        ends = [place(page.samples.samples[-1])] if page.cursor is not None else []
        if len(recent) > limit:  # what lies behind was not looked at
            ends.append(recent[-1][0])
        end = min(ends, default=None)
        fitting = {at: sample for at, sample in recent if end is None or at <= end}
        fitting.update(
            (at, sample)
            for sample in page.samples
            for at in (place(sample),)
            if end is None or at <= end
        )
        places = sorted(fitting)[: limit + 1]
        chosen = places[:limit]
        more = len(places) > limit or end is not None
        return Page(SampleBatch(fitting[at] for at in chosen), chosen[-1] if more else None)

    def _read_newest_by_key(
        self,
        selection: Selection,
        newest: int,
        recent: dict[str, _Placed],
        limit: int,
        cursor: Cursor | None,
    ) -> Page:
        """Merge key by key, for pages by identity hold a key's samples together."""
        place = selection.place
        stored: list[Sample] = []
        begin: Cursor | None = None
        if cursor is not None:
            begin = (cursor[0], 0, 0, 0, -1)  # before the first sample of the cursor's key
        while True:
            page = self._backend.read(selection, limit + newest + 1, begin)
            stored += page.samples
            begin = page.cursor
            horizon = key_bytes(stored[-1].key) if stored and begin is not None else None
            fresh = [sample for placed in recent.values() for sample in placed.values()]
            merged = {place(sample): sample for sample in (*fresh, *stored)}
            chosen = [
                (at, sample)
                for sample in newest_per_key(merged.values(), newest)
                for at in (place(sample),)
                if cursor is None or at > cursor
                if horizon is None or key_bytes(sample.key) < horizon
            ]
            if chosen or begin is None:
                break
        chosen = heapq.nsmallest(limit + 1, chosen, key=_first)
        more = len(chosen) > limit or begin is not None
        chosen = chosen[:limit]
        samples = SampleBatch(sample for _, sample in chosen)
        return Page(samples, chosen[-1][0] if more and chosen else None)

    def _read_newest_by_time(
        self,
        selection: Selection,
        newest: int,
        recent: dict[str, _Placed],
        limit: int,
        cursor: Cursor | None,
    ) -> Page:
        """Take a page of the backend, and put right in it the keys that the backlog has too."""
        place = selection.place
        while True:
            page = self._backend.read(selection, limit, cursor)
            end = place(page.samples.samples[-1]) if page.cursor is not None else None
            within = partial(_within, selection, cursor, end)
            shared = {sample.key for sample in page.samples if sample.key in recent}
            shared.update(key for key in recent if any(map(within, recent[key].values())))
            chosen = [sample for sample in page.samples if sample.key not in shared]
            for key in shared:
                merged = {place(sample): sample for sample in self._newest_of(selection, key)}
                merged.update(recent[key])
                chosen += filter(within, newest_per_key(merged.values(), newest))
            if chosen or page.cursor is None:
                break
            cursor = page.cursor
        samples = heapq.nsmallest(limit + 1, chosen, key=place)
        more = len(samples) > limit or page.cursor is not None
        samples = samples[:limit]
        return Page(SampleBatch(samples), place(samples[-1]) if more and samples else None)

    def _newest_of(self, selection: Selection, key: str) -> Iterator[Sample]:
        """Yield the backend's newest samples of one key; of updates all are at hand already."""
        if is_update(key):
            return
        of_key = replace(selection, key_expr=KeyExpression(key))
        for page in pages(self._backend.read, of_key, selection.newest or 1):
            yield from (sample for sample in page if sample.key == key)

    def updates_of(self, stream: Stream, runs: RangeSet) -> list[Sample]:
        """Read a wildcard update's stream back from the backend."""
        found: list[Sample] = []
        for first, last in runs:
            selection = replace(_only(stream), sns=SnBounds(first, last))
            for page in pages(self._backend.read, selection, 1000):
                found += (sample for sample in page if sample.key == stream.key)
        return found

    def find(self, samples: Sequence[Sample]) -> list[tuple[Sample, Sample | None]]:
        """Return each sample with the one stored under its identity."""
        found: dict[Identity, Sample] = {}
        groups: dict[tuple[SourceId, int], list[int]] = {}
        unnumbered: dict[Stream, list[int]] = {}
        verbatim: dict[Stream, list[int]] = {}
        for sample in samples:
            if is_unnumbered(sample.source):  # one timestamp's id may stamp very many keys
                unnumbered.setdefault(sample.stream, []).append(sample.sn)
            elif is_verbatim(sample.key):
                verbatim.setdefault(sample.stream, []).append(sample.sn)
            else:
                groups.setdefault((sample.source, sample.epoch), []).append(sample.sn)
        for (source, epoch), sns in groups.items():
            for first, last in RangeSet.of(sns):
                run = Selection(zid=source.zid, eid=source.eid, epoch=epoch)
                for page in self.pages(replace(run, sns=SnBounds(first, last)), 1000):
                    found.update((stored.identity, stored) for stored in page)
        alone = {stream: _near(sns) for stream, sns in unnumbered.items()}
        alone.update((stream, [*RangeSet.of(sns)]) for stream, sns in verbatim.items())
        for stream, runs in alone.items():
            for first, last in runs:
                selection = replace(_only(stream), sns=SnBounds(first, last))
                for page in self.pages(selection, 1000):
                    found.update((stored.identity, stored) for stored in page)
        return [(sample, found.get(sample.identity)) for sample in samples]

    def range_of(self, source: SourceId, epoch: int, first: int, last: int) -> Iterator[Sample]:
        """Yield what is stored of a source's numbers, every key."""
        for key in ("**", *self._verbatim(source, epoch)):
            selection = Selection(KeyExpression(key), *source, epoch, SnBounds(first, last))
            for page in self.pages(selection, 1000):
                yield from (sample for sample in page if key in ("**", sample.key))

    def read_run(self, source: SourceId, epoch: int, limit: int, cursor: Cursor | None) -> Page:
        """Return a page of a numbering; those of verbatim keys come behind all others."""
        verbatim = self._verbatim(source, epoch)
        at = None if cursor is None else cursor[0]
        key = next((key for key in verbatim if key_bytes(key) == at), None)
        selection = Selection(KeyExpression(key or "**"), *source, epoch)
        page = self.read(selection, limit, cursor)
        if page.cursor is None:
            for following in verbatim[0 if key is None else verbatim.index(key) + 1 :]:
                return Page(page.samples, (key_bytes(following), 0, 0, 0, -1))
        return page

    def _verbatim(self, source: SourceId, epoch: int) -> list[str]:
        """Return the keys of a numbering that no wildcard names, in order."""
        keys = {stream.key for stream in self._streams_of(source, epoch)}
        return sorted(filter(is_verbatim, keys), key=key_bytes)

    def pages(self, selection: Selection, limit: int) -> Iterator[SampleBatch]:
        """Yield everything a selection names, so many samples at once."""
        return pages(self.read, selection, limit)


def _only(stream: Stream) -> Selection:
    """Select one stream; a wildcard update's names what lies under its expression, too."""
    zid, eid = stream.source
    key_expr = parse_update(stream.key) or KeyExpression(stream.key)
    return Selection(key_expr=key_expr, zid=zid, eid=eid, epoch=stream.epoch)


def _near(sns: Iterable[int]) -> list[tuple[int, int]]:
    """Return what covers unnumbered samples, those of a quarter of a second by one question."""
    found: list[tuple[int, int]] = []
    for sn in sorted(sns):
        if found and sn - found[-1][1] < _NEAR_NTP64:
            found[-1] = (found[-1][0], sn)
        else:
            found.append((sn, sn))
    return found


def _within(selection: Selection, after: Cursor | None, end: Cursor | None, sample: Sample) -> bool:
    at = selection.place(sample)
    return (after is None or at > after) and (end is None or at <= end)


def _first(pair: tuple[Cursor, Sample]) -> Cursor:
    return pair[0]


def _newest_of_keys(samples: Iterable[Sample], newest: int) -> dict[str, _Placed]:
    """Return the newest samples of each key, never holding more than twice as many."""
    keys: dict[str, _Placed] = {}
    for sample in samples:
        placed = keys.setdefault(sample.key, {})
        placed[sample.time_order] = sample
        if len(placed) > 2 * newest + 16:
            keys[sample.key] = {at: placed[at] for at in heapq.nlargest(newest, placed)}
    return {
        key: {at: placed[at] for at in heapq.nlargest(newest, placed)}
        for key, placed in keys.items()
    }

"""One storage in one bucket: what the contract asks, on points, queries and deletions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import RLock

from durable_cache.errors import Closed, StorageLocked
from durable_cache.model.sample import SampleBatch, Skip, Stream
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import (
    AppendResult,
    Capabilities,
    Durability,
    Floor,
    Held,
    Page,
    Refusal,
    Retention,
    Storage,
)
from durable_cache_influxdb import skips, trim
from durable_cache_influxdb.append import Appender
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.index import Measurements, StreamIndex, load
from durable_cache_influxdb.lease import WriterLease
from durable_cache_influxdb.line_writer import DeadLetters, LineWriter
from durable_cache_influxdb.lines import refusal_of
from durable_cache_influxdb.options import InfluxDbOptions
from durable_cache_influxdb.read import is_by_number, plan_by_number, read_by_meta, read_planned
from durable_cache_influxdb.typed_fields import TypedFields


class InfluxDbStorage(Storage):
    """An open handle; any thread, writes one after the other, reads beside them.

    The writer keeps the directory of streams; a reader loads it for every call, so that it sees
    what was acknowledged. After an append whose outcome is unknown the streams in question are
    loaded again before anything else is said or written about them.
    """

    def __init__(
        self,
        client: Client,
        where: Measurements,
        options: InfluxDbOptions,
        lease: WriterLease | None,
        known_fields: set[str],
    ) -> None:
        self._client = client
        self._where = where
        self._lease = lease
        self._lock = RLock()
        self._closed = False
        self._typed = TypedFields(options, known_fields)
        self._writer = LineWriter(client, options, DeadLetters(options), self._typed.bar)
        self._index = StreamIndex()
        self._skips = skips.SkipTable()
        self._unsure: set[Stream] = set()
        self._appender = Appender(client, where, options, self._writer, self._typed, self._unsure)
        self._remover = trim.Remover(client, where, options, self._writer)
        self._unsure_skips = False
        if lease is not None:
            self._load()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    @property
    def field_conflicts(self) -> int:
        """How often a typed field was left out because the server has it with another type."""
        return self._typed.conflicts

    def _load(self) -> None:
        self._index = load(self._client, self._where)
        self._load_skips()
        skips.clear_void(self._client, self._where.skips, self._skips, self._writer)

    def _load_skips(self) -> None:
        self._skips = skips.load_skips(self._client, self._where.skips)
        self._skips.settle(self._index)
        self._unsure_skips = False

    def check(self, batch: SampleBatch) -> Sequence[Refusal]:
        return [Refusal(s, reason) for s in batch if (reason := refusal_of(s)) is not None]

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        with self._lock:
            self._writable()
            self._skips.add(skips, self._index)
            outcome = self._appender.append(batch, self._index)
            self._look_again(outcome.streams)
            if self._skips.runs:
                for numbering, sn in outcome.stored():
                    self._skips.replace(numbering, sn)
            self._write_skips()
        return outcome.result()

    def _look_again(self, streams: Iterable[Stream]) -> None:
        """Look at those of the streams that have begun again after they went as a whole."""
        if not self._remover.gone:
            return
        states = [self._index.states.get(stream) for stream in dict.fromkeys(streams)]
        begun = [one for one in states if one is not None and one.tags in self._remover.gone]
        if begun:  # what fails here leaves the index right: the next append looks once more
            self._remover.look_again(begun)

    def _write_skips(self) -> None:
        changes = self._skips.changes()
        if changes:
            self._unsure_skips = True
            self._writer.plain(skips.lines_of(self._where.skips.measurement, changes))
            self._unsure_skips = False
        self._skips.written(changes)

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        index, lock = self._readable()
        if selection.times.first > selection.times.last:
            return Page(SampleBatch(), None)
        source = self._where.samples
        if not is_by_number(selection):
            return read_by_meta(self._client, source, index, selection, limit, cursor, lock)
        while True:
            with lock:
                plan = plan_by_number(index, selection, limit, cursor)
            samples = read_planned(self._client, source, plan) if plan.streams else []
            if samples or plan.last is None:
                more = plan.last is not None
                return Page(SampleBatch(samples), samples[-1].order if more else None)
            cursor = plan.last

    def held(self) -> Iterator[Held]:
        self._open()
        index = load(self._client, self._where, newest=True)
        for state in index:
            if state.runs:
                yield Held(state.stream, state.runs, state.newest_ntp64, state.newest_received_ns)

    def skips(self) -> Iterator[Skip]:
        self._open()
        table = skips.load_skips(self._client, self._where.skips)
        table.settle(load(self._client, self._where))
        return table.ordered()

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        with self._lock:
            self._writable(surely=True)
            if retention.unlimited:
                return []
            floors = trim.floors_of(
                self._client, self._where.samples, self._index, retention, now_ns
            )
            self._purge(floors)
            return floors

    def purge(self, floors: Iterable[Floor]) -> int:
        with self._lock:
            self._writable(surely=True)
            return self._purge(floors)

    def _purge(self, floors: Iterable[Floor]) -> int:
        removed = 0
        for stream, floor in floors:
            state = self._index.states.get(stream)
            going = None if state is None else state.runs.clip(0, floor - 1)
            if state is None or not going:
                continue
            self._unsure.add(stream)
            self._remover.remove_below(state, floor)
            state.runs.remove(0, floor - 1)
            removed += going.count
            if not state.runs:
                self._index.drop(stream)
            self._unsure.discard(stream)
        return removed

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._lease is not None:
                self._lease.release()
            self._client.close()

    def _open(self) -> None:
        if self._closed:
            raise Closed(f"storage {self._where.samples.measurement!r} is closed")

    def _writable(self, *, surely: bool = False) -> None:
        self._open()
        if self._lease is None:
            raise StorageLocked(
                f"storage {self._where.samples.measurement!r} was opened with writer=False"
            )
        self._lease.confirm(surely=surely)
        self._make_sure()

    def _make_sure(self) -> None:
        """Load again what an interrupted write left unknown."""
        self._remover.put_back()
        if self._unsure:
            again = load(self._client, self._where, self._unsure)
            for stream in self._unsure:
                self._index.drop(stream)
                state = again.states.get(stream)
                if state is not None:
                    self._index.put(state)
            self._unsure.clear()
            self._unsure_skips = True
        if self._unsure_skips:
            self._load_skips()

    def _readable(self) -> tuple[StreamIndex, RLock]:
        self._open()
        if self._lease is None:
            return load(self._client, self._where), RLock()
        with self._lock:
            self._make_sure()
        return self._index, self._lock

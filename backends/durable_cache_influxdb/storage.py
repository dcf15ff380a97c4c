"""One storage in one bucket: what the contract asks, on points, queries and deletions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import RLock

from durable_cache.errors import Closed, StorageFull, StorageLocked, StorageUnavailable
from durable_cache.model.sample import SampleBatch, Skip, Stream, sample_digest
from durable_cache.model.selection import Cursor, Selection
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.storage.contract import (
    AppendResult,
    Capabilities,
    Durability,
    Floor,
    Held,
    Page,
    Retention,
    Storage,
)
from durable_cache_influxdb import removal, skips
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.directory import Directory, Measurements, StreamState, load
from durable_cache_influxdb.flux import COLUMNS
from durable_cache_influxdb.lease import WriterLease
from durable_cache_influxdb.lines import line_of, refusal_of, series_of, stream_line, tags_of
from durable_cache_influxdb.options import InfluxDbOptions
from durable_cache_influxdb.outcome import Outcome
from durable_cache_influxdb.pages import is_by_number, plan_by_number, read_by_meta, read_planned
from durable_cache_influxdb.points import Point, fetch, numbers, point_of, scans_of, windows_of
from durable_cache_influxdb.slots import Slot, choose, slots_of
from durable_cache_influxdb.typed_fields import TypedFields
from durable_cache_influxdb.writing import DeadLetters, Line, LineWriter

__all__ = ["InfluxDbStorage"]

_CHECKED_AT_ONCE = 1000


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
        self._options = options
        self._lease = lease
        self._lock = RLock()
        self._closed = False
        self._typed = TypedFields(options, known_fields)
        self._letters = DeadLetters(options)
        self._writer = LineWriter(client, options, self._letters, self._typed.bar)
        self._directory = Directory()
        self._skips = skips.SkipTable()
        self._unsure: set[Stream] = set()
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

    @property
    def lines_refused(self) -> int:
        """How many lines the server refused for good since the storage was opened."""
        return self._letters.count

    def _load(self) -> None:
        self._directory = load(self._client, self._where)
        self._load_skips()
        skips.clear_void(self._client, self._where.skips, self._skips)

    def _load_skips(self) -> None:
        self._skips = skips.load_skips(self._client, self._where.skips)
        self._skips.settle(self._directory)
        self._unsure_skips = False

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        with self._lock:
            self._writable()
            self._skips.add(skips, self._directory)
            outcome = Outcome(batch)
            self._sort_out(outcome)
            if outcome.held:
                self._compare(outcome)
            if outcome.fresh:
                self._store(outcome)
            self._write_skips()
        return outcome.result()

    def _sort_out(self, outcome: Outcome) -> None:
        states = self._directory.states
        offered: dict[tuple[Stream, int], int] = {}
        for at, sample in enumerate(outcome.batch.samples):
            stream = outcome.streams[at]
            reason = refusal_of(sample)
            if reason is not None:
                outcome.refused[at] = reason
                continue
            state = states.get(stream)
            if state is not None and sample.sn in state.runs:
                outcome.held.append(at)
                continue
            first = offered.setdefault((stream, sample.sn), at)
            if first == at:
                outcome.fresh.append(at)
            else:
                outcome.repeated.append((at, sample_digest(outcome.batch.samples[first])))

    def _compare(self, outcome: Outcome) -> None:
        """Tell duplicates from conflicts by what is held."""
        for start in range(0, len(outcome.held), _CHECKED_AT_ONCE):
            part = outcome.held[start : start + _CHECKED_AT_ONCE]
            wanted: dict[Stream, set[int]] = {}
            for at in part:
                wanted.setdefault(outcome.streams[at], set()).add(outcome.batch.samples[at].sn)
            found = self._held_digests(wanted)
            for at in part:
                place = (outcome.streams[at], outcome.batch.samples[at].sn)
                if place not in found:
                    self._unsure.update(wanted)
                    raise StorageUnavailable(
                        f"{self._client.subject}: sample {place[1]} of {place[0].source} vanished,"
                        " removed by the bucket's retention or another program; append again"
                    )
                outcome.repeated.append((at, found[place]))

    def _held_digests(self, wanted: dict[Stream, set[int]]) -> dict[tuple[Stream, int], bytes]:
        source = self._where.samples
        bounds = {tags_of(stream): (min(sns), max(sns)) for stream, sns in wanted.items()}
        streams = {tags_of(stream): stream for stream in wanted}
        points = [
            point
            for point, sn in numbers(self._client, source, bounds)
            if sn in wanted[streams[point.tags]]
        ]
        samples = fetch(self._client, source, streams, points)
        return {(sample.stream, sample.sn): sample_digest(sample) for sample in samples}

    def _store(self, outcome: Outcome) -> None:
        groups = dict.fromkeys(outcome.streams[at] for at in outcome.fresh)
        added = [stream for stream in groups if stream not in self._directory.states]
        if len(self._directory) + len(added) > self._options.streams_max:
            raise StorageFull(
                f"influxdb: more than streams_max = {self._options.streams_max} streams; raise it"
            )
        slots = self._slots(outcome)
        measurement = self._where.samples.measurement
        series = {stream: series_of(measurement, stream, self._options) for stream in groups}
        batch, streams, typed = outcome.batch.samples, outcome.streams, self._typed.text

        def bare(at: int) -> str:
            return line_of(series[streams[at]], batch[at], slots[at], "")

        self._unsure.update(groups)
        if added:
            names = self._where.streams.measurement
            self._writer.plain(stream_line(names, stream) for stream in added)
        lines = (
            Line(at, line_of(series[streams[at]], batch[at], slots[at], typed(batch[at])))
            for at in outcome.fresh
        )
        outcome.refused |= self._writer.samples(lines, bare)
        self._record(outcome, slots)
        self._unsure.difference_update(groups)

    def _record(self, outcome: Outcome, slots: dict[int, Slot]) -> None:
        states, some_skipped = self._directory.states, bool(self._skips.runs)
        for at in outcome.fresh:
            if at in outcome.refused:
                continue
            stream, sn = outcome.streams[at], outcome.batch.samples[at].sn
            state = states.get(stream)
            if state is None:
                state = StreamState(stream, tags_of(stream))
                self._directory.put(state)
            state.runs.add(sn, sn)
            slot = slots[at]
            if slot.ordinal == 0 and slot.time_ns > state.time_max_ns:
                state.time_max_ns = slot.time_ns
            if some_skipped:
                self._skips.replace((stream.source, stream.epoch), sn)

    def _slots(self, outcome: Outcome) -> dict[int, Slot]:
        """Give every new sample its point, asking the server only about times not above all."""
        states, samples = self._directory.states, outcome.batch.samples
        tops: dict[Stream, int] = {}
        chosen: dict[int, Slot] = {}
        doubtful: list[tuple[int, int]] = []
        for at in outcome.fresh:
            stream, time_ns = outcome.streams[at], ntp64_to_ns(samples[at].ntp64)
            top = tops.get(stream)
            if top is None:
                state = states.get(stream)
                top = -1 if state is None else state.time_max_ns
            if time_ns > top:
                tops[stream] = time_ns
                chosen[at] = Slot(0, time_ns)
            else:
                tops[stream] = top
                doubtful.append((at, time_ns))
        if doubtful:
            self._settle(outcome, doubtful, chosen)
        return chosen

    def _settle(
        self, outcome: Outcome, doubtful: list[tuple[int, int]], chosen: dict[int, Slot]
    ) -> None:
        samples, streams = outcome.batch.samples, outcome.streams
        taken = self._taken([(streams[at], samples[at].sn, time_ns) for at, time_ns in doubtful])
        for at, slot in chosen.items():
            taken.setdefault(streams[at], {})[slot] = samples[at].sn
        for at, time_ns in doubtful:
            own = taken.setdefault(streams[at], {})
            slot = choose(time_ns, samples[at].sn, own)
            own[slot] = samples[at].sn
            chosen[at] = slot

    def _taken(self, doubtful: list[tuple[Stream, int, int]]) -> dict[Stream, dict[Slot, int]]:
        """Return who stands where the doubtful samples could stand."""
        taken: dict[Stream, dict[Slot, int]] = {}
        wanted = {
            Point(tags_of(stream), slot): stream
            for stream, sn, time_ns in doubtful
            for slot in slots_of(time_ns, sn)[:-1]
        }
        source = self._where.samples
        scans = scans_of(windows_of(wanted), ("sn",))
        for row in self._client.rows([source.rows(scan) for scan in scans], COLUMNS):
            point = point_of(row)
            stream = wanted.get(point)
            if stream is not None:
                taken.setdefault(stream, {})[point.slot] = int(row[1])
        return taken

    def _write_skips(self) -> None:
        changes = self._skips.changes()
        if changes:
            self._unsure_skips = True
            self._writer.plain(skips.lines_of(self._where.skips.measurement, changes))
            self._unsure_skips = False
        self._skips.written(changes)

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        directory, lock = self._readable()
        if selection.times.first > selection.times.last:
            return Page(SampleBatch(), None)
        source = self._where.samples
        if not is_by_number(selection):
            return read_by_meta(self._client, source, directory, selection, limit, cursor, lock)
        while True:
            with lock:
                plan = plan_by_number(directory, selection, limit, cursor)
            samples = read_planned(self._client, source, plan) if plan.streams else []
            if samples or plan.last is None:
                more = plan.last is not None
                return Page(SampleBatch(samples), samples[-1].order if more else None)
            cursor = plan.last

    def held(self) -> Iterator[Held]:
        self._open()
        directory = load(self._client, self._where, newest=True)
        for state in directory:
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
            floors = removal.floors_of(
                self._client, self._where.samples, self._directory, retention, now_ns
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
            state = self._directory.states.get(stream)
            going = None if state is None else state.runs.clip(0, floor - 1)
            if state is None or not going:
                continue
            self._unsure.add(stream)
            removal.remove_below(self._client, self._where, state, floor)
            state.runs.remove(0, floor - 1)
            removed += going.count
            if not state.runs:
                self._directory.drop(stream)
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
        if self._unsure:
            again = load(self._client, self._where, self._unsure)
            for stream in self._unsure:
                self._directory.drop(stream)
                state = again.states.get(stream)
                if state is not None:
                    self._directory.put(state)
            self._unsure.clear()
            self._unsure_skips = True
        if self._unsure_skips:
            self._load_skips()

    def _readable(self) -> tuple[Directory, RLock]:
        self._open()
        if self._lease is None:
            return load(self._client, self._where), RLock()
        with self._lock:
            self._make_sure()
        return self._directory, self._lock

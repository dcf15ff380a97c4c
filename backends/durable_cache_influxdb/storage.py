"""One storage in one bucket: what the contract asks, on points, queries and deletions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import RLock

from durable_cache.errors import Closed, StorageFull, StorageLocked
from durable_cache.model.sample import Sample, SampleBatch, Skip, Stream, sample_digest
from durable_cache.model.selection import Cursor, Selection
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.storage.contract import (
    AppendResult,
    Capabilities,
    Conflict,
    Durability,
    Floor,
    Held,
    Page,
    Refusal,
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
            outcome = _Outcome(batch)
            self._sort_out(batch, outcome)
            if outcome.held:
                self._compare(outcome)
            if outcome.fresh:
                self._store(outcome)
            self._write_skips()
        return outcome.result()

    def _sort_out(self, batch: SampleBatch, outcome: _Outcome) -> None:
        states = self._directory.states
        offered: dict[tuple[Stream, int], bytes] = {}
        for at, (sample, digest) in enumerate(zip(batch.samples, batch.digests, strict=True)):
            reason = refusal_of(sample)
            if reason is not None:
                outcome.refused[at] = reason
                continue
            stream = sample.stream
            state = states.get(stream)
            if state is not None and sample.sn in state.runs:
                outcome.held.append(at)
                continue
            first = offered.setdefault((stream, sample.sn), digest)
            if first is digest:
                outcome.fresh.append(at)
            else:
                outcome.repeated.append((at, first))

    def _compare(self, outcome: _Outcome) -> None:
        """Tell duplicates from conflicts by what is held."""
        for start in range(0, len(outcome.held), _CHECKED_AT_ONCE):
            part = outcome.held[start : start + _CHECKED_AT_ONCE]
            wanted: dict[Stream, set[int]] = {}
            for at in part:
                sample = outcome.batch.samples[at]
                wanted.setdefault(sample.stream, set()).add(sample.sn)
            found = self._held_digests(wanted)
            for at in part:
                sample = outcome.batch.samples[at]
                outcome.repeated.append((at, found[sample.stream, sample.sn]))

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

    def _store(self, outcome: _Outcome) -> None:
        samples = [outcome.batch.samples[at] for at in outcome.fresh]
        slots = self._slots(samples)
        groups = dict.fromkeys(sample.stream for sample in samples)
        added = [stream for stream in groups if stream not in self._directory.states]
        if len(self._directory) + len(added) > self._options.streams_max:
            raise StorageFull(
                f"influxdb: more than streams_max = {self._options.streams_max} streams; raise it"
            )
        measurement = self._where.samples.measurement
        series = {stream: series_of(measurement, stream, self._options) for stream in groups}
        lines = []
        for at, sample, slot in zip(outcome.fresh, samples, slots, strict=True):
            head = series[sample.stream]
            text = line_of(head, sample, slot, self._typed.text(sample))
            lines.append(Line(at, text, _Bare(head, sample, slot)))
        self._unsure.update(groups)
        if added:
            names = self._where.streams.measurement
            self._writer.plain(stream_line(names, stream) for stream in added)
        refused = self._writer.samples(lines)
        outcome.refused |= refused
        self._record(outcome, samples, slots)
        self._unsure.difference_update(groups)

    def _record(self, outcome: _Outcome, samples: list[Sample], slots: list[Slot]) -> None:
        for at, sample, slot in zip(outcome.fresh, samples, slots, strict=True):
            if at in outcome.refused:
                continue
            state = self._directory.states.get(sample.stream)
            if state is None:
                state = StreamState(sample.stream, tags_of(sample.stream))
                self._directory.put(state)
            state.runs.add(sample.sn, sample.sn)
            if slot.ordinal == 0:
                state.time_max_ns = max(state.time_max_ns, slot.time_ns)
            self._skips.replace((sample.source, sample.epoch), sample.sn)

    def _slots(self, samples: list[Sample]) -> list[Slot]:
        """Give every new sample its point, asking the server only about times not above all."""
        times = [ntp64_to_ns(sample.ntp64) for sample in samples]
        states = self._directory.states
        fresh: set[tuple[Stream, int]] = set()
        doubtful: list[int] = []
        for at, (sample, time_ns) in enumerate(zip(samples, times, strict=True)):
            state = states.get(sample.stream)
            place = (sample.stream, time_ns)
            if place in fresh or (state is not None and time_ns <= state.time_max_ns):
                doubtful.append(at)
            fresh.add(place)
        taken = self._taken([(samples[at], times[at]) for at in doubtful])
        chosen = []
        for sample, time_ns in zip(samples, times, strict=True):
            own = taken.setdefault(sample.stream, {})
            slot = choose(time_ns, sample.sn, own)
            own[slot] = sample.sn
            chosen.append(slot)
        return chosen

    def _taken(self, doubtful: list[tuple[Sample, int]]) -> dict[Stream, dict[Slot, int]]:
        """Return who stands where the doubtful samples could stand."""
        taken: dict[Stream, dict[Slot, int]] = {}
        wanted = {
            Point(tags_of(sample.stream), slot): sample.stream
            for sample, time_ns in doubtful
            for slot in slots_of(time_ns, sample.sn)[:-1]
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
        with self._lock:
            directory = load(self._client, self._where, newest=True)
        for state in directory.ordered(Selection()):
            if state.runs:
                yield Held(
                    state.stream, state.runs, state.newest_ntp64, state.newest_received_ns
                )

    def skips(self) -> Iterator[Skip]:
        self._open()
        with self._lock:
            if self._lease is not None:
                self._make_sure()
                return iter(list(self._skips.ordered()))
        table = skips.load_skips(self._client, self._where.skips)
        table.settle(load(self._client, self._where))
        return table.ordered()

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        with self._lock:
            self._writable()
            if retention.unlimited:
                return []
            floors = removal.floors_of(
                self._client, self._where.samples, self._directory, retention, now_ns
            )
            self._purge(floors)
            return floors

    def purge(self, floors: Iterable[Floor]) -> int:
        with self._lock:
            self._writable()
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

    def _writable(self) -> None:
        self._open()
        if self._lease is None:
            raise StorageLocked(
                f"storage {self._where.samples.measurement!r} was opened with writer=False"
            )
        self._lease.confirm()
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


class _Bare:
    """Makes a sample's line without typed fields, in the rare case that it is needed."""

    __slots__ = ("_head", "_sample", "_slot")

    def __init__(self, head: tuple[str, str], sample: Sample, slot: Slot) -> None:
        self._head, self._sample, self._slot = head, sample, slot

    def __call__(self) -> str:
        return line_of(self._head, self._sample, self._slot, "")


class _Outcome:
    """What becomes of the samples of one batch, by their places in it."""

    __slots__ = ("batch", "fresh", "held", "refused", "repeated")

    def __init__(self, batch: SampleBatch) -> None:
        self.batch = batch
        self.fresh: list[int] = []
        self.held: list[int] = []
        self.repeated: list[tuple[int, bytes]] = []
        """A sample and the digest of the one that came first."""
        self.refused: dict[int, str] = {}

    def result(self) -> AppendResult:
        digests = self.batch.digests
        conflicts = [
            Conflict(self.batch.samples[at].identity, first, digests[at])
            for at, first in sorted(self.repeated)
            if first != digests[at]
        ]
        new = sum(at not in self.refused for at in self.fresh)
        return AppendResult(
            new,
            len(self.repeated) - len(conflicts),
            tuple(conflicts),
            tuple(Refusal(self.batch.samples[at], why) for at, why in sorted(self.refused.items())),
        )

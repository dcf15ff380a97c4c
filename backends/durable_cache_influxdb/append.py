"""How does a batch become points: each sample once, first wins, at a point of its own?"""

from __future__ import annotations

from collections.abc import Iterator

from durable_cache.errors import StorageFull, StorageUnavailable
from durable_cache.model.sample import SampleBatch, Stream, sample_digest
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.storage.contract import AppendResult, Conflict, Refusal
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.flux import COLUMNS
from durable_cache_influxdb.index import Measurements, Numbering, StreamIndex, StreamState
from durable_cache_influxdb.line_writer import Line, LineWriter
from durable_cache_influxdb.lines import line_of, refusal_of, series_of, stream_line, tags_of
from durable_cache_influxdb.options import InfluxDbOptions
from durable_cache_influxdb.points import Point, fetch, numbers, point_of, scans_of, windows_of
from durable_cache_influxdb.slots import Slot, choose, slots_of
from durable_cache_influxdb.typed_fields import TypedFields

_CHECKED_AT_ONCE = 1000  # held samples fetched by one query for comparison: bounds its answer


class Outcome:
    """What becomes of the samples of one batch, by their places in it."""

    __slots__ = ("batch", "fresh", "held", "refused", "repeated", "streams")

    def __init__(self, batch: SampleBatch) -> None:
        self.batch = batch
        self.streams = [Stream(s.key, s.source, s.epoch) for s in batch.samples]
        self.fresh: list[int] = []
        self.held: list[int] = []
        self.repeated: list[tuple[int, bytes]] = []
        """A sample and the digest of the one that came first."""
        self.refused: dict[int, str] = {}

    def result(self) -> AppendResult:
        samples = self.batch.samples
        offered = {at: sample_digest(samples[at]) for at, _ in self.repeated}
        conflicts = [
            Conflict(samples[at].identity, first, offered[at])
            for at, first in sorted(self.repeated)
            if first != offered[at]
        ]
        new = sum(at not in self.refused for at in self.fresh)
        return AppendResult(
            new,
            len(self.repeated) - len(conflicts),
            tuple(conflicts),
            tuple(Refusal(self.batch.samples[at], why) for at, why in sorted(self.refused.items())),
        )

    def stored(self) -> Iterator[tuple[Numbering, int]]:
        """Return the numbers that this batch added."""
        for at in self.fresh:
            if at not in self.refused:
                stream = self.streams[at]
                yield (stream.source, stream.epoch), self.batch.samples[at].sn


class Appender:
    """Writes batches for one storage, one at a time; the storage's lock is held.

    A stream is in `unsure` from before its points are sent until they are confirmed.
    """

    def __init__(
        self,
        client: Client,
        where: Measurements,
        options: InfluxDbOptions,
        writer: LineWriter,
        typed: TypedFields,
        unsure: set[Stream],
    ) -> None:
        self._client = client
        self._where = where
        self._options = options
        self._writer = writer
        self._typed = typed
        self._unsure = unsure
        self._index = StreamIndex()

    def append(self, batch: SampleBatch, index: StreamIndex) -> Outcome:
        """Store what is new and record it in `index`; raise what storages raise."""
        self._index = index
        outcome = Outcome(batch)
        self._sort_out(outcome)
        if outcome.held:
            self._compare(outcome)
        if outcome.fresh:
            self._store(outcome)
        return outcome

    def _sort_out(self, outcome: Outcome) -> None:
        states = self._index.states
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
        added = [stream for stream in groups if stream not in self._index.states]
        if len(self._index) + len(added) > self._options.streams_max:
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
        states = self._index.states
        for at in outcome.fresh:
            if at in outcome.refused:
                continue
            stream, sn = outcome.streams[at], outcome.batch.samples[at].sn
            state = states.get(stream)
            if state is None:
                state = StreamState(stream, tags_of(stream))
                self._index.put(state)
            state.runs.add(sn, sn)
            slot = slots[at]
            if slot.ordinal == 0 and slot.time_ns > state.time_max_ns:
                state.time_max_ns = slot.time_ns

    def _slots(self, outcome: Outcome) -> dict[int, Slot]:
        """Give every new sample its point, asking the server only about times not above all."""
        states, samples = self._index.states, outcome.batch.samples
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
        outcome.fresh = [at for at in outcome.fresh if at in chosen]
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
            free = choose(time_ns, samples[at].sn, own)
            if free is None:
                outcome.refused[at] = "four samples of its key stand where its timestamp could"
                continue
            own[free] = samples[at].sn
            chosen[at] = free

    def _taken(self, doubtful: list[tuple[Stream, int, int]]) -> dict[Stream, dict[Slot, int]]:
        """Return who stands where the doubtful samples could stand."""
        taken: dict[Stream, dict[Slot, int]] = {}
        wanted = {
            Point(tags_of(stream), slot): stream
            for stream, sn, time_ns in doubtful
            for slot in slots_of(time_ns, sn)
        }
        source = self._where.samples
        scans = scans_of(windows_of(wanted), ("sn",))
        for row in self._client.rows([source.rows(scan) for scan in scans], COLUMNS):
            point = point_of(row)
            stream = wanted.get(point)
            if stream is not None:
                taken.setdefault(stream, {})[point.slot] = int(row[1])
        return taken

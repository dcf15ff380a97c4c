"""What becomes of live samples that name a run which no token named yet (ADR 0366).

A run later than all that is known begins with its first sample, or with its token, whichever comes
first. One that is not later came and went before this cache listened, or its publisher's clock was
set back. Its token tells: its samples wait for that, and count as what others gave if none comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.run_name import RunName, run_of, runs_of
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.events import EngineOptions, EpochDeclared, Origin
from durable_cache.runtime.effects import Arrived

_ITS_TOKEN_IS_HERE_NS = 1 << 63


@dataclass(slots=True)
class _Waiting:
    until_ns: int
    samples: list[Sample] = field(default_factory=list)


class NamedRuns:
    """The live samples of runs that wait for their tokens; at most `doubtful_samples_max`."""

    def __init__(self, engine: CacheEngine, options: EngineOptions) -> None:
        self._engine = engine
        self._samples_max = options.doubtful_samples_max
        self._wait_ns = round(options.token_wait_seconds * 1e9)
        self._waiting: dict[tuple[SourceId, RunName], _Waiting] = {}
        self.held = 0
        """How many samples wait."""

    def are_known(self, batch: SampleBatch) -> bool:
        """Tell whether every run that samples name is known; their sources are in memory."""
        return not any(True for _ in self._unknown(batch))

    def begun_by(self, batch: SampleBatch, now: Moment) -> Iterator[EpochDeclared]:
        """Yield what declares the runs that these samples begin, one after the other."""
        for source, run in sorted(self._unknown(batch)):
            if self._engine.known(source).may_begin(run):
                yield EpochDeclared(source, run.epoch, False, now, run.incarnation, by_sample=True)

    def keep(self, batch: SampleBatch, now: Moment) -> tuple[SampleBatch, int]:
        """Keep samples of runs that are not known, and return the rest; and how many found no room.

        What finds none is asked for when its run is known.
        """
        unknown = set(self._unknown(batch))
        if not unknown:
            return batch, 0
        rest: list[Sample] = []
        left_out = 0
        for sample in batch:
            run = run_of(sample)
            key = None if run is None else (sample.source, run)
            if key is None or key not in unknown:
                rest.append(sample)
            elif self.held < self._samples_max:
                until_ns = now.monotonic_ns + self._wait_ns
                self._waiting.setdefault(key, _Waiting(until_ns)).samples.append(sample)
                self.held += 1
            else:
                left_out += 1
        return SampleBatch(rest), left_out

    def wake_ns(self) -> int | None:
        """Return when the first waits no longer, or None."""
        until = (waiting.until_ns for waiting in self._waiting.values())
        return min((ns for ns in until if ns != _ITS_TOKEN_IS_HERE_NS), default=None)

    def expect(self, token: EpochDeclared) -> None:
        """Let wait, however long, what waits for a token that is here and waits itself."""
        for (source, run), waiting in self._waiting.items():
            if (source, run.incarnation) == (token.source, token.incarnation):
                waiting.until_ns = _ITS_TOKEN_IS_HERE_NS

    def shown(self, token: EpochDeclared) -> Iterator[Arrived]:
        """Yield what waited for a token; its run is known."""
        for key in [key for key in self._waiting if key[0] == token.source]:
            if key[1].incarnation == token.incarnation:
                yield Arrived(self._take(key), Origin.LIVE, token.now)

    def over(self, now: Moment) -> list[Arrived]:
        """Return what waited in vain, as others might have given it."""
        over: list[Arrived] = []
        if not self._waiting:  # asked for with every event
            return over
        now_ns = now.monotonic_ns
        for key in [key for key, waiting in self._waiting.items() if waiting.until_ns <= now_ns]:
            epoch, samples = key[1].epoch, self._take(key)
            named = (msgspec.structs.replace(sample, epoch=epoch) for sample in samples)
            over.append(Arrived(SampleBatch(named), Origin.RECOVERED, now))
        return over

    def _take(self, key: tuple[SourceId, RunName]) -> SampleBatch:
        waiting = self._waiting.pop(key)
        self.held -= len(waiting.samples)
        return SampleBatch(waiting.samples)

    def _unknown(self, batch: SampleBatch) -> Iterator[tuple[SourceId, RunName]]:
        for source, run in runs_of(batch):
            if self._engine.known(source).of_incarnation(run.incarnation) is None:
                yield source, run

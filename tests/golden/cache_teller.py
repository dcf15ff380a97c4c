"""Stories of a cache's core, with a storage in memory behind it.

The storage answers questions at once, unless the story lets the index or the backend be away;
appends and look-ups wait until the story answers them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace

from durable_cache.model.ranges import SnRange
from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Selection
from durable_cache.protocol.cache.events import (
    Append,
    Appended,
    AppendFailed,
    BatchRefused,
    EngineOptions,
    EpochDeclared,
    Fetch,
    FetchEnded,
    HeartbeatReceived,
    Origin,
    ReportAbsent,
    ReportConflict,
    ReportMiss,
    SendAck,
    Tick,
    TokenGone,
    Verified,
    Verify,
    VerifyFailed,
)
from durable_cache.runtime.answering import answer, look_up
from durable_cache.runtime.core import CacheCore, CoreOptions
from durable_cache.runtime.effects import (
    Announce,
    Answered,
    Arrived,
    Ask,
    AskFailed,
    CoreEvent,
    Effect,
    Inquire,
    Inquired,
    ReportEpochs,
    Started,
)
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from tests.golden.stories import (
    SECOND_NS,
    Teller,
    Words,
    number,
    numbering,
    numbers,
    run,
    runs,
    samples,
    source_of,
    told,
)

_ORIGINS = {
    "live": Origin.LIVE,
    "recovered": Origin.RECOVERED,
    "aligned": Origin.ALIGNED,
    "native": Origin.NATIVE,
}
_ENGINE_OPTIONS = {each.name for each in fields(EngineOptions)}


class CacheTeller(Teller):
    """One cache and what waits for an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._options = CoreOptions()
        self._store = JournaledStorage(MemoryStorage(), None)
        self._away: set[str] = set()
        self._appends: deque[Append] = deque()
        self._lookups: deque[Verify] = deque()
        self._begin()

    def _begin(self) -> None:
        index = self._store.index
        self._core = CacheCore(
            self._options, aliases=index.aliases(), agreements=index.agreements()
        )
        self._appends.clear()
        self._lookups.clear()

    def tell(self, line: Words) -> list[str]:
        now = self.clock.moment
        match line.verb, *line.words:
            case "options", *_:
                self._set(line)
                return []
            case "restart", *_:
                self._begin()
                return self._give(Started(tuple(self._store.index.sources_with_holes(100)), now))
            case (("live" | "recovered" | "aligned" | "native"), *_):
                batch = SampleBatch(samples(line.tail, self.clock))
                return self._give(Arrived(batch, _ORIGINS[line.verb], now))
            case "refused", name, text:
                source, _ = source_of(name)
                sns = numbers(text)
                return self._give(BatchRefused(((source, SnRange(sns[0], sns[-1])),), now))
            case "token", name, *words:
                source, epoch = source_of(name)
                called = line.settings.get("run", "")
                return self._give(EpochDeclared(source, epoch, "fresh" in words, now, called))
            case "gone", name, *_:
                return self._give(TokenGone(source_of(name)[0], line.settings["run"], now))
            case "heartbeat", name, text:
                return self._give(HeartbeatReceived(source_of(name)[0], number(text), now))
            case "wait", seconds:
                return self.clock.wait(float(seconds), self._core.wake_ns, self._tick)
            case "clock", seconds:
                self.clock.unix_offset_ns += round(float(seconds) * SECOND_NS)
                return []
            case (("index" | "backend"), "away"):
                self._away.add(line.verb)
                return []
            case (("index" | "backend"), "back"):
                self._away.discard(line.verb)
                return []
            case "drained", *_:
                while self._store.drain():
                    pass
                return []
            case "state", *_:
                return self._state()
            case _:
                return self._answer(line)

    def _answer(self, line: Words) -> list[str]:
        """Answer what the core waits for, or say that it cannot be answered."""
        now = self.clock.moment
        waiting = self._appends if line.verb.startswith("append") else self._lookups
        match line.verb, *line.words:
            case (("appended" | "append-failed" | "looked-up" | "look-up-failed"), *_) if (
                not waiting
            ):
                return ["nothing waits for that"]
            case "appended", *_:
                append = self._appends.popleft()
                self._store.commit(append.batch, append.skips)
                return self._give(Appended(now))
            case "append-failed", *_:
                self._appends.popleft()
                return self._give(AppendFailed(now))
            case "looked-up", *_:
                verify = self._lookups.popleft()
                found = look_up(self._store, verify.samples)
                return self._give(Verified(verify.verify_id, found, now))
            case "look-up-failed", *_:
                return self._give(VerifyFailed(self._lookups.popleft().verify_id, now))
            case "fetched", fetch_id:
                return self._give(FetchEnded(int(fetch_id), now))
            case "fetch-failed", fetch_id:
                return self._give(FetchEnded(int(fetch_id), now, failed=True))
            case "inquired", inquiry_id:
                return self._give(Inquired(int(inquiry_id), now))
            case _:
                raise ValueError(f"a cache has no event {line.text!r}")

    def _set(self, line: Words) -> None:
        values = {
            name: float(text) if name.endswith("_seconds") else int(text)
            for name, text in line.settings.items()
        }
        engine = {name: value for name, value in values.items() if name in _ENGINE_OPTIONS}
        core = {name: value for name, value in values.items() if name not in _ENGINE_OPTIONS}
        of_engine = replace(self._options.engine, **engine)  # type: ignore[arg-type]
        self._options = replace(self._options, engine=of_engine, **core)  # type: ignore[arg-type]
        self._begin()

    def _tick(self) -> list[str]:
        return self._give(Tick(self.clock.moment))

    def _give(self, event: CoreEvent) -> list[str]:
        lines: list[str] = []
        effects = deque(self._core.handle(event))
        while effects:
            effect = effects.popleft()
            match effect:
                case Ask():
                    effects.extendleft(reversed(self._core.handle(self._from_storage(effect))))
                    continue
                case Append():
                    self._appends.append(effect)
                case Verify():
                    self._lookups.append(effect)
            lines.append(_effect(effect))
        return lines

    def _from_storage(self, ask: Ask) -> Answered | AskFailed:
        now = self.clock.moment
        if ("index" if ask.urgent else "backend") in self._away:
            return AskFailed(ask.ask_id, now)
        return Answered(ask.ask_id, answer(self._store, ask.question), now)

    def _state(self) -> list[str]:
        core, counts = self._core, self._core.counts
        held = self._store.read(Selection(), 1_000_000).samples
        return [
            f"holds {told(held)}",
            f"gaps {core.gaps_open}, doubtful {core.doubtful}, sources {core.sources},"
            f" repeats {counts.duplicates}, conflicts {counts.conflicts},"
            f" restarts {counts.restarts}, {'ready' if core.ready else 'not ready'}",
        ]


def _effect(effect: Effect) -> str:
    match effect:
        case Append(batch, skips):
            skipped = [
                f"skip {numbering(skip.source, skip.epoch)} {run(skip.first, skip.last)}"
                for skip in skips
            ]
            return "append " + " and ".join([told(batch)] * (len(batch) > 0) + skipped)
        case SendAck(source, epoch, held, incarnation):
            named = f" run={incarnation}" if incarnation else ""
            return f"acknowledge {numbering(source, epoch)} {runs(held)}{named}"
        case Fetch(fetch_id, source, epoch, first, last, native_first):
            native = "" if native_first is None else f", of its publisher from {native_first}"
            return f"fetch {fetch_id}: {numbering(source, epoch)} {run(first, last)}{native}"
        case Verify(_, doubted):
            return f"look up {told(doubted)}"
        case ReportMiss(source, epoch, first, last):
            return f"miss {numbering(source, epoch)} {run(first, last)}"
        case ReportConflict(offered, stored):
            stays = "another" if stored is None else repr(stored.payload.decode())
            texts = f"{offered.payload.decode()!r} offered, {stays} stays"
            return f"conflict {told([offered])}: {texts}"
        case Announce(_, source, _, sn):
            return f"announce {source.zid} {sn}"
        case ReportAbsent(sample):
            return f"held but not found: {told([sample])}"
        case ReportEpochs(alias, are_one):
            verdict = "are one" if are_one else "are two"
            return f"epochs {alias.stored} and {alias.epoch} of {alias.source.zid} {verdict}"
        case Inquire(inquiry_id, source, first, last):
            return f"inquire {inquiry_id}: how do others call {source.zid} {run(first, last)}?"
        case Ask():
            raise AssertionError("questions are answered, not told")

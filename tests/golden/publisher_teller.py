"""Stories of a reliable publisher: what gets which number, and who holds it already."""

from __future__ import annotations

from dataclasses import replace

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Kind, SourceId
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    AckReceived,
    AskEpochs,
    Declare,
    EngineOptions,
    EpochsKnown,
    EpochsUnknown,
    Event,
    Finished,
    Full,
    HandedOver,
    Output,
    Put,
    Send,
    SendFailed,
    Sent,
    Standing,
    Started,
    TokenDeclared,
    TokenFailed,
)
from durable_cache.protocol.wire import Ack
from tests.golden.stories import (
    START_EPOCH,
    Teller,
    Words,
    named,
    number,
    numbers,
    run,
    runs,
    source_of,
    told,
)

_SOURCE = SourceId("a", 1)
_DISK = 2


class PublisherTeller(Teller):
    """One publisher, source ``a``; its numberings are called r1, r2 and so on, as they come."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[str, str] = {}
        self._options = EngineOptions()
        self._engine = PublisherEngine(_SOURCE, "00000001", self._options)

    def tell(self, line: Words) -> list[str]:
        now = self.clock.moment
        match line.verb, *line.words:
            case "options", *_:
                self._set(line)
                return []
            case "start", *_:
                return self._give(Started(now))
            case "epochs-known", text:
                return self._give(EpochsKnown(START_EPOCH + int(text), now))
            case "epochs-unknown", *_:
                return self._give(EpochsUnknown(now))
            case "declared", *_:
                return self._give(TokenDeclared(self._engine.incarnation))
            case "declare-failed", *_:
                return self._give(TokenFailed(self._engine.incarnation))
            case "put", *_:
                return self._give(self._put(line))
            case "sent", *_:
                return self._give(Sent())
            case "send-failed", *_:
                return self._give(SendFailed())
            case "puts", count:
                return self._puts(line, int(count))
            case "ack", cache_id, text:
                return self._give(AckReceived(self._ack(line, cache_id, text)))
            case "wait", seconds:
                return self.clock.wait(float(seconds), lambda: None, list)
            case "kept", *_:
                return [told(self._engine.kept())]
            case "absences", text:
                return self._absences(line, numbers(text))
            case "state", *_:
                engine = self._engine
                return [
                    f"next {named(engine.next_sn)}, epoch {engine.epoch},"
                    f" run {self._named(engine.incarnation)},"
                    f" unacknowledged {engine.unacknowledged}"
                ]
            case _:
                raise ValueError(f"a publisher has no event {line.text!r}")

    def _set(self, line: Words) -> None:
        settings = dict(line.settings)
        first = number(settings.pop("next_sn", "0"))
        values: dict[str, object] = {name: int(text) for name, text in settings.items()}
        self._options = replace(EngineOptions(), **values)  # type: ignore[arg-type]
        self._engine = PublisherEngine(_SOURCE, "00000001", self._options, next_sn=first)

    def _give(self, event: Event) -> list[str]:
        return [*map(self._output, self._engine.handle(event))]

    def _put(self, line: Words) -> Put:
        now = self.clock.moment
        key = line.settings.get("key", "k/1")
        ntp64 = ntp64_from_ns(now.unix_ns)
        return Put(key, Kind.PUT, b"x", "zenoh/bytes", None, ntp64, "1", 0, now)

    def _puts(self, line: Words, count: int) -> list[str]:
        """Put several, each sent as it should."""
        told: list[str] = []
        for _ in range(count):
            told += self._give(self._put(line)) + self._give(Sent())
        return told

    def _ack(self, line: Words, cache_id: str, text: str) -> Ack:
        called = {name: incarnation for incarnation, name in self._runs.items()}
        epoch = int(line.settings.get("epoch", 0))
        of_run = "" if epoch else self._engine.incarnation
        if "run" in line.settings:
            of_run = called[line.settings["run"]]
        level = int(line.settings.get("level", _DISK))
        source = source_of(line.settings.get("source", "a"))[0]
        held = tuple((one.first, one.last) for one in RangeSet.of(numbers(text)))
        return Ack(cache_id, level, source, epoch, held, of_run)

    def _absences(self, line: Words, sns: list[int]) -> list[str]:
        """Say which numbers asked for on a key lie under other keys."""
        selection = Selection(
            KeyExpression(line.settings.get("key", "k/1")),
            *_SOURCE,
            sns=SnBounds(sns[0], sns[-1]),
        )
        return [
            f"{absence.source.zid}@{absence.epoch} {run(absence.first, absence.last)}"
            f" {absence.reason.name.lower().replace('_', ' ')}"
            for absence in self._engine.absences(selection)
        ]

    def _named(self, incarnation: str) -> str:
        return self._runs.setdefault(incarnation, f"r{len(self._runs) + 1}")

    def _output(self, output: Output) -> str:
        match output:
            case AskEpochs():
                return "ask caches which epochs they know"
            case Declare(epoch, incarnation):
                return f"declare epoch {epoch} run {self._named(incarnation)}"
            case Send(sample=sample):
                return f"send {told([sample])}"
            case Full(unacknowledged):
                return f"not taken: {unacknowledged} wait for acknowledgements"
            case HandedOver(_, last, first):
                return f"tells subscribers of {'' if first is None else first}..{last}"
            case Finished(standings):
                return "; ".join(f"done {text}" for text in self._standings(standings))

    def _standings(self, standings: tuple[Standing, ...]) -> list[str]:
        finished: dict[str, list[int]] = {}
        for standing in standings:
            finished.setdefault(self._named(standing.incarnation), []).append(standing.sn)
        return [f"run {name} {runs(RangeSet.of(sns))}" for name, sns in finished.items()]

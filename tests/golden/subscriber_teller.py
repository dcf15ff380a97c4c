"""Stories of a reliable subscriber: what it is told, what it passes on, asks for and reports.

An answer is written as its samples, with what else it says behind semicolons: ``absent a@1000 5..6
other-key``, ``calls a@1000 r1``, ``too-large a 7``, ``cut``, ``not-whole``, ``nobody``.
"""

from __future__ import annotations

from dataclasses import fields, replace

from durable_cache.model.sample import Sample
from durable_cache.model.timestamp import format_ntp64, ntp64_from_ns
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.events import (
    Answer,
    AnswererAppeared,
    AnswerersGone,
    AnswerPart,
    AskBeginning,
    AskHistory,
    BeginningTold,
    Declared,
    Deliver,
    DeliveryOptions,
    Event,
    Fetch,
    Fetched,
    FetchFailed,
    HeartbeatReceived,
    HistoryFailed,
    HistoryPage,
    Missed,
    Output,
    Received,
    TimePassed,
    TokenGone,
)
from durable_cache.protocol.wire import Absence, AbsenceReason, Incarnation
from tests.golden.stories import (
    Teller,
    Words,
    number,
    numbering,
    numbers,
    run,
    samples,
    source_of,
    told,
)

_REASONS = {
    "other-key": AbsenceReason.OTHER_KEY,
    "removed": AbsenceReason.TRIMMED,
    "skipped": AbsenceReason.SKIPPED,
}
_WHOLE_NUMBERS = {each.name for each in fields(DeliveryOptions) if each.type == "int"}


class SubscriberTeller(Teller):
    """One subscriber."""

    def __init__(self) -> None:
        super().__init__()
        self._options = DeliveryOptions()
        self._engine = SubscriberEngine(self._options)

    def tell(self, line: Words) -> list[str]:
        now = self.clock.moment
        match line.verb, *line.words:
            case "options", *_:
                self._options = _options(line)
                self._engine = SubscriberEngine(self._options)
                return []
            case "start", *words:
                self._engine = SubscriberEngine(self._options, history="history" in words)
                known = "caches" in words
                return [*map(_output, self._engine.start(now, answerers_known=known))]
            case "live", *_:
                return self._give(Received(samples(line.tail, self.clock), now))
            case "token", name:
                source, epoch = source_of(name)
                return self._give(Declared(source, epoch, line.settings.get("run", ""), now))
            case "gone", name:
                return self._give(TokenGone(source_of(name)[0], line.settings["run"], now))
            case "heartbeat", name, text:
                return self._give(HeartbeatReceived(source_of(name)[0], number(text), now))
            case "caches-gone", *_:
                return self._give(AnswerersGone(now))
            case "cache-appears", *strange:
                return self._give(AnswererAppeared(now, strange=strange == ["strange"]))
            case "beginning", question_id, ntp64:
                return self._give(BeginningTold(int(question_id), int(ntp64), now))
            case "fetched", fetch_id, *_:
                return self._give(Fetched(int(fetch_id), self._answer(line), now))
            case "fetch-failed", fetch_id:
                return self._give(FetchFailed(int(fetch_id), now))
            case "page", question_id, *_:
                return self._give(HistoryPage(int(question_id), self._answer(line), now))
            case "page-failed", question_id:
                return self._give(HistoryFailed(int(question_id), "the storage is away", now))
            case "wait", seconds:
                return self.clock.wait(float(seconds), self._engine.wake_ns, self._tick)
            case "state", *_:
                engine = self._engine
                history = "complete" if engine.history_complete else "not complete"
                return [
                    f"delivered {engine.delivered}, missed {engine.missed},"
                    f" repeats {engine.duplicates}, dropped {engine.dropped},"
                    f" sources that wait {engine.gaps_open}, history {history}"
                ]
            case _:
                raise ValueError(f"a subscriber has no event {line.text!r}")

    def _give(self, event: Event) -> list[str]:
        return [*map(_output, self._engine.handle(event))]

    def _tick(self) -> list[str]:
        return self._give(TimePassed(self.clock.moment))

    def _answer(self, line: Words) -> Answer:
        said, *rest = (part.strip() for part in line.tail.partition(" ")[2].split(";"))
        found = samples(said, self.clock) if said else ()
        absent: list[Absence] = []
        names: list[Incarnation] = []
        oversized: list[Sample] = []
        answerers, whole, cut_after = 1, True, None
        for part in rest:
            match part.split():
                case ["absent", name, text, reason]:
                    sns = numbers(text)
                    place = (*source_of(name), sns[0], sns[-1])
                    absent.append(Absence(*place, _REASONS[reason]))
                case ["calls", name, incarnation]:
                    names.append(Incarnation(*source_of(name), incarnation))
                case ["too-large", name, text]:
                    oversized += samples(f"{name} {text}", self.clock)
                case ["cut"]:
                    cut_after = _last(found)
                case ["not-whole"]:
                    whole = False
                case ["nobody"]:
                    answerers = 0
                case _:
                    raise ValueError(f"an answer says nothing like {part!r}")
        parts = (AnswerPart(found, tuple(absent), tuple(names), oversized),) if answerers else ()
        return Answer(parts, answerers, whole, cut_after)


def _last(found: tuple[Sample, ...]) -> Sample:
    return max(found, key=lambda sample: sample.time_order)


def _options(line: Words) -> DeliveryOptions:
    values: dict[str, object] = {}
    for name, text in line.settings.items():
        if name == "recovery":
            values[name] = text == "yes"
        else:
            values[name] = int(text) if name in _WHOLE_NUMBERS else float(text)
    return replace(DeliveryOptions(), **values)  # type: ignore[arg-type]


def _output(output: Output) -> str:
    match output:
        case Deliver(delivered):
            return f"deliver {told(delivered)}"
        case Missed(source, epoch, first, last):
            return f"missed {numbering(source, epoch)} {run(first, last)}"
        case Fetch(fetch_id, source, epoch, first, last, after):
            behind = "" if after is None else f" behind {told([after])}"
            return f"fetch {fetch_id}: {numbering(source, epoch)} {run(first, last)}{behind}"
        case AskBeginning(question_id, standings):
            stands = ", ".join(
                f"{numbering(one.source, one.epoch)} {one.following}" for one in standings
            )
            return f"ask what is behind {question_id}: {stands or 'nothing'}"
        case AskHistory(question_id, after, samples_max, since_ns):
            where = "from its beginning" if after is None else f"behind {told([after])}"
            where += "" if since_ns is None else f" since {format_ntp64(ntp64_from_ns(since_ns))}"
            return f"ask for history {question_id}: {where}, at most {samples_max}"

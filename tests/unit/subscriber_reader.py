"""What a subscriber's user would see of its engine, with every question left to the test."""

from __future__ import annotations

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import frame
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.events import (
    Answer,
    AnswerPart,
    AskHistory,
    Declared,
    Deliver,
    DeliveryOptions,
    Event,
    Fetch,
    Fetched,
    HistoryPage,
    Missed,
    Output,
    Received,
    TimePassed,
)
from durable_cache.protocol.wire import Absence, AbsenceReason, Incarnation

SOURCE = SourceId("ab12", 7)
OTHER = SourceId("cd", 1)
SECOND = 1_000_000_000
BEGAN_NS = 1_700_000_000 * SECOND
EPOCH = frame(BEGAN_NS) - 100
"""Of a publisher that began long before the subscriber."""
FRESH = frame(BEGAN_NS)
_BASE = (BEGAN_NS // SECOND) << 32


def sample(
    sn: int, epoch: int = 0, at: float | None = None, source: SourceId = SOURCE, key: str = "k"
) -> Sample:
    seconds = sn / 1000 if at is None else at
    ntp64 = _BASE + round(seconds * (1 << 32))
    return Sample(key, source, epoch, sn, b"%d" % sn, ntp64=ntp64)


def moment_at(seconds: float) -> Moment:
    """So long after the subscriber began."""
    past_ns = round(seconds * SECOND)
    return Moment(past_ns, BEGAN_NS + past_ns)


class Reader:
    """Notes what a subscriber would see, and keeps the questions for the test to answer."""

    def __init__(
        self,
        options: DeliveryOptions | None = None,
        *,
        history: bool = False,
        newest: int = 0,
        answerers_known: bool = False,
    ) -> None:
        self.engine = SubscriberEngine(options, history=history, newest=newest)
        self.story: list[int | tuple[int, int]] = []
        self.delivered_samples: list[Sample] = []
        self.missed: list[Missed] = []
        self.unsure: list[int] = []
        """The samples before which nobody knows whether something is missing."""
        self.fetches: list[Fetch] = []
        self.asked: list[AskHistory] = []
        self.seconds = 0.0
        self.take(self.engine.start(self.now, answerers_known=answerers_known))

    @property
    def now(self) -> Moment:
        return moment_at(self.seconds)

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Deliver(samples, unsure):
                    self.unsure += [samples[0].sn] if unsure else []
                    self.story += [one.sn for one in samples]
                    self.delivered_samples += samples
                case Missed(_, _, first, last):
                    self.missed.append(output)
                    self.story.append((first, last))
                case Fetch():
                    self.fetches.append(output)
                case AskHistory():
                    self.asked.append(output)

    def handle(self, event: Event) -> None:
        self.take(self.engine.handle(event))

    def live(self, *samples: Sample) -> None:
        self.handle(Received(samples, self.now))

    def declared(self, epoch: int, incarnation: str = "", source: SourceId = SOURCE) -> None:
        self.handle(Declared(source, epoch, incarnation, self.now))

    def answer(
        self,
        *samples: Sample,
        absent: tuple[Absence, ...] = (),
        names: tuple[Incarnation, ...] = (),
        answerers: int = 1,
        whole: bool = True,
        oversized: tuple[Sample, ...] = (),
        cut: bool = False,
    ) -> None:
        part = AnswerPart(samples, absent, names, oversized)
        cut_after = samples[-1] if cut else None
        answer = Answer((part,), answerers, whole, cut_after)
        self.handle(Fetched(self.fetches.pop(0).fetch_id, answer, self.now))

    def answer_of(self, *parts: AnswerPart) -> None:
        """Bring an answer of several, each with names of its own."""
        answer = Answer(parts, len(parts), whole=True, cut_after=None)
        self.handle(Fetched(self.fetches.pop(0).fetch_id, answer, self.now))

    def page(
        self,
        *parts: list[Sample],
        cut_after: Sample | None = None,
        whole: bool = True,
        names: tuple[Incarnation, ...] = (),
    ) -> None:
        answer = Answer(
            tuple(AnswerPart(part, (), names) for part in parts), len(parts), whole, cut_after
        )
        self.handle(HistoryPage(self.asked.pop(0).question_id, answer, self.now))

    def page_of(self, *parts: AnswerPart, cut_after: Sample | None = None) -> None:
        """Bring a page of answers, each with names of its own."""
        answer = Answer(parts, len(parts), whole=True, cut_after=cut_after)
        self.handle(HistoryPage(self.asked.pop(0).question_id, answer, self.now))

    def wait(self, seconds: float) -> None:
        """Let time pass, waking up whenever the engine wants to."""
        until = self.seconds + seconds
        for _ in range(10_000):
            wake_ns = self.engine.wake_ns()
            if wake_ns is None or wake_ns / SECOND > until:
                break
            self.seconds = max(self.seconds, wake_ns / SECOND)
            self.handle(TimePassed(self.now))
            if self.fetches or self.asked:
                return
        self.seconds = until

    @property
    def delivered(self) -> list[int]:
        return [one for one in self.story if isinstance(one, int)]

    @property
    def wanted(self) -> list[tuple[int, int | None]]:
        return [(fetch.first, fetch.last) for fetch in self.fetches]


def absent(first: int, last: int, reason: AbsenceReason, epoch: int = 0) -> Absence:
    return Absence(SOURCE, epoch, first, last, reason)

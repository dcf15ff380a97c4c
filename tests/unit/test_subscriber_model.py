"""The subscriber against a model: the numbers of every run once, in order, or reported."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from durable_cache.model.sample import Sample
from durable_cache.protocol.subscriber.events import (
    Answer,
    AnswerPart,
    Deliver,
    DeliveryOptions,
    Fetched,
    FetchFailed,
    Missed,
    Output,
    TimePassed,
)
from durable_cache.protocol.wire import Absence, AbsenceReason, Incarnation
from tests.unit.subscriber_reader import FRESH, SOURCE, Reader, sample

_RUN_SECONDS = 20.0

fates = st.sampled_from(["received", "received", "received", "lost", "nowhere", "other key"])
"""Of one number: it came; only the cache has it; nobody has it; it is under another key."""
runs = st.lists(st.lists(fates, min_size=1, max_size=12), min_size=1, max_size=4)


class Model(Reader):
    """Notes runs beside numbers, and answers as a cache that knows every run by its name."""

    def __init__(self, published: list[list[str]], options: DeliveryOptions) -> None:
        self.seen: list[tuple[int, int, bool]] = []
        self.published = published
        super().__init__(options)

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Missed):
                run = self.run_of(output.epoch)
                self.seen += [(run, sn, False) for sn in range(output.first, output.last + 1)]
            elif isinstance(output, Deliver):
                self.seen += [(int(one.payload), one.sn, True) for one in output.samples]
        super().take(outputs)

    def run_of(self, epoch: int) -> int:
        return epoch - FRESH

    def sample_of(self, run: int, sn: int, epoch: int) -> Sample:
        made = sample(sn, epoch, at=run * _RUN_SECONDS + sn / 1000)
        return Sample(made.key, made.source, epoch, sn, b"%d" % run, ntp64=made.ntp64)

    def answer_next(self, begun: int, *, fails: bool) -> None:
        fetch = self.fetches.pop(0)
        if fails:
            self.handle(FetchFailed(fetch.fetch_id, self.now))
            return
        found: list[Sample] = []
        absent: list[Absence] = []
        for run, numbers in enumerate(self.published[:begun]):
            for sn, fate in enumerate(numbers):
                if sn < fetch.first or (fetch.last is not None and sn > fetch.last):
                    continue
                if fate in ("received", "lost"):
                    found.append(self.sample_of(run, sn, FRESH + run))
                elif fate == "other key":
                    reason = AbsenceReason.OTHER_KEY
                    absent.append(Absence(SOURCE, FRESH + run, sn, sn, reason))
        names = tuple(Incarnation(SOURCE, FRESH + run, f"{run:08x}") for run in range(begun))
        part = AnswerPart(found, tuple(absent), names)
        self.handle(Fetched(fetch.fetch_id, Answer((part,), 1), self.now))


@settings(max_examples=150, deadline=None)
@given(runs, st.lists(st.booleans(), max_size=30), st.sampled_from([3, 1000]))
def test_what_was_published_is_delivered_once_in_order_or_reported(
    published: list[list[str]], failing: list[bool], pending_samples_max: int
) -> None:
    options = DeliveryOptions(gap_timeout_seconds=100, pending_samples_max=pending_samples_max)
    model = Model(published, options)
    for run, numbers in enumerate(published):
        model.seconds = run * _RUN_SECONDS
        model.declared(FRESH, f"{run:08x}")  # always within one frame
        for sn, fate in enumerate(numbers):
            if fate == "received":
                model.live(model.sample_of(run, sn, 0))
            if failing and model.fetches:
                model.answer_next(run + 1, fails=failing.pop())
    for _ in range(2000):
        while model.fetches:
            model.answer_next(len(published), fails=False)
        if (wake_ns := model.engine.wake_ns()) is None:
            break
        model.seconds = max(model.seconds, wake_ns / 1e9)
        model.handle(TimePassed(model.now))
    assert model.engine.gaps_open == 0
    places = [(run, sn) for run, sn, _ in model.seen]
    assert places == sorted(set(places))
    delivered = {(run, sn) for run, sn, came in model.seen if came}
    missed = {(run, sn) for run, sn, came in model.seen if not came}
    known = [run for run, numbers in enumerate(published) if "received" in numbers]
    for run, numbers in enumerate(published):
        last = max((sn for sn, fate in enumerate(numbers) if fate == "received"), default=-1)
        if known and run < known[-1]:  # what came after the last number that was seen is asked for
            last = max((sn for sn, fate in enumerate(numbers) if fate != "nowhere"), default=-1)
        for sn, fate in enumerate(numbers[: last + 1]):
            assert ((run, sn) in delivered) == (fate in ("received", "lost"))
            assert ((run, sn) in missed) == (fate == "nowhere")

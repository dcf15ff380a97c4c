"""What a subscriber is to do, in order, as the parts of its engine find it out."""

from __future__ import annotations

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.modes import Passed
from durable_cache.protocol.subscriber.events import Deliver, Missed, Output
from durable_cache.protocol.subscriber.subjects import Subjects


class Outputs:
    """Collects what a subscriber is to do, samples in runs as long as they get."""

    def __init__(self, subjects: Subjects, *, keeps_repeats: bool = False) -> None:
        """`keeps_repeats`: what comes again, or late, is passed on as its mode has it."""
        self._subjects, self._keeps_repeats = subjects, keeps_repeats
        self.ready: list[Sample] = []
        self.done: list[Output] = []
        self.delivered = self.missed = 0
        self.unsure = False
        """What is ready next may follow a loss that nobody can count."""
        self._passed = Passed.FIRST

    def pass_on(self, sample: Sample, passed: Passed = Passed.FIRST) -> None:
        """Deliver a sample, in a run with its neighbours as which the same happens."""
        if passed is not self._passed:
            self._flush()
            self._passed = passed
        self.ready.append(sample)

    def report(self, source: SourceId, epoch: int, first: int, last: int) -> None:
        """Report numbers as missed, after everything that is ready."""
        self._flush()
        self.missed += last - first + 1
        previous = self.done[-1] if self.done else None
        if isinstance(previous, Missed) and previous == Missed(
            source, epoch, previous.first, first - 1
        ):
            self.done[-1] = Missed(source, epoch, previous.first, last)
        else:
            self.done.append(Missed(source, epoch, first, last))

    def begin_unsure(self) -> None:
        """Have it said with what is ready next."""
        self._flush()
        self.unsure = True

    def ask(self, question: Output) -> None:
        self.done.append(question)

    def take(self) -> list[Output]:
        """Return what there is to do and begin anew."""
        self._flush()
        done, self.done = self.done, []
        return done

    def _flush(self) -> None:
        if not self.ready:
            return
        samples = self._subjects.read(self.ready, keeps_repeats=self._keeps_repeats)
        if samples:
            self.delivered += len(samples)
            self.done.append(Deliver(tuple(samples), self.unsure, self._passed))
            self.unsure = False
        self.ready.clear()

"""What a subscriber is to do, in order, as the parts of its engine find it out."""

from __future__ import annotations

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.events import Deliver, Missed, Output

__all__ = ["Outputs"]


class Outputs:
    """Collects what a subscriber is to do, samples in runs as long as they get."""

    def __init__(self) -> None:
        self.ready: list[Sample] = []
        self.done: list[Output] = []
        self.delivered = self.missed = 0
        self._unsure = False

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
        """What is ready next may follow a loss that nobody can count."""
        self._flush()
        self._unsure = True

    def ask(self, question: Output) -> None:
        self.done.append(question)

    def take(self) -> list[Output]:
        """Return what there is to do and begin anew."""
        self._flush()
        done, self.done = self.done, []
        return done

    def _flush(self) -> None:
        if self.ready:
            self.delivered += len(self.ready)
            self.done.append(Deliver(tuple(self.ready), self._unsure))
            self.ready.clear()
            self._unsure = False

"""What a subscriber tells of its publishers' subject sequences (ADR 0167)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from durable_cache.endpoints.session import IntoKeyExpr, Session, read_text
from durable_cache.endpoints.subscriber.channels import Callback, Listener, Sink, sink_of
from durable_cache.model.sample import SourceId
from durable_cache.protocol.subjects import SubjectCounts
from durable_cache.protocol.subscriber.subjects import (
    SubjectLoss,
    Subjects,
    SubjectState,
)


class SubjectLossListener(Listener[SubjectLoss]):
    """What `subjects.listen` returns: where losses are received from, until `undeclare`."""


class SubjectsSeen:
    """The subjects of one subscriber: what came last of each, and what was lost of it.

    Any thread may ask; nothing is here of publishers without `subject_sequences`.
    """

    def __init__(self, session: Session, subjects: Callable[[], Subjects]) -> None:
        """`subjects` gives those of the engine that runs now."""
        self._session, self._subjects = session, subjects
        self._sinks: list[Sink[SubjectLoss]] = []

    @property
    def counts(self) -> SubjectCounts:
        """What was counted so far."""
        return self._subjects().counts

    @property
    def losses(self) -> Sequence[SubjectLoss]:
        """The last loss of each subject that had one, the latest last."""
        return self._subjects().losses()

    @property
    def errors(self) -> int:
        """How often a listener's callback raised."""
        return sum(sink.errors for sink in self._sinks if isinstance(sink, Callback))

    def state(self, source: SourceId, key: IntoKeyExpr) -> SubjectState | None:
        """Return what came last of a publisher's key; None where it is not in the window."""
        return self._subjects().state(source, read_text(key, "key"))

    def listen(self, handler: object = None) -> SubjectLossListener:
        """Tell `handler` of every loss of a subject, before what follows it is delivered.

        Takes what a subscriber takes. Raises ConfigError at once for what cannot be told.
        """
        sink, given = sink_of(handler, SubjectLoss, self._session)
        self._sinks.append(sink)
        return SubjectLossListener(sink, given, self._sinks.remove)

    def tell(self) -> None:
        """Tell listeners of what was lost since the last time; on the thread that delivers."""
        losses = self._subjects().take_losses()
        for sink in tuple(self._sinks) if losses else ():
            sink.deliver(tuple(losses))

    def close(self) -> None:
        """Close what listeners receive from."""
        for sink in self._sinks:
            sink.close()

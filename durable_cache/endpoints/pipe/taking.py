"""Where a pipe takes samples from: a subscriber of the source network, as the pipe's mode has it.

Exactly-once has a durable consumer of the pipe's name, whose positions caches keep. At-least-once
reads all that caches hold at every start, and recovers; what is confirmed bounds what is under way,
and is forgotten. The others take what arrives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import assert_never, cast

from durable_cache.endpoints.pipe.options import PipeOptions
from durable_cache.endpoints.session import Session
from durable_cache.endpoints.subscriber.asked import ConsumerName
from durable_cache.endpoints.subscriber.channels import Delivery
from durable_cache.endpoints.subscriber.consumer import ReliableConsumer
from durable_cache.endpoints.subscriber.declaring import FOR_CONSUMERS
from durable_cache.endpoints.subscriber.retrying import RetryingSubscriber
from durable_cache.endpoints.subscriber.subscriber import ReliableSubscriber, SubscriberOptions
from durable_cache.model.delivery import DeliveryMode
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.consumers import decode_position
from durable_cache.protocol.modes import Mode, ModeOptions
from durable_cache.protocol.subscriber.arriving import ArrivingEngine
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.resuming import ResumingEngine

_NEVER_SECONDS = 100 * 365 * 86_400.0
"""The pipe sends again what is not acknowledged: it is not to be handed it again."""


class _Names:
    """By which name runs go whose samples were handed out; read by any thread."""

    def __init__(self, runs_max: int) -> None:
        self._runs_max = runs_max
        self._names: OrderedDict[tuple[SourceId, int], tuple[int, str]] = OrderedDict()

    def learn(
        self, samples: Iterable[Sample], run_of: Callable[[SourceId, int], tuple[int, str]]
    ) -> None:
        for run in {(one.source, one.epoch) for one in samples if not is_unnumbered(one.source)}:
            self._names[run] = run_of(*run)
        while len(self._names) > self._runs_max:
            self._names.popitem(last=False)

    def of(self, sample: Sample) -> tuple[int, str]:
        return self._names.get((sample.source, sample.epoch), (sample.epoch, ""))


class Taking:
    """What a pipe needs to know of its subscriber, in any mode."""

    subscriber: ReliableSubscriber

    def run_of(self, sample: Sample) -> tuple[int, str]:
        """Return epoch and incarnation of a sample's run; the latter empty where it has none."""
        raise NotImplementedError

    def confirm(self, samples: Sequence[Sample]) -> None:
        """Know that the pipe is done with samples."""

    def flush(self, timeout_seconds: float | None) -> None:
        """Wait until what is confirmed is held."""

    @property
    def failure(self) -> str:
        """Why what is confirmed could not be written; empty where it was."""
        return ""


class _Sink:
    """What a subscriber of a pipe delivers to, whole batches at once."""

    def __init__(self, take: Callable[[Sequence[Sample]], None]) -> None:
        self._take = take

    def deliver(self, items: Sequence[Sample]) -> None:
        self._take(items)

    def close(self) -> None:
        """What was delivered is on its way."""


class _Consumer(ReliableConsumer):
    """Takes what follows what was confirmed."""

    def _open(self, handler: object) -> tuple[Delivery[Sample], object]:
        return cast(_Sink, handler), None


class _Durable(Taking):
    def __init__(self, consumer: _Consumer) -> None:
        self.subscriber = self._consumer = consumer

    def run_of(self, sample: Sample) -> tuple[int, str]:
        position = decode_position(self._consumer.position(sample).value)
        return position.epoch, position.incarnation

    def confirm(self, samples: Sequence[Sample]) -> None:
        self._consumer.confirm(*samples)

    def flush(self, timeout_seconds: float | None) -> None:
        self._consumer.flush(timeout_seconds)

    @property
    def failure(self) -> str:
        return self._consumer.confirm_error


class _Repeating(RetryingSubscriber):
    """Takes all that caches of the source network hold, at every start."""

    def __init__(self, session: Session, on: KeyExpression, sink: _Sink, pipe: PipeOptions):
        self.names = _Names(pipe.runs_max)
        mode = ModeOptions(
            confirm_timeout_seconds=_NEVER_SECONDS,
            unconfirmed_max=pipe.consumer_options.unconfirmed_max,
        )
        delivery = replace(FOR_CONSUMERS, keeps_trailers=True)
        chosen = SubscriberOptions(
            "", delivery, pipe.source_domain, mode=Mode.of(pipe.delivery, mode)
        )
        super().__init__(session, on, sink, chosen.checked(), "manual")

    def _open(self, handler: object) -> tuple[Delivery[Sample], object]:
        return cast(_Sink, handler), None

    def _make_engine(self, options: SubscriberOptions) -> ResumingEngine:
        self._reading = ResumingEngine(options.delivery)
        return self._reading

    def _deliver(self, samples: Sequence[Sample]) -> None:
        self.names.learn(samples, self._reading.run_of)
        super()._deliver(samples)


class _Arriving(ReliableSubscriber):
    """Takes what arrives, and asks nobody."""

    def __init__(self, session: Session, on: KeyExpression, sink: _Sink, pipe: PipeOptions):
        self.names = _Names(pipe.runs_max)
        delivery = DeliveryOptions(keeps_trailers=True)
        mode = Mode.of(pipe.delivery)
        chosen = SubscriberOptions(None, delivery, pipe.source_domain, mode=mode)
        super().__init__(session, on, sink, chosen.checked())

    def _open(self, handler: object) -> tuple[Delivery[Sample], object]:
        return cast(_Sink, handler), None

    def _make_engine(self, options: SubscriberOptions) -> ArrivingEngine:
        self._arriving = ArrivingEngine(options.mode, options.delivery)
        return self._arriving

    def _deliver(self, samples: Sequence[Sample]) -> None:
        self.names.learn(samples, self._arriving.run_of)
        super()._deliver(samples)


class _Passing(Taking):
    """Takes from one of those; nothing of it outlives the pipe."""

    def __init__(self, subscriber: _Repeating | _Arriving) -> None:
        self.subscriber, self._names = subscriber, subscriber.names
        self._repeating = subscriber if isinstance(subscriber, _Repeating) else None

    def run_of(self, sample: Sample) -> tuple[int, str]:
        return self._names.of(sample)

    def confirm(self, samples: Sequence[Sample]) -> None:
        if self._repeating is not None:
            self._repeating.confirm(*samples)


def take_from(
    session: Session,
    on: KeyExpression,
    take: Callable[[Sequence[Sample]], None],
    pipe: PipeOptions,
) -> Taking:
    """Hand what comes to `take`; raises what a declaration of the subscriber raises."""
    match pipe.delivery:
        case DeliveryMode.EXACTLY_ONCE:
            name = ConsumerName(pipe.name, "manual", pipe.consumer_options)
            delivery = replace(FOR_CONSUMERS, keeps_trailers=True)
            chosen = SubscriberOptions("", delivery, pipe.source_domain).checked()
            return _Durable(_Consumer(session, on, _Sink(take), chosen, name))
        case DeliveryMode.AT_LEAST_ONCE:
            return _Passing(_Repeating(session, on, _Sink(take), pipe))
        case DeliveryMode.AT_MOST_ONCE | DeliveryMode.UNRELIABLE:
            return _Passing(_Arriving(session, on, _Sink(take), pipe))
        case _:
            assert_never(pipe.delivery)

"""What can be chosen of a reliable pipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

from durable_cache.endpoints.subscriber.keeping import ConsumerOptions
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import bounded, check_domain, check_fields, check_number, refused
from durable_cache.model.delivery import DeliveryMode
from durable_cache.protocol.consumers import check_consumer
from durable_cache.protocol.modes import Mode
from durable_cache.protocol.pipe.events import EngineOptions
from durable_cache.protocol.resends import RESEND_BYTES_MAX, RESEND_SAMPLES_MAX
from durable_cache.storage.contract import Durability


@dataclass(frozen=True, slots=True)
class PipeOptions:
    """A pipe's settings; each default carries its reason. Times in seconds."""

    name: str = "pipe"
    """Its consumer's name in the source network: who starts it again goes on where it stood."""
    acknowledgements: int = 1
    """Caches of the target network that must hold a sample before it is confirmed."""
    level: Durability | str = Durability.DISK
    """At which level they must hold it."""
    mode: DeliveryMode | str = DeliveryMode.EXACTLY_ONCE
    """What may be lost, and what is carried again: `exactly-once`, `at-least-once`, `at-most-once`
    or `unreliable` (docs/pipes.md)."""
    processed_by: str | None = None
    """A durable consumer of the target network, the next pipe's perhaps, that must have confirmed a
    sample, too, before it is confirmed here; None: caches are enough."""
    frame_samples_max: int = 2_000
    """Samples sent in one frame."""
    frame_bytes_max: int = 1 << 20
    """Bytes sent in one frame; a cache commits it at once."""
    frames_max: int = 4
    """Frames under way to one cache, each of another source."""
    retry_seconds: float = 1.0
    """How long an acknowledgement is awaited before a frame is sent again."""
    retry_seconds_max: float = 10.0
    """The longest pause before a frame is sent again; pauses double up to it."""
    answer_timeout_seconds: float = 5.0
    """How long a cache may take to say that it will store a frame."""
    runs_max: int = 10_000
    """Runs of sources that are shown as carried in the target network."""
    caches_max: int = 256
    """Caches of the target network that are served."""
    source_domain: str = "default"
    """The domain of the source network's caches."""
    target_domain: str = "default"
    """The domain of the target network's caches."""
    consumer_options: ConsumerOptions = ConsumerOptions(unconfirmed_max=20_000)
    """Of the consumer in the source network; `unconfirmed_max` bounds what is under way."""

    def checked(self) -> PipeOptions:
        """Return the options themselves; ConfigError names what no pipe can work with."""
        check_fields(self)
        check_consumer(self.name, "name")
        if self.processed_by is not None:
            check_consumer(self.processed_by, "processed_by")
        for name in (
            *("acknowledgements", "frame_samples_max", "frame_bytes_max", "frames_max"),
            *("runs_max", "caches_max"),
        ):
            check_number(name, getattr(self, name), 1, whole=True)
        if self.frame_samples_max > RESEND_SAMPLES_MAX:
            raise refused(
                "frame_samples_max", self.frame_samples_max, f"at most {RESEND_SAMPLES_MAX}"
            )
        if self.frame_bytes_max > RESEND_BYTES_MAX // 2:
            raise refused(
                "frame_bytes_max", self.frame_bytes_max, f"at most {RESEND_BYTES_MAX // 2}"
            )
        for name in ("retry_seconds", "retry_seconds_max", "answer_timeout_seconds"):
            check_number(name, getattr(self, name), 0, whole=False)
        check_domain(self.source_domain, "source_domain")
        check_domain(self.target_domain, "target_domain")
        if not isinstance(self.consumer_options, ConsumerOptions):
            raise refused("consumer_options", self.consumer_options, "a ConsumerOptions")
        if self.consumer_options.shared:
            raise ConfigError("consumer_options: leave members_max out, a pipe shares nothing")
        if self.consumer_options.attempts_max is not None:
            raise ConfigError(
                "consumer_options: leave attempts_max out, a pipe has no dead letters"
            )
        self.durability  # noqa: B018  # raises where the level is none
        self._check_mode()
        return bounded(replace(self, consumer_options=self.consumer_options.checked()))

    @property
    def delivery(self) -> DeliveryMode:
        """The mode; ConfigError when it is none."""
        return Mode.of(self.mode).delivery

    def _check_mode(self) -> None:
        """ConfigError where something contradicts the mode."""
        words = self.delivery.words
        if self.processed_by is not None and not self.delivery.is_reliable:
            raise ConfigError(
                f"processed_by: the mode {words} confirms nothing: leave it out, or choose "
                "exactly-once or at-least-once"
            )
        bound = self.consumer_options.unconfirmed_max
        given = replace(self.consumer_options, unconfirmed_max=bound) != ConsumerOptions(
            unconfirmed_max=bound
        )
        if given and self.delivery is not DeliveryMode.EXACTLY_ONCE:
            raise ConfigError(
                f"consumer_options: the mode {words} has no durable consumer, of its options "
                "unconfirmed_max alone counts: leave the others out"
            )

    @property
    def durability(self) -> Durability:
        """The level as a number; ConfigError when it is none."""
        level = self.level
        if isinstance(level, Durability):
            return level
        if isinstance(level, str) and level.upper() in Durability.__members__:
            return Durability[level.upper()]
        raise refused("level", level, "memory, process or disk, or a Durability")

    def engine_options(self) -> EngineOptions:
        """Return what the pure engine needs to know of these."""
        return EngineOptions(
            acknowledgements=self.acknowledgements,
            level=int(self.durability),
            processed=self.processed_by is not None,
            frame_samples_max=self.frame_samples_max,
            frame_bytes_max=self.frame_bytes_max,
            frames_max=self.frames_max,
            retry_seconds=self.retry_seconds,
            retry_seconds_max=self.retry_seconds_max,
            runs_max=self.runs_max,
            caches_max=self.caches_max,
            sends_again=self.delivery.is_reliable,
        )


class PipeSettings(TypedDict, total=False):
    """`PipeOptions` as named arguments."""

    name: str
    acknowledgements: int
    level: Durability | str
    mode: DeliveryMode | str
    processed_by: str | None
    frame_samples_max: int
    frame_bytes_max: int
    frames_max: int
    retry_seconds: float
    retry_seconds_max: float
    answer_timeout_seconds: float
    runs_max: int
    caches_max: int
    source_domain: str
    target_domain: str
    consumer_options: ConsumerOptions

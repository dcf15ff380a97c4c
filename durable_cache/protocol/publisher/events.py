"""What goes into the publisher's engine and what comes out of it; values, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.timestamp import read_ntp64
from durable_cache.protocol.resends import ResendRefusal
from durable_cache.protocol.wire import Ack

_NO_CACHES: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine's bounds and wishes."""

    history: int | None = 1000
    """Newest samples kept for recovery, besides the unacknowledged; None keeps none at all."""
    acknowledgements: int = 0
    """How many caches must hold a sample; 0 asks none."""
    level: int = 2
    """At which level each of them must hold it, as `Durability` numbers levels."""
    unacknowledged_max: int = 100_000
    """Samples that wait for acknowledgements; a further one is not taken."""
    acknowledgers_max: int = 256
    """Caches remembered with what each acknowledged; one forgotten costs time, no receipt."""
    ask_epochs: bool = True
    """Ask caches for the highest epoch of this source first, for its zid may be pinned."""
    unacknowledged_bytes_max: int = 256 << 20
    """Bytes of memory that they may take; a further one is not taken. One alone always fits."""
    unacknowledged_seconds_max: float | None = None
    """How long a sample may wait; then it is not waited for any more, and its outcome is unknown.
    None waits for ever."""
    resend_delay_seconds: float = 1.0
    """How long a sample waits before it is sent once more: an acknowledgement takes a quarter."""
    resend_seconds_max: float = 10.0
    """The longest pause between resends to a cache that does not acknowledge them."""
    resend_samples_max: int = 1_000
    """Samples sent once more together."""
    resend_bytes_max: int = 1 << 20
    """Bytes sent once more together; one sample alone always fits."""
    acknowledgement_delay_seconds: float | None = None
    """How much later than the fastest acknowledgements others may come before puts wait for them,
    where they may wait; None: only for room."""
    pub_window_bytes: int | None = None
    """What the window of subject sequences may take; None: samples bear none."""
    pub_window_ns: int = 10_000_000_000
    """How long a key stays in it at least."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """What an earlier process left of one numbering: puts that nobody is known to hold."""

    source: SourceId
    epoch: int
    incarnation: str
    samples: tuple[Sample, ...]
    """In the order of their numbers; the last one may be held already."""
    goes_on: bool = True
    """Whether its last number is known: where samples of it were lost, another numbering begins."""

    @property
    def next_sn(self) -> int:
        """The number that follows."""
        return self.samples[-1].sn + 1 if self.samples else 0


class Standing(msgspec.Struct, eq=False, gc=False):
    """What is known of one sample's acknowledgements; owned by the engine, read by receipts.

    Numbered by its incarnation: after a wrap or a restart the same `sn` is another sample.
    """

    incarnation: str
    sn: int
    caches: Mapping[str, int] = _NO_CACHES
    """The level that each cache named, by cache_id; replaced, never changed in place."""
    refused: Mapping[str, int] = _NO_CACHES
    """Why caches will never take it, by cache_id; replaced, never changed in place."""
    done: bool = False
    """As many caches as were wanted hold the sample at the level wanted."""
    unknown: bool = False
    """The time for that is over, and nothing more is done for it."""


@dataclass(frozen=True, slots=True)
class Started:
    """The publisher was declared on its session; nothing was put."""

    now: Moment


@dataclass(frozen=True, slots=True)
class EpochsKnown:
    """Answers `AskEpochs`: the highest epoch any cache knows of this source, 0 for none."""

    highest: int
    now: Moment


@dataclass(frozen=True, slots=True)
class EpochsUnknown:
    """`AskEpochs` failed or nobody answered in time."""

    now: Moment


@dataclass(frozen=True, slots=True)
class TokenDeclared:
    """Answers `Declare`."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class TokenFailed:
    """`Declare` failed; it is asked for again with the next put."""

    incarnation: str


class Form(msgspec.Struct, frozen=True, gc=False):
    """What puts have in common, so that it is said once for many (ADR 0290)."""

    key: str
    kind: Kind
    encoding: str
    timestamp_id: str
    """The clock of a timestamp that the program gives; empty: the name of the run (ADR 0366)."""
    qos: int


class Put(msgspec.Struct, frozen=True, gc=False):
    """The program publishes a value, or that a key has none; stamped, not numbered yet."""

    key: str
    kind: Kind
    payload: bytes
    encoding: str
    attachment: bytes | None
    ntp64: int
    timestamp_id: str
    qos: int
    now: Moment

    @classmethod
    def of(
        cls, form: Form, payload: bytes, attachment: bytes | None, ntp64: int, now: Moment
    ) -> Put:
        key, kind, encoding, stamp_id, qos = msgspec.structs.astuple(form)
        return cls(key, kind, payload, encoding, attachment, ntp64, stamp_id, qos, now)

    @property
    def form(self) -> Form:
        return Form(self.key, self.kind, self.encoding, self.timestamp_id, self.qos)


@dataclass(frozen=True, slots=True)
class Kept:
    """Answers `Keep`: the sample is in the spool, and its number used, whether it leaves or not."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The sample of the last `Send` left, as far as the network says."""


@dataclass(frozen=True, slots=True)
class SendFailed:
    """The sample of the last `Send` did not leave, or was not kept.

    Its number is free, unless it is `Kept`: then it is sent from the spool.
    """


@dataclass(frozen=True, slots=True)
class AckReceived:
    """A cache says which numbers it holds; from the network, believed where it fits."""

    ack: Ack
    now_ns: int = 0
    """When it came, on the monotonic clock; of use only where puts are paced."""


@dataclass(frozen=True, slots=True)
class CacheAppeared:
    """A cache that may store these samples came into reach, perhaps anew."""

    cache_id: str


@dataclass(frozen=True, slots=True)
class CacheGone:
    """A cache is out of reach; what is on its way to it may arrive all the same."""

    cache_id: str


@dataclass(frozen=True, slots=True)
class Resent:
    """Answers `Resend`: the cache acknowledges soon what it did not refuse."""

    resend_id: int
    refused: tuple[ResendRefusal, ...]
    now: Moment


@dataclass(frozen=True, slots=True)
class ResendFailed:
    """Answers `Resend`: there was no answer, or an error; whether it arrived is unknown."""

    resend_id: int
    reason: str
    now: Moment


@dataclass(frozen=True, slots=True)
class Hurry:
    """The program waits for what was put until now: it is sent once more without delay."""

    now: Moment


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""

    now: Moment


Event = (
    Started
    | EpochsKnown
    | EpochsUnknown
    | TokenDeclared
    | TokenFailed
    | Put
    | Kept
    | Sent
    | SendFailed
    | AckReceived
    | CacheAppeared
    | CacheGone
    | Resent
    | ResendFailed
    | Hurry
    | Tick
)


@dataclass(frozen=True, slots=True)
class AskEpochs:
    """Ask the caches in reach; answered by `EpochsKnown` or `EpochsUnknown`."""


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Put a sample into the spool, before it is sent; answered by `Kept` or `SendFailed`."""

    sample: Sample
    incarnation: str


@dataclass(frozen=True, slots=True)
class Declare:
    """Declare the token of a numbering in place of an earlier one, before its first sample.

    Answered by `TokenDeclared` or `TokenFailed`.
    """

    epoch: int
    incarnation: str


class Send(msgspec.Struct, eq=False, gc=False):
    """Send a sample; answered by `Sent` or `SendFailed` before the next `Put`.

    Kept as it is while somebody may ask for the sample, which is made then: of most puts nobody
    asks (ADR 0300).
    """

    form: Form
    source: SourceId
    epoch: int
    sn: int
    payload: bytes
    attachment: bytes | None
    stamp: object
    """Writes itself as ``<NTP64>/<id>`` does, or as the number alone."""
    unix_ns: int
    """When it was put."""
    standing: Standing | None
    """Where acknowledgements are wanted."""
    made: Sample | None = None

    @classmethod
    def again(cls, sample: Sample, standing: Standing) -> Send:
        """Return what sends a sample that an earlier process left."""
        kind, encoding, stamp_id = sample.kind, sample.encoding, sample.timestamp_id
        form = Form(sample.key, kind, encoding, stamp_id, sample.qos)
        at, content = sample.identity[1:], (sample.payload, sample.attachment)
        return cls(form, *at, *content, sample.ntp64, sample.received_ns, standing, sample)

    @property
    def sample(self) -> Sample:
        if self.made is None:
            form = self.form
            self.made = Sample(
                form.key,
                self.source,
                self.epoch,
                self.sn,
                self.payload,
                form.kind,
                form.encoding,
                self.attachment,
                read_ntp64(self.stamp),
                form.timestamp_id,
                False,
                form.qos,
                self.unix_ns,
            )
        return self.made


@dataclass(frozen=True, slots=True)
class Full:
    """The put was not taken: so many samples wait for acknowledgements, or so many bytes."""

    unacknowledged: int


@dataclass(frozen=True, slots=True)
class Resend:
    """Send samples of one numbering once more, to one cache alone, oldest first.

    Answered by `Resent` or `ResendFailed`.
    """

    resend_id: int
    cache_id: str
    source: SourceId
    epoch: int
    incarnation: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """These samples are acknowledged as was wanted, or `unknown` for good; told once for each."""

    standings: tuple[Standing, ...]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A cache holds what subscribers may not have heard: tell them how far that reaches.

    They see no resend, and what was put while no cache was in reach they may lack, too (ADR 0185,
    0284). Needs no answer: who does not hear it finds the rest behind the next number, or in the
    history.
    """

    source: SourceId
    last_sn: int
    first_sn: int | None = None
    """Where it begins; None where that is not known."""


Output = AskEpochs | Declare | Keep | Send | Resend | Full | Finished | HandedOver

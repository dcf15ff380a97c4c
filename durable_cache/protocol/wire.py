"""How our messages are written: key expressions, payloads, and the frame around them.

Every payload of ours, in a message or in the journal, is one frame: a version byte, a byte that
says what is inside, a CRC-32 of the rest, then msgpack of one typed value. Whatever a peer sends,
decoding either returns a value within the caller's bounds or raises `RemoteProtocolError`; it never
allocates more than a small multiple of the bytes received.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple, TypeVar
from zlib import crc32

import msgspec

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.key_expression import KEY_BYTES_MAX, KeyExpression
from durable_cache.model.run_name import INCARNATION_DIGITS, run_of_id
from durable_cache.model.sample import Kind, Sample, SampleBatch, Skip, SourceId
from durable_cache.protocol.checks import (
    NOT_IN_KEYS,
    check_arrival,
    check_identity,
    check_sample,
    check_sample_identity,
    check_samples,
    check_timestamp_id,
)

FRAME_VERSION = 1
_HEADER_BYTES = 6
ENVELOPE_BYTES_MAX = 16 * 1024 * 1024
ACK_BYTES_MAX = 64 * 1024
PLACE_BYTES_MAX = KEY_BYTES_MAX + 64 * 1024
ACK_RUNS_MAX = 1024
ABSENCES_MAX = 1000
"""About 40 kB of an answer; who asks again from behind the last of them is told of the rest."""
INCARNATIONS_MAX = 1000
SN_LIMIT = (1 << 35) - 1
PACKED_BYTES_MAX = 1 << 30
SAMPLES_MAX = 1 << 20
_CALLED = attrgetter("source", "epoch", "timestamp_id")
_OWN = KeyExpression("@durable/**")
_POSITIONS = KeyExpression("@durable/v1/*/consumers/**")
_HEX_DIGITS = frozenset("0123456789abcdef")


class Content(IntEnum):
    """What a frame holds."""

    ENVELOPE = 1
    BATCH = 2
    PACKED = 3
    ACK = 4
    JOURNAL = 5
    PLACE = 6
    RESEND = 7
    RESENT = 8
    POSITION = 9
    DEAD_LETTER = 10
    STANDINGS = 11
    BEGINNING = 12
    SPOOLED = 13


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a reply carries in its attachment, for Zenoh's reply cannot carry source_info."""

    source: SourceId
    epoch: int
    sn: int
    kind: Kind
    attachment: bytes | None
    """The user's own attachment."""
    ntp64: int
    timestamp_id: str
    stamped: bool
    qos: int
    received_ns: int

    @classmethod
    def of(cls, sample: Sample) -> Envelope:
        return cls(
            sample.source,
            sample.epoch,
            sample.sn,
            sample.kind,
            sample.attachment,
            sample.ntp64,
            sample.timestamp_id,
            sample.stamped,
            sample.qos,
            sample.received_ns,
        )

    def open(self, key: str, payload: bytes, encoding: str) -> Sample:
        """Return the sample that this envelope and its reply make together."""
        return Sample(
            key,
            self.source,
            self.epoch,
            self.sn,
            payload,
            self.kind,
            encoding,
            self.attachment,
            self.ntp64,
            self.timestamp_id,
            self.stamped,
            self.qos,
            self.received_ns,
        )


class AbsenceReason(IntEnum):
    """Why a cache that knows a number does not give it."""

    OTHER_KEY = 0
    """It belongs to a key that was not asked for."""
    TRIMMED = 1
    """Retention or a purge removed it."""
    SKIPPED = 2
    """The cache awaited it in vain."""


class Absence(NamedTuple):
    """These numbers of one numbering will not come from the cache that answers."""

    source: SourceId
    epoch: int
    first: int
    last: int
    reason: AbsenceReason


class Incarnation(NamedTuple):
    """By which epoch a cache calls a numbering whose publisher named it in its token."""

    source: SourceId
    epoch: int
    incarnation: str


def with_own_names(
    names: tuple[Incarnation, ...], samples: Iterable[Sample]
) -> tuple[Incarnation, ...]:
    """Return what a giver calls its runs, with what its samples say where it says nothing."""
    known = {(source, epoch) for source, epoch, _ in names}
    return (*names, *(own for own in own_names(samples) if own[:2] not in known))


def not_said(names: Iterable[Incarnation], samples: Iterable[Sample]) -> tuple[Incarnation, ...]:
    """Return what a giver has to tell beside samples: `with_own_names` adds what they say."""
    said: dict[tuple[SourceId, int], set[Incarnation]] = {}
    for own in own_names(samples):
        said.setdefault(own[:2], set()).add(own)
    return tuple(name for name in names if said.get(name[:2]) != {name})


def own_names(samples: Iterable[Sample]) -> set[Incarnation]:
    """Return which runs the epochs of these samples are, as they say themselves (ADR 0366)."""
    named = ((source, epoch, run_of_id(at)) for source, epoch, at in set(map(_CALLED, samples)))
    return {Incarnation(source, epoch, run.incarnation) for source, epoch, run in named if run}


class Packed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One packed reply: many samples, and whether the answer was cut after them."""

    samples: tuple[Sample, ...]
    more: bool = False
    """The responder's bound was reached: ask again from the last sample on."""
    absent: tuple[tuple[SourceId, int, int, int, int], ...] = ()
    """`Absence`s; the reason is any number, so that later ones do not cost the rest."""
    incarnations: tuple[Incarnation, ...] = ()
    last: bool = True
    """The answer ends here; without such a reply it was cut off on its way."""
    place: int = 0
    """Which reply of its answer it is, from 1; 0 where it is the only one, or nobody counted."""


class PackedAnswer(NamedTuple):
    """A packed reply as it was read and checked."""

    samples: SampleBatch
    more: bool = False
    absent: tuple[Absence, ...] = ()
    incarnations: tuple[Incarnation, ...] = ()
    last: bool = True
    place: int = 0


class Ack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a cache says after a commit: these numbers of one source are durable here."""

    cache_id: str
    level: int
    source: SourceId
    epoch: int
    runs: tuple[tuple[int, int], ...]
    """Held at the level: the unbroken runs that the commit touched, ends included."""
    incarnation: str = ""
    """Which numbering of the source, as its token names it; empty where no token named one."""


class _JournalEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    samples: tuple[Sample, ...]
    skips: tuple[Skip, ...]


_REASONS = frozenset(AbsenceReason)
_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_batches = msgspec.msgpack.Decoder(tuple[Sample, ...])
_packed = msgspec.msgpack.Decoder(Packed)
_acks = msgspec.msgpack.Decoder(Ack)
_places = msgspec.msgpack.Decoder(Sample)
_journals = msgspec.msgpack.Decoder(_JournalEntry)
_ValueT = TypeVar("_ValueT")


def seal(content: int, value: object) -> bytes:
    """Return the frame of `value`; `content` tells frames of different kinds apart."""
    body = _encoder.encode(value)
    return b"%c%c%b%b" % (FRAME_VERSION, content, crc32(body).to_bytes(4, "little"), body)


def unseal(
    frame: bytes, content: int, decoder: msgspec.msgpack.Decoder[_ValueT], bytes_max: int
) -> _ValueT:
    """Return the value in a frame; RemoteProtocolError, never to be retried, when it is none."""
    if len(frame) > bytes_max:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes; {bytes_max} are allowed")
    if len(frame) < _HEADER_BYTES:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes is too short")
    if frame[0] != FRAME_VERSION:
        raise RemoteProtocolError(
            f"frame version {frame[0]}, this is version {FRAME_VERSION}; upgrade the older side"
        )
    if frame[1] != content:
        raise RemoteProtocolError(f"a frame with content {frame[1]} where {content} belongs")
    body = memoryview(frame)[_HEADER_BYTES:]
    if crc32(body) != int.from_bytes(frame[2:_HEADER_BYTES], "little"):
        raise RemoteProtocolError("a frame's checksum does not fit; it was damaged on the way")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a frame that cannot be read: {error}") from error


def encode_envelope(sample: Sample) -> bytes:
    """Return the attachment of a single reply."""
    return seal(Content.ENVELOPE, Envelope.of(sample))


def decode_envelope(frame: bytes) -> Envelope:
    """Read the attachment of a single reply."""
    envelope = unseal(frame, Content.ENVELOPE, _envelopes, ENVELOPE_BYTES_MAX)
    check_sample_identity(envelope)
    check_arrival(envelope.qos, envelope.received_ns)
    check_timestamp_id(envelope.timestamp_id)
    return envelope


def encode_batch(batch: SampleBatch) -> bytes:
    """Return the frame of a batch."""
    return seal(Content.BATCH, batch.samples)


def decode_batch(
    frame: bytes,
    *,
    bytes_max: int = PACKED_BYTES_MAX,
    samples_max: int = SAMPLES_MAX,
    refused: list[str] | None = None,
) -> SampleBatch:
    """Read a batch of at most `samples_max` samples in at most `bytes_max` bytes.

    A sample that cannot be taken is left out with its reason in `refused`, so that it never costs
    its neighbours; without `refused` the whole batch is an error.
    """
    return check_samples(unseal(frame, Content.BATCH, _batches, bytes_max), samples_max, refused)


def encode_packed(
    batch: SampleBatch,
    more: bool = False,
    absent: Sequence[Absence] = (),
    incarnations: Sequence[Incarnation] = (),
    *,
    last: bool = True,
    place: int = 0,
) -> bytes:
    """Return the payload of a packed reply (``_pack=1``); of an answer's replies one is `last`."""
    fields = (batch.samples, more, absent, incarnations, last, place)
    is_short = last and not (absent or incarnations or place)
    return seal(Content.PACKED, fields[:2] if is_short else fields)


def decode_packed(
    frame: bytes,
    *,
    bytes_max: int = PACKED_BYTES_MAX,
    samples_max: int = SAMPLES_MAX,
    refused: list[str] | None = None,
) -> PackedAnswer:
    """Read a packed reply: its samples, whether the responder had more, and what it knows of those
    it did not give; `refused` as for `decode_batch`.
    """
    packed = unseal(frame, Content.PACKED, _packed, bytes_max)
    return PackedAnswer(
        check_samples(packed.samples, samples_max, refused),
        packed.more,
        _absent(packed.absent),
        _incarnations(packed.incarnations),
        packed.last,
        max(0, packed.place),
    )


def _absent(given: tuple[tuple[SourceId, int, int, int, int], ...]) -> tuple[Absence, ...]:
    """Check what a responder says is absent; a reason of a later version is passed over."""
    if len(given) > ABSENCES_MAX:
        raise RemoteProtocolError(f"{len(given)} absences in a frame; {ABSENCES_MAX} are allowed")
    checked = []
    for source, epoch, first, last, reason in given:
        check_identity(source, epoch, first, 0)
        if not first <= last < SN_LIMIT:
            raise RemoteProtocolError(f"an absence of {first}..{last}")
        if reason in _REASONS:
            checked.append(Absence(source, epoch, first, last, AbsenceReason(reason)))
    return tuple(checked)


def _incarnations(given: tuple[Incarnation, ...]) -> tuple[Incarnation, ...]:
    if len(given) > INCARNATIONS_MAX:
        raise RemoteProtocolError(f"{len(given)} incarnations; {INCARNATIONS_MAX} are allowed")
    for source, epoch, incarnation in given:
        check_identity(source, epoch, 0, 0)
        if not is_incarnation(incarnation):
            raise RemoteProtocolError(f"{incarnation[:40]!r} is no incarnation")
    return given


def encode_ack(ack: Ack) -> bytes:
    """Return the payload of an acknowledgement."""
    return seal(Content.ACK, ack)


def decode_ack(frame: bytes) -> Ack:
    """Read an acknowledgement of at most 1,024 runs."""
    ack = unseal(frame, Content.ACK, _acks, ACK_BYTES_MAX)
    check_identity(ack.source, ack.epoch, 0, 0)
    if len(ack.runs) > ACK_RUNS_MAX or any(not 0 <= a <= b < 1 << 35 for a, b in ack.runs):
        raise RemoteProtocolError("an acknowledgement whose runs are out of range")
    if ack.incarnation and not is_incarnation(ack.incarnation):
        raise RemoteProtocolError(f"{ack.incarnation[:40]!r} is no incarnation")
    return ack


def encode_place(sample: Sample) -> bytes:
    """Return the payload of a packed query that goes on after `sample`."""
    return seal(Content.PLACE, msgspec.structs.replace(sample, payload=b"", attachment=None))


def decode_place(frame: bytes) -> Sample:
    """Read after which sample a packed query goes on; its payload is empty."""
    place = unseal(frame, Content.PLACE, _places, PLACE_BYTES_MAX)
    check_sample(place)
    return place


def encode_journal(batch: SampleBatch, skips: tuple[Skip, ...]) -> bytes:
    """Return the row the journal keeps of one commit."""
    return seal(Content.JOURNAL, (batch.samples, skips))


def decode_journal(frame: bytes) -> tuple[SampleBatch, tuple[Skip, ...]]:
    """Read a journal row back; RemoteProtocolError means the row is damaged."""
    entry = unseal(frame, Content.JOURNAL, _journals, PACKED_BYTES_MAX)
    return SampleBatch(entry.samples), entry.skips


class PublisherToken(NamedTuple):
    """What a publisher's liveliness token says."""

    source: SourceId
    epoch: int
    key_expr: KeyExpression
    incarnation: str = ""
    """Eight hex digits, drawn anew for every numbering; empty in tokens of earlier versions."""


class HistoryToken(NamedTuple):
    """What a cache's token says: it stores, answers for and takes samples of a key expression."""

    cache_id: str
    incarnation: str
    key_expr: KeyExpression


def incarnation_after(incarnation: str) -> str:
    """Return what a publisher calls its numbering after a wrap, so that others know it for one."""
    return blake2b(incarnation.encode(), digest_size=INCARNATION_DIGITS // 2).hexdigest()


def is_incarnation(text: str) -> bool:
    """Tell whether `text` is the name of one numbering: eight lowercase hex digits."""
    return len(text) == INCARNATION_DIGITS and _HEX_DIGITS.issuperset(text)


def own_key(domain: str, *chunks: str) -> str:
    """Return a key of ours: ``@durable/v1/<domain>/…``, which no ``**`` matches."""
    return "/".join(("@durable", "v1", domain, *chunks))


def is_own(key_expr: KeyExpression) -> bool:
    """Tell whether a key of ours is among those named: none is for a program's own samples."""
    return key_expr.intersects(_OWN)


def is_stored_by_nobody(key_expr: KeyExpression) -> bool:
    """Tell whether keys of ours are named that no cache may store: only positions may be."""
    return is_own(key_expr) and not _POSITIONS.includes(key_expr)


def tokens_about(domain: str, kind: str, key_expr: KeyExpression, owner: str = "*") -> str:
    """Return which tokens concern some keys: `pub`, `history` or `unregistered`, of one owner or
    of all.

    No ``**`` matches what lies behind a verbatim chunk (``@…``): such keys are named.
    """
    if any(chunk.startswith("@") for chunk in str(key_expr).split("/")):
        return own_key(domain, kind, owner, "*", str(key_expr))
    return own_key(domain, kind, "**") if owner == "*" else own_key(domain, kind, owner, "**")


def ack_key(domain: str, source: SourceId) -> str:
    """Return the key on which caches acknowledge a source's samples."""
    return own_key(domain, "ack", str(source))


def store_key(domain: str, cache_id: str) -> str:
    """Return the key on which a cache takes samples that are sent to it alone."""
    return own_key(domain, "store", cache_id)


def cache_token(domain: str, cache_id: str, incarnation: str) -> str:
    """Return the liveliness token of one run of a cache."""
    return own_key(domain, "cache", cache_id, incarnation)


def publisher_token(
    domain: str, source: SourceId, epoch: int, incarnation: str, key_expr: str
) -> str:
    """Return the liveliness token that declares the epoch and the incarnation of a numbering."""
    return own_key(domain, "pub", str(source), f"{epoch}-{incarnation}", key_expr)


def parse_publisher_token(key: str, domain: str) -> PublisherToken | None:
    """Read a publisher's token; None when it is none of this domain or malformed.

    Tokens of earlier versions name no incarnation and are read as well.
    """
    prefix = own_key(domain, "pub", "")
    parts = key.removeprefix(prefix).split("/", 2) if key.startswith(prefix) else []
    if len(parts) != 3:
        return None
    digits, dash, incarnation = parts[1].partition("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        return None
    if dash and not is_incarnation(incarnation):
        return None
    try:
        source, key_expr = SourceId.parse(parts[0]), KeyExpression(parts[2])
    except ValueError:
        return None
    epoch = int(digits)
    return PublisherToken(source, epoch, key_expr, incarnation) if epoch < 1 << 29 else None


def parse_history_token(key: str, domain: str) -> HistoryToken | None:
    """Read a cache's token; None when it is none of this domain or malformed."""
    prefix = own_key(domain, "history", "")
    parts = key.removeprefix(prefix).split("/", 2) if key.startswith(prefix) else []
    if len(parts) != 3 or not NOT_IN_KEYS.isdisjoint(parts[0] + parts[1]):
        return None  # a chunk with wildcards would address every cache
    try:
        return HistoryToken(parts[0], parts[1], KeyExpression(parts[2]))
    except ValueError:
        return None

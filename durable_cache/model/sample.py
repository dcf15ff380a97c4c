"""What a sample is, who it is from, and how many of them travel together.

A sample is identified by (key, source, epoch, sn) and never changes. May not know zenoh's types,
a storage or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sequence import pack_sequence

DIGEST_BYTES = 16
_SAMPLE_BYTES = 200
"""What a sample takes in an answer or a file besides its bytes and its key, near enough."""
_SAMPLE_HELD_BYTES = 600
"""What it takes in memory, as measured: 430 where source, key and encoding are shared with its
neighbours, 640 where nothing is."""
_HEX = frozenset("0123456789abcdef")


class SourceId(NamedTuple):
    """The EntityGlobalId of a publisher, written ``<zid>:<eid>``."""

    zid: str
    """Lowercase hexadecimal without leading zeros, 1 to 32 digits."""
    eid: int
    """An unsigned 32-bit number."""

    def __str__(self) -> str:
        return f"{self.zid}:{self.eid}"

    @classmethod
    def parse(cls, text: str) -> SourceId:
        """Read ``<zid>:<eid>``; raises ValueError, never to be retried, on anything else."""
        zid, colon, eid = text.partition(":")
        if not colon or not is_zid(zid) or not (eid.isascii() and eid.isdigit()):
            raise ValueError(f"{text!r} is no source_id; write <zid>:<eid>, as in 4f2a…:7")
        if str(int(eid)) != eid or int(eid) >= 1 << 32:
            raise ValueError(f"{text!r}: the eid is a number below 2^32 without leading zeros")
        return cls(zid, int(eid))


def is_zid(text: str) -> bool:
    """Tell whether `text` is a Zenoh id: 1 to 32 lowercase hex digits, no leading zero."""
    return 0 < len(text) <= 32 and text[0] != "0" and _HEX.issuperset(text)


@lru_cache(maxsize=65536)
def zid_number(zid: str) -> int:
    """Return a zid as the number it writes, the way storages order sources."""
    return int(zid, 16)


class Stream(NamedTuple):
    """One (key, source, epoch): the unit of history, of the stream index and of alignment."""

    key: str
    source: SourceId
    epoch: int

    @property
    def order(self) -> tuple[bytes, int, int, int]:
        """How storages order streams: key as UTF-8 bytes, zid and eid as numbers, epoch."""
        return key_bytes(self.key), zid_number(self.source.zid), self.source.eid, self.epoch


class Identity(NamedTuple):
    """What makes a sample this sample and no other."""

    key: str
    source: SourceId
    epoch: int
    sn: int


class Kind(IntEnum):
    """Whether a sample sets its key's value or deletes it."""

    PUT = 0
    DELETE = 1


class Qos(NamedTuple):
    """The quality of service a sample was published with, as Zenoh numbers it."""

    priority: int = 5
    """1 (real time) to 7 (background); 5 is Zenoh's default, data."""
    congestion: int = 1
    """0 drop, 1 block, 2 block first."""
    express: bool = False

    def pack(self) -> int:
        """Return the whole as one small number, for a column or a wire field."""
        return self.priority | self.congestion << 3 | self.express << 5

    @classmethod
    def unpack(cls, packed: int) -> Qos:
        return cls(packed & 7, packed >> 3 & 3, bool(packed >> 5 & 1))


QOS_DEFAULT = Qos().pack()


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One published change of one key, with everything it was published with.

    Immutable; may be shared between threads.
    """

    key: str
    source: SourceId
    epoch: int
    sn: int
    payload: bytes
    kind: Kind = Kind.PUT
    encoding: str = "zenoh/bytes"
    """Zenoh's encoding with its schema, as ``str(encoding)`` writes it."""
    attachment: bytes | None = None
    ntp64: int = 0
    """The HLC timestamp as its raw 64-bit NTP number; exact."""
    timestamp_id: str = ""
    """The HLC's id, hex as Zenoh writes it."""
    stamped: bool = False
    """The sample had no timestamp and the first cache stamped it on arrival."""
    qos: int = QOS_DEFAULT
    """`Qos.pack` of what it was published with."""
    received_ns: int = 0
    """Unix time in nanoseconds at which the first cache received it; retention goes by it."""

    @property
    def stream(self) -> Stream:
        return Stream(self.key, self.source, self.epoch)

    @property
    def identity(self) -> Identity:
        return Identity(self.key, self.source, self.epoch, self.sn)

    @property
    def sequence(self) -> int:
        """The packed 64-bit RaiMS sequence, for people and logs; unnumbered: NTP64 and one."""
        if self.source.eid == 0:
            return self.ntp64 + 1
        return pack_sequence(self.epoch, self.sn)

    @property
    def order(self) -> tuple[bytes, int, int, int, int]:
        """Where the sample stands in a read by identity."""
        return (
            key_bytes(self.key),
            zid_number(self.source.zid),
            self.source.eid,
            self.epoch,
            self.sn,
        )

    @property
    def time_order(self) -> tuple[int, int, bytes, int, int, int, int]:
        """Where the sample stands in a read by time: HLC timestamp, its id, then identity."""
        return (self.ntp64, timestamp_id_number(self.timestamp_id), *self.order)

    @property
    def size(self) -> int:
        """Bytes the sample takes in a queue, near enough for a bound."""
        return len(self.payload) + len(self.attachment or b"") + len(self.key) + _SAMPLE_BYTES

    @property
    def missed_before(self) -> int | None:
        """How many samples of the source a subscriber gave up right before this one.

        0 where none, or where no subscriber passed it on; None where nobody can say how many.
        """
        return 0


class SampleAfterMiss(Sample, frozen=True, array_like=True, gc=False):
    """The first sample that a subscriber passes on after a loss: the sample itself, and a count."""

    missed_before: int | None = 0

    @classmethod
    def of(cls, sample: Sample, missed: int | None) -> SampleAfterMiss:
        """Return a sample with how many of its source are missing before it."""
        return cls(*(*(getattr(sample, name) for name in Sample.__struct_fields__), missed))


@lru_cache(maxsize=65536)
def timestamp_id_number(text: str) -> int:
    """Return a timestamp's id as the number it writes; 0 when there is none."""
    return int(text, 16) if text else 0


@lru_cache(maxsize=65536)
def key_bytes(key: str) -> bytes:
    """Return a key as the bytes storages order it by."""
    return key.encode("utf-8", "surrogatepass")


_PUT = Kind.PUT
_BEGUN = blake2b(digest_size=DIGEST_BYTES)


def sample_digest(sample: Sample) -> bytes:
    """Return 16 bytes that differ where kind, encoding, payload or attachment do.

    Timestamp and QoS take no part: the same sample may arrive re-stamped over another route.
    """
    return _digests((sample,))[0]


def _digests(samples: Iterable[Sample]) -> list[bytes]:
    """Return `sample_digest` of each sample.

    Nearly all differ in nothing but their payloads from the one before: what is the same has been
    read into a state that is copied.
    """
    digests: list[bytes] = []
    deleted, encoding, payload_bytes, begun = False, "", -1, _BEGUN
    for sample in samples:
        payload = sample.payload
        attachment = sample.attachment
        if (
            len(payload) != payload_bytes
            or attachment is not None
            or sample.encoding != encoding
            or (sample.kind is not _PUT) is not deleted
        ):
            encoding, deleted = sample.encoding, sample.kind is not _PUT
            attached = -1 if attachment is None else len(attachment)
            begun = _digest_begun(deleted, encoding, len(payload), attached)
            payload_bytes = len(payload) if attachment is None else -1
        state = begun.copy()
        state.update(payload)
        if attachment:
            state.update(attachment)
        digests.append(state.digest())
    return digests


@lru_cache(maxsize=4096)
def _digest_begun(
    deleted: bool, encoding: str, payload_bytes: int, attachment_bytes: int
) -> blake2b:
    """Return the state of a digest before the payload; to be copied."""
    sizes = b"%d;%d;%d;%d;" % (deleted, len(encoding), payload_bytes, attachment_bytes)
    return blake2b(sizes + encoding.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES)


def by_run(samples: Iterable[Sample]) -> dict[tuple[SourceId, int], list[Sample]]:
    """Return the samples of each run, by its source and epoch, in the order they came."""
    runs: dict[tuple[SourceId, int], list[Sample]] = {}
    for sample in samples:
        key = sample.source, sample.epoch
        run = runs.get(key)
        if run is None:
            runs[key] = [sample]
        else:
            run.append(sample)
    return runs


class Skip(NamedTuple):
    """The durable record that the wait for `first..last` of a source's numbering ended.

    It ends the wait, not the place: a sample found later replaces it.
    """

    source: SourceId
    epoch: int
    first: int
    last: int


class StreamSummary(NamedTuple):
    """What a batch holds of one stream."""

    runs: RangeSet
    newest_ntp64: int
    newest_published_ntp64: int
    """The same without what was stamped on arrival; 0 when everything was."""
    newest_received_ns: int


class SampleBatch:
    """Samples that cross a room's door together; immutable, shared freely.

    The groupings are made once, when first asked for. Two samples of one identity may be in a
    batch; the first counts.
    """

    __slots__ = (
        *("_by_stream", "_digests", "_keys", "_places", "_size", "_sources", "_summaries"),
        *("_timestamp_ids", "samples"),
    )

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self.samples: Sequence[Sample] = tuple(samples)
        self._places: dict[Stream, list[int]] | None = None
        self._by_stream: dict[Stream, list[Sample]] | None = None
        self._digests: list[bytes] = []
        self._keys: frozenset[str] | None = None
        self._size: int | None = None
        self._sources: tuple[SourceId, ...] | None = None
        self._summaries: dict[Stream, StreamSummary] | None = None
        self._timestamp_ids: frozenset[str] | None = None

    @classmethod
    def joined(cls, batches: Sequence[SampleBatch]) -> SampleBatch:
        """Return the samples of several batches as one; digests made already are kept."""
        joined = cls(sample for batch in batches for sample in batch.samples)
        if any(batch._digests for batch in batches):
            joined._digests = [digest for batch in batches for digest in batch.digests]
        return joined

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleBatch) and self.samples == other.samples

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SampleBatch({len(self.samples)} samples)"

    @property
    def keys(self) -> frozenset[str]:
        """The keys of the samples."""
        if self._keys is None:
            self._keys = frozenset([sample.key for sample in self.samples])
        return self._keys

    @property
    def timestamp_ids(self) -> frozenset[str]:
        """The ids of the samples' timestamps."""
        if self._timestamp_ids is None:
            self._timestamp_ids = frozenset([sample.timestamp_id for sample in self.samples])
        return self._timestamp_ids

    @property
    def sources(self) -> tuple[SourceId, ...]:
        """The sources of the samples, each once, in the order in which they come first."""
        if self._sources is None:
            self._sources = tuple(dict.fromkeys([sample.source for sample in self.samples]))
        return self._sources

    def by_source(self) -> dict[SourceId, Sequence[Sample]]:
        """Return the samples of each source, in batch order."""
        if len(self.sources) == 1:
            return {self.sources[0]: self.samples}
        groups: dict[SourceId, list[Sample]] = {source: [] for source in self.sources}
        for sample in self.samples:
            groups[sample.source].append(sample)
        return {**groups}

    @property
    def places(self) -> dict[Stream, list[int]]:
        """Where the samples of each stream are, rising; owned by the batch, not to be changed."""
        if self._places is None:
            places: dict[Stream, list[int]] = {}
            for at, sample in enumerate(self.samples):
                # A tuple finds a stream that equals it, and is made in a quarter of the time.
                stream = (sample.key, sample.source, sample.epoch)
                here = places.get(stream)  # type: ignore[call-overload]
                if here is None:
                    places[Stream(*stream)] = [at]
                else:
                    here.append(at)
            self._places = places
        return self._places

    @property
    def by_stream(self) -> dict[Stream, list[Sample]]:
        """The samples per stream, in batch order; owned by the batch, not to be changed."""
        if self._by_stream is None:
            samples = self.samples
            self._by_stream = {
                stream: [samples[at] for at in places] for stream, places in self.places.items()
            }
        return self._by_stream

    @property
    def digests(self) -> list[bytes]:
        """`sample_digest` of each sample, in batch order; owned by the batch."""
        if not self._digests:
            self._digests[:] = _digests(self.samples)  # in place: its bare copy has them, too
        return self._digests

    @property
    def size(self) -> int:
        """Bytes of the whole, near enough for a bound."""
        if self._size is None:
            size = _SAMPLE_BYTES * len(self.samples)
            for sample in self.samples:
                size += len(sample.payload) + len(sample.key)
                if sample.attachment is not None:
                    size += len(sample.attachment)
            self._size = size
        return self._size

    @property
    def held_bytes(self) -> int:
        """Bytes of memory the samples take, within a third; groupings that are kept not counted."""
        return self.size + (_SAMPLE_HELD_BYTES - _SAMPLE_BYTES) * len(self.samples)

    def bare(self) -> SampleBatch:
        """Return the same samples without the groupings that were made of them."""
        bare = SampleBatch(self.samples)
        bare._digests, bare._size = self._digests, self._size
        return bare

    @property
    def summaries(self) -> dict[Stream, StreamSummary]:
        """What is here of each stream; owned by the batch, not to be changed."""
        if self._summaries is None:
            samples = self.samples
            sns, ntp64 = [s.sn for s in samples], [s.ntp64 for s in samples]
            received_ns, stamped = [s.received_ns for s in samples], [s.stamped for s in samples]
            as_published = True not in stamped
            summaries = {}
            for stream, places in self.places.items():
                times = [ntp64[at] for at in places]
                own = times if as_published else [ntp64[at] for at in places if not stamped[at]]
                summaries[stream] = StreamSummary(
                    RangeSet.of([sns[at] for at in places]),
                    max(times),
                    max(own, default=0),
                    max([received_ns[at] for at in places]),
                )
            self._summaries = summaries
        return self._summaries

"""What goes into the aligner and what comes out of it; frozen values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SampleBatch, Stream
from durable_cache.protocol.alignment.knowledge import FlatRuns
from durable_cache.protocol.alignment.wire import Lane
from durable_cache.protocol.wire import Incarnation


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """Who this cache is and what it keeps."""

    cache_id: str
    incarnation: str
    """New with every start of the process and whenever the storage was lost or replaced."""
    include: tuple[str, ...]
    """Key expressions kept."""
    exclude: tuple[str, ...] = ()
    age_seconds_max: float | None = None
    samples_max: int | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class AlignerOptions:
    """The aligner's delays and bounds; each default carries its reason."""

    secret: bytes = b""
    """Seeds every hash, so that nobody outside can aim a collision; the same in a domain."""
    random_seed: int = 0
    """For salts and start delays; the shell draws it anew at each start."""
    slot_seconds: int = 5
    """How finely time is cut; the same in a domain."""
    settle_seconds: float = 3.0
    """How long after its end a slot is applied: longer than live recovery takes."""
    block: int = 16
    """Content is summed over blocks of so many numbers and compared in blocks that are whole above
    both floors; the same in a domain. Set 1 where caches keep fewer than about 50 per stream."""
    streams_max: int = 2_000_000
    """Streams known at once, about 1 KB each; further ones are not aligned, and counted."""
    views_max: int = 16
    """Different common scopes; a fleet has one or two."""
    peers_max: int = 64
    ring_max: int = 12
    """Changes of the root remembered: announcements from a minute ago can be judged."""
    streams_per_tick_max: int = 20_000
    """Streams worked on in one `Tick`, about 0.2 s; the rest follows in the next."""
    start_delay_seconds: float = 0.5
    """The cache that has less begins within this; the others wait three slots."""
    request_timeout_seconds: float = 30.0
    """Longer than Zenoh's own 10 s, for a page of a slow storage."""
    nodes_per_request_max: int = 2048
    """Nodes of one comparison: 140 KB."""
    entries_per_reply_max: int = 1024
    entry_runs_max: int = 2048
    """Runs of one stream in one message; the rest is asked for from there on."""
    page_items_max: int = 512
    """Streams of one pull."""
    page_bytes_max: int = 1 << 20
    """Payload of one pull; one larger sample is allowed."""
    page_samples_max: int = 4096
    rate_bytes_per_second: int = 20 << 20
    """What pulls may bring in; live samples go first."""
    wants_max: int = 100_000
    """Streams with missing samples remembered at once; the next comparison finds the rest."""
    known_differences_max: int = 100_000
    """Differences per peer known to be without remedy, 150 B each."""
    retry_seconds_max: float = 600.0
    """The longest pause after comparisons that failed or changed nothing."""
    tried_seconds: float = 3600.0
    """The longest pause before what pulling did not settle is pulled again; the first is two slots,
    and each is twice the one before."""
    announce_seconds: tuple[float, ...] = (15.0, 60.0, 240.0)
    """When an announcement is repeated, in case it was lost; then there is silence."""
    content_seconds: float = 600.0
    """The shortest time between comparisons of content with one peer of the same retention."""
    audit_seconds: float = 86_400.0
    """The same with a peer of another retention, where whole trees differ."""
    forget_seconds: float = 7 * 86_400.0
    """When a stream of which nothing is retained is forgotten."""
    pull: bool = True
    """False only finds out what is missing (``align --dry-run``)."""


class StreamLoaded(NamedTuple):
    """What the storage holds of one stream at start."""

    stream: Stream
    runs: RangeSet
    floor: int = 0
    """What retention had removed; 0 where retention was widened since."""
    purge: int = 0
    purged_ntp64: int = 0
    """As in `Purged`."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A part of what the storage holds; comes before everything else."""

    streams: tuple[StreamLoaded, ...]


@dataclass(frozen=True, slots=True)
class LoadEnded:
    """All of what the storage holds was given."""


@dataclass(frozen=True, slots=True)
class ContentRead:
    """Samples read back in the background after a start, for the content sums."""

    batch: SampleBatch


@dataclass(frozen=True, slots=True)
class ContentEnded:
    """Every stored sample was read back."""


@dataclass(frozen=True, slots=True)
class Appended:
    """These became durable here, live or pulled; repeats do no harm."""

    batch: SampleBatch


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Retention removed every sample of these streams below these numbers."""

    floors: tuple[tuple[Stream, int], ...]


@dataclass(frozen=True, slots=True)
class Purged:
    """An operator, or `RaisePurge`, removed what is below, durably and for good."""

    floors: tuple[tuple[Stream, int], ...]
    purged_ntp64: tuple[tuple[Stream, int], ...] = ()
    """Of streams without an epoch: when the newest sample of the run that was purged was published,
    as far as is known."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Everything of these streams is stored under another epoch now, and no more under theirs."""

    streams: tuple[Stream, ...]


@dataclass(frozen=True, slots=True)
class PeerSeen:
    """Another cache's liveliness token appeared."""

    cache_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class PeerGone:
    """Another cache's liveliness token disappeared."""

    cache_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class LeftAsTheyAre:
    """What these caches first received before these Unix nanoseconds is not pulled from them."""

    peers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RootReceived:
    """A put on ``root/<view>/<cache_id>`` came."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A query on our ``align/<cache_id>`` came; `handle` names it in the answer."""

    handle: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplyReceived:
    """The reply to a `SendRequest`."""

    request_id: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A `SendRequest` ended without a reply."""

    request_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; twice a second while something is under way is enough."""

    now: Moment
    busy: bool = False
    """Ingest is behind: no samples are pulled until the next tick says otherwise."""


AlignerEvent = (
    Loaded
    | LoadEnded
    | ContentRead
    | ContentEnded
    | Appended
    | Trimmed
    | Purged
    | Forgotten
    | PeerSeen
    | PeerGone
    | LeftAsTheyAre
    | RootReceived
    | RequestReceived
    | ReplyReceived
    | RequestFailed
    | Tick
)


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Query ``align/<peer>``; answer with exactly one `ReplyReceived` or `RequestFailed`."""

    peer: str
    request_id: int
    payload: bytes
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class SendReply:
    """Reply to the query `handle` and finish it."""

    handle: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class PublishRoot:
    """Put on ``root/<view>/<own cache_id>``."""

    view: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReadSamples:
    """Read these from the storage and reply to the query `handle` with `pull_reply`."""

    handle: int
    wanted: tuple[tuple[Stream, FlatRuns], ...]
    """At most `samples_max` numbers in all."""
    absent: tuple[tuple[int, FlatRuns], ...]
    """For the reply: what was asked for and is not retained."""
    places: tuple[int, ...]
    """For the reply: the place of each stream of `wanted`."""
    received_after_ns: int
    """Samples first received before are named in the reply, not sent."""
    bytes_max: int
    """Stop when the samples' sizes exceed this; at least one sample is sent."""
    samples_max: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Samples from a peer, for the same door as live ones: one deduplication, one write path."""

    peer: str
    batch: SampleBatch
    held: SampleBatch
    """What is held here already and is only to be compared: other content is a conflict."""
    names: tuple[Incarnation, ...] = ()
    """By which epochs the peer calls the runs of these sources."""


@dataclass(frozen=True, slots=True)
class RaisePurge:
    """A peer knows of a purge: remove durably what is below, then say `Purged`."""

    peer: str
    floors: tuple[tuple[Stream, int], ...]
    purged_ntp64: tuple[tuple[Stream, int], ...] = ()
    """As in `Purged`. What is here and later than that is of another run, which was not purged: the
    purge is left out (ADR 0260)."""


@dataclass(frozen=True, slots=True)
class ReportRefusal:
    """A peer cannot be aligned with, or sent what is not allowed; for people."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class ComparisonEnded:
    """A comparison with a peer is over."""

    peer: str
    lane: Lane
    error: str
    """Empty when it went through."""
    requests: int
    bytes_sent: int
    bytes_received: int
    streams_different: int
    samples_missing: int
    samples_offered: int
    samples_unrecoverable: int
    samples_refused: int = 0
    """What came and no storage can hold, or not this cache's; the rest of its page was taken."""
    refusal: str = ""
    """Why the last of these was refused."""


AlignerOutput = (
    SendRequest
    | SendReply
    | PublishRoot
    | ReadSamples
    | Offer
    | RaisePurge
    | ReportRefusal
    | ComparisonEnded
)

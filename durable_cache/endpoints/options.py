"""Which bounds and delays a cache has; every collection in it is bounded by one of these."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from durable_cache.endpoints.session import Origins
from durable_cache.endpoints.unnumbered import Unnumbered
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_domain, check_fields, check_text, check_timeout
from durable_cache.model.selection import Selection, parse_source
from durable_cache.protocol.alignment import (
    AlignerOptions,
    MergePolicy,
    SplitBrainOptions,
)
from durable_cache.protocol.cache.events import EngineOptions
from durable_cache.storage.contract import Durability, Retention
from durable_cache.storage.journaled.storage import JournalOptions

_CACHE_ID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """A cache's settings; each default carries its reason. Times in seconds, sizes in bytes."""

    name: str = "cache"
    """The storage's name on its backend: 1 to 64 of a-z 0-9 _ -, beginning with a letter."""
    domain: str = "default"
    """Caches, publishers and subscribers of one domain work together."""
    state_dir: Path | None = None
    """Where journal and stream index live; None keeps a cache without a journal."""
    retention: Retention = field(default_factory=Retention)
    retention_seconds: float = 10.0
    """How often retention is applied, and disposed instances are looked after."""
    service_cleanup_delay_seconds: float | None = None
    """How long after it was disposed and unregistered an instance is purged; None: never."""
    disposals_max: int = 100_000
    """Disposed instances that wait for their cleanup; further ones are looked for when it is
    done."""
    acknowledge: Durability = Durability.DISK
    """The level at which samples are acknowledged; never above what the backend can."""
    allowed_origin: Origins = Origins.ANY
    unnumbered: Unnumbered = Unnumbered.IGNORE
    """What becomes of samples without a number, as ordinary publications are (ADR 0160)."""
    resources_limit: int | None = None
    """Streams the cache takes; beyond it new ones are refused, counted and reported."""
    source: str = ""
    """`<zid>` or `<zid>:<eid>`: store this publisher's samples only, and answer under this prefix
    only; empty stores everybody's and answers under `*`."""
    answer_plain: bool | None = None
    """Answer a plain GET on a stored key, as a Zenoh storage does; None: unless `source` is set."""
    channel_samples: int = 5_000
    """Samples between Zenoh and the decoder: a tenth of a second of the target rate."""
    queue_seconds_max: float = 0.1
    """How long decoded samples may wait for the journal before Zenoh is held up, so that an
    acknowledgement comes within a quarter of a second."""
    stall_seconds_max: float = 2.0
    """How long Zenoh is held up; then samples are refused visibly. It gives up a peer after 5 s."""
    batch_samples_max: int = 5_000
    """Samples decoded and committed together; about the payload of one free fsync, and more."""
    queue_bytes_max: int = 64 << 20
    """Decoded samples that wait for the journal; beyond it they are refused visibly."""
    payload_bytes_max: int = 8 << 20
    """A larger payload is refused and counted, from another cache too, and so is a key of more than
    32 KiB; Zenoh itself would allow 1 GiB and nearly 64 KiB."""
    query_samples_max: int = 100_000
    """Samples in the answer to one query; the rest is for the next page."""
    query_bytes_max: int = 64 << 20
    """Payload bytes in the answer to one query."""
    query_seconds_max: float = 8.0
    """How long one query is answered; Zenoh's askers wait 10 s by default."""
    queries_max: int = 2
    """Queries answered at once, at most one less than the pool has threads."""
    queries_waiting_max: int = 256
    """Queries that wait; later ones get an error reply."""
    packed_bytes_max: int = 1 << 20
    """A packed reply: larger ones gain nothing and cost memory."""
    fetch_timeout_seconds: float = 5.0
    """How long other caches and the publisher are waited for."""
    given_samples_max: int = 400_000
    """Samples from other caches that wait to be looked at; later ones are asked for again."""
    events_max: int = 100_000
    """Tokens and heartbeats that wait to be looked at; beyond it they are dropped and counted."""
    resends_waiting_max: int = 16
    """Frames that publishers sent to this cache once more and that wait, a mebibyte each; later
    ones are refused and sent again."""
    acks_unheard_max: int = 1_024
    """Numberings whose acknowledgement waits for somebody to listen; the oldest is forgotten."""
    pool_threads: int = 3
    """Threads that answer queries and read the backend; a service's storages share them."""
    align: bool = False
    """Come to hold what the other caches of the domain hold, and let them."""
    aligner: AlignerOptions = field(default_factory=AlignerOptions)
    align_peers: tuple[str, ...] = ()
    """Ids of the caches, its own may be among them, without which no instance is cleaned up."""
    split_brain: SplitBrainOptions = field(default_factory=SplitBrainOptions)
    """What becomes of instances after a partition; needs `align`."""
    align_bytes_max: int = 64 << 20
    """What was committed and waits for the aligner; beyond it the aligner begins anew from what is
    stored."""
    align_events_max: int = 4_096
    """Announcements and questions of other caches that wait for the aligner: later announcements
    are dropped, for they are repeated, and later questions refused, for they are asked again."""
    align_jobs_max: int = 64
    """Pages to read for other caches or to take from them that wait; later ones are refused, and
    asked for again."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    journal: JournalOptions = field(default_factory=JournalOptions)

    def check(self) -> None:
        """ConfigError names what no cache can work with."""
        check_fields(self)
        check_domain(self.domain)
        check_text("name", self.name)
        self.check_source()
        self.check_cleanup()
        self.check_split_brain()

    def check_split_brain(self) -> None:
        """ConfigError where a policy stands without alignment, which it works on."""
        policy, options = self.split_brain.policy, self.split_brain
        if policy is not MergePolicy.MERGE and not (self.align and self.aligner.pull):
            raise ConfigError(
                f"split_brain.policy {policy.value!r}: it works on top of alignment; write "
                "alignment: { enabled: true }, and no pull: false, beside it"
            )
        if options.remove_history and not policy.decides:
            raise ConfigError(
                f"split_brain.remove_history: the policy {policy.value!r} removes nothing; leave "
                'it out, or choose "delete", "replace" or "catch-up"'
            )

    def check_source(self) -> None:
        """ConfigError where `source` is none, or stands beside `align`."""
        parse_one_source(self.source)
        if self.source and self.align:
            raise ConfigError(
                f"source {self.source!r}: a cache of one publisher is not aligned with others; "
                "leave alignment or source out"
            )

    def check_cleanup(self) -> None:
        """ConfigError where nobody says which caches must have seen what is cleaned up."""
        delay = self.service_cleanup_delay_seconds
        check_timeout(delay, "service_cleanup_delay_seconds")
        for cache_id in self.align_peers:
            if not isinstance(cache_id, str) or _CACHE_ID.fullmatch(cache_id) is None:
                raise ConfigError(
                    f"alignment.peers: {cache_id!r} is no cache's id; durable-cache status shows it"
                )
        if delay is not None and self.align and not self.align_peers:
            raise ConfigError(
                "service_cleanup_delay_seconds: what is aligned is cleaned up when every cache has "
                "seen it; name them under alignment.peers, by the ids of durable-cache status"
            )


def parse_one_source(text: str) -> Selection:
    """Read a cache's `source`, all where it is empty; ConfigError says what is wrong with it."""
    try:
        zid, eid = parse_source(text or "*")
    except ValueError as error:
        raise ConfigError(f"source {error}") from error
    if text and zid is None:
        raise ConfigError("source '*': leave it out to store every publisher's samples")
    return Selection(zid=zid, eid=eid)

"""What a cache says of itself: figures for people, metrics and health checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from durable_cache.endpoints.alignment.corrected import Corrected
from durable_cache.endpoints.delays import DelaysSeen
from durable_cache.endpoints.ingest import Miss
from durable_cache.endpoints.unnumbered import Unnumbered
from durable_cache.storage.contract import Durability

if TYPE_CHECKING:
    from durable_cache.endpoints.alignment import Aligning
    from durable_cache.endpoints.cache import ReliabilityCache


@dataclass(frozen=True, slots=True)
class AlignmentStatus:
    """How aligning went so far; counts are since the cache was declared."""

    sessions: int = 0
    """Comparisons that went through."""
    failed_sessions: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    pulled: int = 0
    conflicts: int = 0
    refused: int = 0
    """Peers in reach that cannot be aligned with."""
    lags: tuple[tuple[str, float], ...] = ()
    """(cache_id, seconds since it is found unequal) of each peer in reach."""
    samples_refused: int = 0
    """Samples that came from peers and that no storage can hold; they were left out."""
    left_out: int = 0
    """How often something came of a stream beyond alignment's `streams_max`, or one of two whose
    places are the same: such streams are not aligned."""
    offers_refused: int = 0
    """Pieces of what peers gave that there was no room for; they are pulled again."""
    comparisons_dropped: int = 0
    """Samples of peers, in pieces, that were never compared with what is stored."""
    split_brains: int = 0
    """Partitions after which this cache, as the master, did what its policy says."""
    instances_disposed: int = 0
    """Instances that a split-brain policy disposed."""
    instances_restored: int = 0
    """Instances that a split-brain policy gave the value of the master's side."""
    history_removed: int = 0
    """Samples that a split-brain policy purged; only with `remove_history`."""


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """A cache's figures at one moment; counts are since it was declared."""

    name: str
    cache_id: str
    key_exprs: tuple[str, ...]
    level: Durability
    backend: str
    storage_up: bool
    """Whether the backend is reached and the cache runs."""
    received: int
    appended: int
    duplicates: int
    conflicts: int
    ignored: int
    """Samples without a number that were not stored, as the specification wants."""
    refused: int
    """Samples there was no room for, too large, or of a stream beyond `resources_limit`."""
    missed: int
    gaps_open: int
    sources: int
    streams: int
    journal_bytes: int
    journal_samples: int
    drained: int
    dead_letters: int
    queries_ok: int
    queries_failed: int
    acks_sent: int
    append_seconds: float
    """Time spent committing; with `commits`, the mean."""
    commits: int
    last_error: str
    unnumbered: int = 0
    """Samples without a number that were stored; `appended` counts them, too."""
    unnumbered_stamped: int = 0
    """Samples that had neither number nor timestamp: another cache may hold them a second time."""
    timestamps_ahead: int = 0
    """Samples that came more than half a second ahead of this clock; the log names publishers."""
    consumer_dead_letters: int = 0
    """Dead letters of durable consumers that were stored; `appended` counts them, too."""
    of_others: int = 0
    """Samples of other publishers than the cache's `source`; left out."""
    delays: DelaysSeen = DelaysSeen()
    """From the moment a live sample was received to its commit."""
    alignment: AlignmentStatus = AlignmentStatus()
    takes_samples: bool = True
    """Whether samples can be made durable: the journal's disk has room and does not fail."""
    gaps_by_source: tuple[tuple[str, int], ...] = ()
    """The sources that wait for most numbers, at most 32, and how many each."""
    misses: tuple[Miss, ...] = ()
    """What was given up of late, oldest first, at most 200."""
    journal_bytes_max: int = 0
    """What the journal may grow to before samples are refused; 0 where there is none."""
    instances_purged: int = 0
    """Disposed and unregistered instances that this cache purged after their delay."""
    instance_samples_purged: int = 0
    """Their samples."""
    instances_to_purge: int = 0
    """Disposed and unregistered instances that wait for their delay, or for other caches."""
    findings: tuple[str, ...] = ()
    """What people should know of files that do not belong together, and of samples refused."""


def status_of(cache: ReliabilityCache) -> CacheStatus:
    """Return a cache's figures of this moment."""
    ingest, store, journal = cache.ingest, cache.store, cache.store.journal
    counts, aligning = ingest.counts, cache.aligning
    misaligned = 0 if aligning is None else aligning.conflicts
    return CacheStatus(
        name=cache.options.name,
        cache_id=cache.cache_id,
        key_exprs=tuple(map(str, cache.key_exprs)),
        level=store.level,
        backend=cache.backend,
        storage_up=not store.backend_error and not cache.stopped,
        takes_samples=not ingest.commit_error and not cache.stopped,
        findings=tuple(store.findings),
        received=ingest.received,
        appended=ingest.appended,
        duplicates=counts.duplicates,
        conflicts=counts.conflicts + store.conflicts_total + misaligned,
        ignored=_ignored(cache),
        unnumbered=ingest.unnumbered,
        unnumbered_stamped=cache.plain.stamped,
        timestamps_ahead=cache.ahead.total,
        consumer_dead_letters=cache.consumer_dead_letters,
        refused=ingest.refused + sum(decoder.oversized for decoder in cache.decoders),
        missed=counts.missed,
        gaps_open=ingest.gaps_open,
        gaps_by_source=ingest.gaps_by_source(),
        misses=tuple(ingest.misses),
        sources=ingest.sources,
        streams=store.index.streams,
        journal_bytes=0 if journal is None or cache.closing else journal.size_bytes(),
        journal_bytes_max=0 if journal is None else store.options.spool_bytes_max,
        journal_samples=store.backlog.samples,
        drained=store.drained_samples,
        dead_letters=0 if journal is None else journal.dead_letters,
        queries_ok=cache.queries_ok,
        queries_failed=cache.queries_failed,
        acks_sent=ingest.acknowledging.sent,
        append_seconds=ingest.append_seconds,
        commits=ingest.commits,
        last_error=cache.error,
        of_others=ingest.of_others,
        instances_purged=0 if cache.cleanup is None else cache.cleanup.instances,
        instance_samples_purged=0 if cache.cleanup is None else cache.cleanup.samples,
        instances_to_purge=0 if cache.cleanup is None else cache.cleanup.waiting,
        delays=ingest.delays.seen(),
        alignment=AlignmentStatus() if aligning is None else _alignment(aligning),
    )


def _ignored(cache: ReliabilityCache) -> int:
    if cache.plain.choice is Unnumbered.STORE:
        return cache.plain.unidentified
    return sum(decoder.without_source for decoder in cache.decoders)


def _alignment(aligning: Aligning) -> AlignmentStatus:
    counts = aligning.counts
    return AlignmentStatus(
        counts.sessions - counts.failed_sessions,
        counts.failed_sessions,
        counts.bytes_sent,
        counts.bytes_received,
        aligning.pulled,
        aligning.conflicts,
        sum(bool(peer.refused) for peer in aligning.status() if peer.live),
        tuple(counts.lags().items()),
        counts.samples_refused,
        counts.left_out,
        counts.offers_refused,
        counts.comparisons_dropped,
        *(Corrected() if aligning.merging is None else aligning.merging.corrected),
    )

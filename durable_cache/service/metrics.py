"""How a service's figures are written for Prometheus: its text format, one label ``cache``.

A label ``peer`` names another cache of the domain, a label ``consumer`` a durable consumer, at most
64 of each; the consumers beyond are summed under ``*``. No label names a source or a key:
their number has no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from durable_cache.endpoints.cache import CacheStatus
from durable_cache.endpoints.delays import BOUNDS_SECONDS
from durable_cache.endpoints.subscriber.tables import ConsumerCounts
from durable_cache.protocol.losses import OTHERS
from durable_cache.protocol.subjects import SubjectCounts
from durable_cache.service.measured import ModeRates
from durable_cache.service.piping import PipeReport
from durable_cache.service.report import ServiceReport

__all__ = ["CONTENT_TYPE", "METRICS", "Metric", "metrics_text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "durable_cache_"
_LOST = f"{_PREFIX}subscriber_samples_lost_total"


class Metric(NamedTuple):
    """One family of figures, read from a cache's status."""

    name: str
    kind: str
    """counter, gauge, histogram or summary."""
    meaning: str
    samples: Callable[[CacheStatus], Sequence[tuple[str, str, float]]]
    """Returns (suffix, further labels, value) for one cache."""


def _one(name: str, kind: str, meaning: str, value: Callable[[CacheStatus], float]) -> Metric:
    return Metric(_PREFIX + name, kind, meaning, lambda status: [("", "", value(status))])


def _queries(status: CacheStatus) -> Sequence[tuple[str, str, float]]:
    return [
        ("", ',outcome="ok"', status.queries_ok),
        ("", ',outcome="failed"', status.queries_failed),
    ]


def _delays(status: CacheStatus) -> Sequence[tuple[str, str, float]]:
    seen = status.delays
    buckets = [
        ("_bucket", f',le="{bound:g}"', count)
        for bound, count in zip(BOUNDS_SECONDS, seen.up_to, strict=True)
    ]
    return [
        *buckets,
        ("_bucket", ',le="+Inf"', seen.count),
        ("_sum", "", seen.total_seconds),
        ("_count", "", seen.count),
    ]


def _sessions(status: CacheStatus) -> Sequence[tuple[str, str, float]]:
    return [
        ("", ',outcome="ok"', status.alignment.sessions),
        ("", ',outcome="failed"', status.alignment.failed_sessions),
    ]


def _split_brain_instances(status: CacheStatus) -> Sequence[tuple[str, str, float]]:
    return [
        ("", ',outcome="disposed"', status.alignment.instances_disposed),
        ("", ',outcome="restored"', status.alignment.instances_restored),
    ]


def _alignment_bytes(status: CacheStatus) -> Sequence[tuple[str, str, float]]:
    return [
        ("", ',direction="sent"', status.alignment.bytes_sent),
        ("", ',direction="received"', status.alignment.bytes_received),
    ]


def _lags(status: CacheStatus) -> Sequence[tuple[str, str, float]]:
    return [("", f',peer="{_escape(peer)}"', seconds) for peer, seconds in status.alignment.lags]


METRICS: tuple[Metric, ...] = (
    _one(
        "samples_received_total",
        "counter",
        "Samples with source_info that arrived.",
        lambda status: status.received,
    ),
    _one(
        "samples_appended_total",
        "counter",
        "Samples committed at the storage's level.",
        lambda status: status.appended,
    ),
    _one(
        "samples_duplicate_total",
        "counter",
        "Samples that were held already.",
        lambda status: status.duplicates,
    ),
    _one(
        "samples_conflicting_total",
        "counter",
        "Samples with another payload than the one held under their identity.",
        lambda status: status.conflicts,
    ),
    _one(
        "samples_ignored_total",
        "counter",
        "Samples without a number that were not stored.",
        lambda status: status.ignored,
    ),
    _one(
        "samples_unnumbered_total",
        "counter",
        "Samples without a number that were stored.",
        lambda status: status.unnumbered,
    ),
    _one(
        "samples_unnumbered_stamped_total",
        "counter",
        "Samples with neither number nor timestamp that this cache stamped.",
        lambda status: status.unnumbered_stamped,
    ),
    _one(
        "samples_ahead_total",
        "counter",
        "Samples whose timestamp was more than half a second ahead of this clock.",
        lambda status: status.timestamps_ahead,
    ),
    _one(
        "samples_refused_total",
        "counter",
        "Samples not acknowledged: no room, too large, or beyond resources_limit.",
        lambda status: status.refused,
    ),
    _one(
        "samples_missed_total",
        "counter",
        "Samples given up after gap_timeout_seconds.",
        lambda status: status.missed,
    ),
    _one(
        "instances_purged_total",
        "counter",
        "Disposed and unregistered instances purged after service_cleanup_delay_seconds.",
        lambda status: status.instances_purged,
    ),
    _one(
        "instances_to_purge",
        "gauge",
        "Disposed and unregistered instances that wait for their delay, or for other caches.",
        lambda status: status.instances_to_purge,
    ),
    _one(
        "samples_drained_total",
        "counter",
        "Samples handed to the backend.",
        lambda status: status.drained,
    ),
    _one(
        "consumer_dead_letters_total",
        "counter",
        "Samples that durable consumers could not process, stored as dead letters.",
        lambda status: status.consumer_dead_letters,
    ),
    _one(
        "dead_letters",
        "gauge",
        "Samples that the backend can never take, kept beside the journal.",
        lambda status: status.dead_letters,
    ),
    _one("gaps_open", "gauge", "Gaps being recovered.", lambda status: status.gaps_open),
    _one("sources", "gauge", "Sources with a window in memory.", lambda status: status.sources),
    _one("streams", "gauge", "Streams in the stream index.", lambda status: status.streams),
    _one("journal_bytes", "gauge", "Size of the journal.", lambda status: status.journal_bytes),
    _one(
        "journal_bytes_max",
        "gauge",
        "What the journal may grow to before samples are refused; 0 where there is none.",
        lambda status: status.journal_bytes_max,
    ),
    _one(
        "journal_samples",
        "gauge",
        "Samples durable in the journal and not yet in the backend.",
        lambda status: status.journal_samples,
    ),
    _one("acks_sent_total", "counter", "Acknowledgements sent.", lambda status: status.acks_sent),
    Metric(
        _PREFIX + "append_duration_seconds",
        "summary",
        "Time of a commit.",
        lambda status: [
            ("_sum", "", status.append_seconds),
            ("_count", "", status.commits),
        ],
    ),
    Metric(
        _PREFIX + "append_batch_samples",
        "summary",
        "Samples in a commit.",
        lambda status: [("_sum", "", status.appended), ("_count", "", status.commits)],
    ),
    Metric(
        _PREFIX + "ack_delay_seconds",
        "histogram",
        "From a sample's reception from its publisher to its commit, when it is acknowledged.",
        _delays,
    ),
    Metric(
        _PREFIX + "alignment_sessions_total",
        "counter",
        "Comparisons with other caches, by outcome.",
        _sessions,
    ),
    Metric(
        _PREFIX + "alignment_bytes_total",
        "counter",
        "Bytes of alignment's messages, samples included, by direction.",
        _alignment_bytes,
    ),
    _one(
        "aligned_samples_total",
        "counter",
        "Samples pulled from other caches.",
        lambda status: status.alignment.pulled,
    ),
    _one(
        "alignment_conflicts_total",
        "counter",
        "Findings of another payload at another cache.",
        lambda status: status.alignment.conflicts,
    ),
    _one(
        "alignment_peers_refused",
        "gauge",
        "Caches in reach that cannot be aligned with; `durable-cache align` says why.",
        lambda status: status.alignment.refused,
    ),
    _one(
        "alignment_left_out_total",
        "counter",
        "How often something came of a stream that is not aligned, for there are too many.",
        lambda status: status.alignment.left_out,
    ),
    Metric(
        _PREFIX + "alignment_dropped_total",
        "counter",
        "What alignment had no room for; the next comparison finds offers again.",
        lambda status: [
            ("", ',what="offer"', status.alignment.offers_refused),
            ("", ',what="comparison"', status.alignment.comparisons_dropped),
        ],
    ),
    Metric(
        _PREFIX + "alignment_lag_seconds",
        "gauge",
        "Time since a cache in reach was last found equal, one label `peer` each; 0 is equal.",
        _lags,
    ),
    _one(
        "split_brains_total",
        "counter",
        "Partitions after which this cache, as the master, did what its policy says.",
        lambda status: status.alignment.split_brains,
    ),
    Metric(
        _PREFIX + "split_brain_instances_total",
        "counter",
        "Instances that a split-brain policy disposed, or gave the master's value, by outcome.",
        _split_brain_instances,
    ),
    _one(
        "split_brain_samples_removed_total",
        "counter",
        "Samples that a split-brain policy purged; only with `remove_history`.",
        lambda status: status.alignment.history_removed,
    ),
    Metric(_PREFIX + "queries_total", "counter", "Queries answered, by outcome.", _queries),
    _one(
        "storage_up",
        "gauge",
        "1 while the backend takes what the journal has for it.",
        lambda status: status.storage_up,
    ),
)


_OF_SUBSCRIBERS: tuple[tuple[str, str, Callable[[ModeRates], float | None]], ...] = (
    (
        "subscribers",
        "Subscribers of the domain that run, by delivery mode.",
        lambda rates: rates.subscribers,
    ),
    (
        "subscriber_reliability",
        "R of what they count: unique samples received / sent, by delivery mode.",
        lambda rates: rates.reliability,
    ),
    (
        "subscriber_uniqueness",
        "UR of what they count: unique samples received / received, by delivery mode.",
        lambda rates: rates.uniqueness,
    ),
)


def _subscribers(report: ServiceReport) -> Iterator[str]:
    """Yield what subscribers counted, by delivery mode: of these there are four."""
    for name, meaning, value in _OF_SUBSCRIBERS:
        yield f"# HELP {_PREFIX}{name} {meaning}"
        yield f"# TYPE {_PREFIX}{name} gauge"
        for rates in report.subscribers:
            shown = value(rates)
            if shown is not None:
                yield f'{_PREFIX}{name}{{mode="{_escape(rates.mode)}"}} {_number(shown)}'


_OF_SUBJECTS: tuple[
    tuple[str, str, Callable[[SubjectCounts], Sequence[tuple[str, float]]]], ...
] = (
    (
        "subject_sequences",
        "Subject sequences that subscribers which run met, by RaiMS's condition; the next is none.",
        lambda counts: [
            ('{condition="start"}', counts.starts),
            ('{condition="joined"}', counts.joined),
            ('{condition="repeat"}', counts.repeats),
            ('{condition="skip"}', counts.skips),
            ('{condition="not_subscribed"}', counts.unsubscribed),
        ],
    ),
    (
        "subject_samples_lost",
        "Samples that subject sequences skipped, of subscribers that run.",
        lambda counts: [("", counts.lost)],
    ),
    (
        "subjects_perhaps_incomplete",
        "Subjects that subscribers which run joined before the network had converged.",
        lambda counts: [("", counts.perhaps_incomplete)],
    ),
)


def _subjects(report: ServiceReport) -> Iterator[str]:
    """Yield what subscribers counted of subject sequences."""
    for name, meaning, values in _OF_SUBJECTS:
        yield f"# HELP {_PREFIX}{name} {meaning}"
        yield f"# TYPE {_PREFIX}{name} gauge"
        for labels, value in values(report.subjects):
            yield f"{_PREFIX}{name}{labels} {_number(value)}"


_CONSUMERS_MAX = 64
_OF_CONSUMERS: tuple[tuple[str, str, Callable[[ConsumerCounts], float]], ...] = (
    (
        "consumer_members",
        "Members of a durable consumer that run.",
        lambda counts: counts.members,
    ),
    (
        "consumer_processed_twice",
        "Samples that members which run processed, and others too, found when a partition healed.",
        lambda counts: counts.processed_twice,
    ),
)


def _consumers(report: ServiceReport) -> Iterator[str]:
    """Yield what durable consumers counted, those that did most twice first."""
    named = sorted(report.consumers, key=lambda one: (-one.processed_twice, one.consumer))
    further = named[_CONSUMERS_MAX:]
    shown = named[:_CONSUMERS_MAX]
    if further:
        members = sum(one.members for one in further)
        twice = sum(one.processed_twice for one in further)
        shown.append(ConsumerCounts(OTHERS, members, twice))
    for name, meaning, value in _OF_CONSUMERS:
        yield f"# HELP {_PREFIX}{name} {meaning}"
        yield f"# TYPE {_PREFIX}{name} gauge"
        for one in shown:
            yield f'{_PREFIX}{name}{{consumer="{_escape(one.consumer)}"}} {_number(value(one))}'


_OF_PIPES: tuple[tuple[str, str, str, Callable[[PipeReport], float | None]], ...] = (
    (
        "pipe_running",
        "gauge",
        "1 while both networks of a pipe are open and it is declared.",
        lambda pipe: pipe.is_running,
    ),
    (
        "pipe_confirmed_total",
        "counter",
        "Samples that a pipe carried and confirmed, since it was opened.",
        lambda pipe: None if pipe.status is None else pipe.status.confirmed,
    ),
    (
        "pipe_under_way",
        "gauge",
        "Samples that a pipe took and did not confirm.",
        lambda pipe: None if pipe.status is None else pipe.status.under_way,
    ),
    (
        "pipe_given_up_total",
        "counter",
        "Samples of a pipe that a cache of the target network will never take.",
        lambda pipe: None if pipe.status is None else pipe.status.given_up,
    ),
    (
        "pipe_lost",
        "gauge",
        "Samples that a pipe sent once and of which it is not known that they are held.",
        lambda pipe: None if pipe.status is None else pipe.status.lost,
    ),
    (
        "pipe_missed_total",
        "counter",
        "Samples that were lost before a pipe.",
        lambda pipe: None if pipe.status is None else pipe.status.missed,
    ),
    (
        "pipe_caches_left_out",
        "gauge",
        "Caches of the target network beyond `caches_max`: a pipe sends them nothing.",
        lambda pipe: None if pipe.status is None else pipe.status.caches_left_out,
    ),
)


def _pipes(report: ServiceReport) -> Iterator[str]:
    """Yield how the service's pipes stand; nothing where it has none."""
    for name, kind, meaning, value in _OF_PIPES if report.pipes else ():
        yield f"# HELP {_PREFIX}{name} {meaning}"
        yield f"# TYPE {_PREFIX}{name} {kind}"
        for pipe in report.pipes:
            shown = value(pipe)
            if shown is not None:
                yield f'{_PREFIX}{name}{{pipe="{_escape(pipe.name)}"}} {_number(shown)}'


def metrics_text(report: ServiceReport) -> str:
    """Return the whole exposition."""
    lines = [
        f"# HELP {_PREFIX}build_info The running version.",
        f"# TYPE {_PREFIX}build_info gauge",
        f'{_PREFIX}build_info{{version="{_escape(report.version)}"}} 1',
        f"# HELP {_LOST} Samples that subscribers of the domain lost, as their advisories say.",
        f"# TYPE {_LOST} counter",
        f"{_LOST} {report.subscribers_lost}",
        *_subscribers(report),
        *_subjects(report),
        *_consumers(report),
        *_pipes(report),
    ]
    for metric in METRICS:
        lines.append(f"# HELP {metric.name} {metric.meaning}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for status in report.storages:
            for suffix, labels, value in metric.samples(status):
                label = f'cache="{_escape(status.name)}"{labels}'
                lines.append(f"{metric.name}{suffix}{{{label}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""How a service's figures are written for Prometheus: its text format, one label ``cache``.

A label ``peer`` names another cache of the domain, at most 64. No label names a source or a key:
their number has no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from durable_cache.endpoints.cache import CacheStatus
from durable_cache.endpoints.delays import BOUNDS_SECONDS
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
    Metric(
        _PREFIX + "alignment_lag_seconds",
        "gauge",
        "Time since a cache in reach was last found equal, one label `peer` each; 0 is equal.",
        _lags,
    ),
    Metric(_PREFIX + "queries_total", "counter", "Queries answered, by outcome.", _queries),
    _one(
        "storage_up",
        "gauge",
        "1 while the backend takes what the journal has for it.",
        lambda status: status.storage_up,
    ),
)


def metrics_text(report: ServiceReport) -> str:
    """Return the whole exposition."""
    lines = [
        f"# HELP {_PREFIX}build_info The running version.",
        f"# TYPE {_PREFIX}build_info gauge",
        f'{_PREFIX}build_info{{version="{_escape(report.version)}"}} 1',
        f"# HELP {_LOST} Samples that subscribers of the domain lost, as their advisories say.",
        f"# TYPE {_LOST} counter",
        f"{_LOST} {report.subscribers_lost}",
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

"""How a service's figures are written for Prometheus: its text format, one label ``cache``.

A label ``peer`` names another cache of the domain, a label ``consumer`` a durable consumer, at most
64 of each; the consumers beyond are summed under ``*``. No label names a source or a key:
their number has no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from durable_cache.endpoints.delays import BOUNDS_SECONDS
from durable_cache.endpoints.pipe import PipeStatus
from durable_cache.endpoints.status import CacheStatus
from durable_cache.endpoints.subscriber.tables import ConsumerCounts
from durable_cache.protocol.losses import OTHERS
from durable_cache.protocol.subjects import SubjectCounts
from durable_cache.service.measured import ModeRates
from durable_cache.service.piping import PipeReport
from durable_cache.service.report import ServiceReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "durable_cache_"


class Metric(NamedTuple):
    """One family of figures, read from a cache's status."""

    name: str
    kind: str
    """counter, gauge, histogram or summary."""
    meaning: str
    samples: Callable[[CacheStatus], Sequence[tuple[str, str, float]]]
    """Returns (suffix, further labels, value) for one cache."""


def _kind(name: str) -> str:
    """Return what Prometheus' rules say of a single figure by its name."""
    return "counter" if name.endswith("_total") else "gauge"


def _one(name: str, meaning: str, value: Callable[[CacheStatus], float]) -> Metric:
    return Metric(_PREFIX + name, _kind(name), meaning, lambda cache: [("", "", value(cache))])


def _by(
    label: str, name: str, meaning: str, values: Callable[[CacheStatus], Mapping[str, float]]
) -> Metric:
    """Return a family with a figure for each value of one more label."""

    def samples(cache: CacheStatus) -> Sequence[tuple[str, str, float]]:
        return [("", f',{label}="{_escape(of)}"', value) for of, value in values(cache).items()]

    return Metric(_PREFIX + name, _kind(name), meaning, samples)


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


METRICS: tuple[Metric, ...] = (
    _one(
        "samples_received_total",
        "Samples with source_info that arrived.",
        lambda cache: cache.received,
    ),
    _one(
        "samples_appended_total",
        "Samples committed at the storage's level.",
        lambda cache: cache.appended,
    ),
    _one(
        "samples_duplicate_total", "Samples that were held already.", lambda cache: cache.duplicates
    ),
    _one(
        "samples_conflicting_total",
        "Samples with another payload than the one held under their identity.",
        lambda cache: cache.conflicts,
    ),
    _one(
        "samples_ignored_total",
        "Samples without a number that were not stored.",
        lambda cache: cache.ignored,
    ),
    _one(
        "samples_unnumbered_total",
        "Samples without a number that were stored.",
        lambda cache: cache.unnumbered,
    ),
    _one(
        "samples_unnumbered_stamped_total",
        "Samples with neither number nor timestamp that this cache stamped.",
        lambda cache: cache.unnumbered_stamped,
    ),
    _one(
        "samples_ahead_total",
        "Samples whose timestamp was more than half a second ahead of this clock.",
        lambda cache: cache.timestamps_ahead,
    ),
    _one(
        "samples_refused_total",
        "Samples not acknowledged: no room, too large, or beyond resources_limit.",
        lambda cache: cache.refused,
    ),
    _one(
        "samples_missed_total",
        "Samples given up after gap_timeout_seconds.",
        lambda cache: cache.missed,
    ),
    _one(
        "instances_purged_total",
        "Disposed and unregistered instances purged after service_cleanup_delay_seconds.",
        lambda cache: cache.instances_purged,
    ),
    _one(
        "instances_to_purge",
        "Disposed and unregistered instances that wait for their delay, or for other caches.",
        lambda cache: cache.instances_to_purge,
    ),
    _one("samples_drained_total", "Samples handed to the backend.", lambda cache: cache.drained),
    _one(
        "consumer_dead_letters_total",
        "Samples that durable consumers could not process, stored as dead letters.",
        lambda cache: cache.consumer_dead_letters,
    ),
    _one(
        "dead_letters",
        "Samples that the backend can never take, kept beside the journal.",
        lambda cache: cache.dead_letters,
    ),
    _one("gaps_open", "Gaps being recovered.", lambda cache: cache.gaps_open),
    _one("sources", "Sources with a window in memory.", lambda cache: cache.sources),
    _one("streams", "Streams in the stream index.", lambda cache: cache.streams),
    _one("journal_bytes", "Size of the journal.", lambda cache: cache.journal_bytes),
    _one(
        "journal_bytes_max",
        "What the journal may grow to before samples are refused; 0 where there is none.",
        lambda cache: cache.journal_bytes_max,
    ),
    _one(
        "journal_samples",
        "Samples durable in the journal and not yet in the backend.",
        lambda cache: cache.journal_samples,
    ),
    _one("acks_sent_total", "Acknowledgements sent.", lambda cache: cache.acks_sent),
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
    _by(
        "outcome",
        "alignment_sessions_total",
        "Comparisons with other caches, by outcome.",
        lambda cache: {
            "ok": cache.alignment.sessions,
            "failed": cache.alignment.failed_sessions,
        },
    ),
    _by(
        "direction",
        "alignment_bytes_total",
        "Bytes of alignment's messages, samples included, by direction.",
        lambda cache: {
            "sent": cache.alignment.bytes_sent,
            "received": cache.alignment.bytes_received,
        },
    ),
    _one(
        "aligned_samples_total",
        "Samples pulled from other caches.",
        lambda cache: cache.alignment.pulled,
    ),
    _one(
        "alignment_conflicts_total",
        "Findings of another payload at another cache.",
        lambda cache: cache.alignment.conflicts,
    ),
    _one(
        "alignment_peers_refused",
        "Caches in reach that cannot be aligned with; `durable-cache align` says why.",
        lambda cache: cache.alignment.refused,
    ),
    _one(
        "alignment_left_out_total",
        "How often something came of a stream that is not aligned, for there are too many.",
        lambda cache: cache.alignment.left_out,
    ),
    _by(
        "what",
        "alignment_dropped_total",
        "What alignment had no room for; the next comparison finds offers again.",
        lambda cache: {
            "offer": cache.alignment.offers_refused,
            "comparison": cache.alignment.comparisons_dropped,
        },
    ),
    _by(
        "peer",
        "alignment_lag_seconds",
        "Time since a cache in reach was last found equal, one label `peer` each; 0 is equal.",
        lambda cache: dict(cache.alignment.lags),
    ),
    _one(
        "split_brains_total",
        "Partitions after which this cache, as the master, did what its policy says.",
        lambda cache: cache.alignment.split_brains,
    ),
    _by(
        "outcome",
        "split_brain_instances_total",
        "Instances that a split-brain policy disposed, or gave the master's value, by outcome.",
        lambda cache: {
            "disposed": cache.alignment.instances_disposed,
            "restored": cache.alignment.instances_restored,
        },
    ),
    _one(
        "split_brain_samples_removed_total",
        "Samples that a split-brain policy purged; only with `remove_history`.",
        lambda cache: cache.alignment.history_removed,
    ),
    _by(
        "outcome",
        "queries_total",
        "Queries answered, by outcome.",
        lambda cache: {"ok": cache.queries_ok, "failed": cache.queries_failed},
    ),
    _one(
        "storage_up",
        "1 while the backend takes what the journal has for it.",
        lambda cache: cache.storage_up,
    ),
)


_ModeValue = Callable[[ModeRates], float | None]
_OF_SUBSCRIBERS: tuple[tuple[str, str, _ModeValue], ...] = (
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
        labelled = [(_label("mode", rates.mode), value(rates)) for rates in report.subscribers]
        yield from _family(name, meaning, labelled)


def _subjects(counts: SubjectCounts) -> Iterator[str]:
    """Yield what subscribers counted of subject sequences."""
    yield from _family(
        "subject_sequences",
        "Subject sequences that subscribers which run met, by RaiMS's condition; the next is none.",
        [
            (_label("condition", "start"), counts.starts),
            (_label("condition", "joined"), counts.joined),
            (_label("condition", "repeat"), counts.repeats),
            (_label("condition", "skip"), counts.skips),
            (_label("condition", "not_subscribed"), counts.unsubscribed),
        ],
    )
    yield from _family(
        "subject_samples_lost",
        "Samples that subject sequences skipped, of subscribers that run.",
        [("", counts.lost)],
    )
    yield from _family(
        "subjects_perhaps_incomplete",
        "Subjects that subscribers which run joined before the network had converged.",
        [("", counts.perhaps_incomplete)],
    )


_CONSUMERS_MAX = 64


def _consumers(report: ServiceReport) -> Iterator[str]:
    """Yield what durable consumers counted, those that did most twice first."""
    named = sorted(report.consumers, key=lambda one: (-one.processed_twice, one.consumer))
    further = named[_CONSUMERS_MAX:]
    shown = named[:_CONSUMERS_MAX]
    if further:
        members = sum(one.members for one in further)
        twice = sum(one.processed_twice for one in further)
        shown.append(ConsumerCounts(OTHERS, members, twice))
    yield from _family(
        "consumer_members",
        "Members of a durable consumer that run.",
        [(_label("consumer", one.consumer), one.members) for one in shown],
    )
    yield from _family(
        "consumer_processed_twice",
        "Samples that members which run processed, and others too, found when a partition healed.",
        [(_label("consumer", one.consumer), one.processed_twice) for one in shown],
    )


_OF_PIPES: tuple[tuple[str, str, Callable[[PipeStatus], float]], ...] = (
    (
        "pipe_confirmed_total",
        "Samples that a pipe carried and confirmed, since it was opened.",
        lambda status: status.confirmed,
    ),
    (
        "pipe_under_way",
        "Samples that a pipe took and did not confirm.",
        lambda status: status.under_way,
    ),
    (
        "pipe_given_up_total",
        "Samples of a pipe that a cache of the target network will never take.",
        lambda status: status.given_up,
    ),
    (
        "pipe_lost",
        "Samples that a pipe sent once and of which it is not known that they are held.",
        lambda status: status.lost,
    ),
    (
        "pipe_missed_total",
        "Samples that were lost before a pipe.",
        lambda status: status.missed,
    ),
    (
        "pipe_caches_left_out",
        "Caches of the target network beyond `caches_max`: a pipe sends them nothing.",
        lambda status: status.caches_left_out,
    ),
)


def _pipes(pipes: Sequence[PipeReport]) -> Iterator[str]:
    """Yield how the service's pipes stand; nothing where it has none."""
    if not pipes:
        return
    yield from _family(
        "pipe_running",
        "1 while both networks of a pipe are open and it is declared.",
        [(_label("pipe", pipe.name), pipe.is_running) for pipe in pipes],
    )
    opened = [(pipe.name, pipe.status) for pipe in pipes if pipe.status is not None]
    for name, meaning, value in _OF_PIPES:
        labelled = [(_label("pipe", pipe), value(status)) for pipe, status in opened]
        yield from _family(name, meaning, labelled)


def metrics_text(report: ServiceReport) -> str:
    """Return the whole exposition."""
    lines = [
        *_family("build_info", "The running version.", [(_label("version", report.version), 1)]),
        *_family(
            "subscriber_samples_lost_total",
            "Samples that subscribers of the domain lost, as their advisories say.",
            [("", report.subscribers_lost)],
        ),
        *_subscribers(report),
        *_subjects(report.subjects),
        *_consumers(report),
        *_pipes(report.pipes),
    ]
    for metric in METRICS:
        lines += _head(metric.name, metric.kind, metric.meaning)
        for status in report.storages:
            for suffix, labels, value in metric.samples(status):
                label = f'cache="{_escape(status.name)}"{labels}'
                lines.append(f"{metric.name}{suffix}{{{label}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _family(name: str, meaning: str, labelled: Iterable[tuple[str, float | None]]) -> Iterator[str]:
    """Yield one family of the whole service: what it means, and each value behind its labels."""
    yield from _head(_PREFIX + name, _kind(name), meaning)
    for labels, value in labelled:
        if value is not None:
            yield f"{_PREFIX}{name}{labels} {_number(value)}"


def _head(name: str, kind: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"


def _label(name: str, value: str) -> str:
    return f'{{{name}="{_escape(value)}"}}'


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

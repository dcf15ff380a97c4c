"""Does a service tell what changed, as figures, as metrics and as tables?"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

from durable_cache.endpoints.delays import DelaysSeen
from durable_cache.endpoints.ingest import Miss
from durable_cache.endpoints.status import AlignmentStatus, CacheStatus
from durable_cache.endpoints.subscriber.tables import ConsumerCounts
from durable_cache.protocol.subjects import SubjectCounts
from durable_cache.service.measured import ModeRates
from durable_cache.service.metrics import METRICS, metrics_text
from durable_cache.service.output import table_lines
from durable_cache.service.report import ServiceReport, Timeline, report_values
from durable_cache.storage.contract import Durability


def status(**changes: object) -> CacheStatus:
    texts: dict[str, object] = {
        "name": "fleet",
        "cache_id": "c",
        "key_exprs": ("fleet/**",),
        "level": Durability.DISK,
        "backend": "sql",
        "storage_up": True,
        "takes_samples": True,
        "findings": (),
        "misses": (),
        "gaps_by_source": (),
        "last_error": "",
        "delays": DelaysSeen(0.5, 3, (1,) * 6 + (3,) * 7),
        "alignment": AlignmentStatus(sessions=2, bytes_sent=9, lags=(("ab12", 1.5),)),
    }
    names = {field.name for field in dataclasses.fields(CacheStatus)}
    values = {**dict.fromkeys(names - texts.keys(), 0), **texts, **changes}
    return CacheStatus(**values)  # type: ignore[arg-type]


def report(*statuses: CacheStatus, timeline: Timeline | None = None) -> ServiceReport:
    return ServiceReport(
        version="1",
        zid="ab",
        domain="default",
        state_dir="data",
        listening=("tcp/127.0.0.1:1",),
        uptime_seconds=1.0,
        storages=statuses,
        events=timeline.events() if timeline else (),
        source_events=timeline.source_events() if timeline else (),
    )


def test_the_timeline_keeps_changes_only_and_a_bounded_number() -> None:
    timeline = Timeline(events_max=3)
    for _ in range(10):
        timeline.note([status()])
    assert len(timeline.events()) == 1
    for gaps in (1, 2, 0, 0, 3):
        timeline.note([status(gaps_open=gaps)])
    assert [event.gaps_open for event in timeline.events()] == [2, 0, 3]


def test_the_timeline_tells_when_a_source_was_waited_for() -> None:
    timeline = Timeline(events_max=3)
    for awaited in ((), (("ab:1", 3),), (("ab:1", 2),), (("ab:1", 2), ("cd:2", 1)), ()):
        timeline.note([status(gaps_by_source=awaited)])
    told = [(event.source, event.awaited) for event in timeline.source_events()]
    assert told == [("cd:2", 1), ("ab:1", 0), ("cd:2", 0)], "changes only, the newest three"
    timeline.note([])
    timeline.note([status()])
    assert len(timeline.source_events()) == 3, "a storage that is gone waits for nobody"


def test_what_changed_of_late_is_told_only_to_who_asks() -> None:
    timeline = Timeline()
    timeline.note([status(gaps_by_source=(("ab:1", 3),))])
    missed = status(misses=(Miss(1.0, "ab:1", 0, 3, 4),), gaps_by_source=(("ab:1", 3),))
    whole = json.loads(json.dumps(report_values(report(missed, timeline=timeline))))
    assert whole["source_events"][0]["awaited"] == 3
    assert whole["storages"][0]["misses"][0]["last"] == 4
    short = report_values(report(missed, timeline=timeline), with_events=False)
    assert (short["events"], short["source_events"]) == ([], [])
    assert json.loads(json.dumps(short))["storages"][0]["misses"] == []


def test_a_storage_that_is_down_makes_the_service_unready() -> None:
    assert report(status()).ready
    assert not report(status(), status(name="b", storage_up=False)).ready
    assert json.loads(json.dumps(report_values(report(status()))))["storages"][0]["level"] == "disk"


def test_metrics_are_written_as_prometheus_reads_them() -> None:
    text = metrics_text(report(status(name='a"\\\n', received=7, append_seconds=0.25, commits=2)))
    assert 'durable_cache_samples_received_total{cache="a\\"\\\\\\n"} 7\n' in text
    assert 'durable_cache_append_duration_seconds_sum{cache="a\\"\\\\\\n"} 0.25\n' in text
    assert 'durable_cache_queries_total{cache="a\\"\\\\\\n",outcome="ok"} 0\n' in text
    assert ',le="0.001"} 1\n' in text
    assert ',le="+Inf"} 3\n' in text
    assert 'durable_cache_ack_delay_seconds_count{cache="a\\"\\\\\\n"} 3\n' in text
    assert ',direction="sent"} 9\n' in text
    assert ',peer="ab12"} 1.5\n' in text
    assert text.count("# TYPE ") == len(METRICS) + 10
    assert text.endswith("\n")


def test_rates_of_subscribers_are_written_by_mode_and_not_where_nothing_was_passed_on() -> None:
    of_modes = (
        ModeRates("exactly-once", 2, 4, 1, 4, 0.5, 0.8),
        ModeRates("unreliable", 1, 0, 0, 0, None, None),
    )
    lines = metrics_text(replace(report(), subscribers=of_modes)).splitlines()
    name = "durable_cache_subscriber"
    assert [line for line in lines if line.startswith(name) and "mode=" in line] == [
        f'{name}s{{mode="exactly-once"}} 2',
        f'{name}s{{mode="unreliable"}} 1',
        f'{name}_reliability{{mode="exactly-once"}} 0.5',
        f'{name}_uniqueness{{mode="exactly-once"}} 0.8',
    ]
    told = json.loads(json.dumps(report_values(replace(report(), subscribers=of_modes))))
    assert [one["mode"] for one in told["subscribers"]] == ["exactly-once", "unreliable"]


def test_consumers_are_written_by_name_and_beyond_64_as_one() -> None:
    consumers = tuple(ConsumerCounts(f"c{at}", 2, at) for at in range(66))
    lines = metrics_text(replace(report(), consumers=consumers)).splitlines()
    name = "durable_cache_consumer_processed_twice"
    shown = [line for line in lines if line.startswith(name)]
    assert shown[0] == f'{name}{{consumer="c65"}} 65', "what was done twice is what is looked for"
    assert shown[64:] == [f'{name}{{consumer="*"}} 1']
    assert 'durable_cache_consumer_members{consumer="*"} 4' in lines


def test_subject_sequences_are_written_by_condition() -> None:
    counts = SubjectCounts(
        *(9, 1000), starts=1, joined=2, perhaps_incomplete=3, repeats=4, skips=5, lost=6,
        unsubscribed=7, rotated=8,
    )  # fmt: skip
    lines = metrics_text(replace(report(), subjects=counts)).splitlines()
    shown = [line for line in lines if line.startswith("durable_cache_subject")]
    assert [line.removeprefix("durable_cache_subject") for line in shown] == [
        '_sequences{condition="start"} 1',
        '_sequences{condition="joined"} 2',
        '_sequences{condition="repeat"} 4',
        '_sequences{condition="skip"} 5',
        '_sequences{condition="not_subscribed"} 7',
        "_samples_lost 6",
        "s_perhaps_incomplete 3",
    ]
    assert SubjectCounts.summed([counts, counts]).lost == 12


def test_tables_align_and_hide_control_characters() -> None:
    lines = table_lines([{"a": "x\x1b[31m", "n": 5}, {"a": "yy", "n": 1000}], ["a", "n"])
    assert lines == ["a             n", "x\\x1b[31m     5", "yy         1000"]

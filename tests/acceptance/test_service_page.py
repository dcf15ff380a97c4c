"""Does the status page show gaps where they were, and never a name as markup?"""

from __future__ import annotations

import dataclasses
import json

from durable_cache.endpoints.cache import CacheStatus
from durable_cache.endpoints.delays import DelaysSeen
from durable_cache.endpoints.status import AlignmentStatus
from durable_cache.service.metrics import METRICS, metrics_text
from durable_cache.service.output import table_lines
from durable_cache.service.page import status_page
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
    )


def test_names_and_errors_are_never_markup() -> None:
    hostile = '"><script>alert(1)</script>'
    page = status_page(report(status(name=hostile, key_exprs=(hostile,), last_error=hostile)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_timeline_keeps_changes_only_and_a_bounded_number() -> None:
    timeline = Timeline(events_max=3)
    for _ in range(10):
        timeline.note([status()])
    assert len(timeline.events()) == 1
    for gaps in (1, 2, 0, 0, 3):
        timeline.note([status(gaps_open=gaps)])
    assert [event.gaps_open for event in timeline.events()] == [2, 0, 3]


def test_gaps_losses_and_outages_have_their_colours() -> None:
    quiet, timeline = Timeline(), Timeline()
    quiet.note([status()])
    assert "<rect" not in status_page(report(status(), timeline=quiet))
    for changed in (
        status(),
        status(gaps_open=2),
        status(missed=3),
        status(missed=3, storage_up=False),
    ):
        timeline.note([changed])
    page = status_page(report(status(), timeline=timeline))
    assert 'fill="#e0a020"' in page
    assert 'fill="#b00020"' in page
    assert 'fill="#888"' in page


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
    assert text.count("# TYPE ") == len(METRICS) + 1
    assert text.endswith("\n")


def test_tables_align_and_hide_control_characters() -> None:
    lines = table_lines([{"a": "x\x1b[31m", "n": 5}, {"a": "yy", "n": 1000}], ["a", "n"])
    assert lines == ["a             n", "x\\x1b[31m     5", "yy         1000"]

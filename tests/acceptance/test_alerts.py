"""Do dashboard and alerts ask for what a running service exports, and does Prometheus take them?"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from durable_cache.testing.services import require
from tests.acceptance.test_service import publish
from tests.tree import ROOT

DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "durable-cache-service.json"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
SECONDS = 40.0


class Exporting(NamedTuple):
    """A running service and what it exports."""

    address: str
    exported: str

    def series(self) -> set[str]:
        """Return the names of the series of every family, those without a value now too."""
        names = set()
        for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", self.exported, re.MULTILINE):
            parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
            names |= {f"{name}{part}" for part in parts.get(kind, ("",))}
        return names


@pytest.fixture
def exporting(start: Callable[..., Any], free_port: Callable[[], int]) -> Exporting:
    endpoint, address = f"tcp/127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    start(
        *("serve", "-k", "lab/**", "-l", endpoint, "--http", address, "--no-multicast-scouting")
    ).wait_for("try from another terminal")
    publish(endpoint, "lab/a", [b"x"] * 3)
    return Exporting(address, read(f"http://{address}/metrics"))


def read(url: str) -> str:
    with urlopen(url, timeout=10) as reply:
        text: str = reply.read().decode()
    return text


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels() -> dict[str, str]:
    found = json.loads(DASHBOARD.read_text())["panels"]
    return {panel["title"]: target["expr"] for panel in found for target in panel["targets"]}


def test_everything_that_is_asked_for_is_exported(exporting: Exporting) -> None:
    expressions = {rule["alert"]: rule["expr"] for rule in rules()} | panels()
    exported = exporting.series()
    unknown = {
        title: name
        for title, expression in expressions.items()
        for name in re.findall(r"durable_cache_\w+", expression)
        if name not in exported
    }
    assert unknown == {}
    (variable,) = json.loads(DASHBOARD.read_text())["templating"]["list"]
    assert "durable_cache_build_info{" in exporting.exported
    assert "durable_cache_build_info" in variable["query"]["query"]
    for title, expression in panels().items():
        names = re.findall(r"durable_cache_\w+", expression)
        assert expression.count('{instance=~"$instance"}') == len(names), title


def test_what_the_docs_tell_to_watch_has_an_alert_that_says_what_to_do() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    watched = re.findall(
        r"`(durable_cache_\w+)`", text.partition("Watch at least:")[2].split("\n\n")[0]
    )
    alerts = " ".join(rule["expr"] for rule in rules())
    assert len(watched) >= 5
    assert [name for name in watched if name not in alerts] == []
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        require("prometheus", f"{name} is not installed")
    return found


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        [tool("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


LABELS = 'cache="fleet", instance="a:1"'
FIRED = {
    "DurableCacheStorageAway": {"durable_cache_storage_up": "0x60"},
    "DurableCacheSamplesRefused": {"durable_cache_samples_refused_total": "0+5x60"},
    "DurableCacheSamplesMissed": {"durable_cache_samples_missed_total": "0+1x60"},
    "DurableCacheSamplesConflict": {"durable_cache_alignment_conflicts_total": "0+1x60"},
    "DurableCacheDeadLetters": {"durable_cache_dead_letters": "1x60"},
    "DurableCacheProcessedTwice": {"durable_cache_consumer_processed_twice": "3x60"},
    "DurableCacheJournalFills": {
        "durable_cache_journal_bytes": "90x60",
        "durable_cache_journal_bytes_max": "100x60",
    },
    "DurableCacheJournalGrows": {"durable_cache_journal_samples": "0+60000x60"},
    "DurableCacheGapsStayOpen": {"durable_cache_gaps_open": "2x60"},
    "DurableCacheAlignmentLags": {"durable_cache_alignment_lag_seconds": "400+60x60"},
    "DurableCachePeersRefused": {"durable_cache_alignment_peers_refused": "1x60"},
    "DurableCacheQueriesFail": {"durable_cache_queries_total": "0+1x60"},
    "DurableCacheAcknowledgesSlowly": {"durable_cache_ack_delay_seconds_bucket": "0+0x60"},
    "DurableCacheDown": {"up": "0x60"},
}
"""What makes each alert fire; one sample a minute for an hour."""
MORE = {
    "up": ', job="durable-cache"',
    "durable_cache_queries_total": ', outcome="failed"',
    "durable_cache_consumer_processed_twice": ', consumer="bill"',
}


def test_each_alert_fires_when_it_should_and_none_when_all_is_well(tmp_path: Path) -> None:
    assert set(FIRED) == {rule["alert"] for rule in rules()}
    shutil.copy(RULES, tmp_path / "rules.yml")
    tests = []
    for alert, values in FIRED.items():
        series = [
            {"series": f"{name}{{{LABELS}{MORE.get(name, '')}}}", "values": text}
            for name, text in values.items()
        ]
        if alert == "DurableCacheAcknowledgesSlowly":
            series = [
                {
                    "series": f'durable_cache_ack_delay_seconds_bucket{{{LABELS}, le="{bound}"}}',
                    "values": text,
                }
                for bound, text in (("1", "0+0x60"), ("2.5", "0+9x60"), ("+Inf", "0+9x60"))
            ]
        expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
        others = f'count(ALERTS{{alertname!="{alert}"}}) or vector(0)'
        tests.append(
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": asked,
                        "eval_time": "45m",
                        "exp_samples": [{"labels": "{}", "value": n}],
                    }
                    for asked, n in ((expression, 1), (others, 0))
                ],
            }
        )
    (tmp_path / "fired.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests})
    )
    promtool("check", "rules", str(tmp_path / "rules.yml"))
    promtool("test", "rules", str(tmp_path / "fired.yml"))


@pytest.fixture
def prometheus(exporting: Exporting, free_port: Callable[[], int], tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes the service every second; returns its URL."""
    config = yaml.safe_load((RULES.parent / "prometheus.yml").read_text())
    config["global"] = {
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "evaluation_interval": "1s",
    }
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [exporting.address]
    shutil.copy(RULES, tmp_path / "rules.yml")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            *(tool("prometheus"), f"--config.file={tmp_path / 'prometheus.yml'}"),
            *(f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={address}"),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait(10)


def found_by(prometheus: str, expression: str) -> list[Any]:
    """Ask until something is found, or time is up."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            answer = json.loads(read(f"{prometheus}/api/v1/query?query={quote(expression)}"))
        except URLError:  # it is still starting
            answer = {"data": {"result": []}}
        found: list[Any] = answer["data"]["result"]
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def test_prometheus_finds_every_panel_and_evaluates_every_alert(prometheus: str) -> None:
    for title, expression in panels().items():
        asked = expression.replace("$instance", ".*").replace("$__rate_interval", "1m")
        if "alignment_lag" in asked:
            continue  # the service has no peer
        assert found_by(prometheus, asked), title
    (group,) = json.loads(read(f"{prometheus}/api/v1/rules"))["data"]["groups"]
    assert {rule["name"] for rule in group["rules"]} == set(FIRED)
    assert [rule["lastError"] for rule in group["rules"] if rule.get("lastError")] == []
    firing = json.loads(read(f"{prometheus}/api/v1/alerts"))["data"]["alerts"]
    assert firing == [], "all is well"

"""Does every query of the Grafana dashboard find what a storage wrote?"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from durable_cache.model.sample import Kind, Sample, Skip
from durable_cache.testing.samples import SOURCE, START_NS, batch, stamp
from durable_cache_influxdb import InfluxDbBackend
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.flux import literal
from tests.servers.influxdb import influx_server

pytestmark = pytest.mark.influxdb

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards" / "durable-cache.json"


def queries() -> dict[str, str]:
    document = json.loads(DASHBOARD.read_text("utf-8"))
    found = {
        f"panel {panel['title']} ({panel['type']})": target["query"]
        for panel in document["panels"]
        for target in panel["targets"]
    }
    variables = document["templating"]["list"]
    return found | {f"variable {one['name']}": one["query"]["query"] for one in variables}


@pytest.fixture(scope="module")
def charted() -> tuple[str, Client]:
    server = influx_server()
    name = f"d{uuid.uuid4().hex[:12]}"
    payloads = [
        (b"21.5", "text/plain", Kind.PUT),
        (b'{"x": 1.5}', "application/json", Kind.PUT),
        (b"", "zenoh/bytes", Kind.DELETE),
    ]
    samples = [
        Sample("room/a", SOURCE, 1, n, payload, kind, encoding, ntp64=stamp(n))
        for n, (payload, encoding, kind) in enumerate(payloads)
    ]
    with InfluxDbBackend().open(name, server.options()) as storage:
        storage.append(batch(samples), [Skip(SOURCE, 1, 5, 8)])
    return name, Client(server.options())


@pytest.mark.parametrize("title", queries())
def test_every_query_finds_something(charted: tuple[str, Client], title: str) -> None:
    name, client = charted
    text = queries()[title]
    for macro, value in {
        "v.defaultBucket": literal(influx_server().bucket),
        "v.timeRangeStart": f"time(v: {START_NS - 10**9})",
        "v.timeRangeStop": f"time(v: {START_NS + 60 * 10**9})",
        "v.windowPeriod": "1s",
        "${storage}": name,
        "${key:regex}": ".*",
    }.items():
        text = text.replace(macro, value)
    column = "numbers" if "Gaps" in title else "_value"
    rows = list(client.rows([text], (column,)))
    expected = {
        "panel Samples (stat)": [["3"]],
        "panel Keys (stat)": [["1"]],
        "panel Deletes (stat)": [["1"]],
        "panel Numbers given up (stat)": [["4"]],
        "panel Gaps given up (table)": [["4"]],
        "panel Newest numbers (table)": [["21.5"]],
        "variable key": [["room/a"]],
    }
    assert rows
    assert rows == expected.get(title, rows)

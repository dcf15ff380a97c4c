"""Does a file of zenohd become one that a service runs with, and is everything else named?"""
# ruff: noqa: E501 - a setting or a mistake a line

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durable_cache.endpoints.session import close_session, open_session
from durable_cache.testing.network import wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Any]

ZENOHDS = """{
  // as zenohd's DEFAULT_CONFIG.json5 has them
  scouting: { multicast: { enabled: false } },
  transport: { auth: { usrpwd: { user: "cache", password: "hunter2" } } },
  plugins_loading: { enabled: true, search_dirs: ["/usr/lib"] },
  plugins: {
    rest: { http_port: 8000 },
    storage_manager: {
      volumes: {
        rocksdb: {}, s3: { url: "http://minio:9000", region: "eu" , private: { secret_key: "hunter3" } },
        influxdb2: { url: "http://influx:8086", private: { org_id: "acme", token: "hunter4" } },
        old: { backend: "influxdb", url: "http://influx:8085" },
      },
      storages: {
        demo: { key_expr: "demo/memory/**", volume: "memory", complete: "true" },
        Fleet: { key_expr: "fleet/**", strip_prefix: "fleet",
                 volume: { id: "rocksdb", dir: "fleet", create_db: true },
                 replication: { interval: 10 }, garbage_collection: { period: 30 }, colour: 1 },
        files: { key_expr: "files/**", volume: { id: "fs", dir: "files" } },
        charts: { key_expr: "charts/**", volume: { id: "influxdb2", db: "charts", create_db: true } },
        more: { key_expr: "more/**", volume: { id: "influxdb2", db: "more" } },
        lake: { key_expr: "lake/**", volume: { id: "s3", bucket: "zenoh" } },
        OLD
      } } } }
"""
LEFT = 'legacy: { key_expr: "legacy/**", volume: { id: "old", db: "x" } },'


def test_zenohds_storages_become_ours_and_the_rest_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "zenohd.json5").write_text(ZENOHDS.replace("OLD", ""))
    result = run("check-config", "--from-zenohd", "zenohd.json5")
    assert result.returncode == 0, result.stderr
    made = json.loads(result.stdout)
    assert made["mode"] == "router"
    assert made["listen"] == {"endpoints": ["tcp/[::]:7447"]}
    assert set(made["plugins"]) == {"durable_cache"}
    ours = made["plugins"]["durable_cache"]
    storages = ours["storages"]
    assert {name: storage["volume"] for name, storage in storages.items()} == {
        "demo": "memory", "fleet": "main", "files": "main", "charts": "influxdb2",
        "more": "influxdb2-2", "lake": "s3",
    }  # fmt: skip
    assert storages["demo"]["acknowledge"] == "memory"
    assert storages["fleet"]["alignment"] == {"enabled": True}
    assert all(storage["retention"] == {"samples_max": 1} for storage in storages.values())
    assert ours["volumes"]["influxdb2"] == {
        "backend": "influxdb", "url": "http://influx:8086", "org": "acme", "bucket": "charts",
        "create_bucket": True, "token": {"env": "INFLUXDB2_TOKEN"},
    }  # fmt: skip
    assert ours["volumes"]["s3"]["path"] == "s3://zenoh/durable-cache"
    assert "hunter" not in result.stdout + result.stderr, "no secret is printed"
    for said in (
        "transport.auth.usrpwd.password: a secret, not printed",
        "plugins_loading: left out",
        "plugins.rest: left out; `serve --rest-http-port`",
        "storages.demo.complete: has no effect here",
        "storages.Fleet: is called 'fleet' here",
        "storages.Fleet.strip_prefix: left out; keys are stored whole",
        "storages.Fleet.volume: rocksdb became SQLite",
        "storages.Fleet.replication: became alignment",
        "storages.Fleet.garbage_collection: is not needed here",
        "storages.Fleet.colour: left out; it has no counterpart here",
        "volumes.influxdb2: put its token into INFLUXDB2_TOKEN",
        "storages.lake.volume: s3 became Delta Lake",
        "publish them again",
    ):
        assert sum(said in line for line in result.stderr.splitlines()) >= 1, said
    (tmp_path / "ours.json").write_text(result.stdout)
    checked = run("check-config", "ours.json", INFLUXDB2_TOKEN="t")
    assert checked.returncode == 0, checked.stderr


def test_a_storage_that_nothing_stands_for_is_an_error_that_says_so(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "zenohd.json5").write_text(ZENOHDS.replace("OLD", LEFT))
    result = run("check-config", "--from-zenohd", "zenohd.json5")
    assert result.returncode == 1
    assert "legacy" not in json.loads(result.stdout)["plugins"]["durable_cache"]["storages"]
    assert "storages.legacy: left out; its volume is 'influxdb': InfluxDB 1 is not" in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{ mode: "router" }', "plugins.storage_manager.storages: no storage to translate"),
        ("{ plugins: { durable_cache: {} } }", "the file is one for durable-cache already"),
        ("{ plugins: { storage_manager: { storages: { a: {} } } } }", "storages.a.key_expr: expected"),
        (ZENOHDS.replace("OLD", "").replace("fleet/**", "fleet//x"), "storages.fleet.key_expr: 'fleet//x'"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_zenohds_is_refused(
    text: str, said: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "zenohd.json5").write_text(text)
    result = run("check-config", "--from-zenohd", "zenohd.json5")
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_service_runs_with_what_was_translated(
    run: Run, start: Start, free_port: Callable[[], int], tmp_path: Path
) -> None:
    (tmp_path / "zenohd.json5").write_text("""{
      scouting: { multicast: { enabled: false } },
      plugins: { storage_manager: { volumes: { rocksdb: {} }, storages: {
        lab: { key_expr: "lab/**", volume: { id: "rocksdb", dir: "lab" } } } } } }""")
    (tmp_path / "ours.json").write_text(run("check-config", "--from-zenohd", "zenohd.json5").stdout)
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    start("serve", "-c", "ours.json", "-l", endpoint).wait_for("try from another terminal")
    for payload in ("one", "two"):
        put = run("put", "lab/a", payload, "-e", endpoint)
        assert put.returncode == 0, put.stderr
    result = run("query", "lab/**", "--latest", "-e", endpoint, "--format", "json")
    assert result.returncode == 0, result.stderr
    assert [json.loads(line)["payload"] for line in result.stdout.splitlines()] == ["two"]
    session = open_session(
        {
            "mode": "client",
            "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )
    try:
        session.put("lab/plain", "any program's", encoding="text/plain")

        def stored() -> list[str]:
            return [r.ok.payload.to_string() for r in session.get("lab/plain") if r.ok is not None]

        wait_until(lambda: stored() == ["any program's"], 20, "a plain put")
    finally:
        close_session(session)

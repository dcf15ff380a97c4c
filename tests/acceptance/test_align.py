"""The verb ``align`` over two real services that each missed what the other has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from durable_cache import declare_reliable_publisher
from durable_cache.endpoints.session import close_session, open_session
from durable_cache.testing.network import free_port, wait_until
from tests.kit.faults import ModuleProcess

FAST = "slot_seconds: 1, settle_seconds: 0.2"


def service(
    folder: Path, name: str, endpoint: str, connect: str = "", alignment: str = ""
) -> ModuleProcess:
    config = folder / f"{name}.json5"
    connected = f'connect: {{ endpoints: ["{connect}"] }},' if connect else ""
    config.write_text(
        f"""{{ mode: "router", listen: {{ endpoints: ["{endpoint}"] }}, {connected}
          scouting: {{ multicast: {{ enabled: false }} }},
          plugins: {{ durable_cache: {{ state_dir: "{folder}/{name}",
            volumes: {{ main: {{ backend: "sql", url: "sqlite:///{folder}/{name}.db" }} }},
            storages: {{ fleet: {{ key_expr: "fleet/**",
              alignment: {{ enabled: true, {FAST}{alignment} }} }} }}
          }} }} }}"""
    )
    return ModuleProcess(
        "durable_cache.service",
        ["serve", "--config", str(config)],
        folder=folder,
        ready="try from another terminal",
    )


def verb(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run ``align`` to its end: exit code, rows, what it said to people."""
    process = ModuleProcess("durable_cache.service", ["align", "--format", "json", *arguments])
    with process:
        code = process.wait(120)
        return code, json.loads(process.stdout or "[]"), process.stderr


def published(endpoint: str, count: int) -> None:
    session = open_session(
        {
            "mode": "client",
            "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
            "timestamping": {"enabled": True},
        }
    )
    try:
        with declare_reliable_publisher(session, "fleet/1", acknowledgements=1) as publisher:
            wait_until(lambda: publisher.matched, 20)
            receipts = [publisher.put(b"%d" % n) for n in range(count)]
            assert all(receipt is not None and receipt.wait(20) for receipt in receipts)
    finally:
        close_session(session)


@pytest.mark.slow
def test_align_looks_compares_and_waits(tmp_path: Path) -> None:
    """One has what the other missed: first it only compares, then it pulls, then a third cannot."""
    one, two, three = (f"tcp/127.0.0.1:{free_port()}" for _ in range(3))
    with service(tmp_path, "one", one):
        published(one, 500)
        code, rows, said = verb("--connect", one)
        assert (code, rows) == (1, [])
        assert "no other cache is in reach" in said
        with service(tmp_path, "two", two, one, ", pull: false"):
            wait_until(lambda: missing(two) == 500, 40, "the comparison")
            code, _, said = verb("--once", "--connect", two)
            assert code == 1
        with service(tmp_path, "two", two, one):
            code, rows, said = verb("--wait", "--timeout", "90", "--connect", two)
            assert code == 0, said
            assert len(rows) == 2, (rows, said)
            assert all(row["equal"] and row["samples"] == 500 for row in rows)
            assert sorted(row["pulled"] for row in rows) == [0, 500]
            assert all(row["missing"] == 0 and row["lag_seconds"] == 0 for row in rows)
            assert "500 of 500 samples" in said.replace("1,000 of 1,000", "500 of 500")
        with service(tmp_path, "three", three, one, ", block: 4"):
            wait_until(lambda: all(refusals(three)), 40, "the refusal on both sides")
            assert all("content blocks of" in reason for reason in refusals(three))
    assert verb("--wait", "--dry-run")[0] == 2


def missing(endpoint: str) -> int:
    """Return what a cache that only compares found missing."""
    rows = verb("--dry-run", "--storage", "fleet", "--connect", endpoint)[1]
    return max((row["missing"] for row in rows if not row["pulls"]), default=0)


def refusals(endpoint: str) -> list[str]:
    rows = verb("--connect", endpoint)[1]
    return [row["refused"] for row in rows] if len(rows) == 2 else [""]

"""The verb ``align`` over two real services that each missed what the other has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from durable_cache import declare_reliable_publisher
from durable_cache.endpoints.session import close_session, open_session
from durable_cache.testing.faults import ModuleProcess
from durable_cache.testing.network import free_port, wait_until


def service(folder: Path, name: str, endpoint: str, connect: str = "") -> ModuleProcess:
    config = folder / f"{name}.json5"
    connected = f'connect: {{ endpoints: ["{connect}"] }},' if connect else ""
    config.write_text(
        f"""{{ mode: "router", listen: {{ endpoints: ["{endpoint}"] }}, {connected}
          scouting: {{ multicast: {{ enabled: false }} }},
          plugins: {{ durable_cache: {{ state_dir: "{folder}/{name}",
            volumes: {{ main: {{ backend: "sql", url: "sqlite:///{folder}/{name}.db" }} }},
            storages: {{ fleet: {{ key_expr: "fleet/**", alignment: {{ enabled: true }} }} }}
          }} }} }}"""
    )
    return ModuleProcess(
        "durable_cache.service",
        ["serve", "--config", str(config)],
        folder=folder,
        ready="try from another terminal",
    )


@pytest.mark.slow
def test_align_waits_until_two_services_hold_the_same(tmp_path: Path) -> None:
    one, two = (f"tcp/127.0.0.1:{free_port()}" for _ in range(2))
    session = None
    first, second = service(tmp_path, "one", one), service(tmp_path, "two", two, one)
    try:
        first.start()
        session = open_session(
            {
                "mode": "client",
                "connect": {"endpoints": [one]},
                "scouting": {"multicast": {"enabled": False}},
                "timestamping": {"enabled": True},
            }
        )
        with declare_reliable_publisher(session, "fleet/1", acknowledgements=1) as publisher:
            wait_until(lambda: publisher.matched, 20)
            receipts = [publisher.put(b"%d" % n) for n in range(500)]
            assert all(receipt is not None and receipt.wait(20) for receipt in receipts)
        second.start()
        verb = ModuleProcess(
            "durable_cache.service",
            ["align", "--wait", "--timeout", "90", "--format", "json", "--connect", two],
        )
        with verb:
            assert verb.wait(120) == 0, verb.stderr
            rows = json.loads(verb.stdout)
        assert len(rows) == 2, (rows, verb.stderr)
        assert all(row["equal"] and row["samples"] == 500 for row in rows)
    finally:
        if session is not None:
            close_session(session)
        second.close()
        first.close()

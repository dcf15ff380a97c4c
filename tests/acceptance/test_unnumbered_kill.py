"""What an ordinary program put and a service once showed is there after SIGKILL, once, in order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import Session, build_timestamp, open_session, zid_of
from durable_cache.model.sample import Sample
from durable_cache.testing.network import free_port, wait_until
from tests.kit.faults import ModuleProcess

KILLS = 4
_EACH = 200


def everything(session: Session) -> dict[bytes, Sample]:
    """Return what the service holds by payload, each of which was put once."""
    asking = Asking(session, zid_of(session), timeout_seconds=10)
    found: dict[bytes, Sample] = {}
    for page in asking.history("plain/**", "*"):
        for sample in page:
            assert sample.payload not in found
            found[sample.payload] = sample
    return found


@pytest.mark.slow
def test_what_was_shown_survives_sigkill(tmp_path: Path) -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    config = tmp_path / "config.json5"
    config.write_text(
        f"""{{
          mode: "router", listen: {{ endpoints: ["{endpoint}"] }},
          scouting: {{ multicast: {{ enabled: false }} }},
          plugins: {{ durable_cache: {{
            state_dir: "{tmp_path}/state",
            volumes: {{ main: {{ backend: "sql", url: "sqlite:///{tmp_path}/samples.db" }} }},
            storages: {{ all: {{ key_expr: "plain/**", volume: "main", unnumbered: "store" }} }}
          }} }} }}"""
    )
    service = ModuleProcess(
        "durable_cache.service",
        ["serve", "--config", str(config)],
        ready="try from another terminal",
        folder=tmp_path,
    )
    began = int(time.time()) - 10_000
    put = 0
    shown: dict[bytes, Sample] = {}
    try:
        for kill in range(KILLS):
            service.start()
            program = open_session(
                {
                    "mode": "client",
                    "connect": {"endpoints": [endpoint]},
                    "scouting": {"multicast": {"enabled": False}},
                }
            )
            assert shown.items() <= everything(program).items(), "what was shown is gone"
            for number in range(put, put + _EACH):
                stamp = build_timestamp(began + number << 32, "c10c")
                program.put(f"plain/{number % 3}", f"{number}", timestamp=stamp)
            fresh = {b"%d" % number for number in range(put, put + _EACH)}
            put += _EACH
            wanted = _EACH if kill % 2 else 1  # some kills come while samples are on their way
            wait_until(
                lambda program=program, fresh=fresh, wanted=wanted: (
                    len(everything(program).keys() & fresh) >= wanted
                ),
                20,
                "samples of this round",
            )
            shown = everything(program)
            service.kill()
            program.close()
        service.start()
        program = open_session(
            {
                "mode": "client",
                "connect": {"endpoints": [endpoint]},
                "scouting": {"multicast": {"enabled": False}},
            }
        )
        after = everything(program)
        assert shown.items() <= after.items()
        for at in range(3):
            own = [sample for sample in after.values() if sample.key == f"plain/{at}"]
            ordered = sorted(own, key=lambda sample: int(sample.payload))
            assert [s.ntp64 for s in ordered] == sorted(s.ntp64 for s in own)
            replies = list(program.get(f"plain/{at}"))
            (latest,) = [reply.ok.payload.to_bytes() for reply in replies if reply.ok is not None]
            assert latest == ordered[-1].payload
        program.close()
    finally:
        service.kill()

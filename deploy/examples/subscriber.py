"""A subscriber that gets everything in order, once, also what was published before it came."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from types import FrameType

import durable_cache


def stop(number: int, frame: FrameType | None) -> None:
    """End at once: a subscriber has nothing to save."""
    os._exit(0)


def main() -> None:
    """Count what arrives, and what cannot arrive any more, until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connect", default="tcp/127.0.0.1:7447", metavar="ENDPOINT")
    parser.add_argument("--key-expr", default="demo/example/**")
    parser.add_argument("--ready-file", type=Path, help="made once the session is open")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)

    config = {
        "mode": "peer",
        "connect": {"endpoints": [chosen.connect]},
        "scouting": {"multicast": {"enabled": False}},
    }
    received = 0
    reported = time.monotonic()
    with (
        durable_cache.open_session(config) as session,
        durable_cache.declare_reliable_subscriber(
            session, chosen.key_expr, history=True, recovery=True, periodic_queries=5.0
        ) as samples,
    ):
        if chosen.ready_file is not None:
            chosen.ready_file.touch()
        for sample in samples:
            received += 1
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                print(f"received {received}, newest {sample.key} sn {sample.sn}", flush=True)


if __name__ == "__main__":
    main()

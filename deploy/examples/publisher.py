"""A publisher whose samples outlive it: counts, and says which caches have stored how much."""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from pathlib import Path

import durable_cache


def main() -> None:
    """Publish numbers until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connect", default="tcp/127.0.0.1:7447", metavar="ENDPOINT")
    parser.add_argument("--key", default="demo/example/counter")
    parser.add_argument("--rate", type=float, default=5.0, metavar="PER_SECOND")
    parser.add_argument("--ready-file", type=Path, help="made once the session is open")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end it as Ctrl-C does
    signal.signal(signal.SIGINT, signal.default_int_handler)

    config = {
        "mode": "peer",
        "connect": {"endpoints": [chosen.connect]},
        "scouting": {"multicast": {"enabled": False}},
    }
    with (
        contextlib.suppress(KeyboardInterrupt),
        durable_cache.open_session(config) as session,
        durable_cache.declare_reliable_publisher(session, chosen.key, acknowledgements=1) as out,
    ):
        if chosen.ready_file is not None:
            chosen.ready_file.touch()
        published = stored = 0
        reported = time.monotonic()
        while True:
            time.sleep(1 / chosen.rate)
            receipt = out.put(f"{published}".encode())
            published += 1
            stored += receipt is not None and receipt.wait(2.0)
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                print(f"published {published}, acknowledged on disk {stored}", flush=True)


if __name__ == "__main__":
    main()

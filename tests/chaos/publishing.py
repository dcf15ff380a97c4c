"""A publisher that chaos kills: its arguments are ENDPOINT KEY ZID SPOOL LOG RATE.

Puts at RATE a second, and one delete in twenty, until the file LOG with ``.stop`` behind it is
there. LOG tells of every put that returned (`P SOURCE EPOCH SN PAYLOAD`) and of every sample that a
cache acknowledged (`A SOURCE EPOCH SN`). ZID and SPOOL are ``-`` for none.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import TextIO

from durable_cache import Receipt, ReliablePublisher, declare_reliable_publisher
from durable_cache.endpoints.session import close_session, open_session

RETRY = {"period_init_ms": 50, "period_max_ms": 300, "period_increase_factor": 1.5}
DELETES = 0.05
CLOSED = "closed after its last acknowledgement"
_LOOK_EVERY = 20


def connection(endpoint: str, zid: str) -> dict[str, object]:
    """Return the configuration of a client that never gives its router up."""
    return {
        "mode": "client",
        "connect": {
            "endpoints": [endpoint],
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": RETRY,
        },
        "scouting": {"multicast": {"enabled": False}},
        "timestamping": {"enabled": True},
        **({"id": zid} if zid != "-" else {}),
    }


class Teller:
    """What was put and not acknowledged yet, and the log of both."""

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._open: list[Receipt] = []

    def put(self, publisher: ReliablePublisher[Receipt], payload: str, receipt: Receipt) -> None:
        place = f"{publisher.source} {publisher.epoch} {receipt.sn}"
        self._log.write(f"P {place} {payload}\n")
        self._open.append(receipt)

    def acknowledged(self, publisher: ReliablePublisher[Receipt]) -> None:
        waiting = []
        for receipt in self._open:
            if receipt.caches:
                self._log.write(f"A {publisher.source} {publisher.epoch} {receipt.sn}\n")
            else:
                waiting.append(receipt)
        self._open = waiting


def publish(publisher: ReliablePublisher[Receipt], log: Path, rate: float) -> None:
    chance, stop = random.Random(os.getpid()), log.with_name(log.name + ".stop")
    began, count = time.monotonic(), 0
    with log.open("a", buffering=1) as file:
        teller = Teller(file)
        while not stop.exists():
            payload = "-" if chance.random() < DELETES else f"{os.getpid()}.{count}"
            receipt = publisher.delete() if payload == "-" else publisher.put(payload.encode())
            teller.put(publisher, payload, receipt)
            count += 1
            if count % _LOOK_EVERY == 0:
                teller.acknowledged(publisher)
            time.sleep(max(0.0, began + count / rate - time.monotonic()))
        publisher.flush(60)
        teller.acknowledged(publisher)


def main() -> None:
    endpoint, key, zid, spool, log, rate = sys.argv[1:7]
    session = open_session(connection(endpoint, zid))
    if spool == "-":
        publisher = declare_reliable_publisher(session, key, acknowledgements=1, history=10_000)
    else:
        publisher = declare_reliable_publisher(
            session, key, acknowledgements=1, history=10_000, spool_dir=spool
        )
    print("ready", flush=True)
    publish(publisher, Path(log), float(rate))
    time.sleep(3)  # caches that were down at the last put ask this publisher for its history
    publisher.close()
    close_session(session)
    print(CLOSED, flush=True)


if __name__ == "__main__":
    main()

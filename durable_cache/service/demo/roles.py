"""What each process of the demonstration does: router, publishers, subscriber.

A role says what it does in lines of JSON on stdout and ends when its stdin does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import NamedTuple

from durable_cache.endpoints.publisher import declare_reliable_publisher
from durable_cache.endpoints.session import Session, ext, open_session
from durable_cache.endpoints.subscriber import Miss, declare_reliable_subscriber
from durable_cache.model.sample import Sample

KEYS = ("demo/reliable", "demo/native")
_HISTORY_SAMPLES = 1_000_000
_REPORT_SECONDS = 0.2
_HEARTBEAT_SECONDS = 0.5
_ENCODING = "text/plain"


def main(arguments: list[str]) -> int:
    """Play one role: its name, the endpoint, and for publishers rate and seconds."""
    role, endpoint, *rest = arguments
    ended = _stdin_ended()
    with_session = _roles()[role]
    listens = role == "router"
    session = open_session(
        {
            "mode": "router" if listens else "client",
            "listen" if listens else "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
            "timestamping": {"enabled": True},
        }
    )
    try:
        with_session(session, rest, ended)
    finally:
        session.close()  # type: ignore[no-untyped-call]
    return 0


Role = Callable[[Session, list[str], Event], None]


def _roles() -> Mapping[str, Role]:
    return {
        "router": _route,
        "reliable": _publish_reliably,
        "native": _publish_natively,
        "subscriber": _subscribe,
    }


def _stdin_ended() -> Event:
    ended = Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        ended.set()

    Thread(target=watch, name="dc-demo-stdin", daemon=True).start()
    return ended


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def _route(_session: Session, _rest: list[str], ended: Event) -> None:
    _say(ready=True)
    ended.wait()


def _publish_reliably(session: Session, rest: list[str], ended: Event) -> None:
    publisher = declare_reliable_publisher(session, KEYS[0], history=_HISTORY_SAMPLES)
    with publisher:
        _pace(lambda text: publisher.put(text, encoding=_ENCODING), rest, ended)
        ended.wait()


def _publish_natively(session: Session, rest: list[str], ended: Event) -> None:
    publisher = ext.declare_advanced_publisher(
        session,
        KEYS[1],
        encoding=_ENCODING,
        cache=ext.CacheConfig(max_samples=_HISTORY_SAMPLES),
        sample_miss_detection=ext.MissDetectionConfig(
            heartbeat=None, sporadic_heartbeat=_HEARTBEAT_SECONDS
        ),
        publisher_detection=True,
    )
    try:
        _pace(publisher.put, rest, ended)
        ended.wait()
    finally:
        publisher.undeclare()  # type: ignore[no-untyped-call]


def _pace(put: Callable[[str], object], rest: list[str], ended: Event) -> None:
    """Publish at a rate for some seconds, on a fixed schedule, and report how many."""
    rate, seconds = float(rest[0]), float(rest[1])
    wanted = round(rate * seconds)
    began = time.monotonic()
    reported = 0.0
    for number in range(wanted):
        due = began + number / rate
        if ended.wait(max(0.0, due - time.monotonic())):
            wanted = number
            break
        put(f"{number}")
        if due - reported > _REPORT_SECONDS:
            reported = due
            _say(published=number + 1)
    _say(published=wanted, done=True)


class _Stream(NamedTuple):
    key: str
    source: str
    epoch: int


class _Tally:
    """What a subscriber was given, counted by the subscriber itself."""

    def __init__(self) -> None:
        self.delivered = dict.fromkeys(KEYS, 0)
        self.duplicates = dict.fromkeys(KEYS, 0)
        self.disordered = dict.fromkeys(KEYS, 0)
        self.misses = dict.fromkeys(KEYS, 0)
        self._keys: dict[str, str] = {}
        self._payloads: dict[str, set[bytes]] = {key: set() for key in KEYS}
        self._last: dict[_Stream, int] = {}

    def take(self, sample: Sample) -> None:
        """Count one delivered sample; the payload is its number, so a repeat is seen."""
        key = sample.key
        if sample.payload in self._payloads[key]:
            self.duplicates[key] += 1
            return
        self._payloads[key].add(sample.payload)
        self.delivered[key] += 1
        stream = _Stream(key, str(sample.source), sample.epoch)
        self._keys[stream.source] = key
        if sample.sn <= self._last.get(stream, -1):
            self.disordered[key] += 1
        self._last[stream] = sample.sn

    def missed(self, miss: Miss) -> None:
        """Count samples reported as missed, by what their source publishes."""
        self.misses[self._keys.get(str(miss.source), KEYS[0])] += miss.nb


def _subscribe(session: Session, _rest: list[str], ended: Event) -> None:
    tally = _Tally()
    subscriber = declare_reliable_subscriber(
        session, "demo/**", tally.take, periodic_queries=1.0, gap_timeout_seconds=120.0
    )
    with subscriber:
        subscriber.sample_miss_listener(tally.missed)
        _say(ready=True)
        while not ended.wait(_REPORT_SECONDS):
            _say(
                delivered=tally.delivered,
                duplicates=tally.duplicates,
                disordered=tally.disordered,
                misses=tally.misses,
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

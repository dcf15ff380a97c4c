"""How the demonstration goes, and what counts as its success."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import open_session, zid_of
from durable_cache.errors import DurableCacheError
from durable_cache.service.client import Pages, history_pages
from durable_cache.service.demo.processes import Process, Relay, free_port, wait_until
from durable_cache.service.demo.roles import KEYS
from durable_cache.service.output import say, write_rows
from durable_cache.service.stopping import unbroken

_ROLES = "durable_cache.service.demo.roles"
_SERVICE = "durable_cache.service"
_NAMES = {KEYS[0]: "ours (ReliablePublisher)", KEYS[1]: "native (AdvancedPublisher)"}
_RATE = 200.0
_UP_SECONDS_MAX = 30.0
_SETTLE_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one publisher's samples."""

    publisher: str
    published: int
    stored: int
    delivered: int
    duplicates: int
    disordered: int
    misses: int

    @property
    def good(self) -> bool:
        """Everything stored, everything delivered, in order and once."""
        whole = self.published == self.stored == self.delivered and self.published > 0
        return whole and not (self.duplicates or self.disordered or self.misses)


_COLUMNS = [one.name for one in fields(Outcome)]


def show_and_judge(seconds: float, keep: Path | None, *, as_json: bool = False) -> int:
    """Run the whole demonstration; returns 0 only when nothing was lost or doubled."""
    directory = keep or Path(tempfile.mkdtemp(prefix="durable-cache-demo-"))
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    began = time.monotonic()
    try:
        with _Stage(directory) as stage:
            outcomes = _play(stage, seconds)
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    write_rows([*map(asdict, outcomes)], _COLUMNS, "json" if as_json else "table")
    good = all(outcome.good for outcome in outcomes)
    took = time.monotonic() - began
    say(f"nothing lost, nothing doubled, in {took:.0f} s" if good else "SOMETHING WAS LOST")
    if keep is not None:
        say(f"data and logs are kept in {directory}")
    return 0 if good else 1


class _Stage:
    """The processes of one show; a context manager that ends every one of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.processes: list[Process] = []
        self.began = time.monotonic()
        self.relay: Relay | None = None

    def __enter__(self) -> _Stage:
        return self

    def __exit__(self, *raised: object) -> None:
        for process in reversed(self.processes):
            if process.alive:
                process.end(3)
        if self.relay is not None:
            self.relay.close()

    @property
    def endpoint(self) -> str:
        return f"tcp/127.0.0.1:{self.port}"

    def start(self, role: str, endpoint: str, *rest: str) -> Process:
        return self._begin(role, _ROLES, [role, endpoint, *rest])

    def _begin(self, name: str, module: str, arguments: list[str]) -> Process:
        with unbroken():
            process = Process(name, module, arguments, self.directory)
            self.processes.append(process)
        return process

    def serve(self) -> Process:
        """Start the cache service and wait until it stores."""
        logged = (self.directory / "cache.log").stat().st_size if self._logged() else 0
        arguments = ["serve", "--mode", "client", "--connect", self.endpoint]
        arguments += ["--state-dir", str(self.directory / "data"), "--key-expr", "demo/**"]
        cache = self._begin("cache", _SERVICE, arguments)
        cache.wait_for(lambda: "try from another" in cache.log()[logged:], _UP_SECONDS_MAX)
        return cache

    def _logged(self) -> bool:
        return (self.directory / "cache.log").exists()

    def tell(self, text: str) -> None:
        say(f"{time.monotonic() - self.began:5.1f} s  {text}")


def _play(stage: _Stage, seconds: float) -> list[Outcome]:
    router = stage.start("router", stage.endpoint)
    router.wait_for(lambda: router.said("ready") is True, _UP_SECONDS_MAX)
    cache = stage.serve()
    stage.tell("the cache stores demo/** durably")
    stage.relay = relay = Relay(("127.0.0.1", stage.port))
    subscriber = stage.start("subscriber", f"tcp/127.0.0.1:{relay.port}")
    subscriber.wait_for(lambda: subscriber.said("ready") is True, _UP_SECONDS_MAX)
    publishers = {
        KEYS[0]: stage.start("reliable", stage.endpoint, str(_RATE), str(seconds)),
        KEYS[1]: stage.start("native", stage.endpoint, str(_RATE), str(seconds)),
    }
    for publisher in publishers.values():
        publisher.wait_for(lambda p=publisher: p.said("published"), _UP_SECONDS_MAX)  # type: ignore[misc]
    stage.tell(f"two publishers send {_RATE:.0f} samples/s each, one of them native zenoh.ext")
    time.sleep(seconds * 0.15)
    relay.cut()
    stage.tell("the subscriber is cut off")
    time.sleep(seconds * 0.2)
    relay.mend()
    stage.tell("the subscriber's link is back")
    time.sleep(seconds * 0.1)
    cache.kill()
    stage.tell("the cache is killed (SIGKILL)")
    time.sleep(seconds * 0.15)
    cache = stage.serve()
    stage.tell("the cache is back on the same data")
    limit = seconds + _UP_SECONDS_MAX
    if not wait_until(lambda: all(p.said("done") for p in publishers.values()), limit):
        raise DurableCacheError("the publishers did not finish")
    published = {key: _int(publisher.said("published")) for key, publisher in publishers.items()}
    stage.tell(f"{sum(published.values())} samples are published; waiting for the last ones")
    return _settle(stage, cache, subscriber, publishers, published)


def _settle(
    stage: _Stage,
    cache: Process,
    subscriber: Process,
    publishers: Mapping[str, Process],
    published: Mapping[str, int],
) -> list[Outcome]:
    """Wait until all is stored and delivered, or the time is over, and count."""
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    with _asking(stage.endpoint) as asking:
        while time.monotonic() < deadline:
            stored = _stored(asking)
            delivered = _counts(subscriber, "delivered")
            if all(stored[key] >= n and delivered[key] >= n for key, n in published.items()):
                break
            time.sleep(0.3)
        time.sleep(1.0)  # what comes twice would come now
        for publisher in publishers.values():
            publisher.end()
        cache.kill()
        stage.serve()
        stage.tell("publishers gone, cache killed again: only what its disk holds counts as stored")
        stored = _stored_in_the_end(asking, published)
    told = {
        name: _counts(subscriber, name)
        for name in ("delivered", "duplicates", "disordered", "misses")
    }
    return [
        Outcome(
            publisher=_NAMES[key],
            published=published[key],
            stored=stored[key],
            **{name: counts[key] for name, counts in told.items()},
        )
        for key in KEYS
    ]


@contextmanager
def _asking(endpoint: str) -> Iterator[Asking]:
    session = open_session(
        {
            "mode": "client",
            "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )
    try:
        yield Asking(session, zid_of(session), timeout_seconds=10)
    finally:
        session.close()  # type: ignore[no-untyped-call]


def _stored(asking: Asking) -> dict[str, int]:
    """Count what the cache holds per key, twice stored counted twice."""
    counts = dict.fromkeys(KEYS, 0)
    for page in history_pages(asking, "demo/**", "*", "", Pages()):
        for sample in page:
            counts[sample.key] += 1
    return counts


def _stored_in_the_end(asking: Asking, published: Mapping[str, int]) -> dict[str, int]:
    """Count what a cache holds that began just now: the router may not know yet that it answers."""
    deadline = time.monotonic() + _UP_SECONDS_MAX
    stored = _stored(asking)
    while time.monotonic() < deadline and any(stored[key] < n for key, n in published.items()):
        time.sleep(0.3)
        stored = _stored(asking)
    return stored


def _counts(process: Process, name: str) -> Mapping[str, int]:
    said = process.said(name)
    return cast("Mapping[str, int]", said) if isinstance(said, dict) else dict.fromkeys(KEYS, 0)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0

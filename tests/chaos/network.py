"""Two services, four publishers and some subscribers, each behind a proxy, and what befalls them.

Faults are drawn from a seed; when they happen depends on the machine, so a seed is no replay. The
services keep their samples in files, one cache each, and are aligned.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from durable_cache import (
    Kind,
    Miss,
    ReliableSubscriber,
    Sample,
    declare_reliable_subscriber,
    read,
)
from durable_cache.endpoints.session import close_session, open_session
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.chaos.publishing import CLOSED, connection
from tests.chaos.verdict import Delivered, Place, Seen, Told, judge
from tests.kit.faults import ModuleProcess
from tests.kit.proxy import TcpProxy

__all__ = ["Chaos"]

_log = logging.getLogger(__name__)
KEYS = "fleet/**"
SERVICES = ("a", "b")
PUBLISHERS = (("c0", "spooled"), ("-", "spooled"), ("c2", "-"), ("-", "-"))
"""Of each its zid, pinned or not, and whether it keeps a spool."""
PUTS_PER_SECOND = 60
SUBSCRIBERS_FIRST, SUBSCRIBERS_MAX = 2, 5
PAUSE_SECONDS = (0.3, 2.0)
DOWN_SECONDS_MAX = 2.0
CUT_SECONDS_MAX = 3.0
REST_SECONDS_MAX = 90.0
READY = "try from another terminal"


class Watching:
    """A reliable subscriber with history, and what it saw."""

    def __init__(self, endpoint: str) -> None:
        self.seen = Seen()
        self._session = open_session(connection(endpoint, "-"))
        self.subscriber: ReliableSubscriber = declare_reliable_subscriber(
            self._session, KEYS, self._take, history=True
        )
        self.subscriber.sample_miss_listener(self._miss)

    def _take(self, sample: Sample) -> None:
        payload = sample.payload.decode() if sample.kind is Kind.PUT else None
        place = Place(str(sample.source), sample.epoch, sample.sn)
        self.seen.delivered.append(Delivered(place, payload))

    def _miss(self, miss: Miss) -> None:
        sns = range(miss.first, miss.last + 1)
        self.seen.missed.update(Place(str(miss.source), miss.epoch, sn) for sn in sns)

    @property
    def stands_at(self) -> tuple[int, int, int]:
        return len(self.seen.delivered), len(self.seen.missed), self.subscriber.gaps_open

    def close(self) -> None:
        self.subscriber.close()
        close_session(self._session)


class Chaos:
    """The network and its processes; a context manager that leaves none of them behind."""

    def __init__(
        self, folder: Path, seed: int, volume: Mapping[str, object], quiet_seconds: float
    ) -> None:
        """`volume` is the configuration of a volume; `{folder}` in it is the service's own.

        All has come to rest when subscribers saw nothing new for `quiet_seconds`.
        """
        self._folder, self._volume, self._quiet_seconds = folder, volume, quiet_seconds
        self._chance = random.Random(seed)
        self._owned = ExitStack()
        self._proxies: dict[str, TcpProxy] = {}
        self._services: dict[str, ModuleProcess] = {}
        self._publishers: dict[str, ModuleProcess] = {}
        self._watching: dict[str, Watching] = {}
        self.faults: list[str] = []

    def __enter__(self) -> Self:
        with ExitStack() as owned:
            network = owned.enter_context(LocalNetwork())
            self._router_port = int(network.endpoint.rsplit(":", 1)[1])
            self._owned = owned
            for name in SERVICES:
                self._services[name] = self._serve(name)
            for at, (zid, spool) in enumerate(PUBLISHERS):
                self._publishers[f"publisher {at}"] = self._publish(at, zid, spool)
            for _ in range(SUBSCRIBERS_FIRST):
                self._watch()
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._owned.close()

    def rage(self, seconds: float) -> None:
        """Let one fault after the other happen for about so long; each is over before the next."""
        faults: list[Callable[[], str]] = [
            self._kill_service,
            self._kill_service,
            self._kill_services,
            self._kill_publisher,
            self._cut,
            self._cut,
            self._cut,
            self._stop_service,
            self._reset,
            self._join,
        ]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self._chance.uniform(*PAUSE_SECONDS))
            self.faults.append(self._chance.choice(faults)())
            _log.info("%s", self.faults[-1])

    def verdict(self) -> list[str]:
        """Let publishers end and everything come to rest, then say what broke the promise."""
        for proxy in self._proxies.values():
            proxy.heal()
        for name in self._publishers:
            self._told_path(name).with_name(self._told_path(name).name + ".stop").touch()
        for name, process in self._publishers.items():
            wait_until(lambda p=process: CLOSED in p.stdout, 120, f"{name} closed")  # type: ignore[misc]
        self._await_rest()
        last = self._watch()
        wait_until(lambda: last.subscriber.history_complete, 60, "the last one's history")
        told = Told()
        for name in self._publishers:
            with self._told_path(name).open() as lines:
                told.add(Told.of(list(lines)))
        held = {f"service {name}": self._held(name) for name in self._services}
        assert told.acknowledged, "nothing was acknowledged at all"
        return judge(told, held, {name: one.seen for name, one in self._watching.items()})

    def _await_rest(self) -> None:
        deadline = time.monotonic() + REST_SECONDS_MAX
        stands, since = None, time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - since < self._quiet_seconds:
            now = [one.stands_at for one in self._watching.values()]
            if now != stands:
                stands, since = now, time.monotonic()
            time.sleep(0.2)

    def _via(self, name: str) -> str:
        proxy = self._owned.enter_context(TcpProxy(self._router_port))
        self._proxies[name] = proxy
        return f"tcp/127.0.0.1:{proxy.port}"

    def _serve(self, name: str) -> ModuleProcess:
        folder = self._folder / name
        folder.mkdir()
        volume = json.loads(json.dumps(dict(self._volume)).replace("{folder}", str(folder)))
        storage = {"key_expr": KEYS, "volume": "main", "alignment": {"enabled": True}}
        settings = {
            **connection(self._via(f"service {name}"), "-"),
            "plugins": {
                "durable_cache": {
                    "state_dir": str(folder / "state"),
                    "volumes": {"main": volume},
                    "storages": {"fleet": storage},
                }
            },
        }
        self._config(name).write_text(json.dumps(settings))
        arguments = ["serve", "--config", str(self._config(name))]
        process = ModuleProcess("durable_cache.service", arguments, folder=folder, ready=READY)
        return self._owned.enter_context(process)

    def _config(self, name: str) -> Path:
        return self._folder / name / "config.json5"

    def _publish(self, at: int, zid: str, spool: str) -> ModuleProcess:
        name = f"publisher {at}"
        arguments = [
            self._via(name),
            f"fleet/{at}",
            zid,
            spool if spool == "-" else str(self._folder / f"spool{at}"),
            str(self._told_path(name)),
            str(PUTS_PER_SECOND),
        ]
        process = ModuleProcess("tests.chaos.publishing", arguments, ready="ready")
        return self._owned.enter_context(process)

    def _told_path(self, publisher: str) -> Path:
        return self._folder / publisher.replace(" ", "-")

    def _watch(self) -> Watching:
        name = f"subscriber {len(self._watching)}"
        watching = Watching(self._via(name))
        self._owned.callback(watching.close)
        self._watching[name] = watching
        return watching

    def _held(self, service: str) -> dict[Place, str | None]:
        """Stop the service and read what it holds from its volume."""
        self._services[service].terminate(60)
        columns = ["source", "epoch", "sn", "payload", "kind"]
        table = read(str(self._config(service)), KEYS, storage="fleet", columns=columns).to_arrow()
        held: dict[Place, str | None] = {}
        for row in table.to_pylist():
            place = Place(row["source"], row["epoch"], row["sn"])
            assert place not in held, f"{service} holds {place} twice"
            held[place] = row["payload"].decode() if row["kind"] == Kind.PUT.name else None
        return held

    # what happens

    def _kill_service(self) -> str:
        name = self._chance.choice(SERVICES)
        self._services[name].kill()
        time.sleep(self._chance.uniform(0, DOWN_SECONDS_MAX))
        self._services[name].start()
        return f"kill service {name}"

    def _kill_services(self) -> str:
        for process in self._services.values():
            process.kill()
        time.sleep(self._chance.uniform(0, DOWN_SECONDS_MAX))
        for name in self._chance.sample(SERVICES, len(SERVICES)):
            self._services[name].start()
        return "kill both services"

    def _kill_publisher(self) -> str:
        name = self._chance.choice(sorted(self._publishers))
        self._publishers[name].kill()
        time.sleep(self._chance.uniform(0, DOWN_SECONDS_MAX))
        self._publishers[name].start()
        return f"kill {name}"

    def _cut(self) -> str:
        name = self._chance.choice(sorted(self._proxies))
        self._proxies[name].cut()
        time.sleep(self._chance.uniform(0, CUT_SECONDS_MAX))
        self._proxies[name].heal()
        return f"cut {name}"

    def _reset(self) -> str:
        name = self._chance.choice(sorted(self._proxies))
        self._proxies[name].reset()
        return f"reset {name}"

    def _stop_service(self) -> str:
        name = self._chance.choice(SERVICES)
        with self._services[name].suspended():
            time.sleep(self._chance.uniform(0, CUT_SECONDS_MAX))
        return f"stop service {name} for a while"

    def _join(self) -> str:
        if len(self._watching) < SUBSCRIBERS_MAX:
            self._watch()
        return "a subscriber joins"

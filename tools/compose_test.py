"""Does nothing get lost when containers of the compose environment are killed under load?

Brings the profiles up as a project of its own (other ports, other volumes), publishes through the
router, kills and restarts router, caches and databases on the way, then asks every cache, and Spark
SQL, for every acknowledged sample. Takes all of it down again, also when interrupted. Exits with 3
where there is no engine or no image to try it with.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from compose_containers import (
    ROOT,
    WAIT_SECONDS,
    Compose,
    Failed,
    Unavailable,
    bring_up,
    docker,
    prepare,
    say,
    take_down,
)
from compose_load import Load, held, reader

DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "durable-cache-service.json"
UNAVAILABLE_CODE = 3
PROFILES = ("core", "influxdb", "lake", "observability")
CACHES = ("cache-sqlite", "cache-postgres", "cache-influxdb", "cache-lake")
VICTIMS = (
    *("router", "cache-sqlite", "postgres", "cache-postgres"),
    *("influxdb", "cache-influxdb", "cache-lake"),
)


def check_hardening(compose: Compose) -> None:
    for service in CACHES:
        if service not in compose.services:
            continue
        found = compose.inspect(service)
        user = compose.run("exec", "-T", service, "id", "-u").strip()
        if user != "10001" or not found["HostConfig"]["ReadonlyRootfs"]:
            raise Failed(f"{service}: runs as user {user}, read-only root is not on")
        written = compose.run(
            "exec", "-T", service, "sh", "-c", "touch /here 2>&1 && echo yes", check=False
        )
        if "yes" in written:
            raise Failed(f"{service}: its root file system can be written")
    size = int(docker("image", "inspect", "-f", "{{.Size}}", "durable-cache:local"))
    say(f"caches run as user 10001 on a read-only root; the image has {size / 1e6:.0f} MB")


def is_ready(compose: Compose, service: str) -> bool:
    if service in CACHES:
        try:
            with urlopen(f"{url_of(compose, service)}/readyz", timeout=2):  # noqa: S310
                return True
        except (OSError, HTTPException):
            return False
    state = compose.inspect(service)["State"]
    return bool(state["Running"]) and state.get("Health", {}).get("Status") == "healthy"


def wait_ready(compose: Compose, service: str) -> float:
    """Return after how many seconds the service was ready."""
    began = time.monotonic()
    while not is_ready(compose, service):
        if time.monotonic() - began > WAIT_SECONDS:
            raise Failed(f"{service} is not ready again after {WAIT_SECONDS} s")
        time.sleep(0.1)
    return time.monotonic() - began


def kill_and_start(compose: Compose, service: str, down_seconds: float) -> None:
    compose.run("kill", "--signal", "KILL", service)
    time.sleep(down_seconds)
    compose.run("start", service)
    seconds = wait_ready(compose, service)
    say(f"killed {service}, away {down_seconds:.0f} s, ready {seconds:.1f} s after its start")


def stop_and_start(compose: Compose, service: str) -> None:
    began = time.monotonic()
    compose.run("stop", service)
    seconds = time.monotonic() - began
    code = compose.inspect(service)["State"]["ExitCode"]
    if service in CACHES and code != 0:
        raise Failed(f"{service}: SIGTERM ended it with exit code {code}")
    compose.run("start", service)
    ready = wait_ready(compose, service)
    say(f"stopped {service} in {seconds:.1f} s, exit {code}, ready {ready:.1f} s after its start")


def url_of(compose: Compose, cache: str) -> str:
    return f"http://127.0.0.1:{compose.port(cache.upper().replace('-', '_'))}"


def zid_of(compose: Compose, cache: str) -> str:
    with urlopen(f"{url_of(compose, cache)}/status.json", timeout=10) as answer:  # noqa: S310
        return str(json.load(answer)["zid"])


def check_caches(
    compose: Compose, endpoint: str, load: dict[str, tuple[str, dict[int, bytes]]]
) -> None:
    caches = {zid_of(compose, name): name for name in CACHES if name in compose.services}
    deadline = time.monotonic() + WAIT_SECONDS
    with reader(endpoint) as session:
        while True:
            lacking: dict[str, int] = dict.fromkeys(caches.values(), 0)
            for key, (source, acknowledged) in load.items():
                found = held(session, key, source, max(acknowledged))
                for zid, name in caches.items():
                    has = found.get(zid, {})
                    wrong = [
                        sn
                        for sn, payload in acknowledged.items()
                        if has.get(sn, payload) != payload
                    ]
                    if wrong:
                        raise Failed(f"{name}: {key} sn {wrong[0]} holds another payload")
                    lacking[name] += sum(sn not in has for sn in acknowledged)
            if not any(lacking.values()):
                break
            if time.monotonic() > deadline:
                raise Failed(f"acknowledged samples missing after {WAIT_SECONDS} s: {lacking}")
            time.sleep(1.0)
    total = sum(len(acknowledged) for _, acknowledged in load.values())
    say(f"all {total} acknowledged samples are in {', '.join(caches.values())}, byte for byte")


def check_spark(compose: Compose, load: dict[str, tuple[str, dict[int, bytes]]]) -> None:
    wanted = {(key, sn) for key, (_, acknowledged) in load.items() for sn in acknowledged}
    query = "select key_expr, sn from samples where key_expr like 'demo/compose/%'"
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        began = time.monotonic()
        said = compose.run(
            *("exec", "-T", "spark", "spark-sql-views", query),
            *("--format", "json", "--limit", "10000000"),
        )
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        lacking = wanted - {(row["key_expr"], int(row["sn"])) for row in rows}
        if not lacking:
            break
        if time.monotonic() > deadline:
            raise Failed(f"Spark SQL does not see {len(lacking)} of {len(wanted)} samples")
    say(
        f"Spark SQL sees all {len(wanted)} of them; the query took {time.monotonic() - began:.0f} s"
    )


def ask_prometheus(compose: Compose, expression: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{compose.port('PROMETHEUS')}/api/v1/query?query={quote(expression)}"
    with urlopen(url, timeout=10) as answer:
        return list(json.load(answer)["data"]["result"])


def check_prometheus(compose: Compose) -> None:
    deadline = time.monotonic() + 60
    wanted = {name for name in CACHES if name in compose.services}
    while True:
        result = ask_prometheus(compose, "sum(durable_cache_samples_appended_total)by(instance)")
        seen = {one["metric"]["instance"].split(":")[0] for one in result}
        if seen >= wanted:
            break
        if time.monotonic() > deadline:
            raise Failed(f"Prometheus sees only {sorted(seen)}")
        time.sleep(1)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for panel in panels:
        expression = panel["targets"][0]["expr"].replace("$__rate_interval", "5m")
        expression = expression.replace("$instance", ".*")
        if "peer" in expression:
            continue  # these caches have no peers
        found = {one["metric"].get("cache", "") for one in ask_prometheus(compose, expression)}
        if len(found) < (1 if "by (le)" in expression else len(wanted)):
            raise Failed(f"panel {panel['title']}: Prometheus has it only of {sorted(found)}")
    say(f"Prometheus scrapes {', '.join(sorted(seen))}; {len(panels)} panels have data")


def check(compose: Compose, chosen: argparse.Namespace) -> None:
    endpoint = f"tcp/127.0.0.1:{compose.port('ZENOH')}"
    caches = [name for name in CACHES if name in compose.services]
    check_hardening(compose)
    load = Load(endpoint, chosen.rate)
    try:
        time.sleep(3)
        for victim in VICTIMS:
            if victim in compose.services:
                kill_and_start(compose, victim, chosen.down_seconds)
                time.sleep(2)
        for name in ("router", *caches):
            stop_and_start(compose, name)
        load.finish({zid_of(compose, name): name for name in caches}, WAIT_SECONDS)
        sources = {
            key: (str(out.source), load.acknowledged(key)) for key, out in load.publishers.items()
        }
        published = sum(map(len, load.receipts.values()))
    finally:
        load.close()
    acknowledged = sum(len(one) for _, one in sources.values())
    say(
        f"published {published} through the router, {acknowledged} acknowledged; "
        "the publishers are gone"
    )
    check_caches(compose, endpoint, sources)
    if "spark" in compose.services:
        check_spark(compose, sources)
    if "prometheus" in compose.services:
        check_prometheus(compose)


@contextmanager
def signals_raise() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt; further ones do not disturb what it starts."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> int:
    """Run the test and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", default=",".join(PROFILES), help="separated by commas")
    parser.add_argument("--rate", type=float, default=50.0, help="samples per second and publisher")
    parser.add_argument("--down-seconds", type=float, default=3.0, help="how long a victim is away")
    parser.add_argument("--keep", action="store_true", help="leave the containers up for a look")
    chosen = parser.parse_args()
    code = 1
    compose: Compose | None = None
    with signals_raise():
        try:
            compose = prepare(chosen.profiles.split(","))
            bring_up(compose)
            check(compose, chosen)
            say("nothing acknowledged was lost")
            code = 0
        except Unavailable as error:
            say(f"cannot be tried here: {error}")
            code = UNAVAILABLE_CODE
        except (Failed, OSError, subprocess.SubprocessError) as error:
            say(f"FAILED: {error}")
        except KeyboardInterrupt:
            say("interrupted")
            code = 130
        finally:
            if compose is not None and not chosen.keep and not take_down(compose):
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())

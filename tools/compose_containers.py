"""How does the compose test bring its containers up, and all of them down again?"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROJECT = "durable-cache-test"
MAY_BE_ABSENT = ("grafana", "prometheus")
PORTS = ("ZENOH", "CACHE_SQLITE", "CACHE_POSTGRES", "CACHE_INFLUXDB", "CACHE_LAKE", "PROMETHEUS")
WAIT_SECONDS = 180
BEGAN = time.monotonic()


class Failed(Exception):
    """What went wrong, in one line."""


class Unavailable(Failed):
    """What this machine lacks to try it at all: an engine, an image."""


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


@dataclass
class Compose:
    """The compose project of this test."""

    profiles: Sequence[str]
    environment: dict[str, str]
    absent: list[str] = field(default_factory=list)

    def run(self, *arguments: str, check: bool = True, timeout: float = 600) -> str:
        chosen = [part for name in self.profiles for part in ("--profile", name)]
        done = subprocess.run(
            ["docker", "compose", *chosen, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            raise Failed(f"docker compose {' '.join(arguments[:3])}: {' | '.join(lines[-3:])}")
        return done.stdout

    @property
    def services(self) -> list[str]:
        return [
            name for name in self.run("config", "--services").split() if name not in self.absent
        ]

    def container(self, service: str) -> str:
        return self.run("ps", "-aq", service).strip()

    def inspect(self, service: str) -> dict[str, Any]:
        return dict(json.loads(docker("inspect", self.container(service)))[0])

    def port(self, name: str) -> int:
        return int(self.environment[f"{name}_PORT"])


def docker(*arguments: str, check: bool = True) -> str:
    try:
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"docker {' '.join(arguments[:3])}: no end within 300 s") from error
    if check and done.returncode != 0:
        raise Failed(f"docker {' '.join(arguments[:3])}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in taken]


def prepare(profiles: Sequence[str]) -> Compose:
    checked = subprocess.run(
        ["tools/compose.sh", "check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if checked.returncode != 0:
        raise Unavailable(checked.stderr.strip().removeprefix("compose: "))
    subprocess.run(["tools/compose.sh", "secrets"], cwd=ROOT, check=True, timeout=30)
    environment = {**os.environ, "COMPOSE_PROJECT_NAME": PROJECT}
    names = [*(f"{name}_PORT" for name in PORTS), "GRAFANA_PORT"]
    environment.update(zip(names, map(str, free_ports(len(names))), strict=True))
    compose = Compose(profiles, environment)
    settings = json.loads(compose.run("config", "--format", "json"))["services"]
    for name, service in settings.items():
        image = service.get("build", {}).get("args", {}).get("PYTHON_IMAGE") or service["image"]
        if docker("images", "-q", image).strip():
            continue
        try:
            docker("pull", "--quiet", image)
        except Failed as error:
            if name not in MAY_BE_ABSENT:
                raise Unavailable(f"{name}: no image {image}: {error}") from error
            compose.absent.append(name)
            say(f"without {name}: its image {image} cannot be had here")
    return compose


def bring_up(compose: Compose) -> None:
    began = time.monotonic()
    compose.run("build", timeout=1800)
    say(f"images built in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    try:
        compose.run(
            *("up", "--detach", "--wait", "--wait-timeout", str(WAIT_SECONDS)),
            *compose.services,
            timeout=WAIT_SECONDS + 120,
        )
    except Failed as error:
        for line in compose.run("ps", "-a", "--format", "{{.Service}}: {{.Status}}").splitlines():
            say(line)
        say(compose.run("logs", "--tail", "5", "--no-color", check=False)[-4000:])
        raise Failed(f"not everything became healthy: {error}") from error
    say(f"up and healthy in {time.monotonic() - began:.0f} s: {', '.join(compose.services)}")


def leftovers() -> list[str]:
    """Return what the engine still has of this project: containers, volumes, networks."""
    listings = {
        "container": ("ps", "--all"),
        "volume": ("volume", "ls"),
        "network": ("network", "ls"),
    }
    label = ("--filter", f"label=com.docker.compose.project={PROJECT}", "--quiet")
    return [
        f"{kind} {found}"
        for kind, listing in listings.items()
        for found in docker(*listing, *label).split()
    ]


def take_down(compose: Compose) -> bool:
    """Remove all of the project; what an interrupted start was making may come up late."""
    for _ in range(3):
        compose.run("down", "--volumes", "--remove-orphans", "--timeout", "15", check=False)
        left = leftovers()
        if not left:
            say("all taken down")
            return True
        time.sleep(1)
    say(f"FAILED: could not take down {', '.join(left)}")
    return False

"""What a configuration says of the pipes that a service runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from durable_cache.errors import ConfigError
from durable_cache.model.arguments import wrong_at
from durable_cache.model.key_expression import parse_short
from durable_cache.service.sections import SECTION, Positive, Section, check_name
from durable_cache.service.strict import Findings, read_table, readable_model

PIPES_MAX = 64
_HERE = {
    "localhost": ("127.0.0.1", "[::1]"),
    "0.0.0.0": ("127.0.0.1",),  # noqa: S104  # nothing is bound to it
    "[::]": ("127.0.0.1", "[::1]"),
}
"""By which addresses this machine is reached."""
Network = str | list[str] | dict[str, Any]
"""One endpoint, several, or Zenoh's own settings."""


class PipeSettings(Section, frozen=True, rename={"source": "from", "target": "to"}):
    """What one pipe carries, from where to where; the network that is left out is the service's."""

    key_expr: str
    source: Network = ""
    """Endpoints of the network that samples come from, or Zenoh's own settings for it."""
    target: Network = ""
    """The same of the network that samples go to."""
    from_domain: str = ""
    """The domain of the caches that samples come from; the service's own unless named."""
    to_domain: str = ""
    """The domain of the caches that samples go to; the service's own unless named."""
    acknowledgements: Positive = 1
    """Caches of the target network that must hold a sample before it is confirmed."""
    level: Literal["memory", "process", "disk"] = "disk"
    """What it must survive there: nothing, SIGKILL, a power cut."""
    mode: Literal["exactly-once", "at-least-once", "at-most-once", "unreliable"] = "exactly-once"
    """What may be lost, and what is carried again."""
    processed_by: str | None = None
    """The durable consumer of the target network that must have confirmed a sample, too."""
    limits: dict[str, int | float] = msgspec.field(default_factory=dict)
    """Bounds of frames, pauses and caches, by the names in docs/pipes.md."""

    @property
    def is_between(self) -> str:
        """Both networks for people, as in ``here -> tcp/hub:7447``."""
        return f"{_shown(self.source)} -> {_shown(self.target)}"


def zenoh_of(network: Network) -> dict[str, object]:
    """Return Zenoh's settings for a network: who names endpoints is a client that scouts nobody."""
    if not isinstance(network, dict):
        named = [network] if isinstance(network, str) else list(network)
        network = {"connect": {"endpoints": named}}
    settings: dict[str, object] = dict(network)
    if "connect" in settings:
        settings.setdefault("mode", "client")
        settings.setdefault("scouting", {"multicast": {"enabled": False}})
    return settings


def check_ends(pipe: PipeSettings, own: Mapping[str, object], where: str) -> None:
    """ConfigError where both ends are one network by what is written; `own` is the service's.

    Other loops show only when both networks are in reach.
    """
    source, target = (
        _places(zenoh_of(network) if network else own) for network in (pipe.source, pipe.target)
    )
    if (pipe.source or pipe.target) and (shared := source & target):
        raise ConfigError(
            f"{where}: both ends are in one network, that of {min(shared)}: a pipe onto itself "
            "carries nothing; name an endpoint of another network"
        )


def _places(zenoh: Mapping[str, object]) -> set[str]:
    """Return where a session of these settings connects to and listens."""
    places: set[str] = set()
    for way in ("connect", "listen"):
        settings = zenoh.get(way)
        endpoints = settings.get("endpoints") if isinstance(settings, Mapping) else None
        for endpoint in endpoints if isinstance(endpoints, list) else ():
            place = re.split("[?#]", str(endpoint), maxsplit=1)[0].lower()
            protocol, _, address = place.partition("/")
            host, _, port = address.rpartition(":")
            places.update(f"{protocol}/{name}:{port}" for name in _HERE.get(host, (host,)))
    return places


def read_pipes(raw: object, findings: Findings) -> dict[str, PipeSettings]:
    """Return what is right of the pipes, by name, and note each mistake of the rest."""
    where = f"{SECTION}.pipes"
    table = read_table(raw, where)
    if len(table) > PIPES_MAX:
        raise ConfigError(f"{where}: {len(table)} pipes; one service runs {PIPES_MAX}")
    pipes: dict[str, PipeSettings] = {}
    for name, value in table.items():
        with findings.noting():
            check_name(name, f"{where}.{name}")
            pipe = _read(value, f"{where}.{name}", findings)
            if pipe is not None:
                pipes[name] = pipe
    return pipes


def _read(raw: object, where: str, findings: Findings) -> PipeSettings | None:
    pipe = readable_model(PipeSettings, raw, where, findings)
    if pipe is None:
        return None
    with findings.noting(), wrong_at(f"{where}.key_expr"):
        parse_short(pipe.key_expr)
    with findings.noting():
        if not (pipe.source or pipe.target):
            raise ConfigError(
                f"{where}: names no other network: a pipe onto itself carries nothing; name its "
                'endpoint, as in to: "tcp/hub:7447", or in from'
            )
    for end, network in (("from", pipe.source), ("to", pipe.target)):
        with findings.noting():
            if isinstance(network, Mapping) and "plugins" in network:
                raise ConfigError(
                    f"{where}.{end}.plugins: no plugins are loaded here; leave it out"
                )
    return pipe


def _shown(network: Network) -> str:
    """Return a network for people: its endpoints, nothing that is secret."""
    if isinstance(network, str):
        return network or "here"
    if isinstance(network, list):
        return ", ".join(network)
    connect = network.get("connect")
    endpoints = connect.get("endpoints") if isinstance(connect, Mapping) else None
    return ", ".join(map(str, endpoints)) if isinstance(endpoints, list) else "another network"

"""A second network behind a link that can be cut."""

from __future__ import annotations

from durable_cache.testing.network import LocalNetwork, free_port


class FarNetwork(LocalNetwork):
    """A router of its own that is connected to another one's through a proxy."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"tcp/127.0.0.1:{free_port()}"
        self._sessions = []
        retry = {"period_init_ms": 50, "period_max_ms": 50}
        ends = {"endpoints": [f"tcp/127.0.0.1:{port}"], "timeout_ms": -1, "retry": retry}
        listen = {"endpoints": [self.endpoint]}
        self.router = self._open({"mode": "router", "listen": listen, "connect": ends})

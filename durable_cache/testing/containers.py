"""How does a user's own integration test get a durable cache in a container?

Needs a container engine, the ``testcontainers`` package and the image of the service::

    with DurableCacheContainer(key_expr="fleet/**") as cache:
        session = durable_cache.open_session({"mode": "client",
                                              "connect": {"endpoints": [cache.endpoint]}})
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from testcontainers.core.container import DockerContainer

ZENOH_PORT = 7447
HTTP_PORT = 8080
_CONFIG = "/etc/durable-cache/config.json5"
_POLL_SECONDS = 0.1
_ANSWER_SECONDS_MAX = 10.0


class DurableCacheContainer(DockerContainer):
    """A `durable-cache serve` on the embedded default, ready when the ``with`` block begins.

    `key_expr` is what it stores, unless `config` gives the whole configuration (a mapping in the
    file's own shape; it must listen on ``tcp/0.0.0.0:7447``). The data are gone with the container.
    """

    def __init__(
        self,
        image: str = "durable-cache:local",
        *,
        key_expr: str = "**",
        config: Mapping[str, object] | None = None,
        ready_timeout_seconds: float = 60.0,
    ) -> None:
        super().__init__(image)
        self._ready_timeout_seconds = ready_timeout_seconds
        self._files = TemporaryDirectory(prefix="durable-cache-container-")
        self.with_exposed_ports(ZENOH_PORT, HTTP_PORT)
        if config is None:
            self.with_env("DURABLE_CACHE_LISTEN", f"tcp/0.0.0.0:{ZENOH_PORT}")
            self.with_env("DURABLE_CACHE_KEY_EXPR", key_expr)
            return
        folder = Path(self._files.name)
        folder.chmod(0o755)
        (folder / "config.json5").write_text(json.dumps(config))
        self.with_volume_mapping(str(folder / "config.json5"), _CONFIG, "ro")
        self.with_env("DURABLE_CACHE_CONFIG", _CONFIG)

    @property
    def endpoint(self) -> str:
        """Where Zenoh sessions connect to, as in ``tcp/127.0.0.1:32768``."""
        return f"tcp/{self._host()}:{self.get_exposed_port(ZENOH_PORT)}"

    @property
    def url(self) -> str:
        """The status page; ``/healthz``, ``/readyz`` and ``/metrics`` are below it."""
        return f"http://{self._host()}:{self.get_exposed_port(HTTP_PORT)}"

    def start(self) -> Self:
        """Start the container and wait until it is ready; RuntimeError with its log if it fails."""
        super().start()
        deadline = time.monotonic() + self._ready_timeout_seconds
        while not self._is_ready():
            self.get_wrapped_container().reload()
            ended = self.get_wrapped_container().status == "exited"
            if ended or time.monotonic() > deadline:
                said = b"".join(self.get_logs()).decode(errors="replace")[-4000:]
                self.stop()
                why = "ended" if ended else f"not ready within {self._ready_timeout_seconds} s"
                raise RuntimeError(f"the durable-cache container {why}:\n{said}")
            time.sleep(_POLL_SECONDS)
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Remove the container and its data."""
        super().stop(force=force, delete_volume=delete_volume)
        self._files.cleanup()

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/readyz", timeout=_ANSWER_SECONDS_MAX):  # noqa: S310
                return True
        except (URLError, ConnectionError, TimeoutError):
            return False

    def _host(self) -> str:
        host = self.get_container_host_ip()
        return "127.0.0.1" if host == "localhost" else host


def reason_no_engine(image: str) -> str | None:
    """Say why containers of `image` cannot be started here; None when they can."""
    docker = shutil.which("docker")
    if docker is None:
        return "no docker command"
    for what, command in (
        ("no container engine answers", [docker, "version"]),
        (f"no image {image}", [docker, "image", "inspect", image]),
    ):
        try:
            done = subprocess.run(  # noqa: S603 - docker itself, no shell
                command, capture_output=True, timeout=30, check=False
            )
        except subprocess.TimeoutExpired:
            return what
        if done.returncode != 0:
            return what
    return None

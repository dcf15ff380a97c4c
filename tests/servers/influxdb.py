"""Where is the InfluxDB 2 server of the tests: named, in a container, or run from a binary?"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
import urllib3

from durable_cache.testing.network import free_port
from durable_cache.testing.services import REQUIRE_VARIABLE, require
from durable_cache_influxdb import InfluxDbOptions

URL_VARIABLE = "DURABLE_CACHE_TEST_INFLUXDB_URL"
BINARY_VARIABLE = "DURABLE_CACHE_TEST_INFLUXD"
HANDED_ON_VARIABLE = "DURABLE_CACHE_TEST_INFLUXDB_RUNNING"
IMAGE = "influxdb:2.7"
VERSION = "v2.7.12"
START_SECONDS = 60
_REPOSITORY = Path(__file__).parents[2]
_SHARD_SECONDS = 40 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class InfluxServer:
    """A server that is set up and answers."""

    url: str
    token: str
    org: str
    bucket: str

    def options(self, **changes: object) -> InfluxDbOptions:
        """Return options that lead here, with few shards for tests that span all of time."""
        settings: dict[str, object] = {
            "url": self.url,
            "token": self.token,
            "org": self.org,
            "bucket": self.bucket,
            "shard_group_seconds": _SHARD_SECONDS,
        }
        return InfluxDbOptions(**(settings | changes))  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def influx_server() -> InfluxServer:
    """Return the one server of this test run; skips, or fails where it is required."""
    handed_on = os.environ.get(HANDED_ON_VARIABLE)
    if handed_on:
        return InfluxServer(*handed_on.split("\n"))
    server = _named() or _in_container() or _from_binary()
    os.environ[HANDED_ON_VARIABLE] = "\n".join(
        (server.url, server.token, server.org, server.bucket)
    )
    return server


@pytest.fixture(scope="session")
def influx() -> InfluxServer:
    """The InfluxDB server of the run."""
    return influx_server()


def _named() -> InfluxServer | None:
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return None
    prefix = URL_VARIABLE.removesuffix("_URL")
    server = InfluxServer(
        url,
        os.environ.get(f"{prefix}_TOKEN", ""),
        os.environ.get(f"{prefix}_ORG", "durable-cache"),
        os.environ.get(f"{prefix}_BUCKET", "durable-cache-tests"),
    )
    try:
        _wait(url, 10)
    except TimeoutError as error:
        pytest.fail(f"{URL_VARIABLE} is set but {error}", pytrace=False)
    return server


def _in_container() -> InfluxServer | None:
    """Run the image where an engine already has it; never pulls."""
    docker = shutil.which("docker")
    if docker is None or os.environ.get(BINARY_VARIABLE):
        return None
    try:
        subprocess.run(
            [docker, "image", "inspect", IMAGE], check=True, capture_output=True, timeout=10
        )
        from docker.errors import DockerException
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer
    except (subprocess.SubprocessError, OSError, ImportError):
        return None
    testcontainers_config.ryuk_disabled = True  # its image would be pulled; we stop it ourselves
    try:
        container = DockerContainer(IMAGE).with_exposed_ports(8086)
        container.start()
    except DockerException:
        return None
    atexit.register(container.stop)
    url = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(8086)}"
    return set_up(url)


def _from_binary() -> InfluxServer:
    process = InfluxProcess(find_influxd(), Path(tempfile.mkdtemp(prefix="influxd-")))
    process.start()
    atexit.register(process.remove)
    return set_up(process.url)


def find_influxd() -> Path:
    """Return the server's binary: named, on PATH, or in the cache folder, built if it must be."""
    found = os.environ.get(BINARY_VARIABLE) or shutil.which("influxd")
    if found is not None:
        return Path(found)
    cache = os.environ.get("DURABLE_CACHE_CACHE_DIR") or _REPOSITORY / ".cache"
    binary = Path(cache) / "influxd" / VERSION / "influxd"
    if binary.exists():
        return binary
    script = _REPOSITORY / "tools" / "build_influxd.sh"
    if "influxdb" in os.environ.get(REQUIRE_VARIABLE, "") and script.exists():
        done = subprocess.run([script], capture_output=True, text=True, timeout=1800)
        if done.returncode == 0:
            return Path(done.stdout.strip())
        require("influxdb", done.stderr.strip())
    return require(
        "influxdb", f"{URL_VARIABLE} is unset, no influxd is on PATH; tools/build_influxd.sh"
    )


class InfluxProcess:
    """An influxd of its own on a free port, which can be stopped and started again."""

    def __init__(self, binary: Path, directory: Path, *flags: str) -> None:
        self.binary = binary
        self.directory = directory
        self.flags = flags
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        where = self.directory
        with (where / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.binary,
                    f"--bolt-path={where / 'influxd.bolt'}",
                    f"--engine-path={where / 'engine'}",
                    f"--sqlite-path={where / 'influxd.sqlite'}",
                    f"--http-bind-address=127.0.0.1:{self.port}",
                    "--reporting-disabled",
                    "--log-level=warn",
                    *self.flags,
                ],
                stdout=log,
                stderr=log,
            )
        _wait(self.url, START_SECONDS)

    def kill(self) -> None:
        """End it as a power cut of the process would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def remove(self) -> None:
        """End it and remove its files."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def set_up(url: str) -> InfluxServer:
    """Make the first user, organisation, bucket and token of a fresh server."""
    server = InfluxServer(url, "token-of-the-tests", "durable-cache", "durable-cache-tests")
    setup = {
        "username": "tests",
        "password": "password-of-the-tests",
        "org": server.org,
        "bucket": "initial",
        "token": server.token,
    }
    _wait(url, START_SECONDS)
    with urllib3.PoolManager() as pool:
        answer = pool.request("POST", f"{url}/api/v2/setup", json=setup, timeout=30)
    assert answer.status == 201, answer.data
    return server


def _wait(url: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    with urllib3.PoolManager(retries=False) as pool:
        while time.monotonic() < deadline:
            try:
                if pool.request("GET", f"{url}/health", timeout=2).status == 200:
                    return
            except urllib3.exceptions.HTTPError:
                pass
            time.sleep(0.05)
    raise TimeoutError(f"no InfluxDB answered at {url} within {seconds} s")

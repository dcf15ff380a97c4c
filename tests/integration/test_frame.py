"""Does one call give the same frame of every backend's history, and of a running service?"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import durable_cache as dc
from durable_cache.errors import ConfigError, StorageUnavailable
from durable_cache.storage.contract import Storage
from durable_cache.storage.memory import MemoryBackend, MemoryOptions
from durable_cache.storage.plugins import open_storage
from durable_cache.testing.network import LocalNetwork, wait_until
from durable_cache.testing.samples import batch, filled, run, sample
from tests.servers.influxdb import influx_server
from tests.servers.postgres import options_for
from tests.servers.zenoh_sources import connected

UPDATE = sample(50, "a/*", payload=b"for all")
HISTORY = [*run(0, 99, "a/1"), *run(0, 9, "a/2"), filled(3, "b/1"), UPDATE, sample(60, "a/2")]


def _memory(tmp_path: Path) -> Storage:
    return MemoryBackend().open("one", MemoryOptions())


def _sqlite(tmp_path: Path) -> Storage:
    return open_storage("sql", "one", {"url": f"sqlite:///{tmp_path}/samples.db"})


def _postgres(tmp_path: Path) -> Storage:
    return open_storage("sql", "one", {"url": options_for(tmp_path).url})


def _delta(tmp_path: Path) -> Storage:
    return open_storage("delta", "one", {"path": str(tmp_path)})


def _influxdb(tmp_path: Path) -> Storage:
    from durable_cache_influxdb import InfluxDbBackend

    name = "one-" + blake2b(str(tmp_path).encode(), digest_size=8).hexdigest()
    return InfluxDbBackend().open(name, influx_server().options())


@pytest.fixture(
    params=[
        _memory,
        _sqlite,
        pytest.param(_postgres, marks=pytest.mark.postgres),
        pytest.param(_delta, marks=pytest.mark.delta),
        pytest.param(_influxdb, marks=pytest.mark.influxdb),
    ],
    ids=lambda opened: opened.__name__[1:],
)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with request.param(tmp_path) as storage:
        storage.append(batch(HISTORY))
        yield storage


def test_every_backend_gives_the_frame_that_memory_gives(storage: Storage, tmp_path: Path) -> None:
    with _memory(tmp_path) as reference:
        reference.append(batch(HISTORY))
        asked: list[dict[str, Any]] = [
            {},
            {"key_expr": "a/*", "latest": True},
            {"key_expr": "a/1", "source": "4f2a:7", "since": "2026-09-21T14:13:20.050Z"},
            {"key_expr": "b/**", "columns": ["key_expr", "attachment", "text"]},
            {"until": "2026-09-21T14:13:20.005Z"},
        ]
        for arguments in asked:
            expected = dc.read(reference, **arguments).to_arrow()
            assert expected.num_rows
            assert dc.read(storage, **arguments).to_arrow() == expected


def test_a_running_cache_is_read_over_a_session(network: LocalNetwork) -> None:
    session = network.client()
    with (
        dc.declare_reliability_cache(network.client(), "a/**"),
        dc.declare_reliable_publisher(network.client(), "a/1") as publisher,
        dc.declare_reliable_publisher(network.client(), "a/2") as other,
    ):
        for declared in (publisher, other):
            connected(declared._publisher)
        for number in range(50):
            publisher.put(str(number), encoding="text/plain")
        other.put(b"gone")
        other.delete()
        frame = dc.read(session, "a/**", columns=["key_expr", "sn", "number", "kind"])
        wait_until(lambda: frame.to_arrow().num_rows == 52)
        rows = [row for row in frame.to_arrow().to_pylist() if row["key_expr"] == "a/1"]
        assert [row["number"] for row in rows] == [float(number) for number in range(50)]
        (latest,) = dc.read(session, "a/**", latest=True).to_arrow().to_pylist()
        assert (latest["key_expr"], latest["text"]) == ("a/1", "49")
        source = publisher.source
        assert dc.read(session, "a/**", source=source).to_arrow().num_rows == 50
        assert dc.read(session, "a/**", until="1h").to_arrow().num_rows == 0
        assert dc.read(session, "a/**", since="1h").to_arrow().num_rows == 52
        assert dc.read(session, "c/**").to_arrow().num_rows == 0


def test_nobody_in_reach_is_an_error_and_no_empty_frame(network: LocalNetwork) -> None:
    with pytest.raises(StorageUnavailable, match="no cache is in reach"):
        dc.read(network.client(), "a/**", timeout_seconds=1).to_arrow()


CONFIG = """{
  plugins: { durable_cache: {
    state_dir: "%(state)s",
    volumes: {
      main: { backend: "sql", url: "sqlite:///%(state)s/main.db" },
      here: { backend: "memory" },
    },
    storages: {
      fleet: { key_expr: "fleet/**", volume: "main" },
      fast: { key_expr: "fast/**", volume: "here", acknowledge: "memory" },
    } } } }
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.json5"
    path.write_text(CONFIG % {"state": tmp_path})
    return path


def test_a_configured_storage_is_read_beside_its_service(
    config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "fleet").mkdir()
    url = f"sqlite:///{tmp_path}/main.db"
    with open_storage("sql", "fleet", {"url": url}) as serving:
        serving.append(batch(run(0, 9, "fleet/1")))
        frame = dc.read(config, "fleet/**", storage="fleet", columns=["sn"])
        with caplog.at_level(logging.WARNING):
            assert frame.to_arrow()["sn"].to_pylist() == list(range(10))
        assert "a service is at it" in caplog.text
        serving.append(batch(run(10, 19, "fleet/1")))
    assert frame.to_arrow().num_rows == 20
    assert dc.read(str(config), storage="main/fleet").to_arrow().num_rows == 20


def test_what_a_configuration_does_not_have_is_named(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage: .* has fleet, fast; name one"):
        dc.read(config)
    with pytest.raises(ConfigError, match=r"'flet': .*configured storages: fleet, fast"):
        dc.read(config, storage="flet")
    with pytest.raises(ConfigError, match=r"key_expr='a/\*\*': main/fleet keeps fleet/\*\*"):
        dc.read(config, "a/**", storage="fleet")
    with pytest.raises(ConfigError, match="in the memory of its service; give a session"):
        dc.read(config, storage="fast")


def test_the_embedded_services_directory_is_read(tmp_path: Path) -> None:
    with open_storage("sql", "cache", {"url": f"sqlite:///{tmp_path}/samples.db"}) as storage:
        storage.append(batch(run(0, 9)))
    assert dc.read(tmp_path).to_arrow().num_rows == 10


@pytest.mark.delta
def test_a_delta_table_is_read_by_its_folder(tmp_path: Path) -> None:
    with open_storage("delta", "one", {"path": str(tmp_path)}) as storage:
        storage.append(batch(run(0, 9)))
        for folder in (tmp_path / "one", tmp_path / "one" / "samples"):
            assert dc.read(folder).to_arrow().num_rows == 10
    with pytest.raises(ConfigError, match="is one storage's table; leave it out"):
        dc.read(tmp_path / "one", storage="one")

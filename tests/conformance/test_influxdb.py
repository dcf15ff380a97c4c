"""InfluxDB keeps the storage contract, on a real server."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest

from durable_cache.model.sample import Sample
from durable_cache.storage.contract import Storage
from durable_cache.testing.samples import sample
from durable_cache.testing.suite import StorageTests
from durable_cache_influxdb import InfluxDbBackend
from tests.servers.influxdb import influx_server

pytestmark = pytest.mark.influxdb


class TestInfluxDb(StorageTests):
    def open(self, tmp_path: Path, name: str = "suite", writer: bool = True) -> Storage:
        server = influx_server()
        if name in ("suite", "one", "two"):
            name += "-" + blake2b(str(tmp_path).encode(), digest_size=8).hexdigest()
            bucket = server.bucket
        else:
            bucket = f"{server.bucket}-{blake2b(str(tmp_path).encode(), digest_size=8).hexdigest()}"
        return InfluxDbBackend().open(name, server.options(bucket=bucket), writer=writer)

    def unstorable(self) -> Sample | None:
        return msgspec.structs.replace(sample(5), sn=1 << 36)

    def sabotage(self, tmp_path: Path, name: str, storage: Storage) -> bool:
        client = storage._client  # type: ignore[attr-defined]
        client._driver._client.api_client.configuration.host = "http://127.0.0.1:1"
        return True

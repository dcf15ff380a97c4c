"""K26: a cache closes within ten seconds, whatever waits for a backend however slow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Lock, Thread

import pytest

from durable_cache import CacheOptions, declare_reliability_cache
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.service.config import Settings, read_settings
from durable_cache.service.service import Service
from durable_cache.storage.contract import AppendResult, Capabilities, Durability
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, free_port

SECONDS_EACH = 0.0007
"""20,000 samples take such a backend 14 s."""
SAMPLES = 60_000


class Slow(MemoryStorage):
    """A durable backend that takes its time for every sample."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        time.sleep(SECONDS_EACH * len(batch))
        return AppendResult(len(batch))


def test_a_backlog_does_not_hold_up_the_end(network: LocalNetwork, tmp_path: Path) -> None:
    cache = declare_reliability_cache(
        network.client(), "a/**", backend=Slow(), state_dir=tmp_path, options=CacheOptions()
    )
    source = SourceId("ab12", 7)
    for first in range(0, SAMPLES, 1000):
        numbers = range(first, first + 1000)
        cache.store.commit(SampleBatch(Sample(f"a/{at}", source, 5, at, b"x") for at in numbers))
    begun = time.monotonic()
    cache.close()
    assert time.monotonic() - begun < 12  # ten, and the last step of a busy machine


class Hanging(MemoryStorage):
    """A durable backend that stops answering, and that waits for an append before it closes."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.goes_on = Event()
        self._appending = Lock()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        with self._appending:
            if self.hangs:
                self.goes_on.wait()
        return AppendResult(len(batch))

    def close(self) -> None:
        with self._appending:
            super().close()


def test_a_backend_that_does_not_come_back_is_left_behind_and_named(
    network: LocalNetwork, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Hanging()
    cache = declare_reliability_cache(
        network.client(), "a/**", backend=backend, state_dir=tmp_path, options=CacheOptions()
    )
    backend.hangs = True
    cache.store.commit(SampleBatch([Sample("a/b", SourceId("ab12", 7), 5, 0, b"x")]))
    closing = Thread(target=cache.close, args=(1.0,), daemon=True)
    closing.start()
    closing.join(12)
    is_closed = not closing.is_alive()
    backend.goes_on.set()
    closing.join(10)
    assert is_closed, "it waits for the backend"
    (record,) = (r for r in caplog.records if r.getMessage().startswith("not ended in time"))
    assert "dc-cache-drain" in record.__dict__["loops"]
    assert "dc-close-cache-storage" in record.__dict__["loops"]


def settings_of_one(folder: Path) -> Settings:
    """Return the settings of a service with one storage."""
    document = {
        "mode": "peer",
        "scouting": {"multicast": {"enabled": False}},
        "listen": {"endpoints": [f"tcp/127.0.0.1:{free_port()}"]},
        "plugins": {
            "durable_cache": {
                "state_dir": str(folder / "state"),
                "storages": {"s": {"key_expr": "s/**"}},
            }
        },
    }
    return read_settings(document)


def test_a_service_stops_in_time_and_names_what_did_not_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(settings_of_one(tmp_path))
    begun, goes_on = Event(), Event()

    def hang(settings: Settings) -> Settings:
        begun.set()
        goes_on.wait()
        return settings

    changing = Thread(target=lambda: service.change(hang), daemon=True)
    changing.start()
    assert begun.wait(10)
    at = time.monotonic()
    service.stop(4)
    assert time.monotonic() - at < 6
    goes_on.set()
    changing.join(10)
    (record,) = (r for r in caplog.records if r.getMessage().startswith("not ended in time"))
    assert record.__dict__["threads"] == "dc-close-changing"


def test_a_step_that_fails_keeps_a_service_from_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of_one(tmp_path)
    service = Service(settings)

    def fail(timeout_seconds: float) -> None:
        raise OSError("no room")

    monkeypatch.setattr(service._piping, "close", fail)
    service.stop(5)
    (record,) = (r for r in caplog.records if r.getMessage() == "closing pipes failed")
    assert record.exc_info is not None
    Service(settings).stop(5)  # its directories are let go

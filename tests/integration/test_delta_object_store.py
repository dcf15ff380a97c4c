"""Does a storage keep its promises on an object store, spoken to over HTTP as S3?"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("moto")
pytest.importorskip("flask")

from durable_cache.errors import StorageError, StorageLocked, StorageUnavailable
from durable_cache.model.sample import Skip
from durable_cache.model.selection import Order, Selection
from durable_cache.storage.contract import Floor, Retention
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import SOURCE, batch, run, sample
from durable_cache_delta import DeltaBackend, DeltaOptions
from durable_cache_delta.maintenance import optimize, status, vacuum
from durable_cache_delta.places import RemotePlace

pytestmark = [pytest.mark.delta, pytest.mark.slow]
SECONDS = 60.0


def options(port: int, **changed: str) -> DeltaOptions:
    return DeltaOptions(
        path="s3://lake/volume",
        storage_options={
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "hunter2",
            "AWS_REGION": "us-east-1",
            "aws_conditional_put": "etag",
        }
        | changed,
        maintenance_interval_seconds=0,
    )


@pytest.fixture
def store() -> Iterator[DeltaOptions]:
    """An S3 server in a process of its own, with an empty bucket called lake."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            _make_bucket(port)
            yield options(port)
        finally:
            server.terminate()
            server.wait(SECONDS)


def _make_bucket(port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/lake", method="PUT")
        try:
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the S3 server did not start"
            time.sleep(0.05)


def test_a_storage_on_s3_answers_as_on_a_disk(store: DeltaOptions) -> None:
    with DeltaBackend().open("fleet", store) as storage:
        assert storage.append(batch(run(0, 9)), [Skip(SOURCE, 1, 20, 29)]).new == 10
        assert storage.append(batch(run(5, 14), run(0, 4, "b"))).new == 10
        expected = [*run(0, 4, "b"), *run(0, 14)]
        assert read_all(storage, limit=4) == expected
        assert read_all(storage, Selection(order=Order.TIME)) == sorted(
            expected, key=lambda s: s.time_order
        )
        assert storage.purge([Floor(sample().stream, 5)]) == 5
        assert storage.trim(Retention(samples_max=3), 0)
    with DeltaBackend().open("fleet", store) as again:
        assert read_all(again) == [*run(2, 4, "b"), *run(12, 14)]
        assert list(again.skips()) == [Skip(SOURCE, 1, 20, 29)]
        with DeltaBackend().open("fleet", store, writer=False) as reader:
            again.append(batch(sample(15)))
            assert read_all(reader)[-1] == sample(15)


def test_two_services_on_one_store_lose_and_repeat_nothing(store: DeltaOptions) -> None:
    """Nobody can lock an object store: the second committer is told, and tries again."""
    with (
        DeltaBackend().open("fleet", store) as one,
        DeltaBackend().open("fleet", store) as two,
    ):
        for first in range(0, 40, 10):
            for service in (one, two):
                for _ in range(5):
                    try:
                        service.append(batch(run(first, first + 9)))
                        break
                    except (StorageUnavailable, StorageLocked):
                        continue
        assert read_all(one) == read_all(two) == run(0, 39)
    assert status(store, "fleet").rows == 40


def test_a_commit_never_replaces_another(
    store: DeltaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blind to the other service, a commit still goes in only where there is none."""
    with (
        DeltaBackend().open("fleet", store) as one,
        DeltaBackend().open("fleet", store) as two,
    ):
        two.append(batch(run(0, 9)))
        with monkeypatch.context() as blind:
            blind.setattr(RemotePlace, "moved", lambda self, version: False)
            with pytest.raises((StorageUnavailable, StorageLocked)):
                one.append(batch(run(10, 19)))
        assert one.append(batch(run(10, 19))).new == 10
        assert read_all(one) == read_all(two) == run(0, 19)


def test_upkeep_on_s3(store: DeltaOptions) -> None:
    with DeltaBackend().open("fleet", store) as storage:
        for first in range(0, 30, 10):
            storage.append(batch(run(first, first + 9)))
    assert optimize(store, "fleet").files_after == 1
    assert len(vacuum(store, "fleet", 0).paths) == 3
    with DeltaBackend().open("fleet", store) as storage:
        assert read_all(storage) == run(0, 29)


def test_a_store_that_does_not_answer_is_unavailable_and_no_secret_is_told() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    unreachable = options(port, max_retries="0", timeout="2s")
    with pytest.raises(StorageError) as caught:
        DeltaBackend().open("fleet", unreachable)
    assert isinstance(caught.value, StorageUnavailable)
    assert "hunter2" not in str(caught.value)

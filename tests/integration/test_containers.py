"""Do caches and databases in containers work as a user's own integration tests would use them?

Copy what you need: `DurableCacheContainer` ships with ``durable-cache[testing]``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import durable_cache
from durable_cache.testing.services import require

os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

containers = pytest.importorskip("durable_cache.testing.containers")

pytestmark = [
    pytest.mark.slow,
    # The client of the engine leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def need(image: str) -> None:
    reason = containers.reason_no_engine(image)
    if reason is not None:
        require("containers", reason)


def session_on(endpoint: str):
    return durable_cache.open_session(
        {
            "mode": "client",
            "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )


@pytest.fixture
def cache() -> Iterator[object]:
    need("durable-cache:local")
    with containers.DurableCacheContainer(key_expr="fleet/**") as cache:
        yield cache


def test_a_late_subscriber_gets_what_a_gone_publisher_left_in_the_container(cache) -> None:
    with (
        session_on(cache.endpoint) as session,
        durable_cache.declare_reliable_publisher(
            session, "fleet/robot-1/pose", acknowledgements=1
        ) as publisher,
    ):
        receipts = [publisher.put(f"pose {number}") for number in range(100)]
        assert all(receipt is not None and receipt.wait(20) for receipt in receipts)

    with (
        session_on(cache.endpoint) as session,
        durable_cache.declare_reliable_subscriber(session, "fleet/**", history=True) as subscriber,
    ):
        arriving = iter(subscriber)
        payloads = [next(arriving).payload for _ in range(100)]
    assert payloads == [f"pose {number}".encode() for number in range(100)]


def test_a_configuration_of_its_own_that_is_wrong_says_why() -> None:
    need("durable-cache:local")
    container = containers.DurableCacheContainer(config={"plugins": {"durable_cash": {}}})
    with pytest.raises(RuntimeError, match="did you misspell it"):
        container.start()


def test_a_storage_on_postgresql_in_a_container() -> None:
    need("postgres:16")
    from testcontainers.community.postgres import PostgresContainer

    from durable_cache.model.selection import Selection
    from durable_cache.storage.plugins import open_storage
    from durable_cache.testing.samples import batch, run

    with PostgresContainer("postgres:16", driver=None) as server:
        options = {"url": server.get_connection_url()}
        with open_storage("sql", "test", options) as storage:
            storage.append(batch(run(0, 9)))
        with open_storage("sql", "test", options) as storage:
            page = storage.read(Selection(), 100)
    assert [found.sn for found in page.samples] == list(range(10))


def test_a_storage_on_influxdb_in_a_container() -> None:
    need("influxdb:2.7")
    influxdb = pytest.importorskip("testcontainers.community.influxdb", exc_type=ImportError)

    from durable_cache.model.selection import Selection
    from durable_cache.storage.plugins import open_storage
    from durable_cache.testing.samples import batch, run

    token = "token-of-this-test"
    with influxdb.InfluxDb2Container(
        "influxdb:2.7",
        init_mode="setup",
        admin_token=token,
        username="tests",
        password="password-of-this-test",
        org_name="tests",
        bucket="tests",
    ) as server:
        options = {"url": server.get_url(), "token": token, "org": "tests", "bucket": "tests"}
        with open_storage("influxdb", "test", options) as storage:
            storage.append(batch(run(0, 9)))
        with open_storage("influxdb", "test", options) as storage:
            page = storage.read(Selection(), 100)
    assert [found.sn for found in page.samples] == list(range(10))

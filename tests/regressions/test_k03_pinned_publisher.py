"""K3, the publisher's part: a run of a pinned zid never takes an epoch that caches know."""

from __future__ import annotations

import time

import pytest

from durable_cache import declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import ready_publisher

DAY_NS = 86_400 * 10**9


@pytest.mark.parametrize("set_back_ns", [0, DAY_NS], ids=["at once", "a day before"])
def test_each_run_begins_above_what_caches_know(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch, set_back_ns: int
) -> None:
    epochs = []
    with declare_reliability_cache(network.client(), "a/**") as cache:
        for run in range(3):
            session = network.client(id="ab12cd34ef")
            clock = time.time_ns
            with monkeypatch.context() as patch:
                patch.setattr(
                    time, "time_ns", lambda clock=clock, run=run: clock() - run * set_back_ns
                )
                publisher = ready_publisher(session, "a/b", acknowledgements=1, level="memory")
            with publisher:
                receipts = [publisher.put(b"%d" % at) for at in range(10)]
                assert all(receipt.wait(10) for receipt in receipts)
                wait_until(lambda run=run: cache.status().appended == 10 * (run + 1))  # type: ignore[misc]
                epochs.append(publisher.epoch)
            session.close()  # type: ignore[no-untyped-call]
        assert epochs == sorted(set(epochs)), "each above the one before"
        assert len(cache.find("a/**")) == 30

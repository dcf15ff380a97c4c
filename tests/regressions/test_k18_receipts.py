"""K18: receipts are of one numbering, end after a wrap, and survive a put that raises."""

from __future__ import annotations

import sys

import pytest

from durable_cache import (
    Receipt,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import ready_publisher

WRAP = 1024
"""Of 64 numbers, one that a cache asked for and got twice could be one of the next wrap."""


@pytest.fixture
def wraps_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers begin anew after 1,023, for publishers and caches, where they do after 2^32 - 1."""
    for name, module in list(sys.modules.items()):
        if name.startswith("durable_cache.") and hasattr(module, "SOURCE_SN_MODULUS"):
            monkeypatch.setattr(module, "SOURCE_SN_MODULUS", WRAP)


def test_receipts_end_after_a_wrap_too(network: LocalNetwork, wraps_soon: None) -> None:
    with (
        declare_reliability_cache(network.client(), "a/**") as cache,
        ready_publisher(
            network.client(),
            "a/b",
            acknowledgements=1,
            level="memory",
            resend_delay_seconds=60,
        ) as publisher,
    ):
        receipts: list[Receipt] = [publisher.put(b"%d" % at) for at in range(WRAP)]
        assert all(receipt.wait(30) for receipt in receipts)
        receipts += [publisher.put(b"%d" % at) for at in range(WRAP, WRAP + 6)]
        wait_until(lambda: cache.status().appended == WRAP + 6, what="every sample stored")
        assert all(receipt.wait(10) for receipt in receipts)
        assert [receipt.sn for receipt in receipts] == [*range(WRAP), *range(6)]


def test_a_put_that_raises_leaves_nothing_behind(network: LocalNetwork) -> None:
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_publisher(
            network.client(), "a/b", acknowledgements=1, level="memory"
        ) as publisher,
    ):
        with pytest.raises(Exception, match=r"attachment|object"):
            publisher.put(b"phantom", attachment=object())  # type: ignore[arg-type]
        assert publisher.next_sn == 0
        receipts = [publisher.put(b"%d" % at) for at in range(3)]
        assert [receipt.wait(10) for receipt in receipts if receipt] == [True] * 3
        assert [sample.payload for sample in publisher.kept()] == [b"0", b"1", b"2"]
        received: list[Sample] = []
        with declare_reliable_subscriber(
            network.client(), "a/**", received.append, history=True
        ) as subscriber:
            wait_until(lambda: len(received) == 3, what="history")
            assert [sample.payload for sample in received] == [b"0", b"1", b"2"]
            assert subscriber.missed == 0


def test_an_earlier_runs_acknowledgements_are_not_a_later_runs(network: LocalNetwork) -> None:
    settings = {"id": "ab12cd34ef"}
    with declare_reliability_cache(network.client(), "a/**") as cache:
        for run in range(2):
            session = network.client(**settings)
            with ready_publisher(session, "a/b", acknowledgements=1, level="memory") as publisher:
                receipts = [publisher.put(b"run %d" % run) for _ in range(5 - 2 * run)]
                assert [receipt.wait(10) for receipt in receipts] == [True] * len(receipts)
                wait_until(lambda run=run: cache.status().appended == 5 + 3 * run)  # type: ignore[misc]
            session.close()  # type: ignore[no-untyped-call]
        found = cache.find("a/**")
        assert sorted(sample.payload for sample in found) == [b"run 0"] * 5 + [b"run 1"] * 3

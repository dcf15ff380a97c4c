"""Receipts, samples and misses in an event loop: awaited, cancelled, ended, and never blocking it.

Everything runs on one loop. A call that blocked it would wait for what only another task of the
same loop does, and the test would end by its time-out.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import durable_cache
from durable_cache import (
    Durability,
    FifoChannel,
    Miss,
    Receipt,
    ReliablePublisher,
    ReliableSubscriber,
    RingChannel,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.errors import OutcomeUnknown, Unacknowledged
from durable_cache.ext import declare_advanced_publisher, declare_advanced_subscriber
from durable_cache.testing.network import LocalNetwork
from tests.servers.zenoh_sources import Numbered

SECONDS = 20


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 2 * SECONDS))


async def until(condition: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110  # what other threads do sets no event
            await asyncio.sleep(0.005)


def acknowledged(network: LocalNetwork, **settings: Any) -> ReliablePublisher[Receipt]:
    return declare_reliable_publisher(
        network.client(),
        "a/b",
        acknowledgements=1,
        level="memory",
        epochs_timeout_seconds=0,
        **settings,
    )


def subscribed(network: LocalNetwork, handler: object = None) -> ReliableSubscriber:
    return declare_reliable_subscriber(network.client(), "a/**", handler)


def test_receipts_are_awaited_while_the_cache_comes_up_in_the_same_loop(
    network: LocalNetwork,
) -> None:
    async def main() -> None:
        async with acknowledged(network) as publisher:
            awaited = asyncio.gather(*(publisher.put(b"%d" % n) for n in range(50)))
            await asyncio.sleep(0)
            async with declare_reliability_cache(network.client(), "a/**") as cache:
                held = await awaited
                assert held == [{cache.cache_id: Durability.MEMORY}] * 50
                assert await publisher.put(b"again") == held[0]

    run(main())


def test_a_receipt_that_is_awaited_learns_of_the_publishers_end(network: LocalNetwork) -> None:
    async def main() -> None:
        publisher = acknowledged(network)
        awaited = asyncio.ensure_future(_await(publisher.put(b"x")))
        await asyncio.sleep(0)
        await asyncio.to_thread(publisher.close)
        with pytest.raises(OutcomeUnknown):
            await awaited

    run(main())


async def _await(receipt: Receipt) -> object:
    return await receipt


def test_a_cancelled_wait_leaves_nothing_and_the_receipt_can_be_awaited_again(
    network: LocalNetwork,
) -> None:
    async def main() -> None:
        async with acknowledged(network) as publisher:
            receipt = publisher.put(b"x")
            for _ in range(20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(_await(receipt), 0.001)
            assert not publisher.waiters
            async with declare_reliability_cache(network.client(), "a/**") as cache:
                assert list(await receipt) == [cache.cache_id]

    run(main())


def test_a_put_in_an_event_loop_does_not_wait_for_room(network: LocalNetwork) -> None:
    async def main() -> None:
        async with acknowledged(
            network, unacknowledged_max=1, put_timeout_seconds=10 * SECONDS
        ) as publisher:
            first = publisher.put(b"1")
            with pytest.raises(Unacknowledged, match="await receipts"):
                publisher.put(b"2")
            async with declare_reliability_cache(network.client(), "a/**"):
                await first
                await publisher.put(b"2")

    run(main())


def test_samples_are_iterated_while_they_are_put_in_the_same_loop(network: LocalNetwork) -> None:
    async def main() -> None:
        async with (
            subscribed(network) as subscriber,
            declare_reliable_publisher(network.client(), "a/b") as publisher,
        ):
            got: list[bytes] = []

            async def take() -> None:
                async for sample in subscriber:
                    got.append(sample.payload)
                    if len(got) == 500:
                        return

            taking = asyncio.ensure_future(take())
            await until(lambda: publisher.matched)
            for number in range(500):
                publisher.put(b"%d" % number)
                if number % 50 == 0:
                    await asyncio.sleep(0)
            await taking
            assert got == [b"%d" % number for number in range(500)]

    run(main())


def test_the_end_of_a_subscriber_ends_its_iteration(network: LocalNetwork) -> None:
    async def main() -> None:
        subscriber = subscribed(network)

        async def take() -> list[Sample]:
            return [sample async for sample in subscriber]

        both = [asyncio.ensure_future(take()) for _ in range(2)]
        await asyncio.sleep(0)
        async with subscriber:
            pass
        assert await asyncio.gather(*both) == [[], []]
        assert [sample async for sample in subscriber] == []

    run(main())


def test_a_cancelled_wait_for_a_sample_loses_none(network: LocalNetwork) -> None:
    async def main() -> None:
        async with (
            subscribed(network) as subscriber,
            declare_reliable_publisher(network.client(), "a/b") as publisher,
        ):
            await until(lambda: publisher.matched)

            async def put() -> None:
                for number in range(300):
                    publisher.put(b"%d" % number)
                    await asyncio.sleep(0.001)

            putting = asyncio.ensure_future(put())
            items, got = aiter(subscriber), list[bytes]()
            cancelled = 0
            while len(got) < 300:
                try:
                    got.append((await asyncio.wait_for(anext(items), 0.0005)).payload)
                except TimeoutError:
                    cancelled += 1
            await putting
            assert got == [b"%d" % number for number in range(300)]
            assert cancelled

    run(main())


def test_many_waiting_samples_let_other_tasks_go_on() -> None:
    async def main() -> None:
        channel: FifoChannel[int] = FifoChannel(10_000)
        channel.deliver(range(10_000))
        channel.close()
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        going_on = asyncio.ensure_future(other())
        assert [item async for item in channel] == list(range(10_000))
        assert turns >= 100
        going_on.cancel()

    run(main())


@pytest.mark.parametrize("handler", [FifoChannel[Sample](2), RingChannel[Sample](2)])
def test_a_slow_task_is_bounded_by_its_channel(
    network: LocalNetwork, handler: FifoChannel[Sample] | RingChannel[Sample]
) -> None:
    async def main() -> None:
        async with (
            subscribed(network, handler) as subscriber,
            declare_reliable_publisher(network.client(), "a/b") as publisher,
        ):
            await until(lambda: publisher.matched)
            for number in range(10):
                publisher.put(b"%d" % number)
            items = aiter(subscriber)
            if isinstance(handler, RingChannel):
                await until(lambda: handler.dropped == 8)
                assert [(await anext(items)).payload for _ in range(2)] == [b"8", b"9"]
            else:
                got = [(await anext(items)).payload for _ in range(10)]
                assert got == [b"%d" % number for number in range(10)]

    run(main())


def test_misses_are_iterated(network: LocalNetwork) -> None:
    async def main() -> None:
        async with declare_reliable_subscriber(
            network.client(), "a/**", gap_timeout_seconds=0.2
        ) as subscriber:
            listener = subscriber.sample_miss_listener()
            numbered = Numbered(network.client(), "a/b")
            await until(lambda: numbered.publisher.matching_status.matching)  # type: ignore[attr-defined]
            numbered.put(0)
            numbered.put(2)
            miss: Miss = await anext(aiter(listener))
            assert (miss.first, miss.last) == (1, 1)
            listener.undeclare()
            assert [miss async for miss in listener] == []

    run(main())


def test_zenoh_exts_names_are_iterated_too(network: LocalNetwork) -> None:
    async def main() -> None:
        async with (
            declare_advanced_subscriber(network.client(), "a/b") as subscriber,
            declare_advanced_publisher(network.client(), "a/b") as publisher,
        ):
            await until(lambda: publisher.reliable.matched)
            publisher.put("x")
            async for sample in subscriber:
                assert sample.payload.to_string() == "x"
                break

    run(main())


def test_who_is_cancelled_while_leaving_leaves_everything_closed(network: LocalNetwork) -> None:
    async def main() -> None:
        subscriber = subscribed(network)
        entered = asyncio.Event()

        async def use() -> None:
            async with subscriber:
                entered.set()

        using = asyncio.ensure_future(use())
        await entered.wait()
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
        assert [sample async for sample in subscriber] == []

    run(main())


ROOT = Path(durable_cache.__file__).parents[1]
LEFT = """
import threading
print([thread.name for thread in threading.enumerate() if thread.name.startswith(("dc-", "async"))])
"""


def test_the_pages_program_runs_as_printed_and_leaves_no_thread(
    network: LocalNetwork, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "asyncio.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    program = program.replace("tcp/localhost:7447", network.endpoint).replace(
        'settings = {"connect"',
        'settings = {"mode": "client", "scouting": {"multicast": {"enabled": False}}, "connect"',
    )
    with declare_reliability_cache(
        network.client(),
        "fleet/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{tmp_path}/samples.db"},
        state_dir=tmp_path / "state",
    ):
        result = subprocess.run(
            [sys.executable, "-c", program + LEFT],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["held by 1 cache", "fleet/8/pose b'x=1 y=2'", "[]"]


def test_who_uses_no_event_loop_does_not_import_asyncio() -> None:
    text = (
        "import sys, durable_cache as dc, durable_cache.ext\n"
        "dc.declare_reliable_publisher, dc.declare_reliable_subscriber\n"
        "print('asyncio' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.stdout.strip() == "False"

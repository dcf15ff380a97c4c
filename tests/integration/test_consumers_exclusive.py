"""An exclusive consumer in a network of three caches that is cut: one side alone processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from durable_cache import (
    CacheOptions,
    Receipt,
    ReliablePublisher,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import (
    Confirm,
    ConsumerOptions,
    ExclusiveConsumer,
    find_consumers,
)
from durable_cache.errors import ConfigError, NoMajority
from durable_cache.protocol.alignment import AlignerOptions
from durable_cache.protocol.consumers import Position, claim_key, encode_position
from durable_cache.protocol.majority import LEASE_NS
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.far import FarNetwork
from tests.kit.proxy import TcpProxy

FAST = CacheOptions(
    align=True,
    aligner=AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05),
)
KEPT = ["a/**", "@durable/v1/default/consumers/**"]
OF_THREE = ConsumerOptions(level="memory", confirm_seconds=0.01, members_max=2, caches=3)
SOURCES = 8
"""Publishers of each side; of three, one member has all six in three runs of a hundred."""

Handled = Counter[tuple[str, int]]
Publisher = ReliablePublisher[Receipt]


class Side:
    """One side of a link: its caches, publishers, and a member of the consumer."""

    def __init__(self, stack: ExitStack, network: LocalNetwork, name: str, caches: int) -> None:
        self.name, self.network, self._stack = name, network, stack
        for _ in range(caches):
            stack.enter_context(declare_reliability_cache(network.client(), KEPT, options=FAST))
        self._handled: list[tuple[str, int]] = []
        self.publishers: list[Publisher] = []

    def publish(self) -> None:
        """Declare the publishers; each puts a sample when it is told to."""
        for at in range(SOURCES):
            publisher = declare_reliable_publisher(
                self.network.client(), f"a/{self.name}{at}", acknowledgements=1, level="memory"
            )
            self.publishers.append(self._stack.enter_context(publisher))

    def join(self) -> None:
        self.member = self._stack.enter_context(declare(self, OF_THREE, self.handle))

    def handle(self, sample: Sample) -> None:
        self._handled.append((sample.key, sample.sn))

    @property
    def handled(self) -> Handled:
        """Count what was handled so far; a list is copied whole though its member goes on."""
        return Counter(self._handled.copy())

    def put(self) -> None:
        for publisher in self.publishers:
            assert publisher.put(b"").wait(10)


def declare(
    side: Side, options: ConsumerOptions, handler: object = None, confirm: Confirm = "auto"
) -> ExclusiveConsumer:
    """Declare a member of the consumer on a side."""
    member = declare_reliable_subscriber(
        side.network.client(),
        "a/*",
        handler,
        consumer="bill",
        confirm=confirm,
        exclusive=True,
        consumer_options=options,
    )
    assert isinstance(member, ExclusiveConsumer)
    return member


class Sides:
    """Two caches near, one far, and a link between."""

    def __init__(self, stack: ExitStack) -> None:
        network = stack.enter_context(LocalNetwork())
        self.link = stack.enter_context(TcpProxy(int(network.endpoint.rpartition(":")[2])))
        far = stack.enter_context(FarNetwork(self.link.port))
        self.near, self.far = Side(stack, network, "near", 2), Side(stack, far, "far", 1)
        self.both = (self.near, self.far)

    @property
    def handled(self) -> Handled:
        return self.near.handled + self.far.handled

    @property
    def shared(self) -> bool:
        members = [side.member for side in self.both]
        return all(member.agreed and len(member.members) == 2 for member in members)


@pytest.fixture
def sides() -> Iterator[Sides]:
    with ExitStack() as stack:
        yield Sides(stack)


def once(sides: Sides, of_near: int, of_far: int) -> Handled:
    """Return so many samples of each publisher, each handled once."""
    counts = ((sides.near, of_near), (sides.far, of_far))
    return Counter(
        (f"a/{side.name}{at}", sn)
        for side, count in counts
        for at in range(SOURCES)
        for sn in range(count)
    )


def test_during_a_cut_the_majority_alone_processes_and_nothing_comes_twice(sides: Sides) -> None:
    near, far = sides.both
    for side in sides.both:
        side.publish()
        side.join()
    wait_until(lambda: sides.shared, 20, what="agreement")
    for side in sides.both:
        side.put()
    wait_until(lambda: sides.handled == once(sides, 1, 1), 20, what="all handled")
    for side in sides.both:
        side.member.flush(10)
    assert all(side.handled for side in sides.both), "each member has some of the sources"

    sides.link.cut()
    wait_until(lambda: far.member.stopped is not None, 20, what="the minority stops")
    before = Counter(far.handled)
    near.put()
    far.put()
    wait_until(lambda: sides.handled == once(sides, 2, 1), 30, what="the near sources, near")
    near.member.flush(10)
    assert near.member.stopped is None
    assert isinstance(far.member.stopped, NoMajority)
    assert "1 caches in reach" in str(far.member.stopped)
    assert far.handled == before

    sides.link.heal()
    wait_until(lambda: sides.handled == once(sides, 2, 2), 40, what="what the far side published")
    wait_until(lambda: sides.shared, 20, what="agreement")
    wait_until(lambda: far.member.stopped is None, 20, what="its claims are acknowledged")
    for side in sides.both:
        side.put()
    wait_until(lambda: sides.handled == once(sides, 3, 3), 30, what="all that came then")
    for side in sides.both:
        side.member.flush(10)
    assert sides.handled == once(sides, 3, 3)
    (status,) = find_consumers(near.network.client())
    assert status.exclusive


def test_what_the_minority_confirms_is_not_held_and_the_majority_processes_it(
    sides: Sides,
) -> None:
    near, far = sides.both
    far.publish()
    with declare(far, OF_THREE, confirm="manual") as member:
        far.put()
        received = [member.recv() for _ in range(SOURCES)]
        member.confirm(received[0])
        member.flush(10)
        sides.link.cut()
        wait_until(lambda: member.stopped is not None, 20, what="the minority stops")
        member.confirm(received[1])
        with pytest.raises(NoMajority):
            member.flush(1)
        with declare(near, OF_THREE, near.handle) as other:
            wait_until(lambda: other.agreed, 20, what="the other member begins")
            sides.link.heal()
            wait_until(lambda: len(other.members) == 2, 30, what="the members meet")
            member.close()
            there = [(sample.key, sample.sn) for sample in received[1:]]
            wait_until(lambda: sorted(near.handled) == sorted(there), 30, what="the rest")
            other.flush(10)
    assert set(near.handled.values()) == {1}


def test_on_a_link_that_falls_silent_no_token_is_needed_to_stop(sides: Sides) -> None:
    """Nothing tells that the link is dead: the caches beyond it still seem to be in reach."""
    near, far = sides.both
    near.publish()
    far.publish()
    far.join()
    far.put()
    wait_until(lambda: sides.handled == once(sides, 0, 1), 20, what="all handled")
    far.member.flush(10)
    sides.link.to_server.paused = sides.link.to_client.paused = True
    puts, stopped = 1, None
    while (stopped := far.member.stopped) is None:
        far.put()
        puts += 1
    assert "acknowledges" in str(stopped)
    before = Counter(far.handled)
    far.put()
    near.join()
    near.put()
    wait_until(lambda: once(sides, 1, 0) <= near.handled, 30, what="the near sources, near")
    near.member.flush(10)
    assert far.handled == before
    sides.link.heal()
    everything = once(sides, 1, puts + 1)
    wait_until(lambda: sides.handled.keys() == everything.keys(), 40, what="all")
    twice = sides.handled - everything
    assert twice <= before - once(sides, 0, 1), "what was in hand when the link fell silent"


def test_who_has_no_majority_from_the_start_is_told(sides: Sides) -> None:
    sides.link.cut()
    options = replace(OF_THREE, caches_seconds=0.5)
    with pytest.raises(NoMajority, match="of 3 2 must be"):
        declare(sides.far, options, sides.far.handle)
    with pytest.raises(NoMajority, match="1 are configured"):
        declare(sides.near, replace(options, caches=1), sides.near.handle)


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ({"exclusive": True}, "name the consumer"),
        ({"exclusive": True, "consumer": "bill"}, "how many caches"),
        ({"consumer": "bill", "consumer_options": ConsumerOptions(caches=3)}, "exclusive=True"),
        ({"exclusive": 1, "consumer": "bill"}, "exclusive"),
        *(
            (
                {
                    "exclusive": True,
                    "consumer": "bill",
                    "consumer_options": ConsumerOptions(caches=caches),
                },
                "caches",
            )
            for caches in (0, 2, -3, 1.5)
        ),
    ],
)
def test_what_makes_no_sense_is_refused_at_the_call(
    network: LocalNetwork, arguments: dict[str, Any], about: str
) -> None:
    with pytest.raises(ConfigError, match=about):
        declare_reliable_subscriber(network.router, "a/*", print, **arguments)


def test_who_meets_a_source_that_another_one_claimed_waits_for_a_lease() -> None:
    """That one may hand out what it was given, and nothing of it is confirmed yet."""
    with (
        LocalNetwork() as network,
        declare_reliability_cache(network.client(), KEPT, options=FAST),
        declare_reliable_publisher(
            network.client(), "a/1", acknowledgements=1, level="memory"
        ) as publisher,
        declare_reliable_publisher(
            network.client(), KEPT[1], acknowledgements=1, level="memory"
        ) as another,
    ):
        claim = Position("a/*", publisher.source, 0, "", -1, fence=1, exclusive=True)
        key = claim_key("default", "bill", publisher.source)
        assert another.put(encode_position(claim), key=key).wait(10)
        handled: list[float] = []
        with declare_reliable_subscriber(
            network.client(),
            "a/*",
            lambda _: handled.append(time.monotonic()),
            consumer="bill",
            exclusive=True,
            consumer_options=replace(OF_THREE, caches=1),
        ) as member:
            wait_until(lambda: member.agreed)
            began = time.monotonic()
            assert publisher.put(b"").wait(10)
            wait_until(lambda: handled)
            assert handled[0] - began > LEASE_NS / 1e9

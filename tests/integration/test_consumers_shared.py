"""Members of one consumer over real sessions: each source is one's, and goes to another at last."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from durable_cache import (
    ReliabilityCache,
    ReliablePublisher,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions, SharingConsumer, find_consumers
from durable_cache.endpoints.session import Session
from durable_cache.errors import ConfigError, Fenced, StorageUnavailable
from durable_cache.model.sample import SampleBatch, SourceId
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.consumers import (
    Position,
    decode_position,
    encode_position,
    position_key,
)
from durable_cache.protocol.resends import RefusalReason
from durable_cache.storage.contract import Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until

POSITIONS = "@durable/v1/default/consumers/**"
SHARED = ConsumerOptions(level="memory", confirm_seconds=0.01, members_max=3, handover_seconds=0.5)
SOURCES = 16
"""Each member draws its identity, and chance shares them out: of eight, one had all once."""


@pytest.fixture
def cache(network: LocalNetwork) -> Iterator[ReliabilityCache]:
    with declare_reliability_cache(network.client(), ["a/**", POSITIONS]) as cache:
        yield cache


@pytest.fixture
def publishers(
    network: LocalNetwork, cache: ReliabilityCache
) -> Iterator[list[ReliablePublisher[Any]]]:
    """Sources enough that each of a few members has some."""
    assert cache.key_exprs
    session = network.client()
    publishers = [
        declare_reliable_publisher(session, f"a/{at}", acknowledgements=1, level="memory")
        for at in range(SOURCES)
    ]
    yield publishers
    for publisher in publishers:
        publisher.close()


class Received:
    """What members were handed, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.samples: list[tuple[str, Sample]] = []

    def by(self, member: str) -> Any:
        def take(sample: Sample) -> None:
            with self._lock:
                self.samples.append((member, sample))

        return take

    def numbers(self) -> dict[str, list[int]]:
        numbers: dict[str, list[int]] = {}
        with self._lock:
            for _, sample in self.samples:
                numbers.setdefault(sample.key, []).append(sample.sn)
        return numbers

    def members_since(self, begin: int) -> dict[str, set[str]]:
        members: dict[str, set[str]] = {}
        with self._lock:
            for member, sample in self.samples[begin:]:
                members.setdefault(sample.key, set()).add(member)
        return members


def put(publishers: list[ReliablePublisher[Any]], count: int) -> None:
    for _ in range(count):
        for publisher in publishers:
            publisher.put(b"")
    for publisher in publishers:
        publisher.flush(10)


def once_in_order(count: int) -> dict[str, list[int]]:
    return {f"a/{at}": [*range(count)] for at in range(SOURCES)}


def member(
    session: Session, handler: object = None, options: ConsumerOptions = SHARED, **chosen: Any
) -> SharingConsumer:
    consumer = declare_reliable_subscriber(
        session, "a/*", handler, consumer="bill", consumer_options=options, **chosen
    )
    assert isinstance(consumer, SharingConsumer)
    return consumer


def share(*consumers: SharingConsumer) -> None:
    """Wait until so many members share all sources."""

    def shares() -> bool:
        return all(
            len(consumer.members) == len(consumers) and consumer.agreed for consumer in consumers
        )

    wait_until(shares, what="agreement")


def test_members_share_sources_and_hand_them_over_without_a_repeat(
    network: LocalNetwork, publishers: list[ReliablePublisher[Any]]
) -> None:
    received = Received()
    put(publishers, 3)
    with member(network.client(), received.by("one")) as one:
        put(publishers, 2)
        wait_until(lambda: received.numbers() == once_in_order(5))
        with member(network.client(), received.by("two")) as two:
            share(one, two)
            begin = len(received.samples)
            put(publishers, 5)
            wait_until(lambda: sum(map(len, received.numbers().values())) >= 10 * SOURCES)
            shares = received.members_since(begin)
            assert all(len(members) == 1 for members in shares.values()), "each source is one's"
            assert set().union(*shares.values()) == {"one", "two"}
            with member(network.client(), received.by("three")) as three:
                share(one, two, three)
                put(publishers, 5)
                wait_until(lambda: sum(map(len, received.numbers().values())) >= 15 * SOURCES)
            share(one, two)
        put(publishers, 5)
        wait_until(lambda: sum(map(len, received.numbers().values())) >= 20 * SOURCES)
    assert received.numbers() == once_in_order(20)


def test_what_is_in_hand_may_be_confirmed_before_a_source_goes(
    network: LocalNetwork, publishers: list[ReliablePublisher[Any]]
) -> None:
    patient = ConsumerOptions(
        level="memory", confirm_seconds=0.01, members_max=2, handover_seconds=30
    )
    put(publishers, 4)
    received = Received()
    with member(network.client(), confirm="manual", options=patient) as one:
        samples = [one.recv(10) for _ in range(SOURCES)]
        with member(network.client(), received.by("two"), patient):
            wait_until(lambda: len(one.members) == 2)
            for sample in samples:
                one.confirm(sample)
            confirmed = {(sample.key, sample.sn) for sample in samples}
            lost = {sample.key for sample in samples if not one.owns(sample.source)}
            assert lost
            wait_until(
                lambda: (
                    {key: sns[-1] for key, sns in received.numbers().items()}
                    == dict.fromkeys(lost, 3)
                )
            )
            again = {(sample.key, sample.sn) for _, sample in received.samples}
            assert not again & confirmed, "what was confirmed did not come again"
            while (kept := one.try_recv()) is not None:
                assert kept.key not in lost, "it was withdrawn from the channel"
                one.confirm(kept)


def test_who_does_not_confirm_in_time_is_told_that_another_one_has_the_source(
    network: LocalNetwork, publishers: list[ReliablePublisher[Any]]
) -> None:
    put(publishers, 1)
    received = Received()
    with member(network.client(), confirm="manual") as one:
        samples = [one.recv(10) for _ in range(SOURCES)]
        with member(network.client(), received.by("two")) as two:
            share(one, two)
            lost = [sample for sample in samples if two.owns(sample.source)]
            wait_until(lambda: sorted(received.numbers()) == sorted(one.key for one in lost))
            with pytest.raises(Fenced, match="another member of consumer 'bill' has that source"):
                one.confirm(lost[0])
            one.confirm(*(sample for sample in samples if one.owns(sample.source)))
            assert one.unconfirmed == 0
    received = Received()
    with member(network.client(), received.by("three")) as three:
        share(three)
        put(publishers, 1)
        wait_until(lambda: len(received.samples) == SOURCES)
    assert {sample.sn for _, sample in received.samples} == {1}


def test_more_members_than_are_allowed_are_refused_and_one_alone_shares_with_nobody(
    network: LocalNetwork, publishers: list[ReliablePublisher[Any]]
) -> None:
    put(publishers, 1)
    two = ConsumerOptions(level="memory", members_max=2, predecessor_seconds=0.3)
    alone = ConsumerOptions(level="memory", predecessor_seconds=0.3)
    with member(network.client(), print, two) as one, member(network.client(), print, two):
        for refused in (two, alone):
            with pytest.raises(ConfigError, match="in use by another subscriber"):
                member(network.client(), print, refused)
        (status,) = find_consumers(network.client(), "bill")
        assert len(status.members) == 2
        wait_until(lambda: len(one.members) == 2)
    with (
        declare_reliable_subscriber(
            network.client(), "a/*", print, consumer="bill", consumer_options=alone
        ),
        pytest.raises(ConfigError, match="raise members_max of all of them"),
    ):
        member(network.client(), print, two)


def test_positions_that_a_program_keeps_are_not_shared() -> None:
    with pytest.raises(ConfigError, match="leave positions out, or members_max"):
        ConsumerOptions(members_max=2, positions=(b"x",)).checked()


def overtake(network: LocalNetwork, sample: Sample, run: Position | None = None) -> None:
    """Write the position of another owner, as members of another half of the network would."""
    with declare_reliable_publisher(
        network.client(), POSITIONS, acknowledgements=1, level="memory"
    ) as other:
        name = "" if run is None else run.incarnation
        stands = Position("a/*", sample.source, sample.epoch, name, 0, fence=9)
        key = position_key("default", "bill", sample.source, sample.epoch)
        other.put(encode_position(stands), key=key).result(10)


def test_a_confirmation_of_an_earlier_owner_is_refused_and_its_sources_are_begun_anew(
    network: LocalNetwork, publishers: list[ReliablePublisher[Any]]
) -> None:
    put(publishers[:1], 2)
    with member(network.client(), confirm="manual") as one:
        first, second = one.recv(10), one.recv(10)
        # It says that `first` is confirmed.
        overtake(network, first, decode_position(one.position(first).value))
        one.confirm(second)
        with pytest.raises(Fenced, match="another member has the source by now"):
            one.flush(10)
        again = one.recv(10)
        assert again.sn == second.sn, "its confirmation did not count, and `first` is confirmed"
        one.confirm(again)
        one.flush(10)
    received = Received()
    with member(network.client(), received.by("two")) as two:
        share(two)
        put(publishers[:1], 1)
        wait_until(lambda: received.numbers() == {"a/0": [2]})


def test_flush_says_that_confirmations_did_not_count_after_all_was_begun_anew(
    network: LocalNetwork, publishers: list[ReliablePublisher[Any]]
) -> None:
    put(publishers[:1], 2)
    with member(network.client(), confirm="manual") as one:
        first, second = one.recv(10), one.recv(10)
        overtake(network, first, decode_position(one.position(first).value))
        one.confirm(second)
        assert one.recv(10).sn == second.sn, "given up and begun anew: nothing is to be written"
        with pytest.raises(Fenced, match="another member has the source by now"):
            one.flush(10)
        one.flush(10)  # told once


def test_a_sample_that_is_tried_again_holds_no_handover_up(
    network: LocalNetwork, publishers: list[ReliablePublisher[Any]]
) -> None:
    """Sources go to a member that joins while another one's handler raises again and again."""
    patient = replace(SHARED, attempts_max=10_000, attempt_seconds=0.05)
    received, raised = Received(), threading.Event()

    def raises(sample: Sample) -> None:
        raised.set()
        raise ValueError(sample.sn)

    put(publishers, 1)
    with member(network.client(), raises, patient):
        assert raised.wait(10)
        with member(network.client(), received.by("two"), patient) as two:
            wait_until(lambda: two.agreed and len(two.members) == 2)
            theirs = {str(one.key_expr) for one in publishers if two.owns(one.source)}
            wait_until(lambda: received.numbers() == {key: [0] for key in theirs})


def test_a_cache_that_starts_again_knows_the_fences_that_it_stores(
    network: LocalNetwork, tmp_path: Path
) -> None:
    def declare() -> ReliabilityCache:
        return declare_reliability_cache(
            network.router,
            ["a/**", POSITIONS],
            backend="sql",
            backend_options={"url": f"sqlite:///{tmp_path}/samples.db"},
            state_dir=tmp_path,
        )

    sample = Sample("a/0", SourceId("5", 1), 1, 0, b"")
    key = position_key("default", "bill", sample.source, sample.epoch)
    with declare():
        overtake(network, sample)
    with (
        declare() as cache,
        declare_reliable_publisher(
            network.client(), POSITIONS, acknowledgements=1, resend_delay_seconds=0.05
        ) as earlier,
    ):
        wait_until(lambda: cache.ingest.fencing is not None and cache.ingest.fencing.has_read)
        stands = Position("a/*", sample.source, sample.epoch, "", 7, fence=8)
        receipt = earlier.put(encode_position(stands), key=key)
        wait_until(lambda: [*receipt.refused.values()] == [RefusalReason.FENCED])
        assert not receipt.done
        assert earlier.put(
            encode_position(msgspec.structs.replace(stands, fence=9)), key=key
        ).result(10)


class AwayAtFirst(MemoryStorage):
    """A backend whose first read fails, as one that is still starting."""

    is_away = True

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        if self.is_away:
            self.is_away = False
            raise StorageUnavailable("still starting")
        return super().read(selection, limit, cursor)


def test_a_cache_whose_backend_is_away_at_its_start_reads_its_fences_again(
    network: LocalNetwork,
) -> None:
    source, storage = SourceId("5", 1), AwayAtFirst()
    key, stands = position_key("default", "bill", source, 1), Position("a/*", source, 1, "", 0)
    stored = encode_position(msgspec.structs.replace(stands, fence=9))
    storage.append(SampleBatch([Sample(key, SourceId("6", 1), 1, 0, stored, ntp64=1 << 32)]))
    with (
        declare_reliability_cache(network.router, POSITIONS, backend=storage) as cache,
        declare_reliable_publisher(
            network.client(), POSITIONS, acknowledgements=1, resend_delay_seconds=0.05
        ) as earlier,
    ):
        wait_until(lambda: cache.ingest.fencing is not None and cache.ingest.fencing.has_read)
        older = encode_position(msgspec.structs.replace(stands, fence=8))
        receipt = earlier.put(older, key=key)
        wait_until(lambda: [*receipt.refused.values()] == [RefusalReason.FENCED])


def test_a_member_rewinds_what_it_owns(
    network: LocalNetwork, publishers: list[ReliablePublisher[Any]]
) -> None:
    received = Received()
    with (
        member(network.client(), received.by("one")) as one,
        member(network.client(), received.by("two")) as two,
    ):
        share(one, two)
        put(publishers, 3)
        wait_until(lambda: received.numbers() == once_in_order(3))
        one.rewind(None, timeout_seconds=10)
        again = {
            str(publisher.key_expr): [0, 1, 2, 0, 1, 2] if one.owns(publisher.source) else [0, 1, 2]
            for publisher in publishers
        }
        wait_until(lambda: received.numbers() == again)
        assert two.agreed


def test_one_alone_that_follows_members_fences_them_off(
    network: LocalNetwork, publishers: list[ReliablePublisher[Any]]
) -> None:
    def fences() -> set[int]:
        (status,) = find_consumers(network.client(), "bill")
        return {run.fence for run in status.runs}

    put(publishers, 1)
    received = Received()
    with member(network.client(), received.by("one")):
        wait_until(lambda: received.numbers() == once_in_order(1))
    assert fences() == {1}
    alone = ConsumerOptions(level="memory", confirm_seconds=0.01)
    put(publishers, 1)
    with declare_reliable_subscriber(
        network.client(), "a/*", received.by("alone"), consumer="bill", consumer_options=alone
    ):
        wait_until(lambda: received.numbers() == once_in_order(2))
    assert fences() == {2}

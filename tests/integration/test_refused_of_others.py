"""What of other caches' samples a cache does not take: refused, counted, told of once, at rest."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zenoh

from durable_cache import (
    CacheOptions,
    Origins,
    ReliabilityCache,
    Sample,
    declare_reliability_cache,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import source_of
from durable_cache.model.sample import SampleBatch, SourceId
from durable_cache.protocol.alignment import AlignerOptions
from durable_cache.protocol.cache.events import EngineOptions, Origin
from durable_cache.protocol.wire import encode_packed
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox, Numbered, connected, sns

FAST = AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)
SMALL = 1_000
UNSENDABLE = "x" * 300
SOURCE = SourceId("ab12", 7)
LEFT_OUT = "samples of a peer were left out"


def cache_on(
    network: LocalNetwork, name: str, payload_bytes_max: int = 1 << 20
) -> ReliabilityCache:
    options = CacheOptions(
        name=name,
        align=True,
        aligner=FAST,
        allowed_origin=Origins.SESSION_LOCAL,
        payload_bytes_max=payload_bytes_max,
    )
    return declare_reliability_cache(network.client(), "a/**", options=options)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def feed(cache: ReliabilityCache, samples: list[Sample]) -> None:
    """Let one cache alone have samples, as one of an earlier version may have them."""
    before = cache.status().appended
    cache.ingest.offer(samples, Origin.RECOVERED)
    wait_until(lambda: cache.status().appended == before + len(samples), what="storing")


def at_rest(*caches: ReliabilityCache) -> bool:
    """Whether all know the same, as their roots say."""
    stands = [cache.aligning.status() for cache in caches if cache.aligning is not None]
    return all(peers and all(peer.equal for peer in peers) for peers in stands)


@pytest.mark.parametrize("why", ["payload", "encoding"])
def test_what_a_peer_has_and_this_cache_does_not_take_is_refused_once_and_alignment_rests(
    network: LocalNetwork, stack: ExitStack, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    clock = int(str(network.router.new_timestamp()).partition("/")[0]) - (30 << 32)
    payload, encoding = (bytes(SMALL + 1), "zenoh/bytes") if why == "payload" else (b"", UNSENDABLE)

    def sample(sn: int, *, good: bool) -> Sample:
        chosen = (b"%d" % sn, "text/plain") if good else (payload, encoding)
        return Sample(
            "a/b", SOURCE, 5, sn, chosen[0], encoding=chosen[1], ntp64=clock + sn, timestamp_id="ab"
        )

    caplog.set_level(logging.WARNING, "durable_cache")
    large = stack.enter_context(cache_on(network, "large"))
    feed(large, [sample(sn, good=sn not in (3, 4)) for sn in range(10)])
    small = stack.enter_context(cache_on(network, "small", SMALL))
    taken = [0, 1, 2, *range(5, 10)]
    wait_until(lambda: sns(sorted_of(small)) == taken, 20, "the rest")
    wait_until(lambda: at_rest(large, small), 20, "rest")
    (told,) = [record for record in caplog.records if record.message == LEFT_OUT]
    assert vars(told)["samples"] == 2
    word = f"payload_bytes_max is {SMALL}" if why == "payload" else "a schema of 300 bytes"
    assert word in vars(told)["reason"]
    status = small.status()
    assert status.alignment.samples_refused == 2
    feed(large, [sample(10, good=True)])  # what differs anew is pulled, and nothing else
    wait_until(lambda: sns(sorted_of(small)) == [*taken, 10], 20, "what came since")
    wait_until(lambda: at_rest(large, small), 20, "rest again")
    assert [record.message for record in caplog.records].count(LEFT_OUT) == 1
    assert len(sorted_of(large)) == 11


def sorted_of(cache: ReliabilityCache) -> list[Sample]:
    return sorted(cache.find("a/**"), key=lambda sample: sample.sn)


def test_a_forged_answer_with_an_encoding_that_zenoh_cannot_send_costs_its_neighbours_nothing(
    network: LocalNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "durable_cache")
    numbered, inbox = Numbered(network.client(), "a/b"), Inbox()
    source = source_of(numbered.publisher)
    times: dict[int, int] = {}

    def answer(query: zenoh.Query) -> None:
        with query:
            forged = [
                Sample(
                    *("a/b", source, 0, sn, b"%d" % sn),
                    encoding=encoding,
                    ntp64=times[sn],
                    timestamp_id=source.zid,
                )
                for sn, encoding in ((1, "text/plain"), (2, UNSENDABLE), (3, "text/plain"))
            ]
            query.reply(str(query.key_expr), encode_packed(SampleBatch(forged)))

    hostile = network.client().declare_queryable("*/a/**", answer)  # type: ignore[arg-type]
    soon = CacheOptions(engine=EngineOptions(gap_timeout_seconds=1.0))
    with (
        declare_reliability_cache(network.client(), "a/**", options=soon) as cache,
        declare_reliable_subscriber(
            network.client(), "a/**", inbox, gap_timeout_seconds=1
        ) as subscriber,
    ):
        inbox.await_path_from(numbered.session)
        connected(numbered.publisher)
        stamps = [numbered.session.new_timestamp() for _ in range(5)]
        times |= {sn: int(str(stamp).partition("/")[0]) for sn, stamp in enumerate(stamps)}
        for sn in (0, 4):
            numbered.put(sn, timestamp=stamps[sn])
        wait_until(lambda: sns(inbox.samples) == [0, 1, 3, 4], 20, "its neighbours")
        assert subscriber.missed == 1
        wait_until(lambda: sns(sorted_of(cache)) == [0, 1, 3, 4], 20, "its neighbours, stored")
        wait_until(lambda: cache.status().missed == 1, 20, "the report")
        assert any("a schema of 300 bytes" in vars(one).get("reason", "") for one in caplog.records)
        replies = list(network.client().get("*/a/**"))
        assert all(reply.ok is not None for reply in replies)
    hostile.undeclare()

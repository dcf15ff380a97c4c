"""The threads, queues and messages around the aligner: bounded, and nobody waits for the silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
import zenoh

from durable_cache import CacheOptions, ReliabilityCache, declare_reliability_cache
from durable_cache.endpoints.alignment.asked import Asked
from durable_cache.endpoints.session import Query, declare_token, hear_queries
from durable_cache.errors import StorageUnavailable
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.alignment import (
    Aligner,
    AlignerEvent,
    AlignerOutput,
    Appended,
    Tick,
)
from durable_cache.protocol.wire import cache_token, own_key
from durable_cache.storage.contract import AppendResult, Page, Storage
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.integration.test_alignment import FAST, everything, feed, same, samples
from tests.servers.zenoh_sources import connected

CLOCK = int(time.time() - 60) << 32


def declare(
    network: LocalNetwork, name: str, backend: Storage | None = None, **changes: int
) -> ReliabilityCache:
    options = replace(CacheOptions(name=name, align=True, aligner=FAST), **changes)  # type: ignore[arg-type]
    return declare_reliability_cache(
        network.client(), "a/**", backend=backend or MemoryStorage(), options=options
    )


def test_peers_that_never_answer_keep_nobody_waiting(network: LocalNetwork) -> None:
    session, kept = network.client(), list[Query]()
    silent = [f"{at:x}5113" for at in range(1, 9)]
    declared: list[object] = [
        hear_queries(session, own_key("default", "align", cache_id), kept.append)
        for cache_id in silent
    ]
    declared += [declare_token(session, cache_token("default", name, "1")) for name in silent]
    with declare(network, "one") as one:
        wait_until(lambda: len(kept) >= len(silent), 20, "a question to each silent peer")
        with declare(network, "two") as two:
            feed(one, samples(range(50), clock=CLOCK))
            wait_until(lambda: len(everything(two)) == 50, 15, "what one has")
            assert not [t.name for t in threading.enumerate() if "align" in t.name]
    kept.clear()
    assert len(declared) == 2 * len(silent)


def test_an_aligner_that_falls_behind_begins_anew_and_lacks_nothing(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    honest, held, go_on = Aligner.handle, threading.Event(), threading.Event()

    def held_up(aligner: Aligner, event: AlignerEvent) -> list[AlignerOutput]:
        if isinstance(event, Appended):
            held.set()
            go_on.wait(30)
        return honest(aligner, event)

    monkeypatch.setattr(Aligner, "handle", held_up)
    with declare(network, "one", align_bytes_max=20_000) as one, declare(network, "two") as two:
        for first in range(0, 500, 100):
            feed(one, samples(range(first, first + 100), clock=CLOCK))
            assert held.wait(30), "it falls behind from the first batch on, and so only once"
        feed(two, samples([500], clock=CLOCK))
        go_on.set()
        wait_until(lambda: same(one, two), 30, "equality")
        assert len(everything(one)) == 501
        assert caplog.text.count("alignment begins anew") == 1, "it is said once"
        wait_until(lambda: met(one), 20, "equal roots")


def test_the_smallest_queues_make_it_slower_and_lose_nothing(network: LocalNetwork) -> None:
    small = {"align_events_max": 1, "align_jobs_max": 1}
    with declare(network, "one", **small) as one, declare(network, "two", **small) as two:
        feed(one, samples(range(0, 300, 2), clock=CLOCK))
        feed(two, samples(range(1, 300, 2), clock=CLOCK))
        wait_until(lambda: same(one, two), 40, "equality")
        assert len(everything(one)) == 300


class Away(MemoryStorage):
    """A backend that cannot be read for a while."""

    away = False

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        if self.away:
            raise StorageUnavailable("away for a moment")
        return super().read(selection, limit, cursor)


def test_other_content_is_found_when_a_storage_that_was_away_is_back(network: LocalNetwork) -> None:
    mine, theirs = samples(range(32), clock=CLOCK), samples(range(32), clock=CLOCK)
    theirs[4] = msgspec.structs.replace(theirs[4], payload=b"another")
    away, other = Away(), MemoryStorage()
    away.append(SampleBatch(mine))
    other.append(SampleBatch(theirs))
    away.away = True
    with declare(network, "one", away) as one, declare(network, "two", other) as two:
        wait_until(lambda: all(met(cache) for cache in (one, two)), 20, "the greeting")
        away.away = False
        wait_until(lambda: one.status().conflicts and two.status().conflicts, 40, "the conflict")
        assert everything(one)[4].payload != everything(two)[4].payload


def met(cache: ReliabilityCache) -> bool:
    aligning = cache.aligning
    return aligning is not None and any(peer.equal for peer in aligning.status())


def test_an_aligner_that_breaks_says_so_and_the_cache_goes_on(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Aligner.handle

    def breaks(aligner: Aligner, event: AlignerEvent) -> list[AlignerOutput]:
        if isinstance(event, Tick):
            raise ZeroDivisionError("unforeseen")
        return honest(aligner, event)

    monkeypatch.setattr(Aligner, "handle", breaks)
    with declare(network, "one") as one:
        wait_until(lambda: "alignment has ended: ZeroDivisionError" in one.status().last_error)
        feed(one, samples(range(3), clock=CLOCK))
        assert one.status().appended == 3


def test_questions_are_answered_once_and_the_oldest_refused_beyond_the_bound(
    network: LocalNetwork,
) -> None:
    asked, numbers = Asked(2), list[int]()
    queryable = hear_queries(network.client(), "q", lambda query: numbers.append(asked.put(query)))
    session = network.client()
    connected(session.declare_querier("q"))
    gets = []
    for at in range(3):
        wait_until(lambda at=at: len(numbers) == at, what="the question before")
        gets.append(session.get("q", timeout=20.0))
        wait_until(lambda at=at: len(numbers) == at + 1, what="the question")
    assert answer_of(gets[0]) == "too many questions wait here; ask again later"
    assert asked.reply(numbers[1], b"here")
    assert not asked.reply(numbers[1], b"again")
    asked.refuse(numbers[1], "answered before")
    assert answer_of(gets[1]) == "here"
    asked.refuse_all("closing")
    assert answer_of(gets[2]) == "closing"
    assert len(asked) == 0
    queryable.undeclare()


def answer_of(replies) -> str:  # type: ignore[no-untyped-def]
    (reply,) = list(replies)
    assert isinstance(reply, zenoh.Reply)
    answered = reply.ok if reply.ok is not None else reply.err
    assert answered is not None
    return answered.payload.to_string()


class Held(MemoryStorage):
    """A backend that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        self.go_on.wait(30)
        return super().append(batch, skips)


def test_the_aligner_is_told_while_live_samples_wait(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, told = Aligner.handle, list[bool]()

    def listening(aligner: Aligner, event: AlignerEvent) -> list[AlignerOutput]:
        if isinstance(event, Tick):
            told.append(event.busy)
        return honest(aligner, event)

    monkeypatch.setattr(Aligner, "handle", listening)
    held = Held()
    many = samples(range(40), clock=CLOCK)
    large = [msgspec.structs.replace(one, payload=bytes(1 << 20)) for one in many]
    with declare(network, "one", held) as one:
        try:
            one.ingest.offer(large[:10])
            wait_until(lambda: one.ingest.queued_bytes == 0, what="a commit under way")
            one.ingest.offer(large[10:])
            wait_until(lambda: told[-1:] == [True], what="a tick while samples wait")
        finally:
            held.go_on.set()
        wait_until(lambda: told[-1:] == [False], what="a tick when none wait")
        assert len(everything(one)) == 40

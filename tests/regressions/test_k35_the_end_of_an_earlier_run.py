"""K35: what a cache alone has of a publisher's earlier run is reported when it is back (ADR 0348).

The next run of a pinned publisher begins while the cache is away. The publisher answers questions
about its source as well, and knows nothing of the run before: its answer was taken for the end of
that, and what the cache stored was neither delivered nor reported.
"""

from __future__ import annotations

import time
from pathlib import Path

from durable_cache import (
    ReliabilityCache,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import Session, declare_token, source_of, undeclare
from durable_cache.model.sequence import frame
from durable_cache.protocol.wire import publisher_token
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox, Numbered, sns, stored


def cache_in(folder: Path, session: Session) -> ReliabilityCache:
    url = f"sqlite:///{folder}/samples.db"
    return declare_reliability_cache(
        session, "a/**", backend="sql", backend_options={"url": url}, state_dir=folder
    )


def test_the_last_sample_of_an_earlier_run_is_reported_when_the_cache_is_back(
    network: LocalNetwork, tmp_path: Path
) -> None:
    inbox = Inbox()
    session = network.client()
    numbered = Numbered(session, "a/b")
    source, epoch = source_of(numbered.publisher), frame(time.time_ns())
    with (
        declare_reliable_publisher(network.client(), "a/other"),
        declare_reliable_subscriber(
            network.client(), "a/**", inbox, gap_timeout_seconds=2.0
        ) as subscriber,
    ):
        with cache_in(tmp_path, session) as cache:
            inbox.await_path_from(session)
            first = publisher_token("default", source, epoch, "0000000a", "a/b")
            token = declare_token(session, first)
            numbered.put(0)
            wait_until(lambda: sns(inbox.samples) == [0])
            numbered.put(1, lost=True)
            stored(cache, 2)
        undeclare(token)
        second = publisher_token("default", source, epoch + 1, "0000000b", "a/b")
        token = declare_token(session, second)
        numbered.put(0, b"again")
        wait_until(lambda: sns(inbox.samples) == [0, 0], what="the next run")
        assert subscriber.missed == 0
        with cache_in(tmp_path, session):
            wait_until(lambda: subscriber.missed == 1, what="the report")
            assert sns(inbox.samples) == [0, 0]
        undeclare(token)

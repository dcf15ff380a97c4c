"""K34: what a cache gets of a publisher behind its token reaches subscribers, too (ADR 0347).

They ask once for the last numbers of a publisher that is gone. A cache that got a sample behind the
token holds it for a second, for it may be of the next run, and answered without it. Nothing said
afterwards that it was there: it was acknowledged, stored, and never delivered.
"""

from __future__ import annotations

import time

from durable_cache import declare_reliability_cache, declare_reliable_subscriber
from durable_cache.endpoints.session import declare_token, source_of, undeclare
from durable_cache.model.sequence import frame
from durable_cache.protocol.wire import publisher_token
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox, Numbered, sns, stored

HALF_THE_WAIT_SECONDS = 0.5
"""So the cache holds the sample until half a second after subscribers asked."""


def test_a_sample_that_only_a_cache_got_behind_its_token_is_delivered(
    network: LocalNetwork,
) -> None:
    inbox = Inbox()
    session = network.client()
    numbered = Numbered(session, "a/b")
    source = source_of(numbered.publisher)
    with (
        declare_reliability_cache(session, "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", inbox),
    ):
        inbox.await_path_from(session)
        epoch = frame(time.time_ns())
        token = declare_token(session, publisher_token("default", source, epoch, "c09aa21f", "a/b"))
        numbered.put(0)
        wait_until(lambda: sns(inbox.samples) == [0])
        stored(cache, 1)
        undeclare(token)
        time.sleep(HALF_THE_WAIT_SECONDS)
        numbered.put(1, lost=True)
        wait_until(lambda: sns(inbox.samples) == [0, 1], what="the last sample")

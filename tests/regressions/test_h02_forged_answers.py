"""H2: an answer is compared with the question before anything moves."""

from __future__ import annotations

import zenoh

from durable_cache import Sample, declare_reliable_subscriber
from durable_cache.endpoints.session import source_of
from durable_cache.model.sample import SampleBatch
from durable_cache.protocol.wire import encode_packed
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox, Numbered, sns


def test_one_forged_number_in_an_answer_silences_nobody(network: LocalNetwork) -> None:
    inbox = Inbox()
    numbered = Numbered(network.client(), "a/b")
    source = source_of(numbered.publisher)
    forged = [Sample("a/b", source, 0, sn, b"forged", ntp64=1 << 62) for sn in (50_000, 2**35 - 2)]

    def answer(query: zenoh.Query) -> None:
        with query:
            query.reply(str(query.key_expr), encode_packed(SampleBatch(forged)))

    hostile = network.client().declare_queryable("*/a/**", answer)  # type: ignore[arg-type]
    with declare_reliable_subscriber(
        network.client(), "a/**", inbox, gap_timeout_seconds=1
    ) as subscriber:
        inbox.await_path_from(numbered.session)
        numbered.put(0)
        numbered.put(2)
        wait_until(lambda: sns(inbox.samples) == [0, 2], what="the end of the gap")
        numbered.put(3)
        wait_until(lambda: sns(inbox.samples) == [0, 2, 3])
        assert subscriber.missed == 1
    hostile.undeclare()

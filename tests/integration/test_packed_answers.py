"""What does an asker learn from a packed answer besides the samples in it?"""

from __future__ import annotations

import zenoh

from durable_cache import declare_reliability_cache
from durable_cache.model.sample import SourceId
from durable_cache.protocol.wire import Absence, AbsenceReason, PackedAnswer, decode_packed
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected, stored


def ask(session: zenoh.Session, selector: str) -> list[PackedAnswer]:
    replies = list(session.get(selector, target=zenoh.QueryTarget.ALL, timeout=5))
    return [decode_packed(reply.ok.payload.to_bytes()) for reply in replies if reply.ok]


def test_a_packed_question_is_always_answered_and_says_what_is_absent(
    network: LocalNetwork,
) -> None:
    asker = network.client()
    with declare_reliability_cache(network.client(), "a/**") as cache:
        source = Numbered(network.client(), "a/1")
        connected(source.publisher)
        for sn in range(6):
            source.put(sn, key=f"a/{sn % 2}")
        assert len(stored(cache, 6)) == 6
        named = SourceId.parse(source.prefix)
        wait_until(lambda: ask(asker, "*/a/nothing?_pack=1"))
        (nothing,) = ask(asker, "*/a/nothing?_pack=1")
        assert (len(nothing.samples), nothing.more, nothing.absent) == (0, False, ())
        (answer,) = ask(asker, f"{source.prefix}/a/1?_sn=0..9;_pack=1")
        assert [sample.sn for sample in answer.samples] == [1, 3, 5]
        assert answer.absent == tuple(
            Absence(named, answer.samples.samples[0].epoch, sn, sn, AbsenceReason.OTHER_KEY)
            for sn in (0, 2, 4)
        )

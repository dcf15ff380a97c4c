"""C11: no ``**`` matches a chunk that begins with ``@``, and no token behind one was ever seen.

Samples under such a key were stored without their publisher's epoch, and never acknowledged. Later:
resends in the name of a publisher that lives were believed, `put` said that no cache is in reach,
and subscribers did not see which publishers and caches there are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_cache import (
    Profile,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import close_session, declare_token, zid_of
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.profiles import DurabilityKind, InstanceState
from durable_cache.protocol.resends import (
    RefusalReason,
    ResendRefusal,
    ResendRequest,
    decode_resent,
    encode_resend,
)
from durable_cache.protocol.wire import own_key, store_key
from durable_cache.service.cli import main
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import old_sample
from tests.servers.zenoh_sources import Inbox, connected, sns

KEY_EXPRS = pytest.mark.parametrize("key_expr", ["@plant/hall/**", "plant/@line/**"])


@KEY_EXPRS
def test_what_lies_behind_a_verbatim_chunk_is_stored_with_its_epoch_and_acknowledged(
    key_expr: str,
) -> None:
    key = key_expr.replace("**", "speed")
    with (
        LocalNetwork() as network,
        declare_reliability_cache(network.client(), ["other/**", key_expr]) as cache,
        declare_reliable_publisher(
            network.client(), key_expr, acknowledgements=1, level="memory"
        ) as publisher,
    ):
        receipt = publisher.put(b"1", key=key)
        assert receipt.wait(10)
        (stored,) = cache.find(key)
        assert stored.epoch == publisher.epoch


@KEY_EXPRS
def test_a_forged_resend_for_a_living_source_is_refused(key_expr: str) -> None:
    key = key_expr.replace("**", "speed")
    with (
        LocalNetwork() as network,
        declare_reliability_cache(network.client(), ["other/**", key_expr]) as cache,
        declare_reliable_publisher(
            network.client(), key, acknowledgements=1, level="memory"
        ) as publisher,
    ):
        assert publisher.put(b"true").wait(10)
        thief = network.client()
        numbering = (publisher.source, publisher.epoch)
        forged = Sample(key, *numbering, 1, b"forged", ntp64=1, timestamp_id="1")
        request = ResendRequest(zid_of(thief), *numbering, publisher.incarnation, (forged,))
        (reply,) = thief.get(store_key("default", cache.cache_id), payload=encode_resend(request))
        assert reply.ok is not None
        assert decode_resent(reply.ok.payload.to_bytes()).refused == (
            ResendRefusal(1, 1, RefusalReason.CLAIMED),
        )


@KEY_EXPRS
def test_a_spool_reaches_a_cache_that_comes_late_under_the_source_it_was_put_with(
    key_expr: str, tmp_path: Path
) -> None:
    key = key_expr.replace("**", "speed")
    with LocalNetwork() as network:
        offline = network.client()
        with declare_reliable_publisher(
            offline, key, acknowledgements=1, level="memory", spool_dir=tmp_path
        ) as publisher:
            before = publisher.source
            for number in range(20):
                publisher.put(b"%d" % number)
        close_session(offline)
        with (
            declare_reliability_cache(network.client(), key_expr) as cache,
            declare_reliable_publisher(
                network.client(), key, acknowledgements=1, level="memory", spool_dir=tmp_path
            ) as publisher,
        ):
            publisher.put(b"20")
            publisher.flush(20)
            stored = sorted(cache.find(key), key=lambda sample: int(sample.payload))
            assert [sample.payload for sample in stored] == [b"%d" % at for at in range(21)]
            assert {sample.source for sample in stored[:20]} == {before}


def test_put_tells_a_cache_that_is_silent_from_none(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalNetwork() as network:
        token = own_key("default", "history", "c0", "0000aaaa", "plant/@line/**")
        shown = declare_token(network.client(), token)
        put = ["put", "plant/@line/speed", "1", "--timeout", "0.5", "--connect", network.endpoint]
        assert main(put) == 1
        assert "a cache in reach stores it and has not answered" in capsys.readouterr().err
        shown.undeclare()
        with declare_reliability_cache(network.client(), "plant/@line/**"):
            assert main([*put, "--level", "memory", "--timeout", "10"]) == 0


@KEY_EXPRS
def test_a_cache_that_comes_late_is_asked_for_history(key_expr: str) -> None:
    key, live, inbox = key_expr.replace("**", "speed"), key_expr.replace("**", "live"), Inbox()
    storage = MemoryStorage()
    storage.append(SampleBatch(old_sample(sn, sn, key=key) for sn in range(9)))
    with (
        LocalNetwork() as network,
        declare_reliable_subscriber(
            network.client(), key_expr, inbox, history=True, history_timeout_seconds=0.3
        ) as subscriber,
    ):
        plain = network.client()

        def given_up() -> bool:
            plain.put(live, b"")
            return bool(inbox.samples)

        wait_until(given_up, what="live samples, for history is given up for now")
        assert not subscriber.history_complete
        with declare_reliability_cache(network.client(), key_expr, backend=storage):
            wait_until(lambda: subscriber.history_complete, what="history of the cache")
            stored = [sample for sample in inbox.samples if sample.key == key]
            assert sns(stored) == list(range(9))
            assert subscriber.missed == 0


def test_a_reader_sees_who_writes_behind_a_verbatim_chunk() -> None:
    profile = Profile(durability=DurabilityKind.PERSISTENT)
    with (
        LocalNetwork() as network,
        declare_reliability_cache(network.client(), "plant/@line/**"),
        declare_reliable_subscriber(network.client(), "plant/@line/*", profile=profile) as reader,
        declare_reliable_publisher(network.client(), "plant/@line/speed") as publisher,
    ):
        wait_until(lambda: reader.subscription_matched_status().current, what="the publisher")
        connected(publisher._publisher)
        publisher.put(b"1")
        wait_until(lambda: reader.read(), what="its sample")
        publisher.unregister()
        gone = InstanceState.NOT_ALIVE_NO_WRITERS
        wait_until(lambda: reader.read()[0].instance_state is gone, what="its unregistering")

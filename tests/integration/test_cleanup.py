"""Are instances purged when they are disposed and unregistered and all saw it, and not before?"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from durable_cache import (
    CacheOptions,
    ReliabilityCache,
    ReliablePublisher,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.errors import ConfigError
from durable_cache.protocol.alignment import AlignerOptions
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.faults import ModuleProcess

FAST = AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)
PASS_SECONDS = 0.05


def open_cache(
    network: LocalNetwork, place: Path, options: CacheOptions, delay_seconds: float | None
) -> ReliabilityCache:
    place.mkdir(exist_ok=True)
    return declare_reliability_cache(
        network.client(),
        "a/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{place}/samples.db"},
        state_dir=place,
        options=replace(
            options, service_cleanup_delay_seconds=delay_seconds, retention_seconds=PASS_SECONDS
        ),
    )


def id_at(place: Path) -> str:
    """Give the cache of a directory its id before it runs."""
    directory = place / CacheOptions().name
    directory.mkdir(parents=True)
    index = StreamIndex(directory / "index.db")
    index.close()
    return index.cache_id


def disposing(network: LocalNetwork, caches: int = 1) -> ReliablePublisher:
    return declare_reliable_publisher(
        network.client(),
        "a/*",
        acknowledgements=caches,
        auto_dispose_unregistered_instances=True,
    )


def write(publisher: ReliablePublisher, key: str, samples: int = 3) -> None:
    for at in range(samples):
        publisher.put(b"%d" % at, key=key)
    publisher.flush(20)


def dispose(publisher: ReliablePublisher, key: str) -> None:
    publisher.unregister(key)
    publisher.flush(20)


def passes(cache: ReliabilityCache, count: int = 4) -> None:
    """Let a cache look after its instances a few times."""
    assert cache.cleanup is not None
    done: list[None] = []
    cache.cleanup._lane.every(PASS_SECONDS, lambda: done.append(None))
    wait_until(lambda: len(done) >= count)


def test_an_instance_goes_when_its_delay_is_over_and_the_others_stay(
    network: LocalNetwork, tmp_path: Path
) -> None:
    with (
        open_cache(network, tmp_path / "one", CacheOptions(), 0.5) as cache,
        disposing(network) as publisher,
    ):
        for key in ("a/gone", "a/deleted", "a/left", "a/written"):
            write(publisher, key)
        began = time.monotonic()
        dispose(publisher, "a/gone")
        publisher.delete(key="a/deleted")
        publisher.flush(20)
        wait_until(lambda: cache.status().instances_purged)
        assert time.monotonic() - began > 0.5
        status = cache.status()
        assert (status.instances_purged, status.instance_samples_purged) == (1, 4)
        assert cache.find("a/gone") == []
        assert len(cache.find("a/deleted")) == 4, "deleted, not unregistered"
        assert len(cache.find("a/left")) == 3
        publisher.put(b"new", key="a/gone")
        publisher.flush(20)
        passes(cache)
        assert [sample.payload for sample in cache.find("a/gone")] == [b"new"]


def test_a_newer_put_before_the_delay_is_over_keeps_everything(
    network: LocalNetwork, tmp_path: Path
) -> None:
    with (
        open_cache(network, tmp_path / "one", CacheOptions(), 3600) as cache,
        disposing(network) as publisher,
        disposing(network) as other,
    ):
        write(publisher, "a/b")
        dispose(publisher, "a/b")
        wait_until(lambda: cache.status().instances_to_purge == 1)
        passes(cache)
        write(other, "a/b", 1)
        assert cache.cleanup is not None
        cache.cleanup._delay_ns = 0
        wait_until(lambda: cache.status().instances_to_purge == 0)
        assert cache.status().instances_purged == 0
        assert len(cache.find("a/b")) == 5


def test_more_instances_than_are_remembered_are_purged_all_the_same(
    network: LocalNetwork, tmp_path: Path
) -> None:
    options = CacheOptions(disposals_max=2)
    with open_cache(network, tmp_path / "one", options, 0) as cache, disposing(network) as writing:
        for at in range(9):
            writing.put(b"", key=f"a/{at}")
            writing.unregister(f"a/{at}")
        writing.flush(20)
        # More, where a disposal came again after the purge: by the name of its run, then.
        wait_until(lambda: cache.status().instances_purged >= 9)
        wait_until(lambda: cache.find("a/**") == [])
        wait_until(lambda: cache.status().instances_to_purge == 0)


def test_what_a_killed_publisher_wrote_stays_whatever_the_delay(
    network: LocalNetwork, tmp_path: Path
) -> None:
    """A publisher that was killed looks like a link that was cut: neither unregisters anything."""
    (tmp_path / "publishing.py").write_text(
        "import sys, time\n"
        "from durable_cache import declare_reliable_publisher, open_session\n"
        "session = open_session({'mode': 'client', 'connect': {'endpoints': [sys.argv[1]]},\n"
        "    'scouting': {'multicast': {'enabled': False}}, 'timestamping': {'enabled': True}})\n"
        "publisher = declare_reliable_publisher(session, 'a/*', acknowledgements=2,\n"
        "    auto_dispose_unregistered_instances=True)\n"
        "for at in range(9): publisher.put(b'', key=f'a/{at}')\n"
        "publisher.delete(key='a/0')\n"
        "publisher.flush(20)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with (
        open_cache(network, tmp_path / "off", CacheOptions(), None) as off,
        open_cache(network, tmp_path / "on", CacheOptions(name="on"), 0) as on,
        declare_reliable_subscriber(network.client(), "a/**", profile="dds-default") as reader,
    ):
        with ModuleProcess(
            "publishing", (network.endpoint,), folder=tmp_path, ready="ready"
        ) as process:
            wait_until(lambda: reader.liveliness_changed_status().alive == 1)
            process.kill()
            wait_until(lambda: reader.liveliness_changed_status().alive == 0)
        passes(on)
        assert on.status().instances_purged == off.status().instances_purged == 0
        for cache in (off, on):
            assert len(cache.find("a/**")) == 10


def test_a_disposal_of_before_a_restart_is_found(network: LocalNetwork, tmp_path: Path) -> None:
    place = tmp_path / "one"
    with open_cache(network, place, CacheOptions(), 3600) as cache, disposing(network) as publisher:
        write(publisher, "a/b")
        write(publisher, "a/c")
        dispose(publisher, "a/b")
        wait_until(lambda: cache.status().instances_to_purge == 1)
        passes(cache)
        assert cache.status().instances_purged == 0
    with open_cache(network, place, CacheOptions(), 0) as cache:
        wait_until(lambda: cache.status().instances_purged == 1)
        assert {sample.key for sample in cache.find("a/**")} == {"a/c"}
    with open_cache(network, place, CacheOptions(), 0) as cache:
        passes(cache)
        assert cache.status().instances_purged == 0
        assert {sample.key for sample in cache.find("a/**")} == {"a/c"}


def test_nothing_goes_before_every_configured_cache_has_seen_it(
    network: LocalNetwork, tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("one", "two")}
    ids = tuple(id_at(place) for place in places.values())
    aligned = CacheOptions(align=True, aligner=FAST, align_peers=ids)
    with (
        open_cache(network, places["one"], aligned, 0.2) as one,
        open_cache(network, places["two"], aligned, None) as two,
    ):
        assert (one.cache_id, two.cache_id) == ids
        with disposing(network, 2) as publisher:
            write(publisher, "a/b")
            write(publisher, "a/c")
        two.close()
        with disposing(network) as publisher:
            dispose(publisher, "a/b")
            wait_until(lambda: one.status().instances_to_purge == 1)
            passes(one, 20)
            assert one.status().instances_purged == 0
            assert len(one.find("a/b")) == 4
    with (
        open_cache(network, places["one"], aligned, 0.2) as one,
        open_cache(network, places["two"], aligned, None) as two,
    ):
        wait_until(lambda: one.status().instances_purged == 1, 30)
        wait_until(lambda: not two.find("a/b"), 30, "the purge at the other cache")
        for cache in (one, two):
            assert {sample.key for sample in cache.find("a/**")} == {"a/c"}
        profile = "eventually-consistent"
        with declare_reliable_subscriber(network.client(), "a/**", profile=profile) as reader:
            wait_until(lambda: reader.history_complete)
            assert [each.key for each in reader.instances()] == ["a/c"]
            assert reader.sample_lost_status().total == 0


def test_who_aligns_says_which_caches_must_have_seen_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"name them under alignment\.peers"):
        CacheOptions(align=True, service_cleanup_delay_seconds=0).check()
    with pytest.raises(ConfigError, match="'me' is no cache's id"):
        CacheOptions(align=True, align_peers=("me",)).check()
    with pytest.raises(ConfigError, match="service_cleanup_delay_seconds"):
        CacheOptions(service_cleanup_delay_seconds=-1).check()

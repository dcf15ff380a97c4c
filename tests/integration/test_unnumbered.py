"""What ordinary Zenoh programs publish is stored once, in order of time, alike at every cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zenoh

from durable_cache import (
    CacheOptions,
    Origins,
    ReliabilityCache,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import Session, build_timestamp
from durable_cache.errors import ConfigError
from durable_cache.model.sample import Kind, Sample
from durable_cache.model.selection import Order, Selection
from durable_cache.protocol.alignment import AlignerOptions
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.integration.test_alignment_partition import BACKENDS, Volume, memory, opened, sqlite
from tests.servers.zenoh_sources import make_known

FAST = AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)


def declare(
    network: LocalNetwork,
    name: str,
    directory: Path,
    volume: Callable[[Path, str], Volume] = sqlite,
    *,
    hears: bool = True,
    align: bool = True,
    history: int | None = None,
    options: CacheOptions | None = None,
) -> ReliabilityCache:
    session = network.client()
    cache = declare_reliability_cache(
        session,
        "a/**",
        backend=opened(volume(directory, name), name),
        unnumbered="store",
        state_dir=directory,
        history=history,
        allowed_origin=Origins.ANY if hears else Origins.SESSION_LOCAL,
        options=options or CacheOptions(name=name, align=align, aligner=FAST),
    )
    make_known(session)
    return cache


def stamp(seconds: float) -> zenoh.Timestamp:
    """Return a stamp of another clock, whole seconds of which Zenoh hands on exactly."""
    made = build_timestamp(int(seconds) << 32, "c10c")
    assert made is not None
    return made


def history(cache: ReliabilityCache) -> list[Sample]:
    return list(cache.read(Selection(order=Order.TIME), 1000).samples)


def told(cache: ReliabilityCache, key: str) -> list[bytes]:
    return [sample.payload for sample in history(cache) if sample.key == key]


def get(session: Session, selector: str) -> list[bytes]:
    replies = session.get(selector, consolidation=zenoh.ConsolidationMode.NONE)
    return [reply.ok.payload.to_bytes() for reply in replies if reply.ok is not None]


def stored(cache: ReliabilityCache, count: int) -> None:
    wait_until(lambda: len(history(cache)) >= count, 20, f"{count} samples at {cache.options.name}")


@pytest.mark.parametrize("volume", BACKENDS)
def test_two_caches_hold_a_doubled_and_a_late_sample_alike(
    network: LocalNetwork, tmp_path: Path, volume: Callable[[Path, str], Volume]
) -> None:
    program = network.client()
    began = time.time() - 1000
    left = declare(network, "left", tmp_path / "left", volume)
    with left, declare(network, "right", tmp_path / "right", volume, hears=False) as right:
        for route in range(2):
            for number in range(10):
                program.put(
                    f"a/{number % 2}", f"{number}".encode(), timestamp=stamp(began + number)
                )
            both = 10 * (route + 1)
            wait_until(lambda both=both: left.status().received == both, what="a route")
        program.put("a/0", b"late", timestamp=stamp(began - 5))
        program.delete("a/1", timestamp=stamp(began + 20))
        program.put("a/0", b"another four", timestamp=stamp(began + 4))
        stored(left, 12)
        wait_until(lambda: left.status().conflicts == 1, what="the contradiction to be found")
        stored(right, 12)
        assert history(left) == history(right)
        for cache in (left, right):
            assert cache.wait_drained(20)
            assert told(cache, "a/0") == [b"late", b"0", b"2", b"4", b"6", b"8"]
            assert told(cache, "a/1") == [b"1", b"3", b"5", b"7", b"9", b""]
        assert history(left)[-1].kind is Kind.DELETE
        status = left.status()
        assert (status.unnumbered, status.appended, status.duplicates) == (12, 12, 10)
        assert (status.acks_sent, status.missed, status.gaps_open) == (0, 0, 0)
        assert get(program, "a/*") == [b"8", b"8"]  # one from each cache; a/1 is deleted
        sizes = [len(get(program, f"a/0?_max={count}")) for count in (1, 3)]
        assert sizes == [2, 6]

    if volume is memory:
        return
    with declare(network, "left", tmp_path / "left", volume, align=False) as again:
        assert len(history(again)) == 12
        program.put("a/0", b"0", timestamp=stamp(began))
        program.put("a/0", b"another two", timestamp=stamp(began + 2))
        wait_until(lambda: again.status().duplicates == 1, what="the repeat to be compared")
        wait_until(lambda: again.status().conflicts == 1, what="the other payload to be compared")
        assert len(history(again)) == 12


def test_a_long_history_of_one_key_is_aligned(network: LocalNetwork, tmp_path: Path) -> None:
    """Each sample is a run of its own: more than one message tells of, and one pull asks for."""
    program = network.client()
    began = time.time() - 100_000
    with declare(network, "left", tmp_path / "left") as left:
        for number in range(5000):
            program.put("a/0", f"{number}".encode(), timestamp=stamp(began + number))
        wait_until(lambda: left.status().unnumbered == 5000, what="storing")
        assert left.wait_drained(10)
        with declare(network, "right", tmp_path / "right", hears=False) as right:
            wait_until(lambda: right.status().unnumbered == 5000, 30, "what the other has")
            program.put("a/0", b"late", timestamp=stamp(began - 10))
            wait_until(lambda: right.status().unnumbered == 5001, 30, "one late sample")
            assert right.status().alignment.pulled == 5001


def test_history_is_the_newest_by_timestamp_whenever_they_came(
    network: LocalNetwork, tmp_path: Path
) -> None:
    program = network.client()
    began = time.time() - 1000
    options = CacheOptions(name="left", retention_seconds=0.1)
    with declare(network, "left", tmp_path, align=False, history=3, options=options) as cache:
        for number in (4, 2, 5, 1, 3):
            program.put("a/0", f"{number}".encode(), timestamp=stamp(began + number))
        wait_until(lambda: cache.status().unnumbered == 5, what="storing")
        assert told(cache, "a/0") == [b"3", b"4", b"5"]
        assert cache.wait_drained(10)
        wait_until(lambda: len(list(cache.store.read(Selection(), 9).samples)) == 3, what="a trim")
        program.put("a/0", b"2", timestamp=stamp(began + 2))
        program.put("a/0", b"6", timestamp=stamp(began + 6))
        wait_until(lambda: told(cache, "a/0") == [b"4", b"5", b"6"], what="the newest")
        assert cache.status().unnumbered == 6, "what retention removed does not come in again"


def test_samples_without_a_timestamp_are_stamped_and_counted(
    network: LocalNetwork, tmp_path: Path
) -> None:
    program = network.client(timestamping={"enabled": False})
    with declare(network, "left", tmp_path, align=False) as cache:
        program.put("a/0", b"1")  # the router stamps it
        program.delete("a/0")  # but no delete
        program.delete("a/0")
        stored(cache, 3)
        assert [(s.kind, s.stamped) for s in history(cache)] == [
            (Kind.PUT, False),
            (Kind.DELETE, True),
            (Kind.DELETE, True),
        ]
        status = cache.status()
        assert (status.unnumbered, status.unnumbered_stamped, status.conflicts) == (3, 2, 0)


def test_a_wildcard_update_of_an_ordinary_program_is_applied(
    network: LocalNetwork, tmp_path: Path
) -> None:
    program = network.client()
    with declare(network, "left", tmp_path, align=False) as cache:
        program.put("a/b/1", b"1")
        program.put("a/b/2", b"2")
        program.put("a/c", b"3")
        stored(cache, 3)
        old = stamp(time.time() - 100)
        program.delete("a/b/**")
        program.put("a/b/1", b"older", timestamp=old)
        stored(cache, 5)
        assert get(program, "a/**") == [b"3"]


def test_what_is_not_stored_is_counted_and_said_once_for_each_key_expression(
    network: LocalNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    program = network.client()
    session = network.client()
    warned = declare_reliability_cache(session, ["a/**", "b/**"], unnumbered="warn")
    silent = declare_reliability_cache(session, "a/**")
    with warned, silent:
        make_known(session)
        for key in ("a/1", "a/2", "b/1"):
            program.put(key, b"x")
        wait_until(lambda: warned.status().ignored == 3, what="counting")
        wait_until(lambda: silent.status().ignored == 2, what="counting")
        assert (warned.status().appended, silent.status().appended) == (0, 0)
    said = [(r.storage, r.key_expr, r.key) for r in caplog.records if "without a number" in r.msg]
    assert sorted(said) == [("cache", "a/**", "'a/1'"), ("cache", "b/**", "'b/1'")]


def test_a_word_that_is_no_choice_is_refused_by_name(network: LocalNetwork) -> None:
    with pytest.raises(ConfigError, match='unnumbered \'keep\': write "store", "warn" or "ignore"'):
        declare_reliability_cache(network.client(), "a/**", unnumbered="keep")  # type: ignore[arg-type]


def test_a_sample_that_two_key_expressions_name_is_stored_once(network: LocalNetwork) -> None:
    program = network.client(timestamping={"enabled": False})
    session = network.client()
    with declare_reliability_cache(session, ["a/**", "a/b"], unnumbered="store") as cache:
        make_known(session)
        program.delete("a/b")
        program.delete("a/c")
        stored(cache, 2)
        wait_until(
            lambda: sum(each.without_source for each in cache.decoders) == 3,
            what="both subscriptions",
        )
        assert [sample.key for sample in history(cache)] == ["a/b", "a/c"]


def test_a_subscriber_is_given_history_and_what_comes_meanwhile_once(
    network: LocalNetwork, tmp_path: Path
) -> None:
    program = network.client()
    began = time.time() - 1000
    with (
        declare(network, "left", tmp_path / "left", align=False) as cache,
        declare_reliable_publisher(network.client(), "a/1", cache=False) as publisher,
    ):
        for number in range(3):
            program.put("a/0", f"{number}".encode(), timestamp=stamp(began + number))
            publisher.put(f"numbered {number}".encode())
        stored(cache, 6)
        with declare_reliable_subscriber(network.client(), "a/**", history=True) as subscriber:
            wait_until(lambda: subscriber.delivered == 6, what="history")
            program.put("a/0", b"3", timestamp=stamp(began + 3))
            program.put("a/0", b"2", timestamp=stamp(began + 2))  # over another route
            program.put("a/0", b"4", timestamp=stamp(began + 4))
            given = [subscriber.recv(5) for _ in range(8)]
            plain = [sample.payload for sample in given if sample.key == "a/0"]
            assert plain == [b"0", b"1", b"2", b"3", b"4"]
            assert {str(sample.source) for sample in given if sample.key == "a/0"} == {"c10c:0"}
            assert (subscriber.missed, subscriber.duplicates) == (0, 1)
            assert subscriber.history_complete

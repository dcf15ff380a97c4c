"""A wildcard update is no key: it is applied to the keys it names when they are read."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import zenoh

from durable_cache import CacheOptions, ReliabilityCache, declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until

FAST = replace(CacheOptions().aligner, slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)


QUERY = [sys.executable, "-m", "durable_cache.service"]
QUERY += ["query", "t/**", "--format", "json", "--connect"]


class Source:
    """A classic publisher with SourceInfo, on any key or expression, at any time."""

    def __init__(self, session: zenoh.Session) -> None:
        self.session = session
        self.publisher = session.declare_publisher("t/**")
        self.sn = 0
        wait_until(lambda: self.publisher.matching_status.matching, what="matching")

    def now(self) -> zenoh.Timestamp:
        return self.session.new_timestamp()

    def put(self, key: str, payload: bytes, stamp: zenoh.Timestamp | None = None) -> None:
        self.session.put(
            key,
            payload,
            timestamp=stamp or self.now(),
            source_info=zenoh.SourceInfo(self.publisher.id, self._next()),
            congestion_control=zenoh.CongestionControl.BLOCK,
        )

    def delete(self, key: str, stamp: zenoh.Timestamp | None = None) -> None:
        self.session.delete(
            key,
            timestamp=stamp or self.now(),
            source_info=zenoh.SourceInfo(self.publisher.id, self._next()),
            congestion_control=zenoh.CongestionControl.BLOCK,
        )

    def _next(self) -> int:
        self.sn += 1
        return self.sn - 1


def stored(cache: ReliabilityCache, count: int) -> None:
    wait_until(lambda: cache.status().appended >= count, what=f"{count} stored samples")


def get(session: zenoh.Session, selector: str) -> dict[str, bytes]:
    """Ask as any Zenoh application does; every reply under its key, DELETE as b"deleted"."""
    found = {}
    none = zenoh.ConsolidationMode.NONE
    for reply in session.get(selector, consolidation=none):
        assert reply.ok is not None, reply.err and reply.err.payload.to_string()
        deleted = reply.ok.kind == zenoh.SampleKind.DELETE
        found[str(reply.ok.key_expr)] = b"deleted" if deleted else reply.ok.payload.to_bytes()
    return found


def publish(source: Source) -> int:
    """Publish what every test here reads; returns how many samples that is."""
    early = source.now()
    for name in ("a", "b", "c"):
        source.put(f"t/w/{name}", b"first")
    source.delete("t/w/c")
    source.put("t/w/*", b"to all")
    source.put("t/w/d", b"after")
    source.put("t/other/e", b"other")
    source.put("t/w/late", b"late", early)
    source.delete("t/w/b/**")
    source.put("t/none/*", b"nobody")
    return 10


VALUES = {
    "t/w/a": b"to all",
    "t/w/d": b"after",
    "t/other/e": b"other",
    "t/w/late": b"to all",
}


def test_the_newest_of_a_key_is_what_the_updates_made_of_it(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "t/**") as cache:
        stored(cache, 0)
        source = Source(network.client())
        stored(cache, publish(source))
        asker = network.client()
        assert get(asker, "t/**") == VALUES
        assert get(asker, "t/w/a") == {"t/w/a": b"to all"}
        assert get(asker, "t/w/b") == {}
        newest = {**VALUES, "t/w/b": b"deleted", "t/w/c": b"deleted"}
        assert get(asker, "t/**?_max=1") == newest
        ran = subprocess.run(
            [*QUERY, network.endpoint, "--latest"],
            capture_output=True,
            timeout=30,
            check=True,
        )
        rows = [json.loads(line) for line in ran.stdout.splitlines()]
        assert {row["key"]: row["payload"].encode() for row in rows} == VALUES


def test_no_answer_shows_an_expression_as_a_key(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "t/**") as cache:
        source = Source(network.client())
        stored(cache, publish(source))
        asker = network.client()
        own = {"t/w/a", "t/w/b", "t/w/c", "t/w/d", "t/w/late", "t/other/e"}
        assert set(get(asker, "t/**?_time=[now(-1h)..]")) == own
        assert set(get(asker, "t/**?_max=5")) == own
        prefix = f"{source.publisher.id.zid}:{source.publisher.id.eid}"
        assert set(get(asker, "*/t/**")) == {f"{prefix}/{key}" for key in own}
        ran = subprocess.run(
            [*QUERY, network.endpoint],
            capture_output=True,
            timeout=30,
            check=True,
        )
        assert {json.loads(line)["key"] for line in ran.stdout.splitlines()} == own
        assert b"3 wildcard updates" in ran.stderr


def test_the_last_changes_of_a_key_are_its_own_and_the_updates(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "t/**") as cache:
        source = Source(network.client())
        for number in range(3):
            source.put("t/w/a", b"own %d" % number)
            source.put("t/w/**", b"all %d" % number)
        stored(cache, 6)
        replies = network.client().get("t/w/a?_max=4", consolidation=zenoh.ConsolidationMode.NONE)
        values = [reply.ok.payload.to_bytes() for reply in replies if reply.ok]
        assert values == [b"own 1", b"all 1", b"own 2", b"all 2"]


def test_updates_are_applied_after_a_restart_and_from_every_backend(
    network: LocalNetwork, tmp_path: Path
) -> None:
    def declared() -> ReliabilityCache:
        return declare_reliability_cache(
            network.client(),
            "t/**",
            backend="sql",
            backend_options={"url": f"sqlite:///{tmp_path}/samples.db"},
            state_dir=tmp_path,
        )

    with declared() as cache:
        source = Source(network.client())
        stored(cache, publish(source))
        assert get(network.client(), "t/**") == VALUES
    with declared():
        assert get(network.client(), "t/**") == VALUES
        assert get(network.client(), "t/w/a") == {"t/w/a": b"to all"}


def test_a_cache_that_aligns_says_the_same(network: LocalNetwork) -> None:
    options = CacheOptions(align=True, aligner=FAST)
    one = declare_reliability_cache(network.client(), "t/**", options=replace(options, name="one"))
    with one:
        source = Source(network.client())
        stored(one, publish(source))
        two = declare_reliability_cache(
            network.client(), "t/**", options=replace(options, name="two")
        )
        with two:
            stored(two, 10)
            one.close()
            assert get(network.client(), "t/**") == VALUES


def test_more_updates_than_the_bound_are_refused_counted_and_said(network: LocalNetwork) -> None:
    from durable_cache.storage.journaled.storage import JournalOptions

    options = CacheOptions(journal=JournalOptions(wildcard_updates_max=3))
    with declare_reliability_cache(network.client(), "t/**", options=options) as cache:
        source = Source(network.client())
        source.put("t/a/x", b"value")
        for number in range(5):
            source.delete("t/a/*")  # each overtakes the one before: no room is needed
            stored(cache, number + 2)
        source.put("t/a/x", b"value")
        source.put("t/b/*", b"")
        source.put("t/c/*", b"")
        stored(cache, 9)
        assert cache.status().refused == 0
        source.put("t/*/x", b"one too many")
        wait_until(lambda: cache.status().refused == 1, what="a refusal")
        assert "wildcard_updates_max = 3" in cache.error
        assert get(network.client(), "t/a/*") == {"t/a/x": b"value"}

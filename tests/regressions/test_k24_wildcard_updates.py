"""One publication on a key expression with wildcards costs no reader the samples beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import zenoh

from durable_cache import (
    CacheOptions,
    ReliabilityCache,
    Sample,
    declare_reliability_cache,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import source_of
from durable_cache.model.sample import SampleBatch, SourceId
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until

PUTS = 20
FAST = replace(CacheOptions().aligner, slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)


class Wild:
    """A publisher on many keys that also publishes on expressions, all under one numbering."""

    def __init__(self, session: zenoh.Session) -> None:
        self.session = session
        self.publisher = session.declare_publisher("t/**")
        self.source = source_of(self.publisher)
        self.sn = 0
        wait_until(lambda: self.publisher.matching_status.matching, what="matching")

    def put(self, key: str, payload: bytes, sn: int | None = None) -> zenoh.Timestamp:
        stamp = self.session.new_timestamp()
        self.session.put(key, payload, **self._with(stamp, sn))  # type: ignore[arg-type]
        return stamp

    def delete(self, key: str, sn: int | None = None) -> None:
        self.session.delete(key, **self._with(self.session.new_timestamp(), sn))  # type: ignore[arg-type]

    def _with(self, stamp: zenoh.Timestamp, sn: int | None) -> dict[str, object]:
        if sn is None:
            sn, self.sn = self.sn, self.sn + 1
        return {
            "source_info": zenoh.SourceInfo(self.publisher.id, sn),
            "timestamp": stamp,
            "congestion_control": zenoh.CongestionControl.BLOCK,
        }

    def all_of_it(self) -> None:
        """Publish twenty values, a deletion of them all, and one value after it."""
        for number in range(PUTS):
            self.put(f"t/w/{number}", b"%d" % number)
        self.delete("t/w/**")
        self.put("t/w/0", b"after")


def replace_key(sample: Sample, key: str) -> Sample:
    return msgspec.structs.replace(sample, key=key, sn=9)


def stored(cache: ReliabilityCache, count: int) -> None:
    wait_until(lambda: cache.status().appended >= count, what=f"{count} stored samples")


def keys(samples: list[Sample]) -> list[str]:
    return sorted(sample.key for sample in samples if "*" not in sample.key)


EXPECTED = sorted(["t/w/0", *(f"t/w/{number}" for number in range(PUTS))])


def test_history_of_a_late_joiner_is_whole(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "t/**") as cache:
        Wild(network.client()).all_of_it()
        stored(cache, PUTS + 2)
        received: list[Sample] = []
        with declare_reliable_subscriber(
            network.client(), "t/**", received.append, history=True
        ) as subscriber:
            wait_until(lambda: len(received) >= PUTS + 2, 5, "the history")
            assert keys(received) == EXPECTED
            assert [s.key for s in received if s.sn == PUTS] == ["t/w/**"]
            assert subscriber.missed == 0


def test_what_was_missed_around_it_is_recovered(network: LocalNetwork) -> None:
    near = network.client()  # what is lost on the way reaches only what is declared beside it
    with declare_reliability_cache(near, "t/**") as cache:
        wild = Wild(near)
        received: list[Sample] = []
        with declare_reliable_subscriber(
            network.client(), "t/w/3", received.append, gap_timeout_seconds=3
        ) as subscriber:
            far = near.declare_publisher("t/w/3")

            def reached() -> bool:
                far.put(b"probe")
                return any(sample.payload == b"probe" for sample in received)

            wait_until(reached, what="a path to the subscriber")
            received.clear()
            locally = zenoh.Locality.SESSION_LOCAL

            def lost(sn: int) -> dict[str, object]:
                stamp = near.new_timestamp()
                return {**wild._with(stamp, sn), "allowed_destination": locally}

            wild.put("t/w/3", b"0", 0)
            near.put("t/w/3", b"1", **lost(1))  # type: ignore[arg-type]
            near.delete("t/w/*", **lost(2))  # type: ignore[arg-type]
            near.put("t/w/3", b"3", **lost(3))  # type: ignore[arg-type]
            stored(cache, 4)
            wild.put("t/w/3", b"4", 4)

            def sourced() -> list[int]:
                return [sample.sn for sample in received if sample.source == wild.source]

            wait_until(lambda: len(sourced()) == 5 or subscriber.missed, 8, "all five")
            assert (sourced(), subscriber.missed) == ([0, 1, 2, 3, 4], 0)


def test_the_command_line_prints_the_others(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "t/**") as cache:
        Wild(network.client()).all_of_it()
        stored(cache, PUTS + 2)
        command = [sys.executable, "-m", "durable_cache.service", "query", "t/**"]
        options = ["--format", "json", "--connect", network.endpoint]
        ran = subprocess.run([*command, *options], capture_output=True, timeout=30, check=False)
        printed = [json.loads(line)["key"] for line in ran.stdout.splitlines()]
        assert sorted(key for key in printed if "*" not in key) == EXPECTED
        assert ran.returncode == 0, ran.stderr


def test_a_sample_nobody_can_take_costs_the_command_line_none_of_the_others(
    network: LocalNetwork,
) -> None:
    storage = MemoryStorage()
    good = [Sample(f"t/{number}", SourceId("a1", 1), 5, number, b"x") for number in range(3)]
    bad = replace_key(good[1], "t/1?")
    storage.append(SampleBatch([*good, bad]))
    with declare_reliability_cache(network.client(), "t/**", backend=storage):
        command = [sys.executable, "-m", "durable_cache.service", "query", "t/**"]
        options = ["--format", "json", "--connect", network.endpoint]
        ran = subprocess.run([*command, *options], capture_output=True, timeout=30, check=False)
    assert [json.loads(line)["key"] for line in ran.stdout.splitlines()] == ["t/0", "t/1", "t/2"]
    assert b"1 sample left out: 't/1?' is no key" in ran.stderr


def test_two_caches_align_all_of_it(network: LocalNetwork) -> None:
    options = CacheOptions(align=True, aligner=FAST)
    first = declare_reliability_cache(
        network.client(), "t/**", options=replace(options, name="first")
    )
    with first:
        Wild(network.client()).all_of_it()
        stored(first, PUTS + 2)
        second = declare_reliability_cache(
            network.client(), "t/**", options=replace(options, name="second")
        )
        with second:
            stored(second, PUTS + 2)
            assert keys(second.find("t/**")) == EXPECTED
            assert second.status().appended == first.status().appended


def test_a_file_of_it_is_exported_and_imported(network: LocalNetwork, tmp_path: Path) -> None:
    config = tmp_path / "cache.json5"
    volumes = {name: {"backend": "sql", "url": f"sqlite:///{tmp_path}/{name}.db"} for name in "ab"}
    storages = {name: {"key_expr": "t/**", "volume": name} for name in volumes}
    config.write_text(
        json.dumps(
            {
                "plugins": {
                    "durable_cache": {
                        "state_dir": str(tmp_path / "state"),
                        "volumes": volumes,
                        "storages": storages,
                    }
                }
            }
        )
    )
    with declare_reliability_cache(
        network.client(),
        "t/**",
        backend="sql",
        backend_options={"url": volumes["a"]["url"]},
        options=CacheOptions(name="a"),
    ) as cache:
        Wild(network.client()).all_of_it()
        stored(cache, PUTS + 2)

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "durable_cache.service", *arguments]
        command += ["--config", str(config)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert f"{PUTS + 2} samples exported" in run("export", "a/a", str(tmp_path / "file"))
    assert f"{PUTS + 2} samples imported" in run("import", str(tmp_path / "file"), "b/b")
    run("export", "b/b", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()

"""Does what is stale ever win, where zenohd's storages let it? Plain Zenoh programs, every backend.

Two aligned caches, each of which hears one program alone; both must answer plain GETs alike.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import zenoh

from durable_cache import CacheOptions, Origins, ReliabilityCache, declare_reliability_cache
from durable_cache.endpoints.session import Session, build_timestamp
from durable_cache.protocol.alignment import AlignerOptions
from durable_cache.storage.contract import Floor
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.integration.test_alignment_partition import BACKENDS, Volume, memory, opened

FAST = AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)
BEGAN = int(time.time()) - 1000
LEFT, RIGHT = "left", "right"


class Side:
    """A program, and the cache that hears nobody else."""

    def __init__(
        self, network: LocalNetwork, directory: Path, name: str, volume: Callable[..., Volume]
    ) -> None:
        self._network, self._directory, self._name = network, directory / name, name
        self._volume = volume
        self.start()

    def start(self) -> None:
        self.program: Session = self._network.client()
        self.cache: ReliabilityCache = declare_reliability_cache(
            self.program,
            "a/**",
            backend=opened(self._volume(self._directory, self._name), self._name),
            unnumbered="store",
            state_dir=self._directory,
            allowed_origin=Origins.SESSION_LOCAL,
            options=CacheOptions(name=self._name, align=True, aligner=FAST),
        )

    def stop(self) -> None:
        assert self.cache.wait_drained(20)
        self.cache.close()

    def put(self, key: str, seconds: float, value: str) -> None:
        self._heard(lambda: self.program.put(key, value, timestamp=stamp(seconds)))

    def delete(self, key: str, seconds: float) -> None:
        self._heard(lambda: self.program.delete(key, timestamp=stamp(seconds)))

    def _heard(self, publish: Callable[[], None]) -> None:
        """Publish, and wait until it is stored, so that what comes next comes later."""
        before = self.cache.status().appended
        publish()
        wait_until(lambda: self.cache.status().appended == before + 1, what="a stored sample")


def stamp(seconds: float) -> zenoh.Timestamp:
    """Return a time of another clock; quarters of a second are exact."""
    made = build_timestamp(int((BEGAN + seconds) * (1 << 32)), "c10c")
    assert made is not None
    return made


def answers(asker: Session) -> Counter[tuple[str, str]]:
    """Return the keys and values that there are, once for each cache that says so."""
    replies = asker.get("a/**", consolidation=zenoh.ConsolidationMode.NONE)
    there = [reply.ok for reply in replies if reply.ok is not None]
    return Counter((str(each.key_expr), each.payload.to_string()) for each in there)


@pytest.mark.parametrize("volume", BACKENDS)
def test_nothing_stale_wins(
    network: LocalNetwork, tmp_path: Path, volume: Callable[[Path, str], Volume]
) -> None:
    asker = network.client()
    left, right = Side(network, tmp_path, LEFT, volume), Side(network, tmp_path, RIGHT, volume)
    left.put("a/deleted", 10, "first")
    left.delete("a/deleted", 20)
    right.put("a/deleted", 15, "an older put after a delete")

    left.put("a/same interval", 30.75, "newer")
    right.put("a/same interval", 30.25, "an older put within the second that is compared")

    left.put("a/wild/x", 40, "first")
    left.delete("a/wild/**", 50)
    right.put("a/wild/x", 45, "an older put after a wildcard delete")

    right.put("a/while away", 55, "put before the other went")

    left.put("a/one second", 70.25, "put")
    left.delete("a/one second", 70.75)
    right.delete("a/other way round", 70.75)
    right.put("a/other way round", 70.25, "put that comes after its delete")

    left.put("a/purged", 65, "of the same source as everything else")
    left.delete("a/again", 80)
    right.put("a/again", 81, "put after the delete")

    expected = Counter(
        {
            ("a/same interval", "newer"): 2,
            ("a/again", "put after the delete"): 2,
            ("a/while away", "put before the other went"): 2,
            ("a/purged", "of the same source as everything else"): 2,
        }
    )
    wait_until(lambda: answers(asker) == expected, 30, "one state at both caches")
    (purged,) = left.cache.find("a/purged")
    left.cache.purge([Floor(purged.stream, purged.sn + 1)])
    del expected["a/purged", "of the same source as everything else"]
    wait_until(lambda: answers(asker) == expected, 30, "the same without what was purged")
    if volume is memory:
        left.stop()
        right.stop()
        return

    right.stop()
    left.delete("a/while away", 60)
    left.stop()
    del expected["a/while away", "put before the other went"]
    left.start()
    wait_until(lambda: answers(asker) == Counter(list(expected)), 20, "the same after a restart")
    right.start()
    wait_until(lambda: answers(asker) == expected, 30, "the delete at who was away")
    left.stop()
    wait_until(lambda: answers(asker) == Counter(list(expected)), 20, "the same at the other")
    right.stop()

"""Does a reader that joins behind a cut link hear what the other side wrote, once the link heals?

It knows the other side's writers by what the cache on its own side has of them, or not at all, and
nothing is published after the healing: it asks the cache that appears. So it hears of a writer that
came and went meanwhile, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from durable_cache import CacheOptions, declare_reliable_publisher, declare_reliable_subscriber
from durable_cache.testing.network import wait_until
from tests.integration.test_split_brain import ALIGNER, Halves, written

KEYS = ("a/there", "a/new", "a/short")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_reader_that_joined_behind_a_cut_hears_the_other_sides_tail(
    stack: ExitStack, tmp_path: Path
) -> None:
    halves = Halves(stack)
    near, far = (
        halves.cache(
            CacheOptions(align=True, aligner=ALIGNER, state_dir=tmp_path / name), far=name == "far"
        )
        for name in ("near", "far")
    )

    def publisher(key: str) -> Any:
        return declare_reliable_publisher(halves.client(far=False), key, acknowledgements=1)

    there = stack.enter_context(publisher("a/there"))
    wait_until(lambda: peers_of(near) == peers_of(far) == 1, 20, "caches that see each other")
    written({"a/there": "before"}, there)
    wait_until(lambda: far.find("a/**", 10), what="what was written before, behind the link")
    halves.link.cut()
    wait_until(lambda: not peers_of(near) and not peers_of(far), 30, "the parting")

    written({"a/there": "while cut"}, there)
    new = stack.enter_context(publisher("a/new"))
    written({"a/new": "while cut"}, new)
    with publisher("a/short") as short:
        written({"a/short": "while cut"}, short)
    reader = stack.enter_context(
        declare_reliable_subscriber(
            halves.client(far=True),
            "a/**",
            profile="eventually-consistent",
            periodic_queries=1.0,
        )
    )

    def values() -> dict[str, str]:
        return {
            each.key: bytes(each.sample.payload).decode() for each in reader.read() if each.sample
        }

    wait_until(lambda: values() == {"a/there": "before"}, 20, "what its own side has")
    halves.link.heal()
    wait_until(lambda: len(far.find("a/**", 10)) == 4, 60, "the cache of its side has it all")
    expected = dict.fromkeys(KEYS, "while cut")
    try:
        wait_until(lambda: values() == expected, 20)
    except AssertionError:
        assert values() == expected
    assert reader.missed == 0
    with publisher("a/short") as again:
        written({"a/short": "later"}, again)
        expected["a/short"] = "later"
        wait_until(lambda: values() == expected, 20)


def peers_of(cache: Any) -> int:
    return sum(peer.live for peer in cache.aligning.status())

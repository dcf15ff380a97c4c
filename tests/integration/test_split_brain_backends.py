"""Does every merge policy end as `docs/alignment.md` has it, whatever the caches store in?

One network is cut for all policies at once. Each has keys, two caches, publishers and readers of
its own; they share nothing but sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from durable_cache import (
    CacheOptions,
    ReliabilityCache,
    ReliableReader,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import Session
from durable_cache.model.sample import Kind
from durable_cache.model.selection import Selection
from durable_cache.profiles import InstanceState
from durable_cache.protocol.alignment import MergePolicy, SplitBrainOptions
from durable_cache.testing.network import wait_until
from tests.integration.test_alignment_partition import BACKENDS, Volume, opened
from tests.integration.test_split_brain import (
    ALIGNER,
    BEFORE,
    FAR,
    NEAR,
    TABLE,
    Halves,
    State,
    written,
)

DISPOSED = InstanceState.NOT_ALIVE_DISPOSED
OLD, NEARS, FARS = {*BEFORE.items()}, {*NEAR.items()}, {*FAR.items()}
CORRECTED = {
    MergePolicy.MERGE: (0, 0, 0),
    MergePolicy.DELETE: (1, 6, 0),
    MergePolicy.REPLACE: (1, 1, 6),
    MergePolicy.CATCH_UP: (1, 1, 3),
}
"""How often the master corrected, what it disposed, and what it restored."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@dataclass
class Sessions:
    """One half of the network: what its caches, readers and publishers are connected by."""

    caches: Session
    readers: Session
    publishers: Session


@dataclass
class Half:
    """What one policy has on one side of the link."""

    policy: MergePolicy
    cache: ReliabilityCache
    reader: ReliableReader
    publisher: Any

    def write(self, values: State) -> None:
        """Publish values, None deletes, until a cache has acknowledged them."""
        written({self._own(key): value for key, value in values.items()}, self.publisher)

    def _own(self, key: str) -> str:
        return f"{self.policy.value}/{key.removeprefix('a/')}"

    def _named(self, key: str) -> str:
        return f"a/{key.removeprefix(self.policy.value + '/')}"

    def history(self) -> set[tuple[str, str | None]]:
        """Return every value that any key ever had, as far as the cache has it."""
        return {
            (self._named(sample.key), value_of(sample))
            for sample in self.cache.read(Selection(), 1_000).samples
        }

    def states(self) -> list[State]:
        """Return the newest value of each key, as the cache has it and as the reader has it."""
        stored = self.cache.values(Selection(newest=1), 1_000).samples
        return [
            {self._named(sample.key): value_of(sample) for sample in stored},
            {
                self._named(each.key): None
                if each.instance_state is DISPOSED
                else value_of(each.sample)
                for each in self.reader.read()
            },
        ]

    def has_reported(self, changed: tuple[int, int, int]) -> bool:
        done = self.cache.status().alignment
        return (done.split_brains, done.instances_disposed, done.instances_restored) == changed

    @property
    def compared(self) -> int:
        return self.cache.status().alignment.sessions


def value_of(sample: Any) -> str | None:
    if sample is None or sample.kind is Kind.DELETE:
        return None
    return str(bytes(sample.payload), "utf-8")


class Policies:
    """Every policy on both sides of one link."""

    def __init__(
        self, stack: ExitStack, folder: Path, volume: Callable[[Path, str], Volume]
    ) -> None:
        self._stack, self._folder, self._volume = stack, folder, volume
        self.link = Halves(stack)
        self.sides = {
            far: Sessions(*(self.link.client(far=far) for _ in range(3))) for far in (False, True)
        }
        self.halves = {
            policy: (self._half(policy, far=False), self._half(policy, far=True))
            for policy in MergePolicy
        }

    def _half(self, policy: MergePolicy, *, far: bool) -> Half:
        sessions = self.sides[far]
        name = f"{policy.value}-{'far' if far else 'near'}"
        directory = self._folder / name
        directory.mkdir()
        options = CacheOptions(
            name=name,
            domain=policy.value,
            align=True,
            aligner=ALIGNER,
            state_dir=directory,
            split_brain=SplitBrainOptions(policy, 0 if far else 1),
        )
        key_expr = f"{policy.value}/**"
        cache = declare_reliability_cache(
            sessions.caches,
            key_expr,
            options=options,
            backend=opened(self._volume(directory, name.replace("-", "_")), name),
        )
        enter = self._stack.enter_context
        enter(cache)
        reader = enter(
            declare_reliable_subscriber(
                sessions.readers,
                key_expr,
                profile="eventually-consistent",
                domain=policy.value,
                periodic_queries=1.0,
            )
        )
        publisher = enter(
            declare_reliable_publisher(
                sessions.publishers,
                key_expr,
                acknowledgements=1,
                level="memory",
                domain=policy.value,
            )
        )
        return Half(policy, cache, reader, publisher)

    def every(self) -> list[Half]:
        return [half for pair in self.halves.values() for half in pair]

    def agree(self, policy: MergePolicy, agreed: State, *more: State) -> None:
        """Wait until caches and readers of both sides say the same, or each side its own."""
        wanted = [agreed, *more] if more else [agreed, agreed]

        def states() -> list[list[State]]:
            return [half.states() for half in self.halves[policy]]

        expected = [[one, one] for one in wanted]
        try:
            wait_until(lambda: states() == expected, 60)
        except AssertionError:
            assert states() == expected, policy

    def peers_seen(self) -> list[int]:
        """Return how many caches each cache sees."""
        counts = []
        for half in self.every():
            assert half.cache.aligning is not None
            counts.append(sum(peer.live for peer in half.cache.aligning.status()))
        return counts


@pytest.mark.parametrize("volume", BACKENDS)
def test_every_policy_ends_as_the_table_has_it(
    stack: ExitStack, tmp_path: Path, volume: Callable[[Path, str], Volume]
) -> None:
    all_of = Policies(stack, tmp_path, volume)
    wait_until(lambda: all(half.publisher.matched for half in all_of.every()), 20)
    wait_until(lambda: all(all_of.peers_seen()), 20, "caches that see each other")
    for near, _ in all_of.halves.values():
        near.write(BEFORE)
    for policy in MergePolicy:
        all_of.agree(policy, BEFORE)
    all_of.link.link.cut()
    wait_until(lambda: not any(all_of.peers_seen()), 30, "the parting")
    for near, far in all_of.halves.values():
        near.write(NEAR)
        far.write(FAR)
    ignoring = all_of.halves[MergePolicy.IGNORE]
    for half in ignoring:
        half.publisher.close()  # else each cache asks the other side's for what it lacks of it
    compared = [half.compared for half in ignoring]
    all_of.link.link.heal()

    for policy, agreed in TABLE.items():
        all_of.agree(policy, agreed)
        near, far = all_of.halves[policy]
        assert near.history() >= OLD | NEARS | FARS, "a sample that was acknowledged is gone"
        assert far.history() >= OLD | NEARS | FARS, "a sample that was acknowledged is gone"
        wait_until(partial(near.has_reported, CORRECTED[policy]), 20, f"report of {policy}")
        assert not near.cache.status().alignment.history_removed
        assert far.has_reported((0, 0, 0)), "only the master corrects"

    wait_until(lambda: all(h.compared > c for h, c in zip(ignoring, compared, strict=True)), 30)
    for half, own in zip(ignoring, ({**BEFORE, **NEAR}, {**BEFORE, **FAR}), strict=True):
        assert half.states()[0] == own, "each side keeps what it has"

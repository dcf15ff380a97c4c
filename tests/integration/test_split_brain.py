"""What do caches and readers agree on when two sides of a network meet again that both went on?

Two routers with a link between them, and on each side a cache, a publisher and a reader. The link
is cut, both publishers go on, the link heals. What each side had and what all have afterwards is
the table of `docs/alignment.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
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
from durable_cache.endpoints.session import Session, close_session, open_session
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.selection import Selection
from durable_cache.profiles import InstanceState
from durable_cache.protocol.alignment import AlignerOptions, MergePolicy, SplitBrainOptions
from durable_cache.protocol.cache.events import Origin
from durable_cache.testing.network import LocalNetwork, free_port, wait_until
from tests.kit.proxy import TcpProxy

ALIGNER = AlignerOptions(slot_seconds=1, settle_seconds=0.2)
DISPOSED = InstanceState.NOT_ALIVE_DISPOSED
ALIVE = InstanceState.ALIVE
State = dict[str, str | None]
"""The payload of each key, None where it is disposed."""


@dataclass
class Side:
    """One half of the network: its router, and who is connected to it."""

    session: Session
    cache: ReliabilityCache
    reader: ReliableReader

    def stored(self) -> State:
        """Return the newest value of each key as the cache has it."""
        page = self.cache.values(Selection(newest=1), 1_000)
        return {
            sample.key: None if sample.kind is Kind.DELETE else sample.payload.decode()
            for sample in page.samples
        }

    def history(self) -> set[tuple[str, str | None]]:
        """Return every value that any key ever had, as far as the cache has it."""
        page = self.cache.read(Selection(), 1_000)
        return {
            (sample.key, None if sample.kind is Kind.DELETE else sample.payload.decode())
            for sample in page.samples
        }

    def seen(self) -> State:
        """Return the newest value of each key as the reader has it."""
        return {
            each.key: None
            if each.instance_state is DISPOSED or each.sample is None
            else each.sample.payload.decode()
            for each in self.reader.read()
        }


class Halves:
    """Two routers and a link between them that can be cut."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._near = stack.enter_context(LocalNetwork())
        self.near_endpoint = self._near.endpoint
        self.link = stack.enter_context(TcpProxy(int(self.near_endpoint.rpartition(":")[2])))
        self._far_endpoint = f"tcp/127.0.0.1:{free_port()}"
        self._open(
            {
                "mode": "router",
                "listen": {"endpoints": [self._far_endpoint]},
                "connect": {
                    "endpoints": [f"tcp/127.0.0.1:{self.link.port}"],
                    "exit_on_failure": False,
                    "timeout_ms": -1,
                    "retry": {"period_init_ms": 50, "period_max_ms": 200},
                },
            }
        )

    def _open(self, settings: dict[str, object]) -> Session:
        session = open_session({"scouting": {"multicast": {"enabled": False}}, **settings})
        self._stack.callback(close_session, session)
        return session

    def client(self, *, far: bool) -> Session:
        if not far:
            return self._near.client()
        return self._open(
            {
                "mode": "client",
                "connect": {"endpoints": [self._far_endpoint]},
                "timestamping": {"enabled": True},
            }
        )

    def cache(self, options: CacheOptions, *, far: bool) -> ReliabilityCache:
        assert options.state_dir is not None
        options.state_dir.mkdir(exist_ok=True)
        cache = declare_reliability_cache(
            self.client(far=far),
            "a/**",
            options=options,
            backend="sql",
            backend_options={"url": f"sqlite:///{options.state_dir}/samples.db"},
        )
        return self._stack.enter_context(cache)

    def side(self, options: CacheOptions, *, far: bool) -> Side:
        cache = self.cache(options, far=far)
        reader = self._stack.enter_context(
            declare_reliable_subscriber(
                self.client(far=far),
                "a/**",
                profile="eventually-consistent",
                periodic_queries=1.0,
            )
        )
        return Side(self.client(far=far), cache, reader)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


BEFORE: State = {"a/same": "old", "a/both": "old", "a/near": "old", "a/far": "old", "a/gone": "old"}
NEAR: State = {"a/both": "near", "a/near": "near", "a/new/near": "near"}
FAR: State = {"a/both": "far", "a/far": "far", "a/new/far": "far", "a/gone": None}
"""Published after what the near side, which has the master, published."""
UNION: State = {
    "a/same": "old",
    "a/both": "far",
    "a/near": "near",
    "a/far": "far",
    "a/gone": None,
    "a/new/near": "near",
    "a/new/far": "far",
}
MASTERS: State = {
    **UNION,
    "a/both": "near",
    "a/far": "old",
    "a/gone": "old",
    "a/new/far": None,
}
TABLE = {
    MergePolicy.MERGE: UNION,
    MergePolicy.DELETE: dict.fromkeys(UNION),
    MergePolicy.REPLACE: MASTERS,
    MergePolicy.CATCH_UP: MASTERS,
}


OLD, NEARS, FARS = {*BEFORE.items()}, {*NEAR.items()}, {*FAR.items()}


class Parted:
    """Two sides that both went on while the link between them was cut."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        policy: MergePolicy,
        *,
        remove_history: bool = False,
        near: State = NEAR,
        second: bool = False,
    ) -> None:
        self.halves = Halves(stack)
        chosen = SplitBrainOptions(policy, 1, remove_history)
        self.options = CacheOptions(
            align=True, aligner=ALIGNER, state_dir=folder / "near", split_brain=chosen
        )
        self.near = self.halves.side(self.options, far=False)
        lesser = replace(chosen, master_priority=0)
        options = replace(self.options, state_dir=folder / "far", split_brain=lesser)
        self.far = self.halves.side(options, far=True)
        self.sides = [self.near, self.far]
        self.publishers = [
            stack.enter_context(
                declare_reliable_publisher(side.session, "a/**", acknowledgements=1)
            )
            for side in self.sides
        ]
        if second:
            options = replace(options, state_dir=folder / "second")
            self.sides.insert(1, self.halves.side(options, far=False))
        wait_until(lambda: all(publisher.matched for publisher in self.publishers), 20)
        written(BEFORE, self.publishers[0])
        self.agree(BEFORE)
        self.halves.link.cut()
        there = len(self.sides) - 2
        wait_until(lambda: len(peers(self.near)) == there and not peers(self.far), 30, "parting")
        written(near, self.publishers[0])
        written(FAR, self.publishers[1])
        assert self.near.stored() == {**BEFORE, **near}
        assert self.far.stored() == {**BEFORE, **FAR}

    def agree(self, agreed: State) -> None:
        """Wait until caches and readers of both sides say the same."""

        def all_states() -> list[State]:
            return [state for side in self.sides for state in (side.stored(), side.seen())]

        try:
            wait_until(lambda: all(state == agreed for state in all_states()), 60)
        except AssertionError:
            assert all_states() == [agreed] * 2 * len(self.sides)


@pytest.mark.parametrize(
    "policy",
    [
        MergePolicy.MERGE,
        pytest.param(MergePolicy.DELETE, marks=pytest.mark.nightly),
        pytest.param(MergePolicy.REPLACE, marks=pytest.mark.nightly),
        MergePolicy.CATCH_UP,
    ],
    ids=lambda policy: policy.value,
)
def test_all_agree_after_both_sides_went_on(
    stack: ExitStack, tmp_path: Path, policy: MergePolicy
) -> None:
    parted = Parted(stack, tmp_path, policy)
    parted.halves.link.heal()
    agreed = TABLE[policy]
    parted.agree(agreed)
    for side in parted.sides:
        assert side.history() >= OLD | NEARS | FARS, "a sample that was acknowledged is gone"
    late = stack.enter_context(
        declare_reliable_subscriber(
            parted.halves.client(far=True), "a/**", profile="eventually-consistent"
        )
    )
    wait_until(lambda: replace(parted.far, reader=late).seen() == agreed, 30)

    written({"a/both": "later"}, parted.publishers[1])
    parted.agree({**agreed, "a/both": "later"})
    done = parted.near.cache.status().alignment
    changed = (done.split_brains, done.instances_disposed, done.instances_restored)
    counts = {"merge": (0, 0, 0), "delete": (1, 6, 0), "replace": (1, 1, 6), "catch-up": (1, 1, 3)}
    assert changed == counts[policy.value]
    assert not done.history_removed
    assert not parted.far.cache.status().alignment.split_brains


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(MergePolicy.DELETE, marks=pytest.mark.nightly),
        pytest.param(MergePolicy.REPLACE, marks=pytest.mark.nightly),
        MergePolicy.CATCH_UP,
    ],
    ids=["delete", "replace", "catch-up"],
)
def test_history_is_removed_where_that_is_wanted(
    stack: ExitStack, tmp_path: Path, policy: MergePolicy
) -> None:
    parted = Parted(stack, tmp_path, policy, remove_history=True)
    parted.halves.link.heal()
    parted.agree(TABLE[policy])
    overruled = FARS - {("a/gone", None)}
    gone = OLD | NEARS | overruled if policy is MergePolicy.DELETE else overruled

    def left() -> list[set[tuple[str, str | None]]]:
        return [side.history() & gone for side in parted.sides]

    try:
        wait_until(lambda: not any(left()), 30)
    except AssertionError:
        assert left() == [set(), set()]
    for side in parted.sides:
        assert side.stored() == TABLE[policy]
        if policy is not MergePolicy.DELETE:
            assert side.history() >= OLD | NEARS
    wait_until(lambda: parted.near.cache.status().alignment.history_removed >= len(gone))


def test_a_value_that_the_master_cannot_publish_costs_the_others_nothing(
    stack: ExitStack, tmp_path: Path
) -> None:
    """One of an earlier version's storage: its encoding would end the session that sends it."""
    parted = Parted(stack, tmp_path, MergePolicy.CATCH_UP)
    clock = int(str(parted.near.session.new_timestamp()).partition("/")[0])
    unsendable = Sample(
        *("a/bad", SourceId("ab12", 7), 5, 0, b"near"),
        encoding="x" * 300,
        ntp64=clock,
        timestamp_id="ab12",
    )
    parted.near.cache.ingest.offer([unsendable], Origin.RECOVERED)
    wait_until(lambda: parted.near.stored().get("a/bad") == "near")
    written({"a/bad": "far"}, parted.publishers[1])
    parted.halves.link.heal()
    agreed = {**MASTERS, "a/bad": "far"}
    wait_until(lambda: all(side.stored() == agreed for side in parted.sides), 60, "agreement")


def test_a_master_that_restarts_while_the_sides_meet_corrects_all_the_same(
    stack: ExitStack, tmp_path: Path
) -> None:
    parted = Parted(stack, tmp_path, MergePolicy.CATCH_UP)
    merging = parted.near.cache.aligning.merging  # type: ignore[union-attr]
    assert merging is not None
    parted.halves.link.heal()
    wait_until(lambda: ("a/new/far", "far") in parted.near.history(), 30, "what is theirs")
    parted.near.cache.close()
    again = parted.halves.cache(parted.options, far=False)
    parted.near.cache = again
    parted.agree(MASTERS)


def test_a_side_of_two_caches_is_corrected_once(stack: ExitStack, tmp_path: Path) -> None:
    """The second takes from the far side what the master then takes from it."""
    parted = Parted(stack, tmp_path, MergePolicy.CATCH_UP, second=True)
    parted.halves.link.heal()
    parted.agree(MASTERS)

    def corrected() -> list[int]:
        return [side.cache.status().alignment.split_brains for side in parted.sides]

    # A correction is counted once it is stored, which is after everybody saw it.
    wait_until(lambda: sum(corrected()) > 0)
    assert corrected() == [1, 0, 0]


def test_a_side_that_stood_still_takes_what_the_other_has(stack: ExitStack, tmp_path: Path) -> None:
    parted = Parted(stack, tmp_path, MergePolicy.CATCH_UP, near={})
    parted.halves.link.heal()
    parted.agree({**BEFORE, **FAR})
    journal = parted.near.cache.store.journal
    assert journal is not None
    assert not journal.kept("split_brain"), "nothing waits to be corrected"
    assert not parted.near.cache.status().alignment.split_brains


def written(values: State, publisher: Any) -> None:
    """Publish values, None deletes, until caches have acknowledged them."""
    for key, value in values.items():
        if value is None:
            receipt = publisher.delete(key=key)
        else:
            receipt = publisher.put(value.encode(), key=key)
        assert receipt.wait(20)


def test_ignore_leaves_both_sides_as_they_are(stack: ExitStack, tmp_path: Path) -> None:
    halves = Halves(stack)
    chosen = SplitBrainOptions(MergePolicy.IGNORE)
    options = CacheOptions(align=True, aligner=ALIGNER, split_brain=chosen)
    near = halves.side(replace(options, state_dir=tmp_path / "near"), far=False)
    far = halves.side(replace(options, state_dir=tmp_path / "far"), far=True)
    values = {**BEFORE, **NEAR}, {**BEFORE, **FAR}
    with declare_reliable_publisher(near.session, "a/**", acknowledgements=2) as publisher:
        written(BEFORE, publisher)
    halves.link.cut()
    wait_until(lambda: not peers(near) and not peers(far), 30, "the parting")
    for side, own in ((near, NEAR), (far, FAR)):
        with declare_reliable_publisher(side.session, "a/**", acknowledgements=1) as publisher:
            written(own, publisher)
    before = compared(near), compared(far)
    halves.link.heal()
    wait_until(lambda: compared(near) > before[0] and compared(far) > before[1], 60, "comparing")
    with declare_reliable_publisher(near.session, "a/later", acknowledgements=2) as publisher:
        written({"a/later": "one"}, publisher)
    wait_until(lambda: equal(near) and equal(far), 30, "the end of comparing")
    later = {"a/later": "one"}
    assert (near.stored(), far.stored()) == (values[0] | later, values[1] | later)


def compared(side: Side) -> int:
    return side.cache.status().alignment.sessions


def equal(side: Side) -> bool:
    aligning = side.cache.aligning
    assert aligning is not None
    return all(peer.equal for peer in aligning.status())


def peers(side: Side) -> list[str]:
    aligning = side.cache.aligning
    assert aligning is not None
    return [peer.cache_id for peer in aligning.status() if peer.live]

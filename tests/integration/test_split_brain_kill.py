"""Does a master that is killed in the middle of a correction go on, to the same end?

It is a process of its own and ends by SIGKILL when some of its corrections are stored, or when all
are and its notes are still there. With three of `replace`, an instance is disposed and does not
have its value yet.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from durable_cache import CacheOptions, declare_reliable_publisher, declare_reliable_subscriber
from durable_cache.protocol.alignment import MergePolicy, SplitBrainOptions
from durable_cache.testing.network import wait_until
from tests.integration.test_split_brain import (
    ALIGNER,
    BEFORE,
    FAR,
    FARS,
    NEAR,
    NEARS,
    OLD,
    TABLE,
    Halves,
    Side,
    peers,
    written,
)
from tests.integration.test_stale_updates import answers
from tests.kit.faults import ModuleProcess


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("policy", "place"),
    [
        (MergePolicy.CATCH_UP, "2"),
        (MergePolicy.REPLACE, "3"),
        pytest.param(MergePolicy.CATCH_UP, "all", marks=pytest.mark.nightly),
        pytest.param(MergePolicy.DELETE, "3", marks=pytest.mark.nightly),
        pytest.param(MergePolicy.REPLACE, "all", marks=pytest.mark.nightly),
    ],
    ids=lambda given: given.value if isinstance(given, MergePolicy) else given,
)
def test_a_master_that_is_killed_while_it_corrects_goes_on(
    stack: ExitStack, tmp_path: Path, policy: MergePolicy, place: str
) -> None:
    halves = Halves(stack)
    folder = tmp_path / "master"
    folder.mkdir()
    (folder / "end").write_text(place)
    master = stack.enter_context(
        ModuleProcess(
            "tests.integration.split_brain_master",
            [halves.near_endpoint, str(folder), policy.value],
            ready="ready",
        )
    )
    options = CacheOptions(
        align=True,
        aligner=ALIGNER,
        state_dir=tmp_path / "far",
        split_brain=SplitBrainOptions(policy),
    )
    far = halves.side(options, far=True)
    wait_until(lambda: peers(far), 20, "the master")
    session = halves.client(far=False)
    reader = stack.enter_context(
        declare_reliable_subscriber(
            halves.client(far=False),
            "a/**",
            profile="eventually-consistent",
            periodic_queries=1.0,
        )
    )
    near = Side(session, far.cache, reader)
    publishers = [
        stack.enter_context(declare_reliable_publisher(one, "a/**", acknowledgements=1))
        for one in (session, far.session)
    ]
    wait_until(lambda: all(publisher.matched for publisher in publishers), 20)
    written(BEFORE, publishers[0])
    wait_until(lambda: far.stored() == far.seen() == near.seen() == BEFORE, 30, "one state")
    halves.link.cut()
    wait_until(lambda: not peers(far), 30, "the parting")
    written(NEAR, publishers[0])
    written(FAR, publishers[1])
    halves.link.heal()

    assert master.wait(60) == -signal.SIGKILL
    master.start()
    agreed = TABLE[policy]
    try:
        wait_until(lambda: far.stored() == far.seen() == near.seen() == agreed, 60)
    except AssertionError:
        assert [far.stored(), far.seen(), near.seen()] == [agreed] * 3
    there = {(key, value) for key, value in agreed.items() if value is not None}
    asker = halves.client(far=False)
    twice = Counter(dict.fromkeys(there, 2))
    wait_until(lambda: answers(asker) == twice, 30, "the same answer of both caches")
    assert far.history() >= OLD | NEARS | FARS, "a sample that was acknowledged is gone"

"""Does `instances` say what each key is, as readers with a profile see it?"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from durable_cache import declare_reliability_cache, declare_reliable_publisher
from durable_cache.testing.network import LocalNetwork

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network, declare_reliability_cache(network.client(), "fleet/**"):
        yield network


def test_each_key_with_its_state_and_writers(network: LocalNetwork, run: Run) -> None:
    where = ("--connect", network.endpoint)
    with declare_reliable_publisher(
        network.client(), "fleet/gone/**", acknowledgements=1, level="memory"
    ) as gone:
        assert gone.put(b"left", key="fleet/gone/1").wait(10)
    with declare_reliable_publisher(
        network.client(), "fleet/here/**", acknowledgements=1, level="memory"
    ) as here:
        for payload in (b"a", None, b"b"):
            one = "fleet/here/1"
            receipt = here.delete(key=one) if payload is None else here.put(payload, key=one)
            assert receipt.wait(10)
        assert here.put(b"deleted", key="fleet/here/2").wait(10)
        assert here.delete(key="fleet/here/2").wait(10)

        shown = run("instances", "fleet/**", "--depth", "9", "--json", *where)
        assert shown.returncode == 0, shown.stderr
        rows = {row["key"]: row for row in json.loads(shown.stdout)}
        assert [
            (key, row["state"], row["writers"], row["disposed"], row["payload"])
            for key, row in rows.items()
        ] == [
            ("fleet/gone/1", "NOT_ALIVE_NO_WRITERS", 0, 0, "left"),
            ("fleet/here/1", "ALIVE", 1, 1, "b"),
            ("fleet/here/2", "NOT_ALIVE_DISPOSED", 1, 0, ""),
        ]
        table = run("instances", "fleet/here/*", *where)
        assert table.returncode == 0
        assert table.stdout.splitlines()[0].split()[:3] == ["key", "state", "writers"]
        assert len(table.stdout.splitlines()) == 3
        assert table.stderr == "2 instances\n"
        fewer = run("instances", "fleet/**", "--limit", "2", *where)
        assert fewer.returncode == 1
        assert len(fewer.stdout.splitlines()) == 3
        assert "there are more than 2 keys" in fewer.stderr


def test_no_cache_in_reach_is_no_empty_answer(run: Run) -> None:
    with LocalNetwork() as network:
        asked = run("instances", "fleet/**", "--connect", network.endpoint)
    assert asked.returncode == 1
    assert asked.stdout == ""
    assert "no cache is in reach" in asked.stderr


def test_a_depth_of_0_is_refused(run: Run) -> None:
    asked = run("instances", "fleet/**", "--depth", "0")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "--depth" in asked.stderr

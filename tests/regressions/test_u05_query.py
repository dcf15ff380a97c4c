"""U5: README's `query` lines do what stands beside them; nobody in reach is an error."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import durable_cache
from durable_cache import declare_reliability_cache, declare_reliable_publisher
from durable_cache.testing.network import LocalNetwork, wait_until

TREE = Path(durable_cache.__file__).parents[1]
QUERIES = re.findall(
    r"^durable-cache (query .*?)(?:  +#.*)?$", (TREE / "README.md").read_text(), re.M
)


def run(network: LocalNetwork, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "durable_cache.service", *arguments),
            *("--connect", network.endpoint),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.fixture(scope="module")
def network() -> Iterator[LocalNetwork]:
    with (
        LocalNetwork() as network,
        declare_reliability_cache(network.client(), "fleet/**"),
        declare_reliable_publisher(
            network.client(), "fleet/*/pose", acknowledgements=1, level="memory"
        ) as publisher,
    ):
        for sn in range(30):
            receipt = publisher.put(b"%d" % sn, key=f"fleet/{sn % 2}/pose")
            assert receipt is not None
            assert receipt.wait(10)
        yield network


@pytest.fixture
def nobody() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        yield network


def rows(result: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_each_key_holds_now_is_a_line_for_each_key(network: LocalNetwork) -> None:
    arguments = shlex.split(QUERIES[0])
    assert arguments[1] == "fleet/*/pose"
    found = rows(run(network, *arguments, "--format", "json"))
    assert [(row["key"], row["payload"]) for row in found] == [
        ("fleet/0/pose", "28"),
        ("fleet/1/pose", "29"),
    ]


def test_a_source_in_front_of_the_keys_is_read_as_everywhere(network: LocalNetwork) -> None:
    arguments = shlex.split(QUERIES[2])
    assert arguments[1] == "*/fleet/**?_sn=10..20"
    found = rows(run(network, *arguments))
    assert sorted(int(str(row["sn"])) for row in found) == [*range(10, 21)]
    source = str(found[0]["source"])
    named = rows(run(network, "query", f"{source}/fleet/**?_sn=3", "--format", "json"))
    assert [row["sn"] for row in named] == [3]
    any_first_chunk = rows(run(network, "query", "*/*/pose?_max=1", "--format", "json"))
    assert {row["key"] for row in any_first_chunk} == {"fleet/0/pose", "fleet/1/pose"}
    latest = rows(run(network, "query", "*/fleet/**", "--latest", "--format", "json"))
    assert [row["payload"] for row in latest] == ["28", "29"]


@pytest.mark.parametrize("keys", ["aaa", "zyx"])
def test_what_happened_first_stands_first_whoever_published_it(
    nobody: LocalNetwork, keys: str
) -> None:
    assert "the whole history is printed, oldest first" in (TREE / "README.md").read_text()
    with declare_reliability_cache(nobody.client(), "turn/**") as cache:
        publishers = [
            declare_reliable_publisher(nobody.client(id=zid), "turn/*", cache=False)
            for zid in ("c" * 32, "b" * 32, "a" * 32)
        ]
        wait_until(lambda: all(publisher.matched for publisher in publishers), what="matching")
        for at in range(6):
            publishers[at % 3].put(b"n%d" % at, key=f"turn/{keys[at % 3]}")
        wait_until(lambda: cache.status().appended == 6, what="all of it")
        for asked in ("turn/**", "*/turn/*", "*/*"):
            printed = run(nobody, "query", asked, "--format", "csv").stdout
            assert re.findall(r"\bn(\d)", printed) == list("012345")
        printed = run(nobody, "query", "turn/**", "--limit", "3").stdout
        assert re.findall(r"\bn(\d)", printed) == list("012")
        for publisher in publishers:
            publisher.close()


@pytest.mark.parametrize(
    "parameters",
    ["_time=[now(-1h);2h]", "_time=[now(-1h);2h];_max=15", "_max=15;_time=[now(-1h);2h["],
)
def test_a_duration_is_read_as_the_readme_writes_it(network: LocalNetwork, parameters: str) -> None:
    assert "`[a;5m]`" in (TREE / "README.md").read_text()
    found = rows(run(network, "query", f"fleet/**?{parameters}", "--format", "json"))
    assert len(found) == 30


@pytest.mark.parametrize("more", [(), ("--latest",)])
def test_nobody_in_reach_is_not_nothing_found(
    network: LocalNetwork, nobody: LocalNetwork, more: tuple[str, ...]
) -> None:
    away = run(nobody, "query", "fleet/**", *more)
    assert away.returncode == 1
    assert "no cache is in reach" in away.stderr
    empty = run(network, "query", "fleet/none", *more)
    assert empty.returncode == 0
    assert "nothing found" in empty.stderr

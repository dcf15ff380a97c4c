"""Are services asked that a person named once, and never others without a word?"""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import durable_cache as dc
from durable_cache.testing.network import LocalNetwork

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return {**environment, "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture(scope="module")
def networks() -> Iterator[list[LocalNetwork]]:
    """Two networks, each with a cache that holds one sample, which is its name."""
    with LocalNetwork() as lab, LocalNetwork() as plant:
        caches = [
            dc.declare_reliability_cache(network.client(), "where") for network in (lab, plant)
        ]
        for network, name in ((lab, "lab"), (plant, "plant")):
            with dc.declare_reliable_publisher(
                network.client(), "where", acknowledgements=1, level="memory"
            ) as out:
                receipt = out.put(name)
                assert receipt is not None
                assert receipt.wait(20)
        yield [lab, plant]
        for cache in caches:
            cache.close()


def where(run: Run, *arguments: str, **variables: str) -> str:
    """Return the name of the network that `query` asked."""
    result = run("query", "where", "--json", "--timeout", "5", *arguments, **variables)
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    return str(json.loads(line)["payload"])


def test_verbs_ask_the_services_that_are_in_use(
    run: Run, networks: list[LocalNetwork], tmp_path: Path
) -> None:
    lab, plant = networks
    added = run("context", "add", "lab", "--connect", lab.endpoint, "--use")
    assert (added.returncode, added.stdout) == (0, "lab is known and used\n"), added.stderr
    (tmp_path / "plant.json5").write_text(
        '{ mode: "client", scouting: { multicast: { enabled: false } },'
        f' connect: {{ endpoints: ["{plant.endpoint}"] }} }}'
    )
    assert run("context", "add", "plant", "--config", "plant.json5").returncode == 0
    assert where(run) == "lab"
    assert where(run, "--context", "plant") == "plant"
    assert where(run, DURABLE_CACHE_CONTEXT="plant") == "plant"
    assert where(run, "--context", "lab", DURABLE_CACHE_CONTEXT="plant") == "lab"
    assert where(run, "--connect", plant.endpoint) == "plant", "options go before it"
    assert where(run, DURABLE_CACHE_CONNECT=plant.endpoint) == "plant", "so does the environment"
    assert where(run, "--context", "lab", DURABLE_CACHE_CONNECT=plant.endpoint) == "lab"
    assert where(run, "--config", "plant.json5") == "plant"
    assert run("context", "use", "plant").stdout == "plant is used\n"
    assert where(run) == "plant"
    put = run("put", "where/else", "x", "--no-wait", "--context", "plant")
    assert put.returncode == 0, put.stderr


def test_contexts_are_listed_and_removed(run: Run, tmp_path: Path) -> None:
    none = run("context", "list")
    assert (none.returncode, none.stdout) == (0, "")
    assert "there is no context" in none.stderr
    assert json.loads(run("context", "list", "--json").stdout) == []
    for name in ("lab", "plant"):
        told = run("context", "add", name, "-e", "tcp/127.0.0.1:1", "-e", "tcp/127.0.0.1:2")
        assert told.returncode == 0, told.stderr
    assert run("context", "use", "lab").returncode == 0
    rows = json.loads(run("context", "list", "--json").stdout)
    assert [(row["name"], row["used"]) for row in rows] == [("lab", True), ("plant", False)]
    assert rows[0]["connect"] == ["tcp/127.0.0.1:1", "tcp/127.0.0.1:2"]
    assert "tcp/127.0.0.1:1, tcp/127.0.0.1:2" in run("context", "list").stdout
    file = tmp_path / "config/durable-cache/contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "an endpoint may hold a password"
    assert run("context", "remove", "lab").stdout == "lab is forgotten\n"
    rows = json.loads(run("context", "list", "--json").stdout)
    assert [(row["name"], row["used"]) for row in rows] == [("plant", False)]
    assert run("context", "use").stdout == "no context is used\n"


def test_what_is_wrong_is_named_with_what_is_nearest(run: Run, tmp_path: Path) -> None:
    assert run("context", "add", "plant", "--connect", "tcp/127.0.0.1:1").returncode == 0
    for arguments, said in (
        (("context", "use", "palnt"), "'palnt'; did you mean plant?; there are: plant; durable-"),
        (("context", "remove", "x"), "no context is called 'x'; there are: plant"),
        (("query", "a", "--context", "plnt"), "no context is called 'plnt'; did you mean plant?"),
        (("context", "add", "plant", "-e", "tcp/127.0.0.1:2"), "'plant' already"),
        (("context", "add", "a/b", "-e", "tcp/127.0.0.1:2"), "'a/b' is no name of a context"),
        (("context", "add", "lab"), "name --connect ENDPOINT, --config FILE or both"),
        (("context", "add", "lab", "--connect", "nowhere"), "nowhere"),
        (("context", "add", "lab", "--config", "gone.json5"), "gone.json5"),
        (("context", "lst"), "'lst' is none of add, use, list, remove; did you mean list?"),
    ):
        result = run(*arguments)
        assert result.returncode == 2, arguments
        assert said in result.stderr, result.stderr
    away = run("status", "--context", "plant")
    assert away.returncode == 1
    assert "is context 'plant' right?" in away.stderr
    (tmp_path / "config/durable-cache/contexts.json").write_text('{"current": 1}')
    broken = run("query", "a")
    assert broken.returncode == 2
    assert "contexts.json: " in broken.stderr
    assert "correct it, or move it away" in broken.stderr

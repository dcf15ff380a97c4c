"""Does the command line say what is wrong with a configuration, with the right exit code?"""
# ruff: noqa: E501 - one mistake a line

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

GOOD = """{
  connect: { endpoints: ["tcp/127.0.0.1:7447"] },
  plugins: { durable_cache: {
    volumes: { quick: { backend: "memory" } },
    storages: { lab: { key_expr: "lab/**", acknowledge: "memory" } } } } }
"""


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("durable-cache: ")
    return lines[0]


def test_a_good_configuration_is_shown_in_effect(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(GOOD)
    result = run("check-config", "cache.json5")
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    ours = shown["plugins"]["durable_cache"]
    assert shown["connect"] == {"endpoints": ["tcp/127.0.0.1:7447"]}
    assert ours["storages"]["lab"]["key_expr"] == "lab/**"
    assert ours["storages"]["lab"]["volume"] == "quick"
    assert ours["state_dir"] == "durable-cache-data"
    assert "lab: lab/** -> memory: this process's memory" in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "cache.json5"], "a check creates nothing"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("lab/**", "lab//x"), "plugins.durable_cache.storages.lab.key_expr: 'lab//x'"),
        (("key_expr", "key_exp"), "storages.lab.key_exp: unknown setting; did you mean 'key_expr'?"),
        (('"memory" } }', '"memroy" } }'), "volumes.quick.backend: no backend is called 'memroy'; installed:"),
        (('acknowledge: "memory"', "x: 1"), "storages.lab.x: unknown setting"),
        ((', acknowledge: "memory"', ""), "storages.lab.acknowledge: level 'disk' cannot be kept in memory"),
        (("connect:", "conect:"), "conect: Zenoh knows no such setting"),
        (('endpoints: ["tcp', 'endpoint: ["tcp'), "connect: Zenoh: unknown field `endpoint`, expected one of"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["check-config", "serve"])
def test_a_mistake_ends_with_2_and_one_clear_line(
    verb: str, change: tuple[str, str], said: str, run: Run, tmp_path: Path
) -> None:
    assert change[0] in GOOD
    (tmp_path / "cache.json5").write_text(GOOD.replace(*change, 1))
    result = run(verb, "--config", "cache.json5")
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert said in one_line(result)
    assert list(tmp_path.iterdir()) == [tmp_path / "cache.json5"], "nothing is silently created"


def test_a_missing_file_is_named(run: Run) -> None:
    result = run("serve", "--config", "absent.yaml")
    assert result.returncode == 2
    assert "absent.yaml: No such file" in one_line(result)


def test_secrets_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(
        """{ transport: { auth: { usrpwd: { user: "u", password: "canary-1" } } },
             plugins: { durable_cache: {
               volumes: { pg: { backend: "sql", url: "postgresql://u:canary-2@h/d" } },
               storages: { lab: { key_expr: "lab/**" } } } } }"""
    )
    result = run("check-config", "cache.json5")
    assert result.returncode == 0, result.stderr
    assert "canary" not in result.stdout + result.stderr
    assert "u:***@h" in result.stdout


def test_a_misspelt_variable_is_an_error(run: Run) -> None:
    result = run("check-config", DURABLE_CACHE_STATEDIR="x")
    assert result.returncode == 2
    assert "did you mean DURABLE_CACHE_STATE_DIR" in one_line(result)


def test_the_backends_are_listed(run: Run) -> None:
    result = run("backends", "--format", "json")
    assert result.returncode == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["memory"]["installed"] is True
    assert {"delta", "influxdb", "sql"} <= set(rows)
    assert "memory" in run("backends").stdout


@pytest.mark.parametrize(
    "arguments",
    [(), ("frob",), ("serve", "--colour"), ("backends", "--format", "xml")],
)
def test_usage_errors_end_with_2(arguments: tuple[str, ...], run: Run) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert "usage: durable-cache" in result.stderr

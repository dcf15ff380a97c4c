"""Is what `put` publishes stored when it says so, and does it explain why caches are silent?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_cache import declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.acceptance.conftest import COMMAND

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Any]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with (
        LocalNetwork() as network,
        declare_reliability_cache(
            network.client(),
            "fleet/**",
            backend="sql",
            backend_options={"url": f"sqlite:///{tmp_path}/samples.db"},
            state_dir=tmp_path,
        ),
    ):
        yield network


def payloads(run: Run, network: LocalNetwork, selector: str) -> list[str]:
    result = run("query", selector, "--json", "--connect", network.endpoint)
    assert result.returncode == 0, result.stderr
    return [json.loads(line)["payload"] for line in result.stdout.splitlines()]


def test_a_value_is_stored_when_put_says_so(network: LocalNetwork, run: Run) -> None:
    put = run("put", "fleet/7/pose", "x=1", "--connect", network.endpoint)
    assert (put.returncode, put.stderr) == (0, "")
    assert put.stdout == "fleet/7/pose: acknowledged by 1 cache at level disk\n"
    query = run("query", "fleet/**", "--json", "--connect", network.endpoint)
    assert [json.loads(line)["payload"] for line in query.stdout.splitlines()] == ["x=1"]
    assert query.stderr == "1 sample from 1 cache\n"


def test_encoding_attachment_and_bytes_arrive(network: LocalNetwork, run: Run) -> None:
    more = ("--encoding", "application/json", "--attachment", "note", "--json")
    put = run("put", "fleet/7/state", '{"a": 1}', *more, "--connect", network.endpoint)
    assert put.returncode == 0, put.stderr
    said = json.loads(put.stdout)
    assert (said["published"], said["acknowledged"], said["sn"]) == (1, 1, 0)
    assert list(said["caches"].values()) == ["disk"]
    query = run("query", "fleet/**", "--json", "--connect", network.endpoint)
    (row,) = [json.loads(line) for line in query.stdout.splitlines()]
    assert (row["payload"], row["encoding"]) == ('{"a": 1}', "application/json")
    assert (row["attachment"], row["source"]) == ("note", said["source"])


def test_every_line_of_stdin_is_a_sample(
    network: LocalNetwork, run: Run, tmp_path: Path, environment: dict[str, str]
) -> None:
    began = time.monotonic()
    put = subprocess.run(
        [*COMMAND, "put", "fleet/7/count", "-", "--rate", "50", "--connect", network.endpoint],
        input="".join(f"{number}\n" for number in range(49)) + "last",
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert put.returncode == 0, put.stderr
    assert put.stdout == "fleet/7/count: 50 samples: acknowledged by 1 cache at level disk\n"
    assert time.monotonic() - began >= 49 / 50, "the rate is kept"
    assert payloads(run, network, "fleet/7/count") == [*map(str, range(49)), "last"]


def test_an_empty_stdin_is_said_and_no_acknowledgement_claimed(
    network: LocalNetwork, tmp_path: Path, environment: dict[str, str]
) -> None:
    put = subprocess.run(
        [*COMMAND, "put", "fleet/7/count", "-", "--connect", network.endpoint],
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (put.returncode, put.stdout) == (0, "")
    assert "fleet/7/count: nothing was published, standard input was empty" in put.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("elsewhere/x", "1"), "the caches in reach store fleet/**, not elsewhere/x; add it to"),
        (("fleet/x", "1", "--domain", "lab"), "no cache of the domain 'lab' is in reach; start"),
        (("fleet/x", "1", "--acknowledgements", "2"), "1 of 2 caches have it; start more, or ask"),
    ],
)  # fmt: skip
def test_silence_ends_with_1_and_a_remedy(
    network: LocalNetwork, run: Run, arguments: tuple[str, ...], said: str
) -> None:
    put = run("put", *arguments, "--timeout", "1", "--connect", network.endpoint)
    assert put.returncode == 1
    assert put.stdout == ""
    assert f"not acknowledged within 1 s: {said}" in put.stderr
    assert len(put.stderr.splitlines()) == 1


def test_a_level_below_the_wanted_one_is_named(run: Run) -> None:
    with (
        LocalNetwork() as network,
        declare_reliability_cache(network.client(), "fleet/**"),
    ):
        put = run("put", "fleet/x", "1", "--timeout", "1", "--connect", network.endpoint)
        assert put.returncode == 1
        assert "1 cache acknowledged at level memory; --level memory takes that" in put.stderr
        more = ("--level", "memory", "--connect", network.endpoint)
        assert run("put", "fleet/x", "1", *more).returncode == 0


def test_no_cache_is_named_as_such_where_nobody_listens(run: Run) -> None:
    with LocalNetwork() as network:
        put = run("put", "fleet/x", "1", "--timeout", "0.5", "--connect", network.endpoint)
        assert put.returncode == 1
        assert "no cache of the domain 'default' is in reach" in put.stderr
        assert run("put", "a/x", "1", "--no-wait", "--connect", network.endpoint).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fleet/*", "1"), "key 'fleet/*': name one key, without wildcards"),
        (("fleet//x", "1"), "key 'fleet//x': "),
        (("fleet/x", "1", "--acknowledgements", "0"), "--no-wait waits for none"),
        (("fleet/x", "1", "--rate", "-1"), "--rate: expected 0, for no limit, or above, got -1"),
        (("fleet/x", "1", "--cfg", "mode:router"), "--cfg mode: the value is no JSON5"),
    ],
)
def test_wrong_arguments_end_with_2(run: Run, arguments: tuple[str, ...], said: str) -> None:
    put = run("put", *arguments)
    assert put.returncode == 2, put.stderr
    assert said in put.stderr


def test_history_comes_first_and_then_what_is_published(
    network: LocalNetwork, run: Run, start: Start
) -> None:
    for value in ("1", "2", "3"):
        put = run("put", "fleet/7/pose", value, "--connect", network.endpoint)
        assert put.returncode == 0, put.stderr
    follow = start("query", "fleet/**", "--follow", "--json", "--connect", network.endpoint)
    wait_until(lambda: len(follow.stdout.splitlines()) == 3, 30, "history")
    for value in ("4", "5"):
        run("put", "fleet/8/pose", value, "--connect", network.endpoint)
    wait_until(lambda: len(follow.stdout.splitlines()) == 5, 30, "what was published")
    follow.send(signal.SIGINT)
    assert follow.end() == 130
    shown = [json.loads(line)["payload"] for line in follow.stdout.splitlines()]
    assert shown == ["1", "2", "3", "4", "5"]
    assert "Traceback" not in follow.stderr


def test_following_ends_at_its_limit_and_takes_every_way_to_name_keys(
    network: LocalNetwork, run: Run
) -> None:
    for value in ("1", "2", "3"):
        assert run("put", "fleet/7/pose", value, "--connect", network.endpoint).returncode == 0
    for selector in ("*/fleet/**", "*/7/pose", "fleet/**?_max=5", "fleet/7/pose"):
        follow = run(
            "query", selector, "--follow", "--limit", "2", "--json", "--connect", network.endpoint
        )
        assert follow.returncode == 0, follow.stderr
        shown = [json.loads(line)["payload"] for line in follow.stdout.splitlines()]
        assert shown == ["1", "2"], selector
        assert follow.stderr == "2 samples\n"
    refused = run("query", "fleet/**?_sn=1..", "--follow", "--connect", network.endpoint)
    assert refused.returncode == 2
    assert "numbers begin anew" in refused.stderr


def test_following_says_that_no_cache_is_in_reach_and_waits_for_one(start: Start) -> None:
    with LocalNetwork() as network:
        follow = start("query", "fleet/**", "--follow", "--connect", network.endpoint)
        follow.wait_for("no cache is in reach yet")
        follow.send(signal.SIGINT)
        assert follow.end() == 130


def test_help_and_put_import_only_what_they_use() -> None:
    """What makes a command slow is what it imports; a stopwatch would measure the machine."""
    heavy = ("zenoh", "sqlalchemy", "alembic", "msgspec", "yaml", "json5", "importlib.metadata")
    publishing = ("sqlalchemy", "alembic", "sqlite3", "durable_cache.runtime", "http.server")
    for arguments, unwanted in (
        (["--help"], heavy),
        ([], heavy),
        (["put", "a", "b", "--timeout", "0.1"], publishing),
    ):
        code = (
            "import sys\nfrom durable_cache.service.cli import main\n"
            f"main({arguments!r})\n"
            f"print([name for name in {unwanted!r} if name in sys.modules], file=sys.stderr)"
        )
        result = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "DURABLE_CACHE_CONNECT": "tcp/127.0.0.1:1",
            },
        )
        assert result.stderr.splitlines()[-1] == "[]", (arguments, result.stderr)


def test_a_key_in_another_encoding_is_refused_and_not_a_traceback(run: Run) -> None:
    wrong = os.fsdecode(b"fleet/\xe9")
    for arguments in (("put", wrong, "1"), ("query", wrong)):
        result = run(*arguments, "-e", "tcp/127.0.0.1:1", PYTHONUTF8="1")
        assert (result.returncode, result.stdout) == (2, "")
        assert "no UTF-8 text" in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_verb_works_whichever_standard_file_its_caller_closed(
    network: LocalNetwork, environment: dict[str, str], closed: str, tmp_path: Path
) -> None:
    verbs = ("put fleet/a -", "put fleet/a 1", "query fleet/a", "--version", "backends")
    for at, verb in enumerate(verbs):
        where = "" if verb in ("--version", "backends") else f"-e {network.endpoint}"
        result = subprocess.run(
            ["sh", "-c", f'"$@" {verb} {where} {closed}', "sh", *COMMAND],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in result.stderr
        assert result.returncode == 0, (at, result.stderr)

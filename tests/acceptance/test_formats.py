"""Is what `query` and `export` write in every format what was published, and the file whole?"""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("mcap")

import pyarrow as pa
import pyarrow.parquet as pq
from mcap.reader import make_reader

import durable_cache as dc
from durable_cache import CacheOptions
from durable_cache.frame import COLUMNS
from durable_cache.storage.plugins import open_storage
from durable_cache.testing.network import LocalNetwork
from tests.acceptance.conftest import COMMAND
from tests.servers.zenoh_sources import ready_publisher

Run = Callable[..., subprocess.CompletedProcess[str]]
SAMPLES = 500
CONFIG = """{ plugins: { durable_cache: { state_dir: "data",
  volumes: { main: { backend: "sql", url: "sqlite:///data/main.db" } },
  storages: { fleet: { key_expr: "fleet/**", volume: "main" } } } } }"""


class Fleet(NamedTuple):
    """A cache that holds a history of two keys, the directory its files are in, and the history."""

    endpoint: str
    directory: Path
    frame: pa.Table


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("fleet")
    (directory / "data").mkdir()
    (directory / "fleet.json5").write_text(CONFIG)
    with (
        LocalNetwork() as network,
        dc.declare_reliability_cache(
            network.client(),
            "fleet/**",
            backend=open_storage("sql", "fleet", {"url": f"sqlite:///{directory}/data/main.db"}),
            options=CacheOptions(query_samples_max=150),
        ),
    ):
        # Its own cache would answer, too.
        with ready_publisher(
            network.client(), "fleet/*", acknowledgements=1, level="memory"
        ) as out:
            receipts = [
                out.put(
                    json.dumps({"x": number}),
                    key=f"fleet/{number % 2}",
                    encoding="application/json",
                    attachment=b"\x00%d" % number if number % 100 == 0 else None,
                )
                for number in range(SAMPLES)
            ]
            receipts.append(out.delete(key="fleet/1"))
            for receipt in receipts:
                assert receipt is not None
                assert receipt.wait(20)
        yield Fleet(network.endpoint, directory, dc.read(network.client(), "fleet/**").to_arrow())


@pytest.fixture
def query(fleet: Fleet, run: Run) -> Run:
    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run("query", *arguments, "--connect", fleet.endpoint)

    return ask


def messages_in(path: Path) -> list[tuple[Any, Any, Any]]:
    file = io.BytesIO(path.read_bytes())
    return [*make_reader(file, validate_crcs=True).iter_messages()]


def rows_in(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(path.read_text(), newline=""))]


def check_recording(path: Path) -> None:
    messages = messages_in(path)
    times = [message.log_time for _, _, message in messages]
    assert times == sorted(times)
    for topic, remainder in (("fleet/0", 0), ("fleet/1", 1)):
        found = [message for _, channel, message in messages if channel.topic == topic]
        assert [json.loads(message.data)["x"] for message in found] == [
            *range(remainder, SAMPLES, 2)
        ]
    attached = [m.data for _, c, m in messages if c.topic == "fleet/0/@attachment"]
    assert attached == [b"\x00%d" % number for number in range(0, SAMPLES, 100)]
    (deleted,) = [c for _, c, _ in messages if c.topic == "fleet/1/@delete"]
    assert deleted.metadata["encoding"] == "zenoh/bytes"
    (channel,) = {c.id: c for _, c, _ in messages if c.topic == "fleet/0"}.values()
    assert (channel.message_encoding, channel.metadata["encoding"]) == ("json", "application/json")


def test_files_of_every_format_hold_what_was_published(
    fleet: Fleet, query: Run, tmp_path: Path
) -> None:
    assert fleet.frame.num_rows == SAMPLES + 1
    for name in ("all.parquet", "all.arrow", "all.feather", "all.mcap", "all.csv", "all.jsonl"):
        result = query("fleet/**", "--output", name)
        assert (result.returncode, result.stdout) == (0, ""), result.stderr
        assert result.stderr == f"{SAMPLES + 1} samples from 1 cache\n", "no limit for a file"
    assert pq.read_table(tmp_path / "all.parquet") == fleet.frame
    assert pq.read_schema(tmp_path / "all.parquet").names == [*COLUMNS]
    for name in ("all.arrow", "all.feather"):
        assert pa.ipc.open_file(tmp_path / name).read_all() == fleet.frame
    check_recording(tmp_path / "all.mcap")
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    shown = query("fleet/**", "--json", "--limit", "0").stdout.splitlines()
    assert lines == shown
    rows = rows_in(tmp_path / "all.csv")
    assert [row["payload"] for row in rows] == [json.loads(line)["payload"] for line in lines]
    assert not [*tmp_path.glob("*.part")]


def test_bytes_go_through_a_pipe(fleet: Fleet, tmp_path: Path, environment: Any) -> None:
    ask = ["query", "fleet/**", "--connect", fleet.endpoint, "--format"]
    for form in ("parquet", "arrow", "mcap"):
        piped = subprocess.run(
            ["bash", "-c", f"{shlex.join([*COMMAND, *ask, form])} | cat > {form}.bytes"],
            cwd=tmp_path,
            env=environment,
            timeout=60,
            check=True,
            capture_output=True,
        )
        assert piped.stderr == b"501 samples from 1 cache\n"
    assert pq.read_table(tmp_path / "parquet.bytes") == fleet.frame
    assert pa.ipc.open_file(tmp_path / "arrow.bytes").read_all() == fleet.frame
    check_recording(tmp_path / "mcap.bytes")


@pytest.mark.parametrize("form", ["parquet", "arrow", "mcap"])
def test_bytes_are_not_written_to_a_terminal(
    form: str, fleet: Fleet, tmp_path: Path, environment: Any
) -> None:
    ours, theirs = pty.openpty()
    try:
        shown = subprocess.run(
            [*COMMAND, "query", "fleet/**", "--connect", fleet.endpoint, "--format", form],
            cwd=tmp_path,
            env=environment,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(theirs)
        os.close(ours)
    assert shown.returncode == 2
    assert shown.stderr == (
        f"durable-cache: --format {form}: its bytes are nothing for a terminal; name a file with "
        "--output\n"
    )


def test_a_part_of_history_goes_into_a_file_too(query: Run, tmp_path: Path) -> None:
    assert query("fleet/**", "--latest", "-o", "latest.parquet").returncode == 0
    (latest,) = pq.read_table(tmp_path / "latest.parquet").to_pylist()
    assert (latest["key_expr"], json.loads(latest["text"])) == ("fleet/0", {"x": SAMPLES - 2})
    cut = query("fleet/0?_max=20", "-o", "some.mcap", "--limit", "10")
    assert cut.returncode == 0
    assert "10 samples from 1 cache; stopped there" in cut.stderr
    messages = messages_in(tmp_path / "some.mcap")
    assert [json.loads(m.data)["x"] for _, c, m in messages if c.topic == "fleet/0"] == [
        *range(SAMPLES - 40, SAMPLES - 20, 2)
    ]
    assert query("fleet/none", "--format", "parquet", "-o", "none").returncode == 0
    assert pq.read_table(tmp_path / "none").num_rows == 0
    assert query("fleet/none", "-o", "none.mcap").returncode == 0
    assert not messages_in(tmp_path / "none.mcap")


def test_a_file_is_whole_or_not_there(fleet: Fleet, run: Run, query: Run, tmp_path: Path) -> None:
    (tmp_path / "there.parquet").write_text("mine")
    refused = query("fleet/**", "-o", "there.parquet")
    assert (refused.returncode, refused.stderr) == (
        2,
        "durable-cache: there.parquet exists; name a new file\n",
    )
    assert (tmp_path / "there.parquet").read_text() == "mine"
    nowhere = query("fleet/**", "-o", "no/such/folder.mcap")
    assert nowhere.returncode == 2
    assert nowhere.stderr == "durable-cache: no/such/folder.mcap: there is no such folder\n"
    with LocalNetwork() as nobody:
        for name in ("one.parquet", "one.csv", "one.mcap"):
            away = run("query", "fleet/**", "-o", name, "--connect", nobody.endpoint)
            assert away.returncode == 1
            assert "no whole file was written: no cache is in reach" in away.stderr
    assert query("fleet/**", "-o", "f.csv", "--follow").returncode == 2
    assert [path.name for path in tmp_path.iterdir() if "std" not in path.name] == ["there.parquet"]


@pytest.mark.parametrize("name", ["f.parquet", "f.arrow", "f.mcap", "f.csv", "f.jsonl"])
def test_a_disk_that_is_full_leaves_no_file(
    name: str, fleet: Fleet, tmp_path: Path, environment: Any
) -> None:
    export = [*COMMAND, "export", "fleet", str(tmp_path / name), "--config", "fleet.json5"]
    full = subprocess.run(
        ["bash", "-c", f"ulimit -f 1; exec {shlex.join(export)}"],
        cwd=fleet.directory,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},  # it would be cut off, too
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert full.returncode == 1
    assert "File too large" in full.stderr
    assert not [*tmp_path.iterdir()]


def test_export_writes_every_format(fleet: Fleet, tmp_path: Path, environment: Any) -> None:
    def export(*arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [*COMMAND, "export", "fleet", *arguments, "--config", "fleet.json5", "--json"],
            cwd=fleet.directory,
            env=environment,
            timeout=60,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["exported"] == SAMPLES + 1
        return answer

    assert export(str(tmp_path / "f.parquet"))["format"] == "parquet"
    assert pq.read_table(tmp_path / "f.parquet") == fleet.frame
    assert export(str(tmp_path / "odd"), "--format", "arrow")["format"] == "arrow"
    assert pa.ipc.open_file(tmp_path / "odd").read_all() == fleet.frame
    export(str(tmp_path / "f.mcap"))
    check_recording(tmp_path / "f.mcap")
    export(str(tmp_path / "f.csv"))
    assert len(rows_in(tmp_path / "f.csv")) == SAMPLES + 1
    assert export(str(tmp_path / "f"))["format"] == "json"
    assert (tmp_path / "f").read_bytes().startswith(b'{"format":"durable-cache history"')


@pytest.mark.parametrize(
    ("form", "package", "extra"),
    [("mcap", "mcap", "mcap"), ("parquet", "pyarrow", "frame"), ("arrow", "pyarrow", "frame")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    form: str, package: str, extra: str, fleet: Fleet, tmp_path: Path, environment: Any
) -> None:
    (tmp_path / "hiding.py").write_text(
        f"import sys\nsys.modules[{package!r}] = None\n"
        "from durable_cache.service.cli import main\nsys.exit(main())\n"
    )
    ask = ("query", "fleet/**", "--connect", fleet.endpoint, "-o", "f", "--format", form)
    result = subprocess.run(
        [sys.executable, "hiding.py", *ask],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr == (
        f"durable-cache: '--format {form}' needs the package '{package}': "
        f"pip install 'durable-cache[{extra}]'; in a clone: pip install '.[{extra}]'\n"
    )
    assert not (tmp_path / "f").exists()

"""What becomes of stored samples, and what is said, when the service ends or its disk fails it?"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from durable_cache import ReliablePublisher, declare_reliable_publisher, open_session
from durable_cache.testing.network import wait_until
from tests.kit.faults import full_disk

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Any]
READY = "try from another terminal"
DATA = "durable-cache-data"
ALONE = 'mode: "peer", scouting: { multicast: { enabled: false } },'


@pytest.fixture
def endpoint(free_port: Callable[[], int]) -> str:
    return f"tcp/127.0.0.1:{free_port()}"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, environment: dict[str, str]) -> None:
    """Let services find nobody by themselves: another one on this machine would acknowledge too."""
    embedded = 'plugins: { durable_cache: { storages: { cache: { key_expr: "**" } } } }'
    (tmp_path / "alone.json5").write_text(f"{{ {ALONE} {embedded} }}")
    environment["DURABLE_CACHE_CONFIG"] = "alone.json5"


def serve(start: Start, endpoint: str, *more: str) -> Any:
    process = start("serve", "--listen", endpoint, *more)
    process.wait_for(READY)
    return process


@contextmanager
def reliable(endpoint: str, key: str, **options: Any) -> Iterator[ReliablePublisher]:
    session = open_session(
        {
            "mode": "client",
            "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )
    try:
        with declare_reliable_publisher(session, key, acknowledgements=1, **options) as out:
            yield out
    finally:
        session.close()  # type: ignore[no-untyped-call]


def publish(endpoint: str, key: str, count: int) -> None:
    """Publish and wait until a cache has every sample on its disk; then the publisher is gone."""
    with reliable(endpoint, key, cache=False) as out:
        receipts = [
            out.put(f"{number}".encode(), attachment=b"\x00note", encoding="text/plain;utf8")
            for number in range(count)
        ]
        for receipt in receipts:
            assert receipt is not None
            assert receipt.wait(20), "not acknowledged at level disk"


def fill(path: Path) -> None:
    """Write a file until there is no room left."""
    with path.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            return


def status_of(
    process: Any, run: Run, endpoint: str, until: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Ask for the only storage's status until it is so; the last answer when time is up."""
    deadline = time.monotonic() + 20
    while True:
        result = run("status", "--connect", endpoint, "--format", "json")
        assert result.stdout, result.stderr + process.stderr
        (report,) = json.loads(result.stdout)
        (storage,) = report["storages"]
        if until(storage) or time.monotonic() > deadline:
            return dict(storage)


def stored(run: Run, endpoint: str, selector: str = "**") -> list[dict[str, Any]]:
    result = run("query", selector, "--connect", endpoint, "--format", "json", "--limit", "0")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_a_port_that_the_system_chose_is_told(start: Start, run: Run) -> None:
    process = start("serve", "--listen", "tcp/127.0.0.1:0", DURABLE_CACHE_CONFIG="")
    process.wait_for(READY)
    told = re.search(r"listening  (tcp/127\.0\.0\.1:[1-9][0-9]*)\n", process.stderr)
    assert told is not None, process.stderr
    assert f"--connect {told[1]}" in process.stderr
    result = run("put", "lab/x", "1", "--connect", told[1])
    assert result.returncode == 0, result.stderr


def test_a_newcomer_stores_everything_durably(start: Start, run: Run, endpoint: str) -> None:
    process = start("serve", "--listen", endpoint, DURABLE_CACHE_CONFIG="")
    process.wait_for(READY)
    hint = f"{sys.executable} -m durable_cache query '**' --connect {endpoint}"
    wait_until(lambda: hint in process.stderr, what="the hint", instead=lambda: process.stderr)
    said = process.stderr
    assert f"listening  {endpoint}" in said
    assert "storing    cache: **, acknowledged at level disk" in said
    assert "in sql: " in said
    assert f"{DATA}/samples.db" in said
    key = f"any/key/{uuid4()}"  # it finds whoever else serves on this machine
    publish(endpoint, key, 3)
    assert [row["payload"] for row in stored(run, endpoint, key)] == ["0", "1", "2"]


def test_the_state_directory_is_made_for_its_owner_alone(
    start: Start, endpoint: str, tmp_path: Path
) -> None:
    serve(start, endpoint, "--state-dir", "deep/er/data")
    mode = stat.S_IMODE((tmp_path / "deep/er/data").stat().st_mode)
    assert mode == 0o700


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_acknowledged_samples_are_there_after_a_restart(
    number: signal.Signals, start: Start, run: Run, endpoint: str
) -> None:
    first = serve(start, endpoint)
    publish(endpoint, "fleet/a", 200)
    first.send(number)
    code = first.end()
    if number != signal.SIGKILL:
        assert code == 0
        assert "stopped; everything acknowledged is stored" in first.stderr
    serve(start, endpoint)
    rows = stored(run, endpoint)
    assert [row["sn"] for row in rows] == list(range(200))
    assert [row["payload"] for row in rows] == [str(number) for number in range(200)]
    assert {row["attachment"] for row in rows} == {"hex:006e6f7465"}
    assert {row["encoding"] for row in rows} == {"text/plain;utf8"}


def test_a_second_service_on_the_same_data_is_refused(
    start: Start, run: Run, endpoint: str, free_port: Callable[[], int]
) -> None:
    first = serve(start, endpoint)
    result = run("serve", "--listen", f"tcp/127.0.0.1:{free_port()}")
    assert result.returncode == 1
    said = one_line(result)
    assert f"state directory {DATA} is in use by process {first.process.pid}" in said
    assert "choose another state_dir" in said


def test_a_state_directory_that_is_a_file_is_named(run: Run, tmp_path: Path, endpoint: str) -> None:
    (tmp_path / DATA).write_text("mine")
    result = run("serve", "--listen", endpoint)
    assert result.returncode == 1
    assert f"state directory {DATA}: " in one_line(result)
    assert (tmp_path / DATA).read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["journal.db", "index.db"])
def test_damaged_files_are_named_and_left_alone(
    name: str, start: Start, run: Run, endpoint: str, tmp_path: Path
) -> None:
    first = serve(start, endpoint)
    publish(endpoint, "a", 10)
    first.send(signal.SIGTERM)
    assert first.end() == 0
    damaged = tmp_path / DATA / "cache" / name
    for suffix in ("-wal", "-shm"):
        damaged.with_name(name + suffix).unlink(missing_ok=True)
    damaged.write_bytes(b"garbage" * 10_000)
    before = damaged.read_bytes()
    result = run("serve", "--listen", endpoint)
    assert result.returncode == 1
    assert name in one_line(result)
    assert "Traceback" not in result.stderr
    assert damaged.read_bytes() == before


@pytest.mark.slow
def test_a_journal_that_was_emptied_beside_its_log_is_named_and_its_log_left(
    start: Start, run: Run, endpoint: str, tmp_path: Path
) -> None:
    first = serve(start, endpoint)
    publish(endpoint, "a", 10)
    first.send(signal.SIGKILL)
    first.process.wait()
    journal = tmp_path / DATA / "cache" / "journal.db"
    log = journal.with_name("journal.db-wal")
    journal.write_bytes(b"")
    before = log.read_bytes()
    for _ in range(2):
        result = run("serve", "--listen", endpoint)
        assert result.returncode == 1
        assert f"{journal.relative_to(tmp_path)}: it is gone or empty" in one_line(result)
        assert "restore it, or move it away" in result.stderr
        assert log.read_bytes() == before


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Mount an empty file system on `folder` that nobody can write, not even root."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root")
def test_a_read_only_directory_is_named(run: Run, tmp_path: Path, endpoint: str) -> None:
    folder = tmp_path / "ro"
    folder.mkdir()
    with read_only(folder):
        result = run("serve", "--listen", endpoint, "--state-dir", str(folder))
        inner = run("serve", "--listen", endpoint, "--state-dir", str(folder / "inner"))
    for outcome in (result, inner):
        assert outcome.returncode == 1
        assert f"state directory {folder}" in one_line(outcome)
        assert "Read-only file system" in outcome.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root")
def test_a_full_disk_at_start_is_named(run: Run, endpoint: str, tmp_path: Path) -> None:
    with full_disk(tmp_path / "small") as folder:
        fill(folder / "filler")
        result = run("serve", "--listen", endpoint, "--state-dir", str(folder / "data"))
    assert result.returncode == 1
    assert one_line(result).endswith("; make room")


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root")
def test_a_disk_that_fills_while_serving_refuses_visibly_and_recovers(
    start: Start, run: Run, endpoint: str, tmp_path: Path
) -> None:
    with full_disk(tmp_path / "small", 8 << 20) as folder:
        process = serve(start, endpoint, "--state-dir", str(folder / "data"))
        with reliable(endpoint, "key") as out:
            first = out.put(b"there is room")
            assert first is not None
            assert first.wait(20)
            fill(folder / "filler")
            receipts = [out.put(os.urandom(4096)) for _ in range(20)]
            told = status_of(process, run, endpoint, lambda storage: bool(storage["last_error"]))
            assert "the disk is full; make room" in told["last_error"]
            assert not all(receipt is not None and receipt.done for receipt in receipts)
            (folder / "filler").unlink()
            for receipt in receipts:
                assert receipt is not None
                assert receipt.wait(60), "not recovered from the publisher once there was room"
        assert [row["sn"] for row in stored(run, endpoint)] == list(range(21))
        said = [line.split(" WARNING ") for line in process.stderr.splitlines()]
        warnings = [parts[1] for parts in said if len(parts) > 1]
        assert len(warnings) == len(set(warnings)), "told again each time that it was tried"
        process.send(signal.SIGTERM)
        assert process.end() == 0


@pytest.mark.slow
@pytest.mark.delta
def test_delta_tables_are_looked_after(
    start: Start, run: Run, endpoint: str, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    (tmp_path / "cache.json5").write_text(
        f"{{ {ALONE}"
        """ plugins: { durable_cache: { volumes: { lake: { backend: "delta", path: "delta" } },
            storages: { fleet: { key_expr: "**" } } } } }"""
    )
    config = ("--config", "cache.json5")
    process = serve(start, endpoint, *config)
    publish(endpoint, "fleet/a", 30)
    locked = run("lake", "optimize", "fleet", *config)
    assert locked.returncode == 1
    process.send(signal.SIGTERM)
    assert process.end() == 0
    told = run("lake", "status", "fleet", *config, "--format", "json")
    assert json.loads(told.stdout)["rows"] == 30
    assert "files -> " in run("lake", "optimize", "fleet", *config).stdout
    assert run("lake", "vacuum", "fleet", "--dry-run", *config).returncode == 0


CONFIG = f"""{{ {ALONE} plugins: {{ durable_cache: {{
  volumes: {{ main: {{ backend: "sql", url: "sqlite:///data/main.db" }},
             other: {{ backend: "sql", url: "sqlite:///data/other.db" }} }},
  state_dir: "data",
  storages: {{ fleet: {{ key_expr: "**", volume: "main" }} }} }} }} }}"""


@pytest.mark.slow
def test_history_moves_between_backends_and_files_unchanged(
    start: Start, run: Run, endpoint: str, tmp_path: Path
) -> None:
    (tmp_path / "cache.json5").write_text(CONFIG)
    config = ("--config", "cache.json5")
    process = serve(start, endpoint, *config)
    publish(endpoint, "fleet/a", 50)
    publish(endpoint, "fleet/b", 50)
    process.send(signal.SIGTERM)
    assert process.end() == 0

    copied = run("copy", "fleet", "other/fleet", *config)
    assert (copied.returncode, copied.stdout) == (
        0,
        "100 samples copied; other/fleet holds all that main/fleet does\n",
    ), copied.stderr
    again = run("copy", "main/fleet", "other/fleet", *config)
    assert again.stdout.startswith("0 samples copied")
    same = run("copy", "fleet", "main/fleet", *config)
    assert same.returncode == 2
    assert "source and destination are the same" in same.stderr
    unknown = run("copy", "fleet", "elsewhere/fleet", *config)
    assert unknown.returncode == 2
    assert "volumes: main, other; configured storages: fleet" in unknown.stderr

    assert run("export", "other/fleet", "one.jsonl", *config).returncode == 0
    assert run("import", "one.jsonl", "other/again", *config).stdout.startswith("100 samples")
    assert run("export", "other/again", "two.jsonl", *config).returncode == 0
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert run("export", "other/again", "two.jsonl", *config).returncode == 2, "never overwrites"
    (tmp_path / "bad.jsonl").write_bytes((tmp_path / "one.jsonl").read_bytes() + b"[1,2]\n")
    bad = run("import", "bad.jsonl", "other/bad", *config)
    assert bad.returncode == 1
    assert "line 102: " in bad.stderr


@pytest.mark.slow
def test_imported_history_is_served(start: Start, run: Run, endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(CONFIG)
    config = ("--config", "cache.json5")
    process = serve(start, endpoint, *config)
    publish(endpoint, "fleet/a", 20)
    process.send(signal.SIGTERM)
    assert process.end() == 0
    assert run("export", "fleet", "history.jsonl", *config).returncode == 0
    shutil.rmtree(tmp_path / "data")
    assert run("import", "history.jsonl", "fleet", *config).returncode == 0
    serve(start, endpoint, *config)
    assert [row["sn"] for row in stored(run, endpoint)] == list(range(20))
    streams = run("streams", "--connect", endpoint, "--format", "json")
    assert [row["runs"] for row in json.loads(streams.stdout)] == ["0..19"]


def test_the_demonstration_can_only_pass_when_all_is_well() -> None:
    from durable_cache.service.demo.show import Outcome

    assert Outcome("p", 10, 10, 10, 0, 0, 0).good
    for change in range(1, 7):
        figures = [10, 10, 10, 0, 0, 0]
        figures[change - 1] += 1
        assert not Outcome("p", *figures).good, figures
    assert not Outcome("p", 0, 0, 0, 0, 0, 0).good, "a show in which nothing happened"


@pytest.mark.slow
def test_the_demonstration_loses_nothing(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "durable_cache.service", "demo", "--seconds", "6", "--keep", "kept"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    heading, *rows = result.stdout.splitlines()
    assert heading.split()[0] == "publisher"
    assert len(rows) == 2
    assert "the cache is killed (SIGKILL)" in result.stderr
    assert "nothing lost, nothing doubled" in result.stderr
    assert (tmp_path / "kept" / "cache.log").exists()

"""What a publisher says whose spool is taken, cannot be written, or lies on a full disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from durable_cache.errors import StorageFull, StorageLocked, StorageUnavailable
from tests.acceptance.test_spool_damage import PROGRAM, going_on
from tests.kit.faults import ModuleProcess, full_disk

KIBIBYTE = 1024
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root")


def fill(file: Path, leave_bytes: int = 0) -> None:
    """Fill the disk that a file lies on, but for so many bytes."""
    free = shutil.disk_usage(file.parent).free
    file.write_bytes(bytes(max(free - leave_bytes, 0)))


@pytest.mark.root
@needs_root
def test_a_disk_that_fills_up_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    with full_disk(tmp_path / "small") as disk:
        spool = disk / "spool"
        with going_on(spool) as publisher:
            said = ""
            while not said:
                try:
                    publisher.put(bytes(3_000))
                except StorageFull as error:
                    said = str(error)
            taken = publisher.next_sn
            assert said == (
                f"spool {spool}: the disk is full, {taken} samples wait for acknowledgements; "
                "make room"
            )
        with going_on(spool) as publisher:
            assert publisher.unacknowledged == publisher.next_sn == taken > 10
            with pytest.raises(StorageFull, match="the disk is full"):
                publisher.put(bytes(3_000))


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("left", [0, 8, 24, 40, 80, 120])
def test_a_disk_without_room_for_a_new_spool_is_named(tmp_path: Path, left: int) -> None:
    with full_disk(tmp_path / "small") as disk:
        spool = disk / "spool"
        fill(disk / "filler", left * KIBIBYTE)
        with pytest.raises(StorageFull, match=rf"{spool}.*; make room$"), going_on(spool):
            pass
        (disk / "filler").unlink()
        with going_on(spool) as publisher:
            publisher.put(b"there is room")


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder one that nobody can write, not even root."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.root
@needs_root
def test_a_spool_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with going_on(tmp_path / "spool") as publisher:
        publisher.put(b"1")
    with (
        read_only(tmp_path),
        pytest.raises(StorageUnavailable, match=r"spool .*Read-only.*choose a spool_dir where"),
        going_on(tmp_path / "spool"),
    ):
        pass
    with going_on(tmp_path / "spool") as publisher:
        assert publisher.unacknowledged == 1


AS_NOBODY = """
import os, sys
import encodings.idna, fcntl, sqlite3
import durable_cache.endpoints.publisher.spool
from durable_cache.errors import DurableCacheError
from pathlib import Path
os.setgid(65534)
os.setuid(65534)
try:
    durable_cache.endpoints.publisher.spool.Spool(Path(sys.argv[1]), "d", "a", bytes_max=1000)
except DurableCacheError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("name", ["spool", "spool.db", "spool.mark"])
def test_files_that_another_user_made_are_named(name: str) -> None:
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        folder.chmod(0o777)
        spool = folder / "spool"
        with going_on(spool) as publisher:
            publisher.put(b"1")
        spool.chmod(0o777)
        for file in spool.iterdir():
            file.chmod(0o666)
        (spool if name == "spool" else spool / name).chmod(0o700)
        program = [sys.executable, "-c", AS_NOBODY, str(spool)]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("StorageUnavailable ")
        assert str(spool) in done.stdout
        assert "permissions" in done.stdout or "where this user may write" in done.stdout
    finally:
        shutil.rmtree(folder)


def test_a_spool_that_another_process_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    spool = tmp_path / "spool"
    arguments = [str(spool), "0", "3", "kill"]
    with ModuleProcess("program", arguments, folder=tmp_path, ready="all put") as process:
        with (
            pytest.raises(
                StorageLocked,
                match=rf"^spool {spool} is in use by process {process.pid}; .*need two spools$",
            ),
            going_on(spool),
        ):
            pass
        process.kill()
        with going_on(spool) as publisher:
            assert publisher.unacknowledged == 4

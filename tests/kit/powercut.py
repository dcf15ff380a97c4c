"""What does a power cut leave on a disk?

An ext4 file system in an image file is mounted through a loop device and shut down by the kernel's
own ``EXT4_IOC_SHUTDOWN``: from that moment on nothing reaches the image, and all that was never
flushed is gone, as when the machine loses its power. Mounting it again replays its journal. Needs
Linux and root; a cycle takes some tenths of a second to a few seconds.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

EXT4_IOC_SHUTDOWN = 0x8004587D
"""``_IOR('X', 125, __u32)``, as in fs/ext4/ext4.h."""

_GOING_FLAGS_NOLOGFLUSH = 2
_MEBIBYTE = 1024 * 1024
_COMMAND_SECONDS_MAX = 60.0
_UNMOUNT_SECONDS_MAX = 15.0
_CAPABILITY_SYS_ADMIN = 21


def reason_unavailable() -> str | None:
    """Say why this machine cannot cut the power of a disk; None when it can."""
    if not sys.platform.startswith("linux"):
        return "power cuts need Linux"
    if os.geteuid() != 0 or not _may_administer():
        return "power cuts need root with CAP_SYS_ADMIN"
    missing = [name for name in ("mkfs.ext4", "mount", "umount", "losetup") if not _find(name)]
    if missing:
        return f"power cuts need {', '.join(missing)} (Debian: apt-get install e2fsprogs mount)"
    if not Path("/dev/loop-control").exists():
        return "power cuts need loop devices (/dev/loop-control is not there)"
    return None


class PowerCutDisk:
    """A small ext4 disk whose power can be cut; a context manager that leaves nothing behind.

    `folder` holds the image and the mount point; `size_mib` is at least 8, and the image is sparse.
    Use it from one thread. What still has files open on the disk after :meth:`cut` gets errors from
    every write; it must be ended before :meth:`remount`, which otherwise fails naming the disk.
    """

    def __init__(self, folder: Path, size_mib: int = 64) -> None:
        if size_mib < 8:
            raise ValueError(f"size_mib is {size_mib}; a disk with a journal needs at least 8")
        self.image = folder / "disk.img"
        self.path = folder / "disk"
        self._size_mib = size_mib
        self._mounted = False
        self._cut = False

    @staticmethod
    def available() -> str | None:
        """Say why this machine cannot cut the power of a disk; None when it can."""
        return reason_unavailable()

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def mount(self) -> Path:
        """Make the file system unless it is there, mount it and return the mount point."""
        reason = reason_unavailable()
        if reason is not None:
            raise OSError(reason)
        if self._mounted:
            return self.path
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.image.exists():
            with self.image.open("wb") as image:
                image.truncate(self._size_mib * _MEBIBYTE)
            # Tables written at once: no kernel thread writes to the image behind the test's back.
            lazy = "lazy_itable_init=0,lazy_journal_init=0"
            _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", lazy, str(self.image))
            _sync_file(self.image)
        # A commit interval far beyond any test: only what was fsynced is on the disk.
        options = "loop,commit=3600,errors=continue"
        _run("mount", "-t", "ext4", "-o", options, str(self.image), str(self.path))
        self._mounted, self._cut = True, False
        return self.path

    def cut(self) -> None:
        """Cut the power now: nothing that was not flushed before will be found again."""
        if not self._mounted or self._cut:
            raise OSError(f"{self.path}: the disk is not running")
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flags = ctypes.c_uint32(_GOING_FLAGS_NOLOGFLUSH)
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, bytes(flags))
        finally:
            os.close(descriptor)
        self._cut = True

    def remount(self) -> Path:
        """Bring the disk back as after a restart: unmount, replay the journal, mount.

        Raises OSError while a process still has files open on it.
        """
        self._unmount(lazily=False)
        return self.mount()

    def close(self) -> None:
        """Unmount the disk and delete its image; doing it twice is doing it once."""
        self._unmount(lazily=True)
        self.image.unlink(missing_ok=True)

    def _unmount(self, *, lazily: bool) -> None:
        deadline = time.monotonic() + _UNMOUNT_SECONDS_MAX
        while self._mounted:
            try:
                _run("umount", str(self.path))
            except OSError as error:
                if time.monotonic() < deadline and "busy" in str(error):
                    time.sleep(0.05)
                    continue
                if not lazily:
                    raise
                _run("umount", "-l", str(self.path))
            self._mounted = False


def _run(name: str, *arguments: str) -> None:
    try:
        done = subprocess.run(
            [_find(name) or name, *arguments],
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{name} {' '.join(arguments)}: no end within {error.timeout} s") from error
    if done.returncode != 0:
        raise OSError(f"{name} {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _may_administer() -> bool:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> _CAPABILITY_SYS_ADMIN & 1)


def said_until_cut(disk: PowerCutDisk, script: str, seconds: float) -> list[str]:
    """Run a script, cut the power so long after its first line, and return its whole lines.

    A machine without power says nothing more. Here the process lives on, and an fsync that the cut
    overtakes may still return: it must not be heard.
    """
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, "the script did not start"
        time.sleep(seconds)
        process.send_signal(signal.SIGSTOP)
        disk.cut()
        process.kill()
        said = [first, *process.stdout.readlines()]
        process.wait()
    disk.remount()
    return [line for line in said if line.endswith("\n")]

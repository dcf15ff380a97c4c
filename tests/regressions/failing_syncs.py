"""Runs the service on a kernel whose fsync fails from the moment SIGUSR1 comes.

A seccomp filter answers fsync and fdatasync with EIO for every thread of the process, as a disk
does that went away. Needs Linux on x86-64 or arm64, no root and no compiler.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1
_SYSCALLS = {"x86_64": (317, 74, 75), "aarch64": (277, 82, 83)}
"""seccomp, fsync and fdatasync by machine."""
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def reason_unavailable() -> str:
    """Say why fsync cannot be made to fail here; empty where it can."""
    if sys.platform != "linux" or platform.machine() not in _SYSCALLS:
        return "needs Linux on x86-64 or arm64"
    with open("/proc/self/status") as status:
        return "" if "Seccomp:" in status.read() else "needs a kernel with seccomp"


def fail_every_sync() -> None:
    """Let every fsync of this process fail from now on, in all its threads."""
    seccomp, fsync, fdatasync = _SYSCALLS[platform.machine()]
    instructions = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, 0),  # the number of the system call
            (_JUMP_IF_EQUAL, 1, 0, fsync),
            (_JUMP_IF_EQUAL, 0, 1, fdatasync),
            (_RETURN, 0, 0, _FAIL | errno.EIO),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    program = _Program(len(instructions) // 8, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    nothing = ctypes.c_ulong(0)
    done = libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), nothing, nothing, nothing) or (
        libc.syscall(
            ctypes.c_long(seccomp),
            ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER),
            ctypes.c_ulong(_SECCOMP_FILTER_FLAG_TSYNC),
            ctypes.byref(program),
        )
    )
    if done:
        raise OSError(ctypes.get_errno(), "seccomp")


def _main() -> int:
    from durable_cache.service.cli import main

    def failing(*_: object) -> None:
        fail_every_sync()
        print("every fsync fails", file=sys.stderr, flush=True)

    signal.signal(signal.SIGUSR1, failing)
    return main()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(_main())

"""What a service tells its supervisor, in systemd's words; nothing where there is none."""

from __future__ import annotations

import os
import socket


def notify(*words: str) -> None:
    """Send words such as ``READY=1`` to ``NOTIFY_SOCKET``; a supervisor may be gone."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # in the abstract name space
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as supervisor:
            supervisor.sendto("\n".join(words).encode(), address)
    except OSError:
        return

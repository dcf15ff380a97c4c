"""Addresses as people write them: ``127.0.0.1:8088``."""

from __future__ import annotations

import re

from durable_cache.errors import ConfigError


def split_address(text: str, where: str) -> tuple[str, int]:
    """Split ``host:port``; ConfigError at `where` when it is none."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"{where}: expected host:port, as in 127.0.0.1:8088, got {text[:80]!r}")
    return host.strip("[]"), int(port)

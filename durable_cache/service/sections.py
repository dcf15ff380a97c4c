"""What the sections of a configuration have in common, and where the service listens."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from durable_cache.errors import ConfigError
from durable_cache.service.addresses import split_address

SECTION = "plugins.durable_cache"

Positive = Annotated[int, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


def check_name(name: str, where: str) -> None:
    """Raise ConfigError where a storage or a pipe cannot be called so."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name is 1 to 64 of a-z 0-9 _ - and begins with a letter")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the configuration; unknown names are errors."""


class HttpSettings(Section, frozen=True):
    """Where status page, health and metrics are served."""

    listen: str = ""
    """``host:port``; empty serves nothing over HTTP. Port 0 takes a free one."""
    hosts: list[str] = msgspec.field(default_factory=list)
    """Names by which the page may be asked for, besides addresses and ``localhost``."""

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port to bind, None when HTTP is off."""
        return split_address(self.listen, f"{SECTION}.http.listen") if self.listen else None


class RestSettings(Section, frozen=True):
    """Where keys are read and written over HTTP, as zenohd's REST plugin does it."""

    listen: str = ""
    """``host:port``; empty serves nothing. There is no password: whoever reaches it may write."""
    hosts: list[str] = msgspec.field(default_factory=list)
    """Names by which it may be asked for, besides addresses and ``localhost``."""
    streams_max: Positive = 16
    """How many readers may follow keys at once; a further one is refused."""
    stream_bytes_max: Positive = 1 << 20
    """Keys and payloads that may wait for one such reader; a slower one is cut off."""

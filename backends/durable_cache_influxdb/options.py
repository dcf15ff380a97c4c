"""Which server, and within which bounds? Never shows the token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from durable_cache.errors import ConfigError
from durable_cache.storage.contract import BackendOptions

TOKEN_VARIABLE = "DURABLE_CACHE_INFLUXDB_TOKEN"  # noqa: S105  # a name, no secret
_FIELD_VALUE_BYTES_MAX = 1 << 20  # the server refuses longer strings

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class InfluxDbOptions(BackendOptions, frozen=True):
    """Where the server is, what a write may hold, and what is written for charts."""

    url: str = "http://127.0.0.1:8086"
    """``http://`` or ``https://``, host and port."""
    org: str = "durable-cache"
    bucket: str = "durable-cache"
    token: str = ""
    """A token that may read and write the bucket; better in `token_file` or the environment."""
    token_file: str = ""
    """A file with the token; comes before ``DURABLE_CACHE_INFLUXDB_TOKEN``."""
    create_bucket: bool = True
    """Create a missing bucket, kept for ever; the token must be allowed to."""
    shard_group_seconds: Positive = 7 * 86_400
    """What one shard of a bucket we create spans; long where timestamps are years apart."""
    connect_timeout_seconds: Seconds = 5.0
    request_timeout_seconds: Seconds = 30.0
    """How long the server may stay silent within one request."""
    retry_after_seconds_max: Seconds = 60.0
    """The longest pause that a server's Retry-After may ask of us."""
    batch_lines_max: Positive = 5_000
    batch_bytes_max: Positive = 1 << 20
    """Line protocol bytes of one request; one larger sample goes alone."""
    gzip: bool = True
    """Compress writes and answers; costs more CPU than it saves on a loopback."""
    key_tag: bool = True
    """Write the key as the readable tag `key`, beside the exact `key_id`."""
    key_tag_bytes_max: Annotated[int, Meta(ge=1, le=8192)] = 256
    """Longer keys are cut in the tag, never in the history."""
    typed_fields: bool = True
    """Write numbers, booleans and text of payloads as fields to chart."""
    field_prefix: Annotated[str, Meta(pattern="^[A-Za-z0-9_]{0,32}$")] = ""
    """Comes before the names of typed fields."""
    fields_per_sample_max: Annotated[int, Meta(ge=1, le=1024)] = 32
    """Typed fields of one sample; further leaves of a JSON document are not charted."""
    field_names_max: Annotated[int, Meta(ge=1, le=100_000)] = 512
    """Different typed fields of a storage; further names are not charted."""
    text_bytes_max: Annotated[int, Meta(ge=1, le=_FIELD_VALUE_BYTES_MAX)] = 1024
    """Longer text is not charted."""
    dead_letter: str = ""
    """A file for lines that the server refuses for good; empty: they are only reported."""
    dead_letter_bytes_max: Positive = 64 << 20
    streams_max: Positive = 100_000
    """Streams a writer knows; beyond it appends of new ones raise `StorageFull`."""
    lease_seconds: Seconds = 15.0
    """How long a writer that vanished with its machine still bars others."""
    lock_directory: str = ""
    """Where writers of one machine lock each other out; empty: the temporary directory."""

    def __repr__(self) -> str:
        return f"InfluxDbOptions(url={self.url!r}, org={self.org!r}, bucket={self.bucket!r}, ...)"

    __str__ = __repr__

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("url", self.url), ("org", self.org), ("bucket", self.bucket)]

    def check(self) -> None:
        """Raise ConfigError where the values make no sense together."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"influxdb url {self.where()!r}: write http://host:port")
        if parts.username is not None or parts.password is not None or parts.query:
            raise ConfigError("influxdb url: write no credentials into it; use token_file")
        if not self.org or not self.bucket:
            raise ConfigError("influxdb: org and bucket may not be empty")

    def where(self) -> str:
        """Return scheme, host and port, without anything secret."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}".rstrip("/")

    def read_token(self) -> str:
        """Return the token from the options, its file or the environment; ConfigError if none."""
        token = self.token
        if not token and self.token_file:
            try:
                token = Path(self.token_file).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"influxdb token_file {self.token_file}: {error}") from error
        token = token or os.environ.get(TOKEN_VARIABLE, "")
        if not token or any(not 32 < ord(letter) < 127 for letter in token):
            raise ConfigError(f"influxdb: write a token into token_file, or set {TOKEN_VARIABLE}")
        return token

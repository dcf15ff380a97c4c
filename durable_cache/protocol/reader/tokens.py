"""What tokens say of a publisher's instances: are they disposed with it, which writes it no more?

Publishers' own tokens are in `protocol.wire`. These stand beside them, so that caches and
subscribers of earlier versions read what they always read.
"""

from __future__ import annotations

from typing import NamedTuple

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import SourceId
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache.protocol.wire import own_key


class Unregistered(NamedTuple):
    """A publisher that is there does not write a key any more."""

    source: SourceId
    ntp64: int
    """What it published up to then was from before."""
    key: str


def auto_dispose_token(domain: str, source: SourceId) -> str:
    """Return the token of a publisher whose instances are disposed when it leaves."""
    return own_key(domain, "auto_dispose", str(source))


def unregistered_token(domain: str, unregistered: Unregistered) -> str:
    """Return the token that stands from an unregister until the key is written again."""
    source, ntp64, key = unregistered
    return own_key(domain, "unregistered", str(source), str(ntp64), key)


def parse_auto_dispose_token(key: str, domain: str) -> SourceId | None:
    """Return whose token it is; None when it is none of this domain."""
    return _source(key, own_key(domain, "auto_dispose", ""))


def parse_unregistered_token(key: str, domain: str) -> Unregistered | None:
    """Read who writes what no more; None when it is none of this domain or malformed."""
    prefix = own_key(domain, "unregistered", "")
    parts = key.removeprefix(prefix).split("/", 2) if key.startswith(prefix) else []
    if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 21):
        return None
    source, ntp64 = _source(parts[0], ""), int(parts[1])
    if source is None or ntp64 > NTP64_MAX or not _is_key(parts[2]):
        return None
    return Unregistered(source, ntp64, parts[2])


def parse_native_token(key: str) -> SourceId | None:
    """Return the source of a native AdvancedPublisher's token; None when it is none."""
    before, found, rest = key.rpartition("/@adv/pub/")
    return _source(":".join(rest.split("/")[:2]), "") if before and found else None


def _is_key(text: str) -> bool:
    try:
        return KeyExpression(text).is_key
    except ValueError:
        return False


def _source(key: str, prefix: str) -> SourceId | None:
    if not key.startswith(prefix):
        return None
    try:
        return SourceId.parse(key.removeprefix(prefix))
    except ValueError:
        return None

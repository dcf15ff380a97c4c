"""Advisories of losses: the first at once, then at most one a second, as RV publishes them.

An advisory is JSON with the fields of RV's `DATALOSS.INBOUND.BCAST` (ADR 0158): who listens to a
network of many kinds of programs needs no decoder of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.arguments import refused
from durable_cache.model.sample import SourceId
from durable_cache.protocol.checks import NOT_IN_KEYS
from durable_cache.protocol.wire import own_key

LOSS_TABLES = own_key("*", "loss", "*")
"""The tables of the subscribers of all domains."""
USER_TOKENS = own_key("*", "user", "*", "*")
_OURS = own_key("")
ADVISORY_BYTES_MAX = 1 << 20
USER_CHARACTERS_MAX = 64
_PAUSE_NS = 1_000_000_000
_CLASS, _SOURCE, _NAME = "ERROR", "SYSTEM", "DATALOSS.INBOUND.BCAST"
_DESCRIPTION = "lost msgs"


class LossAdvisory(NamedTuple):
    """What a subscriber lost since its advisory before."""

    subscriber: SourceId
    lost: int
    """How many samples."""
    total: int
    """How many since the subscriber was declared, these included."""
    keys: Sequence[tuple[str, int]]
    """How many on which key expression, as narrow as the subscriber knows it. Those it has no room
    for are in `lost` alone."""


class Advisories:
    """When to publish which advisory; owned by one thread. Monotonic nanoseconds."""

    def __init__(self, subscriber: SourceId, keys_max: int) -> None:
        self._subscriber = subscriber
        self._keys_max = keys_max
        self._keys: dict[str, int] = {}
        self._lost = self._total = 0
        self._due_ns: int | None = None

    def lost(self, key_expr: str, count: int) -> None:
        """Note a loss."""
        self._lost += count
        self._total += count
        if key_expr in self._keys or len(self._keys) < self._keys_max:
            self._keys[key_expr] = self._keys.get(key_expr, 0) + count

    def take(self, now_ns: int, *, at_once: bool = False) -> LossAdvisory | None:
        """Return what is to be published now; `at_once`: nothing will come after it."""
        waits = self._due_ns is not None and now_ns < self._due_ns
        if not self._lost or (waits and not at_once):
            return None
        advisory = LossAdvisory(
            self._subscriber, self._lost, self._total, tuple(self._keys.items())
        )
        self._lost, self._keys = 0, {}
        self._due_ns = now_ns + _PAUSE_NS
        return advisory

    def wake_ns(self) -> int | None:
        """Return when there is something to publish; None where nothing waits."""
        return (self._due_ns or 0) if self._lost else None


class _Written(msgspec.Struct, frozen=True):
    """The fields that every advisory has."""

    subscriber: str
    lost: int
    total: int
    sub_cnt: int


_decoder = msgspec.json.Decoder(_Written)
_any = msgspec.json.Decoder(dict[str, object])


def encode_advisory(advisory: LossAdvisory) -> bytes:
    """Return an advisory as it is published."""
    fields: dict[str, str | int] = {
        "ADV_CLASS": _CLASS,
        "ADV_SOURCE": _SOURCE,
        "ADV_NAME": _NAME,
        "ADV_DESC": _DESCRIPTION,
        "lost": advisory.lost,
        "sub_cnt": len(advisory.keys),
    }
    for number, (key_expr, lost) in enumerate(advisory.keys, 1):
        fields[f"sub{number}"] = key_expr
        fields[f"lost{number}"] = lost
    fields |= {"subscriber": str(advisory.subscriber), "total": advisory.total}
    return msgspec.json.encode(fields)


def decode_advisory(payload: bytes) -> LossAdvisory:
    """Read an advisory; RemoteProtocolError, never to be retried, when it is none."""
    if len(payload) > ADVISORY_BYTES_MAX:
        raise RemoteProtocolError(f"an advisory of {len(payload)} bytes")
    try:
        written, fields = _decoder.decode(payload), _any.decode(payload)
        subscriber = SourceId.parse(written.subscriber)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"an advisory that cannot be read: {error}") from error
    keys = []
    for number in range(1, min(written.sub_cnt, len(fields)) + 1):
        key_expr, lost = fields.get(f"sub{number}"), fields.get(f"lost{number}")
        if not isinstance(key_expr, str) or not isinstance(lost, int) or lost < 1:
            raise RemoteProtocolError(f"an advisory without sub{number} or lost{number}")
        keys.append((key_expr, lost))
    if not sum(lost for _, lost in keys) <= written.lost <= written.total:
        raise RemoteProtocolError(f"an advisory of {written.lost} lost of {written.total}")
    return LossAdvisory(subscriber, written.lost, written.total, tuple(keys))


def loss_key(domain: str, subscriber: SourceId) -> str:
    """Return where a subscriber publishes advisories, and answers with its table."""
    return own_key(domain, "loss", str(subscriber))


def check_user(name: object) -> str:
    """Return a publisher's name; ConfigError where it is none: 1 to 64 characters of a key."""
    if not isinstance(name, str) or not _is_user(name):
        raise refused("name", name, "1 to 64 characters, no space and none of / * $ ? # @")
    return name


def _is_user(text: str) -> bool:
    fits = 0 < len(text) <= USER_CHARACTERS_MAX and text.isprintable()
    return fits and NOT_IN_KEYS.union("/ @").isdisjoint(text)


def user_token(domain: str, source: SourceId, name: str) -> str:
    """Return the liveliness token that says by which name a publisher goes."""
    return own_key(domain, "user", str(source), name)


def parse_user_token(key: str, domain: str) -> tuple[SourceId, str] | None:
    """Read which source goes by which name; None when it is none of this domain or malformed."""
    found = parse_any_user_token(key)
    return found if key.startswith(own_key(domain, "user", "")) else None


def parse_any_user_token(key: str) -> tuple[SourceId, str] | None:
    """Read which source goes by which name, in whatever domain; None when it is malformed."""
    head, *rest = key.rsplit("/", 3)
    if not head.startswith(_OURS) or len(rest) != 3 or rest[0] != "user":
        return None
    _, source, name = rest
    if not _is_user(name):
        return None
    try:
        return SourceId.parse(source), name
    except ValueError:
        return None

"""What programs hand in as zenoh's own types becomes ours; anything else is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache
from typing import TypeAlias

import zenoh
from zenoh import CongestionControl, Locality, Priority, Session, Timestamp, ZError

from durable_cache.errors import Closed, ConfigError
from durable_cache.model.arguments import check_flag, check_kind, refused
from durable_cache.model.sample import Qos, Sample

IntoBytes: TypeAlias = bytes | bytearray | memoryview | str | zenoh.ZBytes
IntoEncoding: TypeAlias = str | zenoh.Encoding
IntoKeyExpr: TypeAlias = str | zenoh.KeyExpr

_ENCODINGS_CACHED = 256
_SCHEMA_BYTES_MAX = 255
"""Of the part of an encoding that Zenoh has no number for, which is all of it where it knows none:
its wire has 8 bits for the length. The session that sends a longer one panics (ADR 0240)."""
_OTHER = "id: 65535,"
"""Stands in an encoding that Zenoh has no number for."""


def read_bytes(value: object, name: str) -> bytes:
    """Return a payload or an attachment as bytes; ConfigError names the argument otherwise."""
    match value:
        case bytes():
            return value
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise ConfigError(f"{name}: the text cannot be written as UTF-8: {error}") from None
        case zenoh.ZBytes():
            return value.to_bytes()
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            raise refused(name, value, "bytes, str or zenoh.ZBytes")


def read_encoding(value: object) -> str:
    """Return an encoding as Zenoh writes it; ConfigError when it is none."""
    match value:
        case str():
            return _canonical(value)
        case zenoh.Encoding():
            return _checked(str(value), value)
        case _:
            raise refused("encoding", value, "a str or a zenoh.Encoding")


def is_sendable(encoding: str) -> bool:
    """Tell whether Zenoh can send an encoding."""
    return (
        len(encoding) * 4 <= _SCHEMA_BYTES_MAX
        or _schema_bytes(encoding, zenoh.Encoding(encoding)) <= _SCHEMA_BYTES_MAX
    )


def unsendable(sample: Sample) -> str:
    """Say for people why a sample with such an encoding is left out."""
    size = _schema_bytes(sample.encoding, zenoh.Encoding(sample.encoding))
    return (
        f"{sample.key[:80]!r}: an encoding with a schema of {size} bytes; Zenoh takes "
        f"{_SCHEMA_BYTES_MAX}"
    )


def _schema_bytes(text: str, encoding: zenoh.Encoding) -> int:
    schema = text if _OTHER in repr(encoding)[:40] else text.partition(";")[2]
    return len(schema.encode())


def _checked(text: str, encoding: zenoh.Encoding) -> str:
    size = _schema_bytes(text, encoding)
    if size > _SCHEMA_BYTES_MAX:
        raise ConfigError(
            f"encoding {text[:40]!r}…: a schema of {size} bytes; Zenoh takes {_SCHEMA_BYTES_MAX}"
        )
    return text


@lru_cache(maxsize=_ENCODINGS_CACHED)
def _canonical(text: str) -> str:
    try:
        encoding = zenoh.Encoding(text)
        return _checked(str(encoding), encoding)
    except (ValueError, zenoh.ZError) as error:
        raise ConfigError(f"encoding {text[:40]!r}: {error}") from None


def read_text(value: object, name: str) -> str:
    """Return a key or key expression as text; ConfigError when it is neither str nor KeyExpr."""
    if isinstance(value, str):
        return value
    if isinstance(value, zenoh.KeyExpr):
        return str(value)
    raise refused(name, value, "a str or a zenoh.KeyExpr")


CONGESTION = {
    0: CongestionControl.DROP,
    1: CongestionControl.BLOCK,
    2: CongestionControl.BLOCK_FIRST,
}
"""Zenoh's by the numbers of `Qos.congestion`."""


PRIORITY = dict(
    enumerate(
        (
            Priority.REAL_TIME,
            Priority.INTERACTIVE_HIGH,
            Priority.INTERACTIVE_LOW,
            Priority.DATA_HIGH,
            Priority.DATA,
            Priority.DATA_LOW,
            Priority.BACKGROUND,
        ),
        start=1,
    )
)
"""Zenoh's by the numbers of `Qos.priority`."""


class Origins(Enum):
    """From where samples are taken, or where they are sent, as Zenoh's Locality."""

    ANY = "any"
    SESSION_LOCAL = "session_local"
    REMOTE = "remote"

    @property
    def locality(self) -> Locality:
        match self:
            case Origins.ANY:
                return Locality.ANY
            case Origins.SESSION_LOCAL:
                return Locality.SESSION_LOCAL
            case Origins.REMOTE:
                return Locality.REMOTE


def read_origins(value: object, name: str) -> Origins:
    """Return a Locality as ours; ConfigError where it is neither."""
    if isinstance(value, Origins):
        return value
    if isinstance(value, Locality):
        return next(origins for origins in Origins if origins.locality == value)
    raise refused(name, value, "a durable_cache.Origins or a zenoh.Locality")


def read_qos(given: object, congestion_control: object, priority: object, express: object) -> Qos:
    """Return the quality of service that `given` and Zenoh's own words, which win, ask for.

    Raises ConfigError that names the argument which is none.
    """
    qos = Qos() if given is None else check_kind("qos", given, Qos, "a durable_cache.Qos")
    if qos.priority not in PRIORITY or qos.congestion not in CONGESTION:
        raise refused("qos", qos, "a priority from 1 to 7 and a congestion from 0 to 2")
    if congestion_control is not None:
        kind = "a zenoh.CongestionControl"
        check_kind("congestion_control", congestion_control, CongestionControl, kind)
        number = next(at for at, one in CONGESTION.items() if one == congestion_control)
        qos = qos._replace(congestion=number)
    if priority is not None:
        check_kind("priority", priority, Priority, "a zenoh.Priority")
        qos = qos._replace(priority=next(at for at, one in PRIORITY.items() if one == priority))
    if express is not None:
        check_flag("express", express)
        qos = qos._replace(express=bool(express))
    return qos


def zenoh_qos(qos: Qos) -> tuple[CongestionControl, Priority]:
    """Return Zenoh's words for a quality of service."""
    return CONGESTION[qos.congestion], PRIORITY[qos.priority]


def read_stamp(value: object) -> Timestamp | None:
    """Return it; ConfigError where it is none of Zenoh's."""
    if value is None:
        return None
    return check_kind("timestamp", value, Timestamp, "a zenoh.Timestamp")


def check_session(value: object) -> Session:
    """Return it; ConfigError where it is none of Zenoh's, Closed where it is closed."""
    session: Session = check_kind("session", value, Session, "a zenoh.Session")
    if session.is_closed():
        raise Closed("the session is closed: open another one, and declare on that")
    return session


@contextmanager
def while_open(*sessions: Session) -> Iterator[None]:
    """Do something on sessions; what Zenoh raises where one is closed meanwhile becomes Closed."""
    try:
        yield
    except ZError:
        for session in sessions:
            check_session(session)
        raise

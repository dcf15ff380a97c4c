"""The only module that imports zenoh: what comes from a session becomes ours here, and back.

Everything else speaks of `Sample`, key strings and bytes. The zenoh types that public signatures
need are re-exported.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, cast

import zenoh
from zenoh import Config, KeyExpr, Publisher, Query, Session, ZError, ext, handlers

from durable_cache.errors import Closed, ConfigError
from durable_cache.model.sample import Kind, Qos, Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns

__all__ = [
    "NO_SOURCE",
    "Answer",
    "Config",
    "Decoder",
    "KeyExpr",
    "Listening",
    "Origins",
    "Publisher",
    "Query",
    "Queryable",
    "QueryParts",
    "Session",
    "Token",
    "ZError",
    "ZenohSubscriber",
    "ask",
    "declare_heartbeats",
    "declare_own_publisher",
    "declare_queryable",
    "declare_subscriber",
    "declare_token",
    "ext",
    "handlers",
    "listening",
    "new_timestamp",
    "open_session",
    "query_parts",
    "raw_timestamp",
    "read_config",
    "reply_bytes",
    "reply_error",
    "reply_sample",
    "watch_tokens",
    "zenoh_reason",
    "zid_of",
]

NO_SOURCE = SourceId("0", 0)
"""Stands in a sample that came without source_info; no storage ever holds it."""

ZenohSubscriber: TypeAlias = "zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]"
Queryable: TypeAlias = "zenoh.Queryable[zenoh.handlers.Handler[Query]]"
Token: TypeAlias = zenoh.LivelinessToken

_CONGESTION = {
    0: zenoh.CongestionControl.DROP,
    1: zenoh.CongestionControl.BLOCK,
    2: zenoh.CongestionControl.BLOCK_FIRST,
}
_PRIORITY = dict(
    enumerate(
        (
            zenoh.Priority.REAL_TIME,
            zenoh.Priority.INTERACTIVE_HIGH,
            zenoh.Priority.INTERACTIVE_LOW,
            zenoh.Priority.DATA_HIGH,
            zenoh.Priority.DATA,
            zenoh.Priority.DATA_LOW,
            zenoh.Priority.BACKGROUND,
        ),
        start=1,
    )
)
_number = cast("Callable[[object], int]", int)
"""Zenoh's enums are numbers at run time, which their type stubs do not say."""
_CACHED_MAX = 65_536
_NTP_SECONDS_MAX = (1 << 32) - 1


class Origins(Enum):
    """From where a cache takes samples, as Zenoh's Locality."""

    ANY = "any"
    SESSION_LOCAL = "session_local"
    REMOTE = "remote"

    @property
    def locality(self) -> zenoh.Locality:
        match self:
            case Origins.ANY:
                return zenoh.Locality.ANY
            case Origins.SESSION_LOCAL:
                return zenoh.Locality.SESSION_LOCAL
            case Origins.REMOTE:
                return zenoh.Locality.REMOTE


def read_config(settings: Mapping[str, object] | None = None) -> Config:
    """Return Zenoh's own settings, checked by Zenoh; opens nothing.

    Raises ConfigError naming the setting that Zenoh does not take.
    """
    config = Config()
    for key, value in (settings or {}).items():
        try:
            config.insert_json5(key, json.dumps(value))
        except ZError as error:
            raise ConfigError(f"{key}: {zenoh_reason(error)}") from error
    return config


def zenoh_reason(error: ZError) -> str:
    """Return what Zenoh says about an error, without the places in its sources."""
    text = re.sub(r" at /[^ ]*\.rs:[0-9]+\.?", "", str(error))
    if text == 'Str("unknown key")':
        return "Zenoh knows no such setting"
    inner = re.match(r'Json5Err\(Message { msg: "(.*)", location: ', text, re.DOTALL)
    return f"Zenoh: {inner[1]}" if inner else text.strip()


def open_session(settings: Mapping[str, object] | None = None) -> Session:
    """Open a session with Zenoh's own settings, by top-level key, values as JSON would hold them.

    Raises ConfigError when Zenoh does not take a setting or cannot open with it. The caller closes
    the session explicitly: a process can hang at exit otherwise.
    """
    config = read_config(settings)
    try:
        return zenoh.open(config)
    except ZError as error:
        raise ConfigError(f"zenoh cannot open a session: {zenoh_reason(error)}") from error


def zid_of(session: Session) -> str:
    """Return the session's Zenoh id."""
    return str(session.zid())


class Decoder:
    """Turns zenoh's samples into ours, many at a time; owned by one thread.

    Reading a field of a zenoh sample costs about 0.1 microsecond, so each is read once and what
    repeats (sources, encodings) is looked up. At most 65,536 names are remembered of each.
    """

    def __init__(self, own_zid: str, payload_bytes_max: int) -> None:
        self._own_zid = own_zid
        self._payload_bytes_max = payload_bytes_max
        self._sources: dict[str, SourceId] = {}
        self.without_source = 0
        self.oversized = 0

    def decode(
        self, samples: list[zenoh.Sample], received_ns: int, *, keep_plain: bool = False
    ) -> list[Sample]:
        """Return our samples, epoch 0; those without source_info only with `keep_plain`.

        A payload over the bound is counted in `oversized` and left out.
        """
        decoded: list[Sample] = []
        for sample in samples:
            info = sample.source_info
            if info is not None:
                source = self._source(str(info.source_id))
                sn = info.source_sn
            else:
                self.without_source += 1
                if not keep_plain:
                    continue
                source, sn = NO_SOURCE, 0
            payload = sample.payload
            if len(payload) > self._payload_bytes_max:
                self.oversized += 1
                continue
            attachment = sample.attachment
            stamp = sample.timestamp
            if stamp is not None:
                raw, _, stamp_id = str(stamp).partition("/")
                ntp64, stamped = int(raw), False
            else:
                ntp64, stamp_id, stamped = ntp64_from_ns(received_ns), self._own_zid, True
            decoded.append(
                Sample(
                    str(sample.key_expr),
                    source,
                    0,
                    sn,
                    payload.to_bytes(),
                    Kind.PUT if sample.kind == _PUT else Kind.DELETE,
                    str(sample.encoding),
                    None if attachment is None else attachment.to_bytes(),
                    ntp64,
                    stamp_id,
                    stamped,
                    _number(sample.priority)
                    | _number(sample.congestion_control) << 3
                    | sample.express << 5,
                    received_ns,
                )
            )
        return decoded

    def _source(self, text: str) -> SourceId:
        source = self._sources.get(text)
        if source is None:
            # EntityGlobalId { zid: 4f2a, eid: 7 }: one call for both, where two cost four times.
            zid, _, eid = text.removeprefix("EntityGlobalId { zid: ").partition(", eid: ")
            source = SourceId(zid, int(eid.removesuffix(" }")))
            if len(self._sources) >= _CACHED_MAX:
                self._sources.clear()
            self._sources[text] = source
        return source


_PUT = zenoh.SampleKind.PUT


def declare_subscriber(
    session: Session, key_expr: str, origins: Origins, channel_samples: int
) -> ZenohSubscriber:
    """Subscribe into a bounded channel; nothing of ours runs on Zenoh's threads."""
    return session.declare_subscriber(
        key_expr, handlers.FifoChannel(channel_samples), allowed_origin=origins.locality
    )


def declare_queryable(session: Session, key_expr: str, channel_queries: int) -> Queryable:
    """Answer queries from a bounded channel."""
    return session.declare_queryable(key_expr, handlers.FifoChannel(channel_queries))


def declare_token(session: Session, key: str) -> Token:
    """Show that something is alive under `key`."""
    return session.liveliness().declare_token(key)


def watch_tokens(
    session: Session, key_expr: str, callback: Callable[[str, bool], None]
) -> zenoh.Subscriber[None]:
    """Call `callback(key, alive)` for each token there is and each change, on Zenoh's thread."""

    def changed(sample: zenoh.Sample) -> None:
        callback(str(sample.key_expr), sample.kind == _PUT)

    return session.liveliness().declare_subscriber(key_expr, changed, history=True)


def declare_heartbeats(
    session: Session, key_expr: str, callback: Callable[[SourceId, int], None]
) -> zenoh.Subscriber[None]:
    """Call `callback(source, last source_sn)` for each native heartbeat, on Zenoh's thread.

    A heartbeat is 4 little-endian bytes on the publisher's token key; anything else is ignored.
    """

    def beat(sample: zenoh.Sample) -> None:
        payload = sample.payload
        if len(payload) != 4 or sample.kind != _PUT:
            return
        parts = str(sample.key_expr).rpartition("/@adv/pub/")[2].split("/")
        try:
            source = SourceId.parse(":".join(parts[:2]))
        except ValueError:
            return
        callback(source, int.from_bytes(payload.to_bytes(), "little"))

    return session.declare_subscriber(key_expr, beat)


class Listening:
    """Whether somebody listens on a key expression; kept up by Zenoh, so asking costs nothing."""

    def __init__(self, session: Session, key_expr: str) -> None:
        self._publisher = session.declare_publisher(key_expr)
        self.now = bool(getattr(self._publisher.matching_status, "matching", False))
        self._listener = self._publisher.declare_matching_listener(self._changed)

    def _changed(self, status: zenoh.MatchingStatus) -> None:
        self.now = status.matching

    def close(self) -> None:
        undeclare(self._listener)
        undeclare(self._publisher)


def listening(session: Session, key_expr: str) -> Listening:
    """Begin to watch whether somebody listens on `key_expr`."""
    return Listening(session, key_expr)


def declare_own_publisher(
    session: Session, key_expr: str, qos: Qos, encoding: str | None
) -> Publisher:
    """Declare a publisher with our names for its quality of service."""
    return session.declare_publisher(
        key_expr,
        encoding=encoding,
        congestion_control=_CONGESTION[qos.congestion],
        priority=_PRIORITY[qos.priority],
        express=qos.express,
    )


def source_of(publisher: Publisher) -> SourceId:
    """Return a publisher's source_id."""
    return SourceId(str(publisher.id.zid), publisher.id.eid)


def new_timestamp(session: Session) -> zenoh.Timestamp:
    """Return a stamp of the session's hybrid logical clock."""
    return session.new_timestamp()


def raw_timestamp(stamp: zenoh.Timestamp) -> tuple[int, str]:
    """Return a stamp as (NTP64, id)."""
    raw, _, stamp_id = str(stamp).partition("/")
    return int(raw), stamp_id


def build_timestamp(ntp64: int, stamp_id: str) -> zenoh.Timestamp | None:
    """Return zenoh's form of a stamp; None where zenoh cannot hold it.

    Exact for stamps a Zenoh clock made (architecture, section 9); our envelope is always exact.
    """
    seconds, fraction = ntp64 >> 32, ntp64 & 0xFFFFFFFF
    nanoseconds = -(-fraction * 1_000_000_000 >> 32)
    if seconds >= _NTP_SECONDS_MAX or nanoseconds > 999_999_999 or not stamp_id:
        return None
    number = int(stamp_id, 16)
    identifier = number.to_bytes(max(1, (number.bit_length() + 7) // 8), "little")
    if not 0 < len(identifier) <= 16 or number == 0:
        return None
    return zenoh.Timestamp(zenoh.NTP64(seconds, nanoseconds), zenoh.TimestampId(identifier))


class QueryParts(NamedTuple):
    """What a query asks, as text."""

    key_expr: str
    parameters: tuple[tuple[str, str], ...]
    any_key: bool
    """The asker takes replies on any key."""
    payload: bytes
    attachment: bytes


def query_parts(query: Query) -> QueryParts:
    """Read a query."""
    payload, attachment = query.payload, query.attachment
    return QueryParts(
        str(query.key_expr),
        tuple((str(name), str(value)) for name, value in _pairs(query)),
        query.accepts_replies() == zenoh.ReplyKeyExpr.ANY,
        b"" if payload is None else payload.to_bytes(),
        b"" if attachment is None else attachment.to_bytes(),
    )


def _pairs(query: Query) -> Iterator[tuple[str, str]]:
    text = str(query.parameters)
    for piece in text.split(";"):
        if piece:
            name, _, value = piece.partition("=")
            yield name, value


def reply_sample(query: Query, key: str, sample: Sample, envelope: bytes | None) -> None:
    """Reply with one sample under `key`."""
    stamp = build_timestamp(sample.ntp64, sample.timestamp_id)
    attachment = sample.attachment if envelope is None else envelope
    if sample.kind is Kind.DELETE:
        query.reply_del(key, attachment=attachment, timestamp=stamp)
    else:
        query.reply(
            key, sample.payload, encoding=sample.encoding, attachment=attachment, timestamp=stamp
        )


def reply_bytes(query: Query, key: str, payload: bytes) -> None:
    """Reply with a payload of ours."""
    query.reply(key, payload, encoding="application/octet-stream")


def reply_error(query: Query, reason: str) -> None:
    """Reply with an error for people."""
    query.reply_err(reason, encoding="text/plain")


class Answer(NamedTuple):
    """One reply to a query of ours: a sample, or why there is none."""

    sample: Sample | None
    """Decoded as it stands: an envelope, if any, is still in its attachment."""
    error: str
    replier: str


def ask(
    session: Session,
    selector: str,
    *,
    timeout_seconds: float,
    decoder: Decoder,
    payload: bytes | None = None,
    any_key: bool = False,
    channel_replies: int = 1024,
) -> Iterator[Answer]:
    """Ask every matching cache, nearest or not, and yield each reply as it comes.

    Raises Closed when the session is closed.
    """
    try:
        replies = session.get(
            selector,
            handlers.FifoChannel(channel_replies),
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            accept_replies=zenoh.ReplyKeyExpr.ANY if any_key else zenoh.ReplyKeyExpr.MATCHING_QUERY,
            timeout=timeout_seconds,
            payload=payload,
        )
    except ZError as error:
        raise Closed(f"query {selector[:200]!r}: {error}") from error
    for reply in replies:
        ok, err = reply.ok, reply.err
        replier = "" if reply.replier_id is None else str(reply.replier_id)
        if ok is not None:
            for sample in decoder.decode([ok], time.time_ns(), keep_plain=True):
                yield Answer(sample, "", replier)
        elif err is not None:
            yield Answer(None, bytes(err.payload).decode("utf-8", "replace"), replier)


def send(
    session: Session,
    publisher: Publisher,
    sample: Sample,
    key: str | None,
    stamp: zenoh.Timestamp,
) -> None:
    """Publish a sample with its source, number and stamp, on one key of a wildcard publisher."""
    info = zenoh.SourceInfo(publisher.id, sample.sn)
    qos = Qos.unpack(sample.qos)
    if key is None and sample.kind is Kind.PUT:
        publisher.put(
            sample.payload,
            encoding=sample.encoding,
            attachment=sample.attachment,
            timestamp=stamp,
            source_info=info,
        )
    elif key is None:
        publisher.delete(attachment=sample.attachment, timestamp=stamp, source_info=info)
    elif sample.kind is Kind.PUT:
        session.put(
            key,
            sample.payload,
            encoding=sample.encoding,
            congestion_control=_CONGESTION[qos.congestion],
            priority=_PRIORITY[qos.priority],
            express=qos.express,
            attachment=sample.attachment,
            timestamp=stamp,
            source_info=info,
        )
    else:
        session.delete(
            key,
            congestion_control=_CONGESTION[qos.congestion],
            priority=_PRIORITY[qos.priority],
            express=qos.express,
            attachment=sample.attachment,
            timestamp=stamp,
            source_info=info,
        )


def hear(
    session: Session, key_expr: str, callback: Callable[[bytes], None]
) -> zenoh.Subscriber[None]:
    """Call `callback(payload)` for each message of ours, on Zenoh's thread."""

    def heard(sample: zenoh.Sample) -> None:
        callback(sample.payload.to_bytes())

    return session.declare_subscriber(key_expr, heard)


def is_zenoh_channel(handler: object) -> str | None:
    """Return "fifo" or "ring" for one of zenoh's own channel types."""
    if isinstance(handler, handlers.RingChannel):
        return "ring"
    if isinstance(handler, (handlers.FifoChannel, handlers.DefaultHandler)):
        return "fifo"
    return None


def put_own(session: Session, key: str, payload: bytes) -> None:
    """Publish a message of ours."""
    session.put(
        key, payload, encoding="application/octet-stream", congestion_control=_CONGESTION[1]
    )


def receive(subscriber: ZenohSubscriber, samples_max: int) -> list[zenoh.Sample]:
    """Wait for one sample, then take what is there up to a bound; empty when undeclared."""
    channel = subscriber.handler  # undeclaring is not held up by a thread that waits on it
    try:
        first = channel.recv()
    except ZError:
        return []
    taken = [first]
    append, take = taken.append, channel.try_recv
    while len(taken) < samples_max:
        try:
            sample = take()
        except ZError:
            break
        if sample is None:
            break
        append(sample)
    return taken


def receive_query(queryable: Queryable) -> Query | None:
    """Wait for a query; None when the queryable was undeclared."""
    try:
        return queryable.handler.recv()
    except ZError:
        return None


def undeclare(declared: Any) -> None:
    """Undeclare what may be undeclared already."""
    try:
        declared.undeclare()
    except ZError:
        return

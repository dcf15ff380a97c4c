"""How queries are read, answered and asked."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import zenoh
from zenoh import Query, Session, ZError, handlers

from durable_cache.endpoints.session.decoding import Decoder, build_timestamp
from durable_cache.errors import Closed
from durable_cache.model.sample import Kind, Sample


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
    pieces: list[str] = []
    for piece in str(query.parameters).split(";"):
        # Zenoh parts parameters at every ";", the one of _time=[start;duration] too.
        if pieces and pieces[-1].startswith("_time=") and pieces[-1][-1] not in "[]":
            pieces[-1] += f";{piece}"
        elif piece:
            pieces.append(piece)
    for piece in pieces:
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


def refuse(query: Query, reason: str) -> None:
    """Say why a query is not answered, to an asker that may be gone."""
    with suppress(ZError):
        reply_error(query, reason)


def reply_error(query: Query, reason: str) -> None:
    """Reply with an error for people."""
    query.reply_err(reason, encoding="text/plain")


class PlainReply(NamedTuple):
    """A reply, or a sample, as it came, for a program that takes zenoh's own words; ``ERROR`` is
    its key where somebody could not answer.
    """

    key: str
    payload: bytes
    encoding: str
    timestamp: str | None


def get_plain(
    session: Session,
    selector: str,
    *,
    timeout_seconds: float,
    replies_max: int,
    is_newest_only: bool,
) -> list[PlainReply]:
    """Ask whoever answers, as any program does, and wait; at most `replies_max` are returned.

    Raises ValueError for a selector that is none, and where the session is closed.
    """
    newest, everything = zenoh.ConsolidationMode.LATEST, zenoh.ConsolidationMode.NONE
    try:
        replies = session.get(
            selector,
            handlers.FifoChannel(1024),
            consolidation=newest if is_newest_only else everything,
            timeout=timeout_seconds,
        )
    except ZError as error:
        raise ValueError(f"{selector[:200]!r}: {error}") from error
    return [_plain(reply) for reply in itertools.islice(replies, replies_max)]


def plain_sample(sample: zenoh.Sample) -> PlainReply:
    """Return a sample as it came."""
    stamp = None if sample.timestamp is None else str(sample.timestamp)
    return PlainReply(str(sample.key_expr), sample.payload.to_bytes(), str(sample.encoding), stamp)


def _plain(reply: zenoh.Reply) -> PlainReply:
    ok, err = reply.ok, reply.err
    if ok is not None:
        return plain_sample(ok)
    if err is None:
        return PlainReply("ERROR", b"", "", None)
    return PlainReply("ERROR", err.payload.to_bytes(), str(err.encoding), None)


class Answer(NamedTuple):
    """One reply to a query of ours: a sample, or why there is none."""

    sample: Sample | None
    """Decoded as it stands: an envelope, if any, is still in its attachment."""
    error: str
    replier: str


class Replies:
    """The replies to one query as they came, bounded in number."""

    __slots__ = ("_most", "_replies", "cut")

    def __init__(self, most: int) -> None:
        self._most = most
        self._replies: list[zenoh.Reply] = []
        self.cut = False
        """There were more: the answer is not whole."""

    def take(self, reply: zenoh.Reply) -> None:
        if len(self._replies) < self._most:
            self._replies.append(reply)
        else:
            self.cut = True

    def payload(self) -> bytes | str:
        """Return the payload of the first reply, as it is, or why there is none."""
        reason = "no answer"
        for reply in self._replies:
            if reply.ok is not None:
                return reply.ok.payload.to_bytes()
            if reply.err is not None:
                reason = reply.err.payload.to_bytes().decode("utf-8", "replace")[:200]
        return reason

    def answers(self, decoder: Decoder) -> Iterator[Answer]:
        """Decode them; a cut answer ends with an error."""
        yield from _answers(self._replies, decoder)
        if self.cut:
            yield Answer(None, f"more than {self._most} replies", "")


def ask_later(
    session: Session,
    selector: str,
    ended: Callable[[Replies], None],
    *,
    timeout_seconds: float,
    payload: bytes | None = None,
    any_key: bool = False,
    replies_max: int = 100_000,
) -> None:
    """Ask every matching cache; `ended(replies)` is called once, perhaps on Zenoh's thread.

    Holds up no thread of ours meanwhile. Raises Closed when the session is closed.
    """
    replies = Replies(replies_max)
    handler = handlers.Callback(replies.take, lambda: ended(replies), indirect=False)
    try:
        session.get(
            selector,
            handler,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            accept_replies=zenoh.ReplyKeyExpr.ANY if any_key else zenoh.ReplyKeyExpr.MATCHING_QUERY,
            timeout=timeout_seconds,
            payload=payload,
        )
    except ZError as error:
        raise Closed(f"query {selector[:200]!r}: {error}") from error


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
    """Ask every matching cache at once; the iterator yields each reply as it comes.

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
    return _answers(replies, decoder)


def _answers(replies: Iterable[zenoh.Reply], decoder: Decoder) -> Iterator[Answer]:
    for reply in replies:
        ok, err = reply.ok, reply.err
        replier = "" if reply.replier_id is None else str(reply.replier_id)
        if ok is not None:
            for sample in decoder.decode([ok], time.time_ns(), keep_plain=True):
                yield Answer(sample, "", replier)
        elif err is not None:
            yield Answer(None, bytes(err.payload).decode("utf-8", "replace"), replier)

"""A bridge between two networks that loses single messages: acknowledgements, answers, samples.

A link that is cut loses everything behind a moment and both ends see it. What a bridge loses nobody
sees: the sender has sent it, and the query is over. So it is with links that are not reliable, as
UDP's, and with routers that drop under congestion.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NamedTuple, Self

import zenoh
from zenoh import handlers

from durable_cache.model.sample import SourceId
from durable_cache.protocol.resends import decode_resend
from durable_cache.testing.network import LocalNetwork

_TOKENS = ("@durable/**", "@durable/**/@durable/**")
"""No `**` matches a chunk that begins with `@`: the second are those about keys of ours."""
_REACHES = ("**", "**/@durable/**", "@durable/**/@durable/**")
_QUERY_SECONDS = 10.0


class Message(NamedTuple):
    """What a bridge is about to pass on."""

    kind: Literal["sample", "query", "reply"]
    key: str
    payload: bytes
    of: str = ""
    """Of a reply: the key expression that was asked."""
    sent_as: tuple[SourceId, int] | None = None
    """Of a sample with SourceInfo: its source and number."""

    def identities(self) -> list[tuple[SourceId, int]]:
        """Return source and number of each sample that is sent or resent in it."""
        if self.is_resend:
            return [(sample.source, sample.sn) for sample in decode_resend(self.payload)[1]]
        return [] if self.sent_as is None else [self.sent_as]

    @property
    def is_ack(self) -> bool:
        """Whether a cache says in it what is durable."""
        return self.kind == "sample" and self.key.startswith("@durable/") and "/ack/" in self.key

    @property
    def is_sample(self) -> bool:
        """Whether it is a program's own sample, with its number."""
        return self.sent_as is not None and not self.key.startswith("@durable/")

    @property
    def is_question(self) -> bool:
        """Whether caches are asked for samples in it."""
        return self.kind == "query" and not self.key.startswith("@durable/")

    @property
    def is_resend(self) -> bool:
        """Whether something is sent to a cache once more in it."""
        return self.kind == "query" and "/store/" in self.key

    @property
    def is_answer(self) -> bool:
        """Whether it is a reply of a cache that was asked for samples."""
        return self.kind == "reply" and not self.of.startswith("@durable/")

    @property
    def is_resent_reply(self) -> bool:
        """Whether it is a cache's reply to what was sent to it once more."""
        return self.kind == "reply" and "/store/" in self.of


class Bridge:
    """Passes samples, queries, replies and tokens both ways, but for what `loses` says.

    A context manager on networks that live longer. Samples keep their source, number, timestamp and
    attachment; each network sees the other's tokens. One cache behind a bridge at most: all that
    answer there answer as one session. `loses(message)` is called on threads of Zenoh, one at a
    time.
    """

    def __init__(
        self, near: LocalNetwork, far: LocalNetwork, loses: Callable[[Message], bool]
    ) -> None:
        self.lost: Counter[str] = Counter()
        """How many messages of each kind were lost."""
        self.passed: Counter[str] = Counter()
        self._loses = loses
        self._lock = threading.Lock()
        self._sides = _Side(near.client()), _Side(far.client())

    def __enter__(self) -> Self:
        one, other = self._sides
        one.open(other, self._passes)
        other.open(one, self._passes)
        return self

    def __exit__(self, *raised: object) -> None:
        for side in self._sides:
            side.close()

    def _passes(self, message: Message) -> bool:
        with self._lock:
            lost = self._loses(message)
            (self.lost if lost else self.passed)[message.kind] += 1
            return not lost


class _Side:
    """One session: what it hears goes to the other side, and what that says, it says here."""

    def __init__(self, session: zenoh.Session) -> None:
        self.session = session
        self.tokens: dict[str, zenoh.LivelinessToken] = {}
        """What it shows of the other side, and must not take for this one's."""
        self._lock = threading.Lock()
        self._closed = False
        self._declared: list[zenoh.Subscriber[None] | zenoh.Queryable[None]] = []

    def open(self, other: _Side, passes: Callable[[Message], bool]) -> None:
        remote = zenoh.Locality.REMOTE

        def sample(one: zenoh.Sample) -> None:
            info = one.source_info
            source = info and SourceId(str(info.source_id.zid), info.source_id.eid)
            named = None if source is None else (source, info.source_sn)
            message = Message("sample", str(one.key_expr), one.payload.to_bytes(), sent_as=named)
            if passes(message):
                other.say(one)

        def token(one: zenoh.Sample) -> None:
            key = str(one.key_expr)
            if key not in self.tokens:
                other.show(key, alive=one.kind == zenoh.SampleKind.PUT)

        def query(one: zenoh.Query) -> None:
            payload = b"" if one.payload is None else one.payload.to_bytes()
            if passes(Message("query", str(one.key_expr), payload)):
                other.ask(one, passes)

        for key_expr in _REACHES:
            self._declared += [
                self.session.declare_subscriber(
                    key_expr, handlers.Callback(sample), allowed_origin=remote
                ),
                self.session.declare_queryable(
                    key_expr, handlers.Callback(query), allowed_origin=remote
                ),
            ]
        for key_expr in _TOKENS:
            watch = self.session.liveliness().declare_subscriber(
                key_expr, handlers.Callback(token), history=True
            )
            self._declared.append(watch)

    def say(self, sample: zenoh.Sample) -> None:
        named = {
            "attachment": sample.attachment,
            "timestamp": sample.timestamp,
            "source_info": sample.source_info,
            "congestion_control": zenoh.CongestionControl.BLOCK,
            "allowed_destination": zenoh.Locality.REMOTE,
        }
        with suppress(zenoh.ZError):  # closed meanwhile
            if sample.kind == zenoh.SampleKind.PUT:
                self.session.put(sample.key_expr, sample.payload, encoding=sample.encoding, **named)
            else:
                self.session.delete(sample.key_expr, **named)

    def show(self, key: str, *, alive: bool) -> None:
        with suppress(zenoh.ZError), self._lock:  # two threads may not undeclare one token
            if alive and key not in self.tokens and not self._closed:
                self.tokens[key] = self.session.liveliness().declare_token(key)
            elif not alive and key in self.tokens:
                self.tokens.pop(key).undeclare()

    def ask(self, query: zenoh.Query, passes: Callable[[Message], bool]) -> None:
        asked = str(query.key_expr)

        def take(reply: zenoh.Reply) -> None:
            if reply.err is not None:
                query.reply_err(reply.err.payload, encoding=reply.err.encoding)
            elif reply.ok is not None:
                one = reply.ok
                key = str(one.key_expr)
                if passes(Message("reply", key, one.payload.to_bytes(), asked)):
                    query.reply(
                        key,
                        one.payload,
                        encoding=one.encoding,
                        attachment=one.attachment,
                        timestamp=one.timestamp,
                    )

        with suppress(zenoh.ZError):
            self.session.get(
                query.selector,
                handlers.Callback(take, query.drop, indirect=False),
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                accept_replies=query.accepts_replies(),
                timeout=_QUERY_SECONDS,
                payload=query.payload,
                encoding=query.encoding,
                attachment=query.attachment,
                allowed_destination=zenoh.Locality.REMOTE,
            )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            tokens = [self.tokens.pop(key) for key in list(self.tokens)]
        for one in (*self._declared, *tokens):
            with suppress(zenoh.ZError):
                one.undeclare()

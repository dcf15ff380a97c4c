"""A publisher whose samples can be recovered: numbered, kept for a while, acknowledged on wish."""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar, cast, overload

from durable_cache.endpoints.options import parse_key_expr
from durable_cache.endpoints.receipts import Receipt, Receipts
from durable_cache.endpoints.replies import AnswerBounds, Form, Refused, answer, parse_query
from durable_cache.endpoints.session import (
    IntoBytes,
    IntoEncoding,
    IntoKeyExpr,
    Query,
    Queryable,
    Session,
    ZError,
    close_at_exit,
    declare_own_publisher,
    declare_queryable,
    declare_token,
    hear,
    is_matched,
    new_timestamp,
    query_parts,
    raw_timestamp,
    read_bytes,
    read_encoding,
    read_text,
    receive_query,
    reply_error,
    send,
    source_of,
    start_thread,
    undeclare,
)
from durable_cache.errors import Closed, ConfigError, RemoteProtocolError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Qos, Sample, SampleBatch, SourceId
from durable_cache.model.selection import Cursor, Selection
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame, next_epoch
from durable_cache.protocol.wire import (
    INCARNATION_DIGITS,
    Ack,
    ack_key,
    decode_ack,
    publisher_token,
)
from durable_cache.storage.contract import Durability, Page

__all__ = ["ReliablePublisher", "declare_reliable_publisher"]

ReceiptT_co = TypeVar("ReceiptT_co", bound=Receipt | None, covariant=True)
"""What `put` returns: a Receipt where acknowledgements are wanted, else None."""
_log = logging.getLogger(__name__)
_BOUNDS = AnswerBounds(
    samples_max=100_000, bytes_max=64 << 20, seconds_max=8.0, packed_bytes_max=1 << 20
)


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """How a reliable publisher works; see `declare_reliable_publisher`."""

    history: int | None = 1000
    """Samples kept in this process for recovery; None keeps none."""
    acknowledgements: int = 0
    level: Durability = Durability.DISK
    receipts_max: int = 100_000
    domain: str = "default"
    qos: Qos = Qos()
    encoding: str | None = None


class _History:
    """The publisher's own cache: its newest samples in memory, oldest out first.

    The specification's ReliabilityCache with a SessionLocal origin, fed by the publisher itself
    and not over Zenoh: the same answers at a tenth of the cost.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._samples: OrderedDict[tuple[int, int], Sample] = OrderedDict()
        self._lock = Lock()

    def add(self, sample: Sample) -> None:
        with self._lock:
            self._samples[sample.epoch, sample.sn] = sample
            if len(self._samples) > self._depth:
                self._samples.popitem(last=False)

    def samples(self) -> list[Sample]:
        with self._lock:
            return list(self._samples.values())

    def read(self, selection: Selection, limit: int, cursor: Cursor | None) -> Page:
        """Return a page; the samples are of one source, so order is their own."""
        with self._lock:
            chosen = self._candidates(selection)
        found = [sample for sample in chosen if selection.holds(sample)]
        if selection.newest is not None:
            found = found[-selection.newest :]
        if cursor is not None:
            found = [sample for sample in found if selection.place(sample) > cursor]
        page = found[:limit]
        more = len(found) > limit
        return Page(SampleBatch(page), selection.place(page[-1]) if more else None)

    def _candidates(self, selection: Selection) -> list[Sample]:
        first, last = selection.sns
        if first is None or last is None or last - first > len(self._samples):
            return list(self._samples.values())
        epochs = sorted({epoch for epoch, _ in (next(iter(self._samples), (0, 0)), self._last())})
        wanted = ((epoch, sn) for epoch in epochs for sn in range(first, last + 1))
        return [self._samples[at] for at in wanted if at in self._samples]

    def _last(self) -> tuple[int, int]:
        return next(reversed(self._samples), (0, 0))


@lru_cache(maxsize=1024)
def _parse_key(text: str) -> KeyExpression:
    try:
        return KeyExpression(text)
    except ValueError as error:
        raise ConfigError(f"key {error}") from error


def _new_incarnation() -> str:
    return secrets.token_hex(INCARNATION_DIGITS // 2)


class ReliablePublisher(Generic[ReceiptT_co]):
    """A Zenoh publisher that stamps every sample with its source and number (RFC).

    Any thread may put. A context manager; close it before its session.
    """

    def __init__(self, session: Session, key_expr: str, options: PublisherOptions) -> None:
        self._session = session
        self._domain = options.domain
        self._qos = options.qos.pack()
        self._encoding = options.encoding or "zenoh/bytes"
        self.query_errors = 0
        """Queries to this publisher's own cache that could not be answered."""
        self._lock = Lock()
        self._closed = False
        self.key_expr = KeyExpression(key_expr)
        self._publisher = declare_own_publisher(session, key_expr, options.qos, options.encoding)
        self.source: SourceId = source_of(self._publisher)
        """The EntityGlobalId every sample carries."""
        self.epoch = frame(time.time_ns())
        """The time frame in which the numbering began, declared before the first put."""
        self.incarnation = _new_incarnation()
        """Names the numbering whatever the clock; a new one at start and at every wrap."""
        self._sn = 0
        self._history = None if options.history is None else _History(options.history)
        self._receipts: Receipts | None = None
        self._ack_subscriber: object = None
        if options.acknowledgements:
            self._receipts = Receipts(options.acknowledgements, options.level, options.receipts_max)
            key = ack_key(options.domain, self.source)
            self._ack_subscriber = hear(session, key, self._acknowledged)
        self._queryable: Queryable | None = None
        if self._history is not None:
            self._queryable = declare_queryable(session, f"{self.source}/{key_expr}", 256)
            start_thread(self._answer_queries, "publisher-cache")
        self._token = declare_token(session, self._token_key())
        close_at_exit(self, session)

    @property
    def next_sn(self) -> int:
        """The number the next sample will have."""
        return self._sn

    @property
    def matched(self) -> bool:
        """Whether some subscriber or cache listens to this publisher now."""
        return is_matched(self._publisher)

    def put(
        self,
        payload: IntoBytes,
        *,
        encoding: IntoEncoding | None = None,
        attachment: IntoBytes | None = None,
        key: IntoKeyExpr | None = None,
    ) -> ReceiptT_co:
        """Publish a value; returns a receipt when acknowledgements are wanted.

        `key` names one key of a publisher with wildcards. Raises Closed; ConfigError on an argument
        Zenoh cannot send; ZError from Zenoh when the sample did not leave; its number is not used
        then.
        """
        chosen = None if encoding is None else read_encoding(encoding)
        return self._publish(Kind.PUT, read_bytes(payload, "payload"), chosen, attachment, key)

    def delete(
        self, *, attachment: IntoBytes | None = None, key: IntoKeyExpr | None = None
    ) -> ReceiptT_co:
        """Publish that the key has no value any more; numbered and stored like a put."""
        return self._publish(Kind.DELETE, b"", None, attachment, key)

    def kept(self) -> list[Sample]:
        """Return the samples of the publisher's own cache, oldest first."""
        return [] if self._history is None else self._history.samples()

    def _publish(
        self,
        kind: Kind,
        payload: bytes,
        encoding: str | None,
        attached: IntoBytes | None,
        named: IntoKeyExpr | None,
    ) -> ReceiptT_co:
        attachment = None if attached is None else read_bytes(attached, "attachment")
        key = None if named is None else self._own_key(read_text(named, "key"))
        if key is None and not self.key_expr.is_key:
            raise ConfigError(f"name the key: this publisher is on {self.key_expr}")
        with self._lock:
            if self._closed:
                raise Closed(f"the publisher on {self.key_expr} is closed")
            if self._sn >= SOURCE_SN_MODULUS:
                self._wrap()
            sn = self._sn
            stamp = new_timestamp(self._session)
            ntp64, stamp_id = raw_timestamp(stamp)
            sample = Sample(
                key or str(self.key_expr),
                self.source,
                self.epoch,
                sn,
                payload,
                kind,
                encoding or self._encoding if kind is Kind.PUT else "zenoh/bytes",
                attachment,
                ntp64,
                stamp_id,
                False,
                self._qos,
                time.time_ns(),
            )
            if self._history is not None:
                self._history.add(sample)
            receipt = None if self._receipts is None else self._receipts.open(sn)
            send(self._session, self._publisher, sample, key, stamp)
            self._sn = sn + 1
        return cast("ReceiptT_co", receipt)

    def _own_key(self, text: str) -> str:
        """Return a key, or an expression for a wildcard update, that is the publisher's to use."""
        if not self.key_expr.includes(_parse_key(text)):
            raise ConfigError(f"key {text!r} is not one of {self.key_expr}")
        return text

    def _wrap(self) -> None:
        """Begin a new epoch at number 0, declared before its first sample."""
        self.epoch = next_epoch(time.time_ns(), self.epoch)
        self.incarnation = _new_incarnation()
        self._sn = 0
        token, self._token = self._token, declare_token(self._session, self._token_key())
        undeclare(token)

    def _token_key(self) -> str:
        return publisher_token(
            self._domain, self.source, self.epoch, self.incarnation, str(self.key_expr)
        )

    def _acknowledged(self, _: str, payload: bytes) -> None:
        try:
            ack = decode_ack(payload)
        except RemoteProtocolError:
            return  # a damaged acknowledgement is no answer
        if self._receipts is not None and self._is_ours(ack):
            self._receipts.take(ack)

    def _is_ours(self, ack: Ack) -> bool:
        """Tell whether an acknowledgement means the numbers of the present numbering."""
        if ack.source != self.source:
            return False
        if ack.incarnation:
            return ack.incarnation == self.incarnation
        return ack.epoch == self.epoch

    def _answer_queries(self) -> None:
        queryable, history = self._queryable, self._history
        if queryable is None or history is None:
            return
        while (query := receive_query(queryable)) is not None:
            with query:
                try:
                    self._answer(query, history)
                except Refused as error:
                    reply_error(query, str(error))
                except ZError:
                    continue  # the asker is gone
                except Exception:
                    # One question that cannot be answered must not end recovery for all others.
                    self.query_errors += 1
                    _log.exception("a query to the publisher on %s failed", self.key_expr)

    def _answer(self, query: Query, history: _History) -> None:
        asked = parse_query(query_parts(query), Form.SOURCED, time.time_ns())
        answer(query, asked, history.read, _BOUNDS)

    def close(self) -> None:
        """Undeclare everything; idempotent. Receipts still open stay unknown."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for declared in (self._token, self._queryable, self._ack_subscriber, self._publisher):
            if declared is not None:
                undeclare(declared)

    undeclare = close

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@overload
def declare_reliable_publisher(  # type: ignore[overload-overlap]  # 0 is an int: taken first
    session: Session,
    key_expr: IntoKeyExpr,
    *,
    cache: bool = ...,
    history: int = ...,
    acknowledgements: Literal[0] = ...,
    level: Durability | str = ...,
    receipts_max: int = ...,
    domain: str = ...,
    qos: Qos | None = ...,
    encoding: IntoEncoding | None = ...,
) -> ReliablePublisher[None]: ...


@overload
def declare_reliable_publisher(
    session: Session,
    key_expr: IntoKeyExpr,
    *,
    cache: bool = ...,
    history: int = ...,
    acknowledgements: int,
    level: Durability | str = ...,
    receipts_max: int = ...,
    domain: str = ...,
    qos: Qos | None = ...,
    encoding: IntoEncoding | None = ...,
) -> ReliablePublisher[Receipt]: ...


def declare_reliable_publisher(  # noqa: PLR0913  # one call, as zenoh.ext has it
    session: Session,
    key_expr: IntoKeyExpr,
    *,
    cache: bool = True,
    history: int = 1000,
    acknowledgements: int = 0,
    level: Durability | str = Durability.DISK,
    receipts_max: int = 100_000,
    domain: str = "default",
    qos: Qos | None = None,
    encoding: IntoEncoding | None = None,
) -> ReliablePublisher[Receipt] | ReliablePublisher[None]:
    """Declare a publisher whose samples can be recovered (RFC, "The ReliablePublisher").

    `cache` keeps its newest `history` samples in this process for recovery. With
    `acknowledgements` = k > 0 each put returns a receipt that is done when k caches hold the sample
    at `level`; at most `receipts_max` are kept, the oldest is forgotten (unknown) beyond. The
    default quality of service blocks rather than drops. Raises ConfigError on a bad argument.
    """
    parsed = parse_key_expr(key_expr)
    if not isinstance(cache, bool):
        raise ConfigError("cache is True or False; history=n sets how many samples it keeps")
    if history < 1 or acknowledgements < 0 or receipts_max < 1:
        raise ConfigError("history and receipts_max begin at 1, acknowledgements at 0")
    try:
        wanted = Durability[level.upper()] if isinstance(level, str) else level
    except KeyError as error:
        raise ConfigError(f"level {level!r}: write memory, process or disk") from error
    chosen = PublisherOptions(
        history if cache else None,
        acknowledgements,
        wanted,
        receipts_max,
        domain,
        qos or Qos(),
        None if encoding is None else read_encoding(encoding),
    )
    return ReliablePublisher(session, str(parsed), chosen)

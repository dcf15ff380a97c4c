"""What we declare on a session, and how what comes to it is received."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

import zenoh
from zenoh import Publisher, Query, Reliability, Session, ZError, handlers

from durable_cache.endpoints.session.arguments import CONGESTION, PRIORITY, Origins
from durable_cache.endpoints.session.asking import PlainReply, plain_sample
from durable_cache.endpoints.session.decoding import PUT
from durable_cache.endpoints.session.leaving import start_thread
from durable_cache.model.sample import Qos, SourceId

ZenohSubscriber: TypeAlias = "zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]"


Token: TypeAlias = zenoh.LivelinessToken


TokenSample: TypeAlias = zenoh.Sample


TokenChanges: TypeAlias = Sequence[tuple[str, bool]]
"""Each as (key, alive)."""


RawSample: TypeAlias = zenoh.Sample


_ItemT = TypeVar("_ItemT")
_log = logging.getLogger(__name__)
_CHANGES_KEPT_MAX = 16_384
"""Tokens and heartbeats that wait for a subscriber that is held up by its consumer."""
_EVENTS_WAITING_MAX = 4096
"""Tokens, heartbeats or acknowledgements between Zenoh and us; a full channel holds Zenoh up."""
_STORED = b"\x01"
"""What a heartbeat of a cache has attached."""
_GONE = (ZError, RuntimeError)
"""What a channel raises when it was undeclared; the second while it is being undeclared."""
_LENT_SECONDS_MAX = 5.0
"""How long `undeclare` waits for another thread that has what is declared."""
_LENT_LOOK_SECONDS = 0.001
"""How often it looks meanwhile; Zenoh tells nobody when a thread gives it back."""


def declare_subscriber(
    session: Session, key_expr: str, origins: Origins, channel_samples: int
) -> ZenohSubscriber:
    """Subscribe into a bounded channel; nothing of ours runs on Zenoh's threads."""
    return session.declare_subscriber(
        key_expr, handlers.FifoChannel(channel_samples), allowed_origin=origins.locality
    )


def hear_queries(
    session: Session, key_expr: str, asked: Callable[[Query], None]
) -> zenoh.Queryable[None]:
    """Call `asked(query)` for each query, on Zenoh's thread: it must hand the query on at once.

    The asker waits until the query is closed.
    """
    handler = handlers.Callback(asked, indirect=False)
    return session.declare_queryable(key_expr, handler)


def declare_token(session: Session, key: str) -> Token:
    """Show that something is alive under `key`."""
    return session.liveliness().declare_token(key)


def declare_native_token(
    session: Session, key_expr: str, source: SourceId, kind: str = "pub"
) -> Token:
    """Show a publisher or a subscriber of ours to programs that look for zenoh.ext's."""
    return declare_token(session, f"{key_expr}/@adv/{kind}/{source.zid}/{source.eid}/_")


def watch_tokens(
    session: Session, key_expr: str, callback: Callable[[str, bool], None]
) -> ZenohSubscriber:
    """Call `callback(key, alive)` for each token there is and each change, on its own thread."""

    def changed(sample: zenoh.Sample) -> None:
        callback(str(sample.key_expr), sample.kind == PUT)

    channel: handlers.FifoChannel[zenoh.Sample] = handlers.FifoChannel(_EVENTS_WAITING_MAX)
    watch = session.liveliness().declare_subscriber(key_expr, channel, history=True)
    _hand_on(watch.handler, changed)
    return watch


def watch_samples(
    session: Session, key_expr: str, callback: Callable[[TokenSample], None], *, history: bool
) -> ZenohSubscriber:
    """Call `callback` for each change of a token, as Zenoh says it, on a thread of its own.

    With `history`, for each token that there is already, too.
    """
    channel: handlers.FifoChannel[zenoh.Sample] = handlers.FifoChannel(_EVENTS_WAITING_MAX)
    watch = session.liveliness().declare_subscriber(key_expr, channel, history=history)
    _hand_on(watch.handler, callback)
    return watch


def watch_tokens_polled(session: Session, key_expr: str) -> ZenohSubscriber:
    """Note which tokens there are and each change, to be taken with `take_token_changes`.

    Of changes that nobody takes, the newest are kept.
    """
    channel: handlers.RingChannel[zenoh.Sample] = handlers.RingChannel(_CHANGES_KEPT_MAX)
    return session.liveliness().declare_subscriber(key_expr, channel, history=True)


def tokens_now(session: Session, key_expr: str, timeout_seconds: float) -> set[str]:
    """Ask which tokens there are at this moment; what does not answer in time is not there."""
    replies = session.liveliness().get(
        key_expr, handlers.FifoChannel(1024), timeout=timeout_seconds
    )
    return {str(reply.ok.key_expr) for reply in replies if reply.ok is not None}


def tokens_watched(
    session: Session,
    watch: ZenohSubscriber,
    key_expr: str,
    timeout_seconds: float,
    known: Iterable[str] = (),
) -> set[str]:
    """Return which tokens there are of a watch, and take its changes so far.

    `known` were there when its changes were taken last.

    A router that has told a session of a token for its watch answers a question right behind it
    with nothing; it answers in order, so what the watch was told has come by then.
    """
    there = {*known, *tokens_now(session, key_expr, timeout_seconds)}
    for key, alive in take_token_changes(watch):
        if alive:
            there.add(key)
        else:
            there.discard(key)
    return there


def tokens_for_certain(session: Session, key_expr: str, timeout_seconds: float) -> set[str] | None:
    """Ask which tokens there are at this moment; None where not everybody answered in time."""
    replies = session.liveliness().get(
        key_expr, handlers.FifoChannel(1024), timeout=timeout_seconds
    )
    keys = set()
    for reply in replies:
        if reply.ok is None:
            return None
        keys.add(str(reply.ok.key_expr))
    return keys


def take_token_changes(watch: ZenohSubscriber) -> TokenChanges:
    """Return each change since the last call, at once."""
    try:
        first = watch.try_recv()
    except _GONE:
        return ()
    if first is None:  # as nearly always, and it is looked for before each sample
        return ()
    changes = [first, *receive_now(watch, _CHANGES_KEPT_MAX - 1)]
    return [(str(change.key_expr), change.kind == PUT) for change in changes]


def declare_heartbeats_polled(session: Session, key_expr: str) -> ZenohSubscriber:
    """Note native heartbeats, to be taken with `take_heartbeats`; the newest are kept."""
    return hear_polled(session, key_expr)


class Beat(NamedTuple):
    """What a heartbeat says."""

    source: SourceId
    last_sn: int
    first_sn: int | None
    """From here on subscribers may not have heard it, as a publisher of ours says."""
    stored_as: int | None
    """A cache says so, which has it, of a run that it calls by this epoch."""


def take_heartbeats(watch: ZenohSubscriber) -> Sequence[Beat]:
    """Return each heartbeat since the last call, at once."""
    return [beat for one in _polled(watch) if (beat := _heartbeat(one)) is not None]


def _heartbeat(sample: zenoh.Sample) -> Beat | None:
    """Read a heartbeat, 4 little-endian bytes on a native publisher's token key.

    Ours may have an attachment, which native subscribers do not look at: 4 more, or a
    cache's 1 and 4.
    """
    payload = sample.payload
    if len(payload) != 4 or sample.kind != PUT:
        return None
    parts = str(sample.key_expr).rpartition("/@adv/pub/")[2].split("/")
    try:
        source = SourceId.parse(":".join(parts[:2]))
    except ValueError:
        return None
    last = int.from_bytes(payload.to_bytes(), "little")
    attached = b"" if sample.attachment is None else sample.attachment.to_bytes()
    first = int.from_bytes(attached, "little") if len(attached) == 4 else None
    if first is not None and first > last:
        first = None
    said = attached.removeprefix(_STORED)
    stored_as = int.from_bytes(said, "little") if len(attached) == 5 and len(said) == 4 else None
    return Beat(source, last, first, stored_as)


def beat(
    session: Session,
    key_expr: str,
    source: SourceId,
    last_sn: int,
    first_sn: int | None = None,
    *,
    stored_as: int | None = None,
) -> None:
    """Say which number a source published last, as a native publisher's heartbeat does.

    `first_sn` is where begins what subscribers may not have heard; `stored_as`: a cache says so, of
    a run that it calls by this epoch. Lost where the network is away.
    """
    key = f"{key_expr}/@adv/pub/{source.zid}/{source.eid}/_/_"
    try:
        attached = None if first_sn is None else first_sn.to_bytes(4, "little")
        if stored_as is not None:
            attached = _STORED + stored_as.to_bytes(4, "little")
        put_own(session, key, last_sn.to_bytes(4, "little"), attached)
    except ZError:
        return


def declare_heartbeats(
    session: Session, key_expr: str, callback: Callable[[SourceId, int], None]
) -> ZenohSubscriber:
    """Call `callback(source, last source_sn)` for each native heartbeat, on a thread of its own.

    A heartbeat is 4 little-endian bytes on the publisher's token key; anything else is ignored, and
    what another cache says of its own: caches compare with each other.
    """

    def beat(sample: zenoh.Sample) -> None:
        heard = _heartbeat(sample)
        if heard is not None and heard.stored_as is None:
            callback(heard.source, heard.last_sn)

    channel: handlers.FifoChannel[zenoh.Sample] = handlers.FifoChannel(_EVENTS_WAITING_MAX)
    subscriber = session.declare_subscriber(key_expr, channel)
    _hand_on(subscriber.handler, beat)
    return subscriber


def _hand_on(channel: handlers.Handler[_ItemT], callback: Callable[[_ItemT], None]) -> None:
    """Call `callback` for what a channel brings until it is undeclared, on a daemon thread.

    Zenoh's callbacks run on threads that are no daemons: a program that leaves one declared never
    ends.
    """

    def run() -> None:
        while True:
            try:
                item = channel.recv()
            except _GONE:
                return
            try:
                callback(item)
            except BaseException:  # a panic in Zenoh is no Exception
                _log.exception("a callback failed; the next event is handled all the same")

    start_thread(run, "zenoh-events")


def hear_at_once(
    session: Session, key_expr: str, callback: Callable[[bytes], None]
) -> zenoh.Subscriber[None]:
    """Call `callback(payload)` for each message of ours on Zenoh's own thread: it never waits."""

    def heard(sample: zenoh.Sample) -> None:
        callback(sample.payload.to_bytes())

    return session.declare_subscriber(key_expr, _at_once(heard))


def hear_writes(
    session: Session, key_expr: str, callback: Callable[[str, bytes | None], None]
) -> zenoh.Subscriber[None]:
    """Call `callback(key, payload)` for each put, and with None for each delete, on Zenoh's own
    thread: it hands them on and never waits.
    """

    def heard(sample: zenoh.Sample) -> None:
        payload = sample.payload.to_bytes() if sample.kind == PUT else None
        callback(str(sample.key_expr), payload)

    return session.declare_subscriber(key_expr, _at_once(heard))


def hear_plain(
    session: Session, key_expr: str, callback: Callable[[str, PlainReply], None]
) -> zenoh.Subscriber[None]:
    """Call `callback("PUT" or "DELETE", sample)` for each sample, on Zenoh's own thread: it hands
    the sample on and never waits. Raises ZError for a key expression that is none to Zenoh.
    """

    def heard(sample: zenoh.Sample) -> None:
        callback("PUT" if sample.kind == PUT else "DELETE", plain_sample(sample))

    return session.declare_subscriber(key_expr, _at_once(heard))


def answer_at_once(
    session: Session, key_expr: str, callback: Callable[[Query], None]
) -> zenoh.Queryable[None]:
    """Call `callback(query)` on Zenoh's own thread: it hands the query on and never waits."""
    return session.declare_queryable(key_expr, _at_once(callback))


def _at_once(callback: Callable[[_ItemT], None]) -> handlers.Callback[_ItemT]:
    def guarded(item: _ItemT) -> None:
        try:
            callback(item)
        except Exception:
            _log.exception("a callback failed; the next event is handled all the same")

    return handlers.Callback(guarded, indirect=False)


class Listening:
    """Whether somebody listens on a key expression; kept up by Zenoh, so asking costs nothing.

    `began()` is called on a thread of its own when somebody begins to.
    """

    def __init__(self, session: Session, key_expr: str, began: Callable[[], None]) -> None:
        self._began = began
        self._publisher = session.declare_publisher(key_expr)
        self._now = False
        channel: handlers.FifoChannel[zenoh.MatchingStatus] = handlers.FifoChannel(
            _EVENTS_WAITING_MAX
        )
        self._listener = self._publisher.declare_matching_listener(channel)
        _hand_on(self._listener.handler, self._changed)
        if is_matched(self._publisher):
            self._now = True

    def now(self) -> bool:
        """Tell whether somebody listens at this moment."""
        return self._now

    def _changed(self, status: zenoh.MatchingStatus) -> None:
        self._now = status.matching
        if self._now:
            self._began()

    def close(self) -> None:
        undeclare(self._listener)
        undeclare(self._publisher)


def declare_own_publisher(
    session: Session,
    key_expr: str,
    qos: Qos,
    encoding: str | None,
    *,
    reliability: Reliability | None = None,
    destination: Origins = Origins.ANY,
) -> Publisher:
    """Declare a publisher with our names for its quality of service."""
    return session.declare_publisher(
        key_expr,
        encoding=encoding,
        congestion_control=CONGESTION[qos.congestion],
        priority=PRIORITY[qos.priority],
        express=qos.express,
        reliability=reliability,
        allowed_destination=destination.locality,
    )


def is_matched(publisher: Publisher) -> bool:
    """Tell whether somebody listens to a publisher."""
    return bool(getattr(publisher.matching_status, "matching", False))


def source_of(publisher: Publisher | ZenohSubscriber) -> SourceId:
    """Return the global id of a publisher, its source_id, or of a subscriber."""
    return SourceId(str(publisher.id.zid), publisher.id.eid)


def put_plain(session: Session, key: str, payload: bytes | None, encoding: str) -> None:
    """Publish as any program does, a delete where `payload` is None. Raises ZError."""
    if payload is None:
        session.delete(key)
    else:
        session.put(key, payload, encoding=encoding)


def put_own(session: Session, key: str, payload: bytes, attachment: bytes | None = None) -> None:
    """Publish a message of ours."""
    session.put(
        key,
        payload,
        encoding="application/octet-stream",
        congestion_control=CONGESTION[1],
        attachment=attachment,
    )


def hear_polled(session: Session, key_expr: str) -> ZenohSubscriber:
    """Note messages of ours, to be taken with `take_heard`; the newest are kept."""
    channel: handlers.RingChannel[zenoh.Sample] = handlers.RingChannel(_CHANGES_KEPT_MAX)
    return session.declare_subscriber(key_expr, channel)


def take_heard(subscriber: ZenohSubscriber) -> list[tuple[str, bytes]]:
    """Return each message since the last call as (key, payload), at once."""
    return [(str(sample.key_expr), sample.payload.to_bytes()) for sample in _polled(subscriber)]


def receive(subscriber: ZenohSubscriber, samples_max: int) -> list[zenoh.Sample]:
    """Wait for one sample, then take what is there up to a bound; empty when undeclared."""
    taken: list[zenoh.Sample] = []
    try:
        # Undeclaring is not held up by a thread that waits on the channel.
        channel = subscriber.handler
        taken.append(channel.recv())
        following = channel.try_recv() if samples_max > 1 else None
        if following is not None:  # mostly there is no other, and that is seen with one look
            taken.append(following)
            taken.extend(islice(iter(channel.try_recv, None), samples_max - 2))
    except _GONE:  # what was there before is all there is
        pass
    return taken


def receive_soon(subscriber: ZenohSubscriber, samples_max: int) -> list[zenoh.Sample]:
    """Take what is there up to a bound, or wait for one sample and take that alone.

    What comes behind a wait is not looked at before that sample is handled: below full speed there
    is nothing. Empty when undeclared.
    """
    taken = receive_now(subscriber, samples_max)
    if not taken:
        try:
            taken.append(subscriber.handler.recv())
        except _GONE:
            return []
    return taken


def receive_now(subscriber: ZenohSubscriber, samples_max: int) -> list[zenoh.Sample]:
    """Take what is there up to a bound, without waiting."""
    taken: list[zenoh.Sample] = []
    try:
        taken.extend(islice(iter(subscriber.handler.try_recv, None), samples_max))
    except _GONE:
        return taken  # what was there before is all there is
    return taken


def _polled(watch: ZenohSubscriber) -> Sequence[zenoh.Sample]:
    """Take what is there; mostly nothing is, and that is seen with one look."""
    try:
        first = watch.try_recv()
    except _GONE:
        return ()
    return () if first is None else (first, *receive_now(watch, _CHANGES_KEPT_MAX - 1))


def undeclare(*declared: Any) -> None:
    """Undeclare what may be undeclared already, in this order.

    Zenoh lends what is declared to one thread at a time and refuses others with a RuntimeError. The
    thread that has it is waited for, mostly because it undeclares, too.
    """
    for one in declared:
        with suppress(ZError):
            end = time.monotonic() + _LENT_SECONDS_MAX
            while not _undeclared(one, in_time=time.monotonic() < end):
                time.sleep(_LENT_LOOK_SECONDS)


def _undeclared(declared: Any, *, in_time: bool) -> bool:
    """Undeclare; False while another thread has it, whose error is raised once time is over."""
    try:
        declared.undeclare()
    except RuntimeError:
        if not in_time:
            raise
        return False
    return True

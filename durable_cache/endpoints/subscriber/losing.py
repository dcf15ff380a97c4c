"""How a subscriber tells what it lost: a table to whoever asks, advisories to whoever listens.

The thread that delivers counts and publishes; questions are answered on Zenoh's thread, from rows
that are never changed (ADR 0157).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from durable_cache.endpoints.session import (
    Query,
    Session,
    ZError,
    answer_at_once,
    put_plain,
    take_token_changes,
    undeclare,
    watch_tokens_polled,
)
from durable_cache.endpoints.subscriber.channels import Callback, Listener, Sink, sink_of
from durable_cache.model.clock import Moment
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.advisories import (
    Advisories,
    LossAdvisory,
    encode_advisory,
    loss_key,
    parse_user_token,
)
from durable_cache.protocol.losses import Losses, LossTable, encode_table
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.wire import PublisherToken, own_key

_log = logging.getLogger(__name__)


class LossListener(Listener[LossAdvisory]):
    """What `loss_listener` returns: where advisories are received from, until `undeclare`."""


class Losing:
    """Part of a subscriber; all but `listen` and the answers on the thread that delivers."""

    def __init__(
        self,
        session: Session,
        key_expr: KeyExpression,
        domain: str,
        subscriber: SourceId,
        losses: Losses,
        options: DeliveryOptions,
        table: Callable[[], LossTable],
    ) -> None:
        """`table` gives what is answered; on Zenoh's thread."""
        self._session, self._domain = session, domain
        self._key_expr = str(key_expr)
        self._losses, self._table = losses, table
        self._sources_max = options.losses_max
        self._advisories = Advisories(subscriber, options.loss_keys_max)
        self.wake_ns = self._advisories.wake_ns
        """Returns the monotonic time of the next advisory, or None."""
        self._sinks: list[Sink[LossAdvisory]] = []
        self._keys: OrderedDict[SourceId, str] = OrderedDict()
        """What publishers say they publish on: the key of a lost sample is lost with it."""
        self._key = loss_key(domain, subscriber)
        self._users = watch_tokens_polled(session, own_key(domain, "user", "**"))
        self._queryable = answer_at_once(session, self._key, self._answer)

    def listen(self, handler: object) -> LossListener:
        """Tell `handler` of each advisory."""
        sink, given = sink_of(handler, LossAdvisory, self._session)
        self._sinks.append(sink)
        return LossListener(sink, given, self._sinks.remove)

    @property
    def errors(self) -> int:
        """How often a listener's callback raised."""
        return sum(sink.errors for sink in self._sinks if isinstance(sink, Callback))

    def declared(self, token: PublisherToken) -> None:
        """Know on which keys a source publishes."""
        self._losses.seen(token.source)
        self._keys[token.source] = str(token.key_expr)
        while len(self._keys) > self._sources_max:
            self._keys.popitem(last=False)

    def look(self) -> None:
        """Learn by which names publishers go."""
        for key, alive in take_token_changes(self._users):
            named = parse_user_token(key, self._domain) if alive else None
            if named is not None:
                self._losses.name(*named)

    def missed(self, source: SourceId, count: int) -> None:
        """Count a loss, and publish what is due."""
        self._losses.lost(source, count)
        self._advisories.lost(self._keys.get(source, self._key_expr), count)

    def publish(self, now_ns: int, *, at_once: bool = False) -> None:
        """Publish the advisory that is due, and tell who listens here."""
        advisory = self._advisories.take(now_ns, at_once=at_once)
        if advisory is None:
            return
        try:
            text = encode_advisory(advisory)
            put_plain(self._session, self._key, text, "application/json")
        except ZError:
            _log.debug("an advisory was not published: the session is closing")
        for sink in tuple(self._sinks):
            sink.deliver((advisory,))

    def close(self, left: Sequence[Sample], now: Moment) -> None:
        """Count what came and finds nobody, publish what is left, and undeclare."""
        self._losses.now_ns = now.unix_ns
        self._losses.unsubscribed(left)
        self.publish(now.monotonic_ns, at_once=True)
        undeclare(self._queryable)
        undeclare(self._users)
        for sink in self._sinks:
            sink.close()

    def _answer(self, query: Query) -> None:
        with query:
            query.reply(self._key, encode_table(self._table()), encoding="application/json")

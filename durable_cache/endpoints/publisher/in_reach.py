"""Which caches a publisher has in reach, and how it sends something once more to one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.session import Replies, Session, ask_later, zid_of
from durable_cache.errors import Closed, RemoteProtocolError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.protocol.publisher.events import (
    CacheAppeared,
    CacheGone,
    Resend,
    ResendFailed,
    Resent,
)
from durable_cache.protocol.resends import ResendRequest, decode_resent, encode_resend
from durable_cache.protocol.wire import parse_history_token, store_key


class CachesInReach:
    """The caches that store something of a key expression, at most `caches_max`.

    A cache shows a token for each of its key expressions, under a name drawn anew at each start.
    Of those that are too many, as many again are remembered: each waits for a place.
    """

    def __init__(self, domain: str, key_expr: KeyExpression, caches_max: int) -> None:
        self._domain = domain
        self._key_expr = key_expr
        self._max = caches_max
        self._incarnations: dict[str, str] = {}
        self._waiting: dict[str, str] = {}

    @property
    def left_out(self) -> int:
        """How many caches are in reach for which there is no place, at most `caches_max`."""
        return len(self._waiting)

    def changes(self, tokens: Iterable[tuple[str, bool]]) -> Iterator[CacheAppeared | CacheGone]:
        """Yield what changes of tokens, as (key, alive), mean."""
        for key, alive in tokens:
            token = parse_history_token(key, self._domain)
            if token is None or not token.key_expr.intersects(self._key_expr):
                continue
            known = self._incarnations.get(token.cache_id)
            if not alive and known == token.incarnation:
                del self._incarnations[token.cache_id]
                yield CacheGone(token.cache_id)
                yield from self._next_waiting()
            elif not alive and self._waiting.get(token.cache_id) == token.incarnation:
                del self._waiting[token.cache_id]
            elif alive and known != token.incarnation:
                if known is not None or len(self._incarnations) < self._max:
                    self._incarnations[token.cache_id] = token.incarnation
                    yield CacheAppeared(token.cache_id)
                elif token.cache_id in self._waiting or len(self._waiting) < self._max:
                    self._waiting[token.cache_id] = token.incarnation

    def _next_waiting(self) -> Iterator[CacheAppeared]:
        """Give the place of one that is gone to the one that waits longest."""
        for cache_id, incarnation in self._waiting.items():
            del self._waiting[cache_id]
            self._incarnations[cache_id] = incarnation
            yield CacheAppeared(cache_id)
            return


def resend(
    session: Session,
    domain: str,
    effect: Resend,
    timeout_seconds: float,
    ended: Callable[[Resent | ResendFailed], None],
) -> None:
    """Send samples once more to one cache; `ended(event)` is called once, on any thread."""
    number = effect.resend_id
    sender = str(zid_of(session))
    request = ResendRequest(sender, effect.source, effect.epoch, effect.incarnation, effect.samples)

    def answered(replies: Replies) -> None:
        ended(_read(number, replies.payload()))

    try:
        ask_later(
            session,
            store_key(domain, effect.cache_id),
            answered,
            timeout_seconds=timeout_seconds,
            payload=encode_resend(request),
            replies_max=1,
        )
    except Closed as error:
        ended(ResendFailed(number, str(error), moment_now()))


def _read(number: int, payload: bytes | str) -> Resent | ResendFailed:
    """Read what a cache said; one of an earlier version says nothing."""
    if isinstance(payload, str):
        return ResendFailed(number, payload, moment_now())
    try:
        return Resent(number, decode_resent(payload).refused, moment_now())
    except RemoteProtocolError as error:
        return ResendFailed(number, str(error), moment_now())

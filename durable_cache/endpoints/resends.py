"""How a cache takes what publishers send once more, to it alone, and tells them what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from durable_cache.endpoints.alignment.asked import Asked
from durable_cache.endpoints.session import (
    Query,
    Session,
    answer_at_once,
    query_parts,
    tokens_for_certain,
    undeclare,
)
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import RemoteProtocolError
from durable_cache.model.clock import Moment
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.resends import (
    RefusalReason,
    ResendRefusal,
    ResendReply,
    decode_resend,
    encode_resent,
)
from durable_cache.protocol.wire import own_key, parse_publisher_token, store_key, tokens_about
from durable_cache.runtime.effects import AnswerResend, ResendArrived

__all__ = ["TakingResends"]

_TOKENS_SECONDS_MAX = 1.0
"""Tokens are answered by the nearest router."""


class TakingResends:
    """The queries on a cache's own key; any thread may call `answer`.

    `stores(sample)` tells which samples are the cache's, all under `key_exprs`; `tell(event)` hands
    one to its core.
    """

    def __init__(
        self,
        session: Session,
        domain: str,
        cache_id: str,
        key_exprs: Iterable[KeyExpression],
        lane: Lane,
        stores: Callable[[Sample], bool],
        tell: Callable[[ResendArrived], None],
    ) -> None:
        self._session = session
        self._domain = domain
        self._cache_id = cache_id
        self._key_exprs = tuple(key_exprs)
        self._lane = lane
        self._stores = stores
        self._tell = tell
        self._asked = Asked(lane.waiting_max)
        self.refused = 0
        """Resends that could not be read, or for which there was no room."""
        self._queryable: object = None

    def start(self) -> None:
        """Take resends from now on."""
        key = store_key(self._domain, self._cache_id)
        self._queryable = answer_at_once(self._session, key, self._take)

    def _take(self, query: Query) -> None:
        payload = query_parts(query).payload
        number = self._asked.put(query)
        if not self._lane.submit(partial(self._read, number, payload)):
            self._refuse(number, "too many resends wait here; send again later")

    def _read(self, number: int, payload: bytes) -> None:
        try:
            resend, samples = decode_resend(payload)
        except RemoteProtocolError as error:
            self._refuse(number, str(error))
            return
        others = [sample for sample in samples if not self._stores(sample)]
        if others:
            samples = SampleBatch(sample for sample in samples if self._stores(sample))
        not_stored = int(RefusalReason.NOT_STORED)
        self._tell(
            ResendArrived(
                number,
                resend.sender,
                resend.source,
                resend.epoch,
                resend.incarnation,
                samples,
                self._claims(resend.source),
                Moment(time.monotonic_ns(), time.time_ns()),
                tuple(ResendRefusal(sample.sn, sample.sn, not_stored) for sample in others),
            )
        )

    def _claims(self, source: SourceId) -> frozenset[str] | None:
        """Return which incarnations of a source live tokens name; None where that is unknown."""
        owner, found = str(source), set[str]()
        patterns = {own_key(self._domain, "pub", owner, "**")}
        patterns |= {tokens_about(self._domain, "pub", own, owner) for own in self._key_exprs}
        for pattern in sorted(patterns):
            keys = tokens_for_certain(self._session, pattern, _TOKENS_SECONDS_MAX)
            if keys is None:
                return None
            found |= keys
        tokens = (parse_publisher_token(key, self._domain) for key in found)
        return frozenset(token.incarnation for token in tokens if token is not None)

    def answer(self, effect: AnswerResend) -> None:
        """Tell the publisher what the core said."""
        resent = ResendReply(self._cache_id, effect.refused)
        self._asked.reply(effect.number, encode_resent(resent))

    def _refuse(self, number: int, reason: str) -> None:
        self.refused += 1
        self._asked.refuse(number, reason)

    def close(self) -> None:
        """Undeclare, and tell all who wait that there is no answer; idempotent."""
        if self._queryable is not None:
            undeclare(self._queryable)
        self._asked.refuse_all("the cache is closing")

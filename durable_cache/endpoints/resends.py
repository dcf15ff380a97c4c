"""How a cache takes what publishers send once more, to it alone, and tells them what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from durable_cache.endpoints.alignment.asked import Asked
from durable_cache.endpoints.claims import tokens_of
from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.session import (
    Query,
    Session,
    answer_at_once,
    query_parts,
    undeclare,
)
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import RemoteProtocolError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.pipe.tokens import parse_carried_token
from durable_cache.protocol.resends import (
    RefusalReason,
    ResendRefusal,
    ResendReply,
    decode_resend,
    encode_resent,
)
from durable_cache.protocol.wire import parse_publisher_token, store_key
from durable_cache.runtime.effects import AnswerResend, ResendArrived


class TakingResends:
    """The queries on a cache's own key; any thread may call `answer`.

    `stores(sample)` tells which samples are the cache's, all under `key_exprs`; `tell(event)` hands
    one to its core; `refusal(sample)` tells which are not taken, whoever stores them, and why.
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
        refusal: Callable[[Sample], RefusalReason | None],
    ) -> None:
        self._session = session
        self._domain = domain
        self._cache_id = cache_id
        self._key_exprs = tuple(key_exprs)
        self._lane = lane
        self._stores = stores
        self._tell = tell
        self._refusal = refusal
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
        carriers = frozenset[tuple[str, str]]()
        claims = self._claims(resend.source)
        if resend.sender != resend.source.zid:
            found = self._carriers(resend.source)
            carriers, claims = (carriers, None) if found is None else (found, claims)
        samples, refused = self._screened(samples)
        self._tell(
            ResendArrived(
                number,
                resend.sender,
                resend.source,
                resend.epoch,
                resend.incarnation,
                samples,
                claims,
                moment_now(),
                refused,
                carriers,
            )
        )

    def _screened(self, samples: SampleBatch) -> tuple[SampleBatch, tuple[ResendRefusal, ...]]:
        """Return what may be stored here, and why the rest may not."""
        taken, refused = [], []
        stores: dict[str, bool] = {}
        for sample in samples:
            reason = self._refusal(sample)
            if sample.key not in stores:  # of one numbering, all of them
                stores[sample.key] = self._stores(sample)
            if not stores[sample.key]:
                reason = RefusalReason.NOT_STORED
            if reason is None:
                taken.append(sample)
                continue
            refused.append(ResendRefusal(sample.sn, sample.sn, int(reason)))
        return SampleBatch(taken) if refused else samples, tuple(refused)

    def _claims(self, source: SourceId) -> frozenset[str] | None:
        """Return which incarnations of a source live tokens name; None where that is unknown."""
        found = self._tokens("pub", source)
        if found is None:
            return None
        tokens = (parse_publisher_token(key, self._domain) for key in found)
        return frozenset(token.incarnation for token in tokens if token is not None)

    def _carriers(self, source: SourceId) -> frozenset[tuple[str, str]] | None:
        """Return which sessions carry which runs of a source; None where that is unknown."""
        found = self._tokens("carried", source)
        if found is None:
            return None
        tokens = (parse_carried_token(key, self._domain) for key in found)
        return frozenset((token.carrier, token.incarnation) for token in tokens if token)

    def _tokens(self, kind: str, source: SourceId) -> set[str] | None:
        return tokens_of(self._session, self._domain, kind, source, self._key_exprs)

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

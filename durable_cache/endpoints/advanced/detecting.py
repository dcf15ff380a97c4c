"""How a subscriber is told of the publishers that show themselves, by zenoh.ext's names."""

from __future__ import annotations

from typing import Any

from durable_cache.endpoints.session import (
    Session,
    TokenSample,
    close_at_exit,
    undeclare,
    watch_samples,
)
from durable_cache.endpoints.subscriber.channels import Listener, Sink, sink_of
from durable_cache.model.key_expression import KeyExpression


class PublisherListener(Listener[TokenSample]):
    """Where publishers are received from as they appear and leave, until `undeclare`.

    Each is a sample on the publisher's token: a put when it appears, a delete when it leaves.
    """

    def __init__(
        self, session: Session, key_expr: KeyExpression, handler: object, *, history: bool
    ) -> None:
        sink: Sink[TokenSample]
        sink, given = sink_of(handler, TokenSample, session)
        super().__init__(sink, given, self._forget_watch)
        self.key_expr = f"{key_expr}/@adv/pub/**"
        self._watch = watch_samples(
            session, self.key_expr, lambda change: sink.deliver((change,)), history=history
        )
        close_at_exit(self, session)

    def _forget_watch(self, _: Any) -> None:
        undeclare(self._watch)

    def close(self) -> None:
        """Be told of nothing further; idempotent."""
        self.undeclare()

"""Which tokens of a source are alive: asked for until a router answered for certain."""

from __future__ import annotations

from collections.abc import Iterable

from durable_cache.endpoints.session import Session, tokens_for_certain
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import SourceId
from durable_cache.protocol.wire import own_key, tokens_about

_TOKENS_SECONDS_MAX = 1.0
"""Tokens are answered by the nearest router."""


def tokens_of(
    session: Session, domain: str, kind: str, source: SourceId, key_exprs: Iterable[KeyExpression]
) -> set[str] | None:
    """Return the keys of a source's live tokens of a kind; None where that is unknown.

    Those on keys behind an ``@`` chunk that `key_exprs` name are among them.
    """
    owner, found = str(source), set[str]()
    patterns = {own_key(domain, kind, owner, "**")}
    patterns |= {tokens_about(domain, kind, key_expr, owner) for key_expr in key_exprs}
    for pattern in sorted(patterns):
        keys = tokens_for_certain(session, pattern, _TOKENS_SECONDS_MAX)
        if keys is None:
            return None
        found |= keys
    return found

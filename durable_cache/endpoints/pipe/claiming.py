"""How a pipe shows in the target network which runs of which sources it carries."""

from __future__ import annotations

from collections.abc import Callable

from durable_cache.endpoints.claims import tokens_of
from durable_cache.endpoints.session import (
    Query,
    Session,
    ZError,
    answer_at_once,
    declare_token,
    hear_at_once,
    undeclare,
    zid_of,
)
from durable_cache.model.clock import Moment
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.run_name import run_of
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.pipe.events import Claimed, ClaimFailed
from durable_cache.protocol.pipe.tokens import (
    carried_token,
    name_of_unnamed,
    parse_carried_token,
)
from durable_cache.protocol.wire import (
    ack_key,
    parse_publisher_token,
    publisher_token,
)

_UNNAMED_ATTEMPTS = 2
"""A token may be on its way still; a publisher that shows none by then has none."""


class Claiming:
    """The runs that are shown as carried; owned by the pipe's thread until `close`.

    On Zenoh's thread, `acknowledged(payload)` is called for every acknowledgement of their sources,
    and `asked(query)` for every question about them.
    """

    def __init__(
        self,
        session: Session,
        key_expr: KeyExpression,
        domain: str,
        acknowledged: Callable[[bytes], None],
        asked: Callable[[Query], None],
    ) -> None:
        self._session = session
        self._key_expr = key_expr
        self._domain = domain
        self._acknowledged = acknowledged
        self._asked = asked
        self._shown: dict[tuple[SourceId, str], tuple[object, ...]] = {}
        """What is declared for each run: what is undeclared first, comes first."""

    def claim(
        self, run: tuple[int, str], sample: Sample, attempt: int, now: Moment
    ) -> Claimed | ClaimFailed:
        """Show the run of a sample, by its epoch and incarnation, as carried."""
        source, called = sample.source, sample.epoch
        epoch, incarnation = run
        own = run_of(sample)
        incarnation = incarnation if own is None else own.incarnation
        named = bool(incarnation)
        if not named:
            if attempt < _UNNAMED_ATTEMPTS:
                return ClaimFailed(source, called, now)
            incarnation = name_of_unnamed(source, epoch)
        try:
            at_home = self._is_at_home(source, incarnation)
            if at_home is None:
                return ClaimFailed(source, called, now)
            self._show(source, epoch, incarnation, as_publisher=named and not at_home)
        except ZError:
            return ClaimFailed(source, called, now)
        return Claimed(source, called, epoch, incarnation, now)

    def _is_at_home(self, source: SourceId, incarnation: str) -> bool | None:
        """Tell whether the target network has the source itself; None where that is unknown.

        As in a ring of pipes. Its token is its own there: one of ours would outlive it.
        """
        carried = self._tokens("carried", source)
        claims = self._tokens("pub", source)
        if carried is None or claims is None:
            return None
        by_pipes = (parse_carried_token(key, self._domain) for key in carried)
        if any(token is not None and token.incarnation == incarnation for token in by_pipes):
            return False
        found = (parse_publisher_token(key, self._domain) for key in claims)
        return any(token is not None and token.incarnation == incarnation for token in found)

    def _tokens(self, kind: str, source: SourceId) -> set[str] | None:
        return tokens_of(self._session, self._domain, kind, source, [self._key_expr])

    def _show(self, source: SourceId, epoch: int, incarnation: str, *, as_publisher: bool) -> None:
        if (source, incarnation) in self._shown:
            return
        session, domain, on = self._session, self._domain, str(self._key_expr)
        heard = hear_at_once(session, ack_key(domain, source), self._acknowledged)
        declared: list[object] = [heard]
        try:
            declared.insert(0, answer_at_once(session, f"{source}/{on}", self._asked))
            carrier = zid_of(session)
            carried = carried_token(domain, source, carrier, incarnation, on)
            declared.insert(0, declare_token(session, carried))
            if as_publisher:
                own = publisher_token(domain, source, epoch, incarnation, on)
                declared.insert(0, declare_token(session, own))
        except BaseException:
            undeclare(*declared)
            raise
        self._shown[source, incarnation] = tuple(declared)

    def withdraw(self, source: SourceId, incarnation: str) -> None:
        """Show a run no more."""
        undeclare(*self._shown.pop((source, incarnation), ()))

    def close(self) -> None:
        """Show nothing more; idempotent."""
        while self._shown:
            undeclare(*self._shown.popitem()[1])

"""What a member of a consumer shows to the others, and sees of them, by liveliness tokens."""

from __future__ import annotations

import time
from contextlib import suppress

from durable_cache.endpoints.session import (
    Session,
    Token,
    ZenohSubscriber,
    ZError,
    declare_token,
    take_token_changes,
    tokens_for_certain,
    undeclare,
    watch_tokens_polled,
)
from durable_cache.model.sample import SourceId
from durable_cache.protocol.members import (
    NO_VIEW,
    Sharing,
    View,
    member_token,
    member_tokens,
    read_member_token,
)

_TOKENS_SECONDS_MAX = 1.0
"""How long routers are waited for that say which tokens there are."""
_ASK_SECONDS = 5.0
"""How often tokens are learned anew while members do not agree: of changes that nobody took for
long, the newest alone are kept."""


class Membership:
    """One member, from before its claim to the name until `close`; owned by one thread."""

    def __init__(self, session: Session, domain: str, consumer: str, own: SourceId) -> None:
        self._session, self._domain, self._consumer, self.own = session, domain, consumer, own
        self.sharing = Sharing(own)
        self._pattern = member_tokens(domain, consumer)
        self._watch: ZenohSubscriber | None = None
        self._token: Token | None = None
        self._shown: View | None = None
        self._seen: set[str] = set()
        self._asked_seconds = 0.0
        """When all tokens were asked for; 0: they never were."""
        self._agreed_seconds = 0.0

    def members_now(self) -> set[SourceId] | None:
        """Ask which members there are; None where that is unknown."""
        keys = tokens_for_certain(self._session, self._pattern, _TOKENS_SECONDS_MAX)
        if keys is None:
            return None
        return {found[0] for key in keys if (found := read_member_token(key)) is not None}

    def appear(self) -> None:
        """Show that there is a member that looks for the others."""
        self._show(NO_VIEW)

    def disappear(self) -> None:
        """Show nothing any more."""
        token, self._token, self._shown = self._token, None, None
        if token is not None:
            undeclare(token)

    def look(self) -> None:
        """Take what changed."""
        if self._watch is None or not self._asked_seconds:
            self._ask()
            return
        for key, alive in take_token_changes(self._watch):
            self._see(key, alive=alive)
        if self.sharing.agreed:
            self._agreed_seconds = time.monotonic()
        elif time.monotonic() - max(self._agreed_seconds, self._asked_seconds) >= _ASK_SECONDS:
            undeclare(self._watch)
            self._watch = None
            self._ask()

    @property
    def agreed(self) -> bool:
        """Whether all members, who were asked for once at least, show what we show."""
        return self._asked_seconds > 0 and self._shown == self.sharing.shown and self.sharing.agreed

    def show(self) -> None:
        """Show the view that is acted under now; the new token comes before the old one goes."""
        if not self.sharing.must_stop and self._shown != self.sharing.shown:
            self._show(self.sharing.shown)

    def close(self) -> None:
        """Show and see nothing any more; idempotent."""
        self.disappear()
        if self._watch is not None:
            undeclare(self._watch)
            self._watch = None

    def _show(self, view: View) -> None:
        before = self._token
        key = member_token(self._domain, self._consumer, self.own, view)
        with suppress(ZError):  # the session is closing
            self._token = declare_token(self._session, key)
            self._shown = view
            if before is not None:
                undeclare(before)

    def _ask(self) -> None:
        """Learn which tokens there are, and watch them from now on.

        A router that has told the watch of a token may leave it out of its answer, but by the
        answer what the watch was told has come.
        """
        with suppress(ZError):  # the session is closing
            if self._watch is None:
                self._watch = watch_tokens_polled(self._session, self._pattern)
            keys = tokens_for_certain(self._session, self._pattern, _TOKENS_SECONDS_MAX)
            if keys is None:
                return
            for key, alive in take_token_changes(self._watch):
                (keys.add if alive else keys.discard)(key)
            self._asked_seconds = time.monotonic()
            for key in keys - self._seen:
                self._see(key, alive=True)
            for key in self._seen - keys:
                self._see(key, alive=False)

    def _see(self, key: str, *, alive: bool) -> None:
        found = read_member_token(key)
        if found is None:
            return
        (self._seen.add if alive else self._seen.discard)(key)
        self.sharing.see(*found, alive=alive)

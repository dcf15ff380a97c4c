"""Which keys a publisher may write, and what its tokens tell readers with a profile of them."""

from __future__ import annotations

from functools import lru_cache

from durable_cache.endpoints.publisher.options import PublisherOptions
from durable_cache.endpoints.session import (
    IntoKeyExpr,
    Session,
    Token,
    declare_token,
    new_timestamp,
    raw_timestamp,
    read_text,
    undeclare,
)
from durable_cache.errors import ConfigError
from durable_cache.model.key_expression import KeyExpression, parse_short
from durable_cache.model.sample import SourceId
from durable_cache.protocol.advisories import user_token
from durable_cache.protocol.reader.tokens import (
    Unregistered,
    auto_dispose_token,
    unregistered_token,
)


class OwnKeys:
    """The keys of one publisher; its caller lets one thread in at a time."""

    def __init__(
        self,
        session: Session,
        source: SourceId,
        key_expr: KeyExpression,
        options: PublisherOptions,
    ) -> None:
        self._session, self._source, self._key_expr = session, source, key_expr
        self._domain = options.domain
        self.auto_dispose = options.auto_dispose_unregistered_instances
        self._unregistered_max = options.unregistered_max
        self._user = options.name
        self._shown: list[Token] = []
        self.unregistered: dict[str, Token] = {}
        """Keys that are written no more, with the tokens that say so."""

    def show(self) -> None:
        """Say its name, and what becomes of its keys when it leaves; before its own token."""
        tokens = [auto_dispose_token(self._domain, self._source)] if self.auto_dispose else []
        if self._user is not None:
            tokens.append(user_token(self._domain, self._source, self._user))
        self._shown = [declare_token(self._session, token) for token in tokens]

    def read(self, given: IntoKeyExpr) -> str:
        """Return a key, or an expression for a wildcard update, that is the publisher's to use."""
        text = read_text(given, "key")
        if not self._key_expr.includes(_parse_key(text)):
            raise ConfigError(f"key {text!r} is not one of {self._key_expr}")
        return text

    def read_one(self, given: IntoKeyExpr | None) -> str:
        """Return a key and no expression, the publisher's own where none is given."""
        key = str(self._key_expr) if given is None else self.read(given)
        if "*" in key:
            raise ConfigError(f"name the key: {key} is an expression")
        return key

    def unregister(self, key: str) -> None:
        """Show that a key is not written from now on."""
        ntp64, _ = raw_timestamp(new_timestamp(self._session))
        self.register(key)
        if len(self.unregistered) >= self._unregistered_max:
            self.register(next(iter(self.unregistered)))
        said = Unregistered(self._source, ntp64, key)
        self.unregistered[key] = declare_token(
            self._session, unregistered_token(self._domain, said)
        )

    def register(self, key: str) -> None:
        """Take that back."""
        token = self.unregistered.pop(key, None)
        if token is not None:
            undeclare(token)

    def close(self) -> None:
        """Take all of it back, after the publisher's own token."""
        for token in (*self._shown, *self.unregistered.values()):
            undeclare(token)


@lru_cache(maxsize=1024)
def _parse_key(text: str) -> KeyExpression:
    try:
        return parse_short(text)
    except ValueError as error:
        raise ConfigError(f"key {error}") from error

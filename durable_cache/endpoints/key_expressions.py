"""How a key expression that somebody declared is read; imports nothing that only caches need."""

from __future__ import annotations

from durable_cache.endpoints.session import IntoKeyExpr, read_text
from durable_cache.errors import ConfigError
from durable_cache.model.key_expression import KeyExpression, parse_short


def parse_key_expr(given: IntoKeyExpr) -> KeyExpression:
    """Read a key expression that somebody declared; ConfigError says what is wrong with it."""
    try:
        return parse_short(read_text(given, "key_expr"))
    except ValueError as error:
        raise ConfigError(f"key expression {error}") from error

"""How a key expression is written as a regular expression that no key can bring down.

Java's matcher recurses once per repetition of a group, so ``(/chunk)*`` overflows the stack of an
executor on one published key of a few thousand chunks. Here a double wildcard is a plain ``.*``,
and what it may not cross, a verbatim ``@chunk``, is settled by counting: a key is named only if it
has as many verbatim chunks as the expression, so that none is left over for a wildcard.
"""

from __future__ import annotations

import re
from itertools import groupby

from durable_cache.model.arguments import wrong_at
from durable_cache.model.key_expression import KeyExpression

VERBATIM = "/@"
"""What begins a verbatim chunk in a key with a slash before it."""


def parse_key_expr(text: str) -> KeyExpression:
    """Read a key expression; ConfigError, never to be retried, when it is none."""
    with wrong_at("key_expr"):
        return KeyExpression(text)


def verbatim_chunks(key_expr: KeyExpression) -> int:
    """Count the chunks that only themselves can match."""
    return sum(chunk.startswith("@") for chunk in key_expr.chunks)


def slashed_pattern(key_expr: KeyExpression) -> str:
    """Return a regular expression for ``"/" + key``, right together with the count of verbatims.

    The part between two double wildcards is taken where it first occurs, for good (an atomic
    group): it spans a fixed number of chunks, so that no later place could do better.
    """
    parts = _between_double_wildcards(key_expr.chunks)
    if len(parts) == 1:
        return rf"(?s)\A{parts[0]}\z"
    first, *middle, last = parts
    taken = "".join(rf"(?>(?:/.*?)??{part}(?=/|\z))" for part in middle)
    return rf"(?s)\A{first}{taken}(?:/.*)?{last}\z"


def _between_double_wildcards(chunks: tuple[str, ...]) -> list[str]:
    parts = [""]
    for double, group in groupby(chunks, key=lambda chunk: chunk == "**"):
        if double:
            parts.append("")
        else:
            parts[-1] = "".join("/" + _chunk(chunk) for chunk in group)
    return parts


def _chunk(chunk: str) -> str:
    if chunk == "*":
        return "[^/]+"
    return "[^/]*".join(re.escape(piece) for piece in chunk.split("$*"))

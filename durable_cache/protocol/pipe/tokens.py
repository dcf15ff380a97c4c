"""How a pipe says that it carries a run of a source into a network that the source is not in.

Beside this token the pipe shows the run's own, as its publisher would: so subscribers of the target
network follow the run. A cache that sees both takes samples of the run from whoever carries it, and
refuses nobody for a claim that is only carried.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from durable_cache.model.run_name import INCARNATION_DIGITS
from durable_cache.model.sample import SourceId, is_zid
from durable_cache.protocol.wire import is_incarnation, own_key


class CarriedToken(NamedTuple):
    """What the token of a pipe says: this session carries that run."""

    source: SourceId
    carrier: str
    """The zid of the session that sends."""
    incarnation: str


def carried_token(
    domain: str, source: SourceId, carrier: str, incarnation: str, key_expr: str
) -> str:
    """Return the liveliness token of a run that is carried."""
    return own_key(domain, "carried", str(source), f"{carrier}-{incarnation}", key_expr)


def parse_carried_token(key: str, domain: str) -> CarriedToken | None:
    """Read a pipe's token; None when it is none of this domain or malformed."""
    prefix = own_key(domain, "carried", "")
    parts = key.removeprefix(prefix).split("/", 2) if key.startswith(prefix) else []
    if len(parts) != 3:
        return None
    carrier, _, incarnation = parts[1].partition("-")
    if not (is_zid(carrier) and is_incarnation(incarnation)):
        return None
    try:
        return CarriedToken(SourceId.parse(parts[0]), carrier, incarnation)
    except ValueError:
        return None


def name_of_unnamed(source: SourceId, epoch: int) -> str:
    """Return by which incarnation a run goes on the other side whose publisher shows no token.

    The same for every pipe, and after every restart.
    """
    return blake2b(f"{source}/{epoch}".encode(), digest_size=INCARNATION_DIGITS // 2).hexdigest()

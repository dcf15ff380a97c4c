"""How a reliable pipe is declared."""

from __future__ import annotations

import time
from typing import Unpack

from durable_cache.endpoints.key_expressions import parse_key_expr
from durable_cache.endpoints.pipe.options import PipeOptions, PipeSettings
from durable_cache.endpoints.pipe.pipe import ReliablePipe
from durable_cache.endpoints.session import (
    IntoKeyExpr,
    Session,
    check_session,
    declare_token,
    neighbours,
    tokens_now,
    undeclare,
    while_open,
    zid_of,
)
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_kind, with_named
from durable_cache.protocol.wire import own_key

_TOKENS_SECONDS_MAX = 1.0
_LOOKS, _LOOK_SECONDS = 3, 0.1
"""A token takes a moment from one router to the next."""


def declare_reliable_pipe(
    source_session: Session,
    target_session: Session,
    key_expr: IntoKeyExpr,
    *,
    options: PipeOptions | None = None,
    **named: Unpack[PipeSettings],
) -> ReliablePipe:
    """Carry samples from one network's caches to another's, under their own identity.

    Everything that caches of the source network hold goes over, then what is published there, each
    source in its order. A sample is confirmed to the source network once `acknowledgements` caches
    of the target network hold it at `level` and, with `processed_by`, once that durable consumer of
    the target network has confirmed it. A pipe that is killed goes on behind what was confirmed.
    Every field of `PipeOptions` is a named argument; those given win over `options`. The sessions
    stay the caller's, and outlive the pipe.

    Raises ConfigError on a bad argument, where both sessions are of one network, where no cache of
    the source network stores the positions, and where the name is in use; StorageUnavailable, to
    be tried again, where caches of the source network do not answer; Closed where a session is
    closed.
    """
    check_session(source_session)
    check_session(target_session)
    parsed = parse_key_expr(key_expr)
    if options is not None:
        check_kind("options", options, PipeOptions, "durable_cache.pipes.PipeOptions")
    chosen = with_named("declare_reliable_pipe", options or PipeOptions(), named).checked()
    with while_open(source_session, target_session):
        refuse_loop(source_session, target_session, chosen)
        return ReliablePipe(source_session, target_session, parsed, chosen)


def refuse_loop(source: Session, target: Session, options: PipeOptions) -> None:
    """Raise ConfigError where what goes out at the target would come in at the source."""
    zids = {zid_of(source), *neighbours(source)}
    shared = zids & {zid_of(target), *neighbours(target)}
    if shared:
        raise ConfigError(
            f"pipe {options.name!r}: both ends are in one network, they share {min(shared)}: a "
            "pipe onto itself carries nothing; name an endpoint of another network"
        )
    key = own_key(options.target_domain, "pipe", zid_of(target), options.name)
    token = declare_token(target, key)
    try:
        for _ in range(_LOOKS):
            if key in tokens_now(source, key, _TOKENS_SECONDS_MAX):
                raise ConfigError(
                    f"pipe {options.name!r}: both ends are in one network, what the target shows "
                    "is seen at the source: name an endpoint of another network"
                )
            time.sleep(_LOOK_SECONDS)
    finally:
        undeclare(token)

"""What each key is now, as a reader with a profile sees it: the verb ``instances``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.service.output import counted, say, write_rows
from durable_cache.service.samples import rows_of
from durable_cache.service.verbs.options import (
    add_client_options,
    add_domain_option,
    add_format_option,
    domain_of,
)
from durable_cache.service.verbs.parsing import Verbs, add_verb

if TYPE_CHECKING:
    from durable_cache.endpoints.session import Session
    from durable_cache.protocol.reader.instances import InstanceStatus

_OF_NEWEST = ("time", "kind", "source", "payload")
_COLUMNS = ("key", "state", "writers", "disposed", "no_writers", *_OF_NEWEST)
_LOOK_SECONDS = 0.05


def add_verbs(verbs: Verbs) -> None:
    """Add the verb."""
    instances = add_verb(
        verbs,
        "instances",
        examples=(
            "durable-cache instances 'fleet/**'",
            "durable-cache instances 'fleet/**' --depth 9 --format json",
        ),
        description=(
            "What each key is now, as every reader of the profile 'eventually-consistent' sees it. "
            "How often it came back to life is counted in the samples that are read."
        ),
    )
    instances.add_argument("key_expr", metavar="KEY_EXPR")
    instances.add_argument(
        "--depth", type=int, default=1, help="samples to read of each key (default 1)"
    )
    instances.add_argument(
        "--limit", type=int, default=100_000, help="show at most so many keys (default 100000)"
    )
    instances.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="wait so long for history"
    )
    add_format_option(instances)
    add_domain_option(instances)
    add_client_options(instances)
    instances.set_defaults(run=_instances)


def _instances(arguments: argparse.Namespace) -> int:
    from durable_cache.endpoints.key_expressions import parse_key_expr
    from durable_cache.service.client import client_session

    for name in ("depth", "limit"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name}: expected a number above 0")
    parse_key_expr(arguments.key_expr)
    with client_session(arguments) as session:
        found = _read(session, arguments)
    shown = found[: arguments.limit]
    rows = [_row(status, short=arguments.format != "json") for status in shown]
    write_rows(rows, _COLUMNS, arguments.format)
    if arguments.format != "json":
        say(counted(len(rows), "instance"))
    if len(found) > len(shown):
        say(f"there are more than {len(shown)} keys; ask for fewer, or give --limit more")
        return 1
    return 0


def _read(session: Session, arguments: argparse.Namespace) -> Sequence[InstanceStatus]:
    """Return the instances of a reader that has read history whole."""
    from durable_cache.endpoints.asking import Asking
    from durable_cache.endpoints.session import zid_of
    from durable_cache.endpoints.subscriber import declare_reliable_subscriber
    from durable_cache.protocol.reader.profile import DestinationOrder, DurabilityKind, Profile
    from durable_cache.service.client import NOBODY_ANSWERED, are_caches_in_reach

    asking = Asking(session, zid_of(session), timeout_seconds=arguments.timeout)
    if not are_caches_in_reach(asking):
        raise DurableCacheError(NOBODY_ANSWERED)
    profile = Profile(
        durability=DurabilityKind.TRANSIENT_LOCAL,
        depth=arguments.depth,
        instances_max=arguments.limit + 1,
        destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP,
    )
    deadline = time.monotonic() + arguments.timeout
    with declare_reliable_subscriber(
        session,
        arguments.key_expr,
        profile=profile,
        domain=domain_of(arguments),
        history_timeout_seconds=arguments.timeout,
    ) as reader:
        while not reader.history_complete:
            if time.monotonic() > deadline:
                raise DurableCacheError(
                    f"{arguments.key_expr}: history did not come whole within "
                    f"{arguments.timeout:g} s; give --timeout more, or see durable-cache status"
                )
            time.sleep(_LOOK_SECONDS)
        return reader.instances()


def _row(status: InstanceStatus, *, short: bool) -> dict[str, object]:
    row: dict[str, object] = {
        "key": status.key,
        "state": status.state.name,
        "writers": status.writers,
        "disposed": status.disposed_generations,
        "no_writers": status.no_writers_generations,
    }
    if status.newest is not None:
        (newest,) = rows_of((status.newest,), short=short)
        row |= {name: newest[name] for name in _OF_NEWEST}
    return row

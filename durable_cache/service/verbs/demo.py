"""How the promise is shown in one terminal: the verb ``demo``."""

from __future__ import annotations

import argparse
from pathlib import Path

from durable_cache.errors import ConfigError
from durable_cache.service.verbs.options import add_json_option
from durable_cache.service.verbs.parsing import Verbs, add_verb

_SECONDS_DEFAULT = 12.0
_SECONDS_MIN = 4.0


def add_verbs(verbs: Verbs) -> None:
    """Add ``demo``."""
    parser = add_verb(
        verbs,
        "demo",
        examples=("durable-cache demo", "durable-cache demo --seconds 30 --keep demo-data"),
        description="A cache service, a publisher of ours, a native AdvancedPublisher and a "
        "subscriber, as real processes: the subscriber is cut off, the cache is killed and "
        "restarted, and in the end every sample must be stored and delivered once.",
    )
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS_DEFAULT, help="how long is published"
    )
    parser.add_argument("--keep", default="", metavar="DIR", help="keep data and logs there")
    add_json_option(parser)
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    if not arguments.seconds >= _SECONDS_MIN:
        raise ConfigError(f"--seconds: expected at least {_SECONDS_MIN:.0f}")
    keep = Path(arguments.keep) if arguments.keep else None
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise ConfigError(f"--keep: {keep} is not empty; name a new directory")
    from durable_cache.service.demo.show import show_and_judge

    return show_and_judge(arguments.seconds, keep, as_json=arguments.json)

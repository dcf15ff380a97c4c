"""How stored history is published once more: the verb ``replay``."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import NamedTuple

from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.arguments import wrong_at
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.service.output import Progress, say, write_result
from durable_cache.service.verbs.options import add_client_options, add_json_option
from durable_cache.service.verbs.parsing import Verbs, add_verb
from durable_cache.service.verbs.query import parse_selector, read_all, readings_of

_SAMPLES_MAX = 1_000_000


class Remap(NamedTuple):
    """A leading part of keys and what stands in its place."""

    old: str
    new: str

    def apply(self, key: str) -> str:
        """Return the key under its new beginning; keys elsewhere are unchanged."""
        if key == self.old:
            return self.new
        return self.new + key[len(self.old) :] if key.startswith(f"{self.old}/") else key


def add_verbs(verbs: Verbs) -> None:
    """Add ``replay``."""
    parser = add_verb(
        verbs,
        "replay",
        examples=(
            "durable-cache replay 'fleet/**?_time=[now(-1h)..]' --remap fleet=replay/fleet",
            "durable-cache replay 'fleet/**' --same-keys --pace 10",
        ),
        description="Replayed samples are new samples under other keys: caches that store those "
        "keys ignore them, for they carry no source_info.",
    )
    parser.add_argument("selector", help="as for query")
    keys = parser.add_mutually_exclusive_group(required=True)
    keys.add_argument("--remap", default="", metavar="OLD=NEW", help="the beginning of the keys")
    keys.add_argument("--same-keys", action="store_true", help="publish under the keys themselves")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--pace", type=float, default=1.0, help="2 is twice as fast as it was")
    pace.add_argument("--rate", type=float, default=0.0, help="samples a second, evenly")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    add_json_option(parser)
    add_client_options(parser)
    parser.set_defaults(run=_replay)


def parse_remap(text: str) -> Remap:
    """Read ``old=new``; both must be keys. Raises ConfigError."""
    old, equals, new = text.partition("=")
    with wrong_at(f"--remap {text[:80]!r}"):
        if not equals or not KeyExpression(old).is_key or not KeyExpression(new).is_key:
            raise ValueError("write old/keys=new/keys, without wildcards")
    return Remap(old, new)


def due_seconds(samples: list[Sample], pace: float, rate: float) -> Iterator[float]:
    """Yield when each sample is due, in seconds from the first; never going back."""
    first = ntp64_to_ns(samples[0].ntp64) if samples else 0
    due = 0.0
    for number, sample in enumerate(samples):
        wanted = number / rate if rate else (ntp64_to_ns(sample.ntp64) - first) / 1e9 / pace
        due = max(due, wanted)
        yield due


def _replay(arguments: argparse.Namespace) -> int:
    asked = parse_selector(arguments.selector)
    remap = parse_remap(arguments.remap) if arguments.remap else None
    if not arguments.pace > 0:
        raise ConfigError(f"--pace: expected a number above 0, got {arguments.pace:g}")
    if arguments.rate < 0:
        raise ConfigError(f"--rate: expected 0, for no limit, or above, got {arguments.rate:g}")
    from durable_cache.endpoints.asking import Asking
    from durable_cache.endpoints.session import zid_of
    from durable_cache.service.client import (
        NOBODY_ANSWERED,
        Pages,
        are_caches_in_reach,
        client_session,
    )

    trouble = Pages()
    with client_session(arguments) as session:
        asking = Asking(session, zid_of(session), timeout_seconds=arguments.timeout)
        samples = read_all(asking, readings_of(asked.key_expr, "*"), asked.parameters, trouble)
        found = list(itertools.islice(samples, _SAMPLES_MAX + 1))
        if trouble.errors:
            raise DurableCacheError(trouble.errors[0])
        if not trouble.answers and not are_caches_in_reach(asking):
            raise DurableCacheError(NOBODY_ANSWERED)
        if len(found) > _SAMPLES_MAX:
            raise DurableCacheError(f"more than {_SAMPLES_MAX} samples; narrow it with _time")
        found.sort(key=lambda sample: sample.time_order)
        began = time.monotonic()
        with Progress("replayed", len(found)) as progress:
            due = due_seconds(found, arguments.pace, arguments.rate)
            for sample, seconds in zip(found, due, strict=True):
                time.sleep(max(0.0, began + seconds - time.monotonic()))
                key = remap.apply(sample.key) if remap else sample.key
                if sample.kind is Kind.DELETE:
                    session.delete(key, attachment=sample.attachment)
                else:
                    session.put(
                        key,
                        sample.payload,
                        encoding=sample.encoding,
                        attachment=sample.attachment,
                    )
                progress.advance()
    if not found:
        say("nothing found")
    if arguments.json:
        write_result("", {"published": len(found)}, as_json=True)
    return 0

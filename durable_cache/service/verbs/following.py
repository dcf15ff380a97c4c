"""What is stored and then what comes, each sample once and in order: ``query --follow``."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import Session, zid_of
from durable_cache.endpoints.subscriber import Miss
from durable_cache.endpoints.subscriber.channels import FifoChannel
from durable_cache.endpoints.subscriber.subscriber import ReliableSubscriber, SubscriberOptions
from durable_cache.errors import ConfigError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.newest import is_update
from durable_cache.model.sample import Sample
from durable_cache.model.selection import parse_source
from durable_cache.service.client import are_caches_in_reach, client_session
from durable_cache.service.output import counted, say
from durable_cache.service.samples import SampleWriter
from durable_cache.service.verbs.options import domain_of
from durable_cache.service.verbs.query import Asked, Reading

_SAMPLES_MAX = 10_000
"""Between the subscribers and the terminal; a slow terminal makes delivery wait, and nothing is
lost: samples are recovered."""
_BATCH = 200


def follow(asked: Asked, readings: Sequence[Reading], arguments: argparse.Namespace) -> int:
    """Print history, then what is published, until `--limit` or Ctrl-C."""
    history = _history(asked, arguments)
    samples: FifoChannel[Sample] = FifoChannel(_SAMPLES_MAX)
    writer = SampleWriter(arguments.format)
    # What is missed is said here; the subscriber's own record of it would stand beside it.
    logging.getLogger("durable_cache").addHandler(logging.NullHandler())
    with client_session(arguments) as session, ExitStack() as closing:
        asking = Asking(session, zid_of(session), timeout_seconds=arguments.timeout)
        if not are_caches_in_reach(asking):
            say("no cache is in reach yet: what is published is shown, history once one comes")
        for at, reading in enumerate(readings):
            wanted = partial(_is_wanted, readings[:at], reading, arguments.wildcard_updates)
            subscriber = _subscribe(session, reading, history, wanted, samples, arguments)
            closing.callback(subscriber.close)
            subscriber.sample_miss_listener(_tell_of_miss)
        closing.callback(samples.close)
        for batch in _batches(samples):
            left = arguments.limit - writer.written if arguments.limit else len(batch)
            writer.write(batch[:left])
            if arguments.limit and writer.written >= arguments.limit:
                break
    say(counted(writer.written, "sample"))
    return 0


def _history(asked: Asked, arguments: argparse.Namespace) -> str:
    if "_sn=" in asked.parameters:
        raise ConfigError("--follow: numbers begin anew with each publisher; ask without _sn")
    return "_max=1" if arguments.latest else asked.parameters


def _is_wanted(
    earlier: Sequence[Reading], reading: Reading, wildcard_updates: bool, sample: Sample
) -> bool:
    """Tell whether a sample is of the reading's source, and was not shown for another one."""
    if is_update(sample.key) and not wildcard_updates:
        return False
    zid, eid = parse_source(reading.prefix)
    if zid is not None and zid != sample.source.zid:
        return False
    if eid is not None and eid != sample.source.eid:
        return False
    return not any(KeyExpression(other.key_expr).matches(sample.key) for other in earlier)


def _subscribe(
    session: Session,
    reading: Reading,
    history: str,
    wanted: Callable[[Sample], bool],
    samples: FifoChannel[Sample],
    arguments: argparse.Namespace,
) -> ReliableSubscriber:
    def deliver(sample: Sample) -> None:
        if wanted(sample):
            samples.deliver((sample,))

    options = SubscriberOptions(
        history=history,
        domain=domain_of(arguments),
        query_timeout_seconds=arguments.timeout,
    )
    return ReliableSubscriber(session, KeyExpression(reading.key_expr), deliver, options)


def _tell_of_miss(miss: Miss) -> None:
    say(f"missed: {counted(miss.nb, 'sample')} of {miss.source}, numbers {miss.first}..{miss.last}")


def _batches(samples: FifoChannel[Sample]) -> Iterator[list[Sample]]:
    """Yield what has come, as soon as something has."""
    while True:
        batch = [samples.recv()]
        while len(batch) < _BATCH and (sample := samples.try_recv()) is not None:
            batch.append(sample)
        yield batch

"""A sample that a backend loses while its cache runs: nobody is told of it."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from durable_cache.testing.simulation.caches import SimCache
from durable_cache.testing.simulation.publishers import SimPublisher


def lose_one(cache: SimCache, publishers: Collection[SimPublisher], random: Random) -> None:
    """Let a backend lose one sample that comes once more, as where a router sends it again.

    The stream index goes on to say that it is held: only what comes again is looked up.
    """
    if cache.process is None or cache.plan.retention.samples_max is not None:
        return  # how many newer ones of its key there are is what the index says
    senders = {one.numbering: one for one in publishers if one.running}
    waiting = {cache.truth.of(s) for e in cache.process.journal.waiting() for s in e.batch.samples}
    every = cache.backend.state.streams.items()
    found = [
        (stream, sn, cache.truth.of(sample))
        for stream, held in every
        for sn, sample in held.items()
    ]
    lost = [
        (stream, sn, one)
        for stream, sn, one in found
        if one in cache.held_ns and one not in waiting and one.numbering in senders
    ]
    if lost:
        stream, sn, one = random.choice(lost)
        cache.backend.state.lose(stream, sn)
        cache.unread.add(one)
        cache.gone.add(one)
        del cache.held_ns[one]
        cache.world.occur("backend loses a sample")
        senders[one.numbering].repeat(cache, one)

"""Samples whose payload is above what a subscriber takes: they have a place, and are not passed on.

Their number and time say as much as those of every other sample: of which run they are, that a run
began, what is missing before them. So they are followed as the others are, up to their turn. Then
they are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from durable_cache.model.sample import Sample
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.subscriber.events import Answer
from durable_cache.protocol.subscriber.naming import by_last_name


class TooLarge(Sample, frozen=True, array_like=True, gc=False):
    """A sample without its payload, which is above what the subscriber takes."""


def in_place(samples: Sequence[Sample], oversized: Iterable[Sample]) -> list[Sample]:
    """Return what came at once, the samples in their order; what is too large is where it fits.

    That is before the first with a higher number and no earlier time: what follows a sample shows
    what is missing before, and this one is not.
    """
    every = list(samples)
    for one in _marked(oversized):
        later = (
            at
            for at, sample in enumerate(every)
            if sample.source == one.source and sample.sn > one.sn and sample.ntp64 >= one.ntp64
        )
        every.insert(next(later, len(every)), one)
    return every


def whole_answer(answer: Answer) -> Answer:
    """Return an answer whose parts have what is too large among their samples, and each once."""
    parts = (
        replace(part, samples=[*part.samples, *_marked(part.oversized)], oversized=())
        for part in answer.parts
    )
    return replace(answer, parts=tuple(by_last_name(part.with_own_names()) for part in parts))


def _marked(samples: Iterable[Sample]) -> list[TooLarge]:
    """Return samples by their kind; those without a number have no place that anybody lacks."""
    numbered = (sample for sample in samples if not is_unnumbered(sample.source))
    return [TooLarge(*msgspec.structs.astuple(sample)) for sample in numbered]

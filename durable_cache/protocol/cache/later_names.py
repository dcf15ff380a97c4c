"""Runs that their tokens named, and by which epochs all caches come to call them.

A publisher with a pinned Zenoh id may declare one epoch twice. Who saw both tokens calls the second
run by a later epoch (ADR 0107); who saw only the second calls it as it was declared. The later name
stands everywhere: under the earlier one there is another run (ADR 0116). Where of two caches each
saw one token, both call their runs alike, and neither has a later name: then the times of the runs
tell which gives way, or their incarnations (ADR 0305).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from durable_cache.model.sample import Sample
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.events import Alias
from durable_cache.protocol.cache.fitting import came_before
from durable_cache.protocol.cache.numbering import KnownSource, Numbering
from durable_cache.protocol.cache.questions import Conversation
from durable_cache.protocol.wire import Incarnation


class LaterName(NamedTuple):
    """A run that is to be called by a later epoch from now on."""

    alias: Alias
    incarnation: str


class Stranger(NamedTuple):
    """A run that others give and that is not known here."""

    epoch: int
    incarnation: str
    earlier: bool
    """It came before the run that goes by this epoch here."""
    behind_empty: bool = False
    """Of the run that goes here by the epoch by which it came, nothing ever did."""


class _Place(NamedTuple):
    """Where a run is to go at the earliest; of two with one epoch the first goes before."""

    epoch: int
    behind: bool
    nameless: bool
    incarnation: str
    ours: Numbering | None


def place_stranger(
    known: KnownSource, epoch: int, incarnation: str, samples: Sequence[Sample]
) -> Conversation[Stranger]:
    """Say where a run belongs that others call by the epoch of another one here.

    Publishers choose their times. Two caches that see different ones may come to different ends;
    then each takes the other's later name, and the incarnations decide between equal ones.
    """
    times = [sample.ntp64 for sample in samples if not sample.stamped]
    earlier = False
    while times and (ours := known.numberings.get(epoch)) is not None:
        if min(times) <= ours.newest_ntp64:
            earlier = yield from came_before(ours, samples)
            break
        epoch += 1
    return Stranger(epoch, incarnation, earlier)


def later_name(
    known: KnownSource, names: Iterable[Incarnation], strangers: Iterable[Stranger] = ()
) -> LaterName | None:
    """Return the latest run here that is to be called by a later epoch; one at a time.

    Each run goes by the latest epoch that anybody calls it by, or the next that is free behind the
    run before it. So epochs only rise, and whoever knows the same names comes to the same end. None
    as well while what the later epoch was is being moved.
    """
    theirs = {name: epoch for source, epoch, name in names if source == known.source}
    places = [_Place(one.epoch, not one.earlier, False, one.incarnation, None) for one in strangers]
    for epoch, ours in known.numberings.items():
        if epoch != EPOCH_UNKNOWN:
            at = max(epoch, theirs.get(ours.incarnation, EPOCH_UNKNOWN))
            places.append(_Place(at, True, not ours.incarnation, ours.incarnation, ours))
    found = None
    before = EPOCH_UNKNOWN
    for place in sorted(places, key=lambda place: place[:4]):
        before = max(place.epoch, before + 1)
        if place.ours is not None and place.ours.epoch != before:
            found = place.ours, before
    if found is None:
        return None
    one, epoch = found
    if not one.incarnation or epoch in known.numberings:
        return None
    if known.is_taken(epoch) and not known.is_moved(epoch):
        return None
    return LaterName(Alias(known.source, one.epoch, 0, epoch), one.incarnation)

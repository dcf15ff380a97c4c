"""Runs that their tokens named, and that another cache calls by later epochs.

A publisher with a pinned Zenoh id may declare one epoch twice. Who saw both tokens calls the second
run by a later epoch (ADR 0107); who saw only the second calls it as it was declared. The later name
stands everywhere: under the earlier one there is another run (ADR 0116).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.events import Alias
from durable_cache.protocol.cache.numbering import KnownSource
from durable_cache.protocol.wire import Incarnation


class LaterName(NamedTuple):
    """A run that is to be called by a later epoch from now on."""

    alias: Alias
    incarnation: str


def later_name(known: KnownSource, names: Iterable[Incarnation]) -> LaterName | None:
    """Return the latest run here that is to be called by a later epoch; one at a time.

    A run that others call later pushes up those that follow it here. None as well where the order
    of the runs here is another than theirs, and while what the later epoch was is being moved.
    """
    theirs = {name: epoch for source, epoch, name in names if source == known.source}
    ours = [known.numberings[epoch] for epoch in sorted(known.numberings) if epoch]
    common = [theirs[one.incarnation] for one in ours if one.incarnation in theirs]
    if common != sorted(set(common)):
        return None
    found = None
    before = EPOCH_UNKNOWN
    for one in ours:
        epoch = max(one.epoch, before + 1, theirs.get(one.incarnation, EPOCH_UNKNOWN))
        if epoch != one.epoch:
            found = one, epoch
        before = epoch
    if found is None:
        return None
    one, epoch = found
    if not one.incarnation or known.is_taken(epoch):
        return None
    return LaterName(Alias(known.source, one.epoch, 0, epoch), one.incarnation)

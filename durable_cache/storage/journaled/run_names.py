"""What runs are called, as their samples say where index and journal forgot it (ADR 0368).

No backend has the names of runs, but samples of ours bear them. So a name that was lost is read
from the first samples of its run, and so is one that an older index has: two runs that declared one
epoch may have begun since (ADR 0392).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice

from durable_cache.model.run_name import run_of
from durable_cache.model.selection import Selection
from durable_cache.protocol.wire import Incarnation
from durable_cache.storage.contract import Storage

_log = logging.getLogger(__name__)
_RUNS_MAX = 1_000
"""So many reads of a backend a start may take; the names of further runs stay lost (ADR 0211)."""
_SAMPLES = 16
"""Of those that a program gave a time, none says its run."""


def names_in(storage: Storage, runs: Iterable[Incarnation]) -> Iterator[Incarnation]:
    """Yield what the stored samples of runs call them, where none calls them as they are known.

    Up to a read that fails, which is logged: a start does without the names of the others.
    """
    for source, epoch, known in islice(runs, _RUNS_MAX):
        try:
            page = storage.read(Selection(zid=source.zid, eid=source.eid, epoch=epoch), _SAMPLES)
        except Exception as error:  # whatever a plug-in raises
            _log.warning("the names of runs stay unknown: %s", error)
            return
        named = [run.incarnation for sample in page.samples if (run := run_of(sample)) is not None]
        if named and known not in named:
            yield Incarnation(source, epoch, named[0])

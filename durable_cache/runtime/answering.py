"""How a cache's storage answers the core's questions: one place for the shell and the simulator.

Nothing is decided here. Every function may raise a `StorageError`, which whoever called turns into
the failure that belongs to the question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import assert_never

from durable_cache.model.sample import Sample, Stream
from durable_cache.protocol.cache.events import Alias, Found
from durable_cache.protocol.cache.questions import (
    Agreed,
    Answer,
    Declaration,
    Disagreed,
    Done,
    Floors,
    FloorsFound,
    Forget,
    IsMoved,
    Keep,
    LoadSources,
    Lookup,
    MovedPage,
    MovedSoFar,
    Numbers,
    NumbersFound,
    NumbersLooked,
    Question,
    ReadToMove,
    SourcesFound,
    Standings,
    StandingsFound,
)
from durable_cache.storage.journaled.purge_times import purged_here
from durable_cache.storage.journaled.storage import JournaledStorage

_MOVED_SAMPLES = 2_000
"""One page of what is moved: live samples have most of the journal to themselves."""


def answer(
    store: JournaledStorage,
    question: Question,
    *,
    forgotten: Callable[[Sequence[Stream]], None] = lambda _: None,
) -> Answer:
    """Return the answer to a question.

    `forgotten(streams)` is called when streams are stored under another epoch only.
    """
    match question:
        case LoadSources(sources):
            return SourcesFound({source: store.load(source)[0] for source in sources})
        case Floors(streams):
            return FloorsFound(store.index.floors(streams))
        case Lookup(samples):
            return NumbersLooked(look_up(store, samples))
        case Standings(samples):
            return StandingsFound(store.index.standings(samples))
        case Numbers(source, epoch, first, last, samples_max):
            found = store.range_of(source, epoch, first, last)
            return NumbersFound(tuple(islice(found, samples_max)))
        case Keep(change):
            _keep(store, change)
            return Done()
        case ReadToMove(alias, cursor):
            page = store.read_run(alias.source, alias.stored, _MOVED_SAMPLES, cursor)
            return MovedPage(page.samples, page.cursor)
        case IsMoved(alias):
            store.backlog.flush_soon()
            return MovedSoFar(store.moved(alias))
        case Forget(alias):
            _forget(store, alias, forgotten)
            return Done()
        case _:
            assert_never(question)


def look_up(store: JournaledStorage, samples: Sequence[Sample]) -> tuple[Found, ...]:
    """Return what is stored under each sample's number, and whether it was removed."""
    pairs = store.find(samples)
    found = {(sample.source, sample.sn) for sample, stored in pairs if stored is not None}
    # What was moved meanwhile is missing under its former name, and no finding about the backend.
    missing = [sample for sample, _ in pairs if (sample.source, sample.sn) not in found]
    if not missing:
        return tuple(Found(sample, stored) for sample, stored in pairs)
    floors = store.index.floors([sample.stream for sample in missing])
    store.lost([sample for sample in missing if sample.sn >= floors.get(sample.stream, 0)])
    return tuple(
        Found(sample, stored, stored is None and sample.sn < floors.get(sample.stream, 0))
        for sample, stored in pairs
    )


def _keep(store: JournaledStorage, change: Agreed | Disagreed | Declaration) -> None:
    match change:
        case Agreed(alias):
            store.index.agree(alias)
        case Disagreed(alias):
            store.index.disagree(alias)
        case Declaration(source, epoch, incarnation, instead_of):
            store.index.declare(source, epoch, incarnation, instead_of)
        case _:
            assert_never(change)


def _forget(
    store: JournaledStorage, alias: Alias, forgotten: Callable[[Sequence[Stream]], None]
) -> None:
    """Remove what was moved; a purge of it goes on under the epoch that stands."""
    purged = purged_here(store.index, store.index.infos_of(alias.source, alias.stored))
    floors = [floor._replace(stream=floor.stream._replace(epoch=alias.epoch)) for floor in purged]
    if floors:
        store.purge(floors)
    forgotten(store.forget(alias.source, alias.stored))

"""Which numbers of a source a cache knows and does not give: other keys', removed, awaited in vain.

A number counts as another key's where the index has it and neither a stream that was asked for
holds it nor could retention or a purge have removed it from one. Below the floor of a stream that
was asked for the two cannot always be told apart: there a number is another key's when another
stream still holds it, else it counts as removed. In every other doubt nothing is said, for what is
said ends a wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.protocol.cache.events import Alias, NumberingState
from durable_cache.protocol.wire import ABSENCES_MAX, Absence, AbsenceReason

_SN_END = 1 << 36


class HeldStream(NamedTuple):
    """What is held of one stream, in the backend or on its way, and below what it was removed."""

    stream: Stream
    held: RangeSet
    floor: int = 0


@dataclass(slots=True)
class _Numbering:
    """What is known of one epoch under the name that counts now."""

    held: RangeSet = field(default_factory=RangeSet)
    skipped: RangeSet = field(default_factory=RangeSet)
    given: RangeSet = field(default_factory=RangeSet)
    """Under a key that was asked for."""
    others: RangeSet = field(default_factory=RangeSet)
    floor: int = 0


def united(streams: Sequence[HeldStream]) -> list[HeldStream]:
    """Return each stream once, with all that is held of it."""
    found: dict[Stream, HeldStream] = {}
    for held in streams:
        known = found.setdefault(held.stream, held)
        if known is not held:
            known.held.update(held.held)
            floor = max(known.floor, held.floor)
            found[held.stream] = known._replace(floor=floor)
    return [*found.values()]


def gives_all(
    selection: Selection,
    states: Sequence[NumberingState],
    aliases: Sequence[Alias],
    given: SampleBatch,
) -> bool:
    """Tell whether an answer lacks nothing: each number asked for of the only numbering there is.

    Then nothing is absent, whatever is known of keys and floors.
    """
    first, last = selection.sns
    if first is None or last is None or len(states) != 1 or aliases:
        return False
    if len(given) != last - first + 1 or {s.epoch for s in given} != {states[0].epoch}:
        return False
    return len({s.sn for s in given}) == len(given)


def absences(
    selection: Selection,
    states: Sequence[NumberingState],
    aliases: Sequence[Alias],
    streams: Iterable[HeldStream] | None,
    samples_max: int | None = None,
) -> tuple[Absence, ...]:
    """Return at most 1,000 absences, the newest epoch first; `streams` None: they are too many.

    `states` and `streams` are of the one source that the selection names; `samples_max` is the
    history beyond which a reader is not shown what retention has yet to remove.
    """
    if not selection.asks_numbers:
        return ()
    known = _gather(selection, states, aliases, streams or (), samples_max)
    source = SourceId(selection.zid or "", selection.eid or 0)
    found = (
        Absence(source, epoch, first, last, reason)
        for epoch in sorted(known, reverse=True)
        if selection.epoch is None or selection.epoch == epoch
        for first, last, reason in _runs(selection, known[epoch], told_apart=streams is not None)
    )
    return tuple(islice(found, ABSENCES_MAX))


def _gather(
    selection: Selection,
    states: Sequence[NumberingState],
    aliases: Sequence[Alias],
    streams: Iterable[HeldStream],
    samples_max: int | None,
) -> dict[int, _Numbering]:
    names = {alias.stored: alias for alias in aliases}
    known: dict[int, _Numbering] = defaultdict(_Numbering)
    for state in states:
        for epoch, runs in _renamed(names, state.epoch, state.held):
            known[epoch].held.update(runs)
        for epoch, runs in _renamed(names, state.epoch, state.skipped):
            known[epoch].skipped.update(runs)
    shown: dict[tuple[str, int], RangeSet] = defaultdict(RangeSet)
    """Of each key asked for, by the epoch that stands: the newest are those of all names of it."""
    for stream, held, removed_below in streams:
        asked_for = selection.key_expr.concerns(stream.key)
        for epoch, runs in _renamed(names, stream.epoch, held):
            if not asked_for:
                known[epoch].others.update(runs)
                continue
            shown[stream.key, epoch].update(runs)
            known[epoch].floor = max(known[epoch].floor, removed_below)
    for (_, epoch), runs in shown.items():
        numbering = known[epoch]
        if samples_max is None:
            numbering.given.update(runs)
            continue
        floor = runs.nth_last(samples_max) or 0
        numbering.given.update(runs.clip(floor, _SN_END))
        numbering.floor = max(numbering.floor, floor)
    return known


def _renamed(names: dict[int, Alias], epoch: int, runs: RangeSet) -> Iterator[tuple[int, RangeSet]]:
    """Yield the parts of `runs` with the epochs that were learned for them."""
    for _ in range(len(names)):
        alias = names.get(epoch)
        if alias is None:
            break
        if alias.from_sn:
            yield epoch, runs.clip(0, alias.from_sn - 1)
            runs = runs.clip(alias.from_sn, _SN_END)
        epoch = alias.epoch
    yield epoch, runs


def _runs(
    selection: Selection, known: _Numbering, *, told_apart: bool
) -> list[tuple[int, int, AbsenceReason]]:
    first, last = selection.sns.first or 0, selection.sns.last
    last = _SN_END if last is None else last
    skipped = known.skipped.difference(known.held)
    runs = [(*run, AbsenceReason.SKIPPED) for run in skipped.clip(first, last)]
    if told_apart:
        missing = known.held.clip(first, last).difference(known.given)
        below = RangeSet()
        if selection.key_expr.is_key:
            below.add(first, min(known.floor - 1, last))
            below = below.difference(known.given).difference(skipped)
        else:
            below.update(missing.clip(0, known.floor - 1))
        trimmed = below.difference(known.others)
        other = missing.difference(trimmed)
        runs += [(*run, AbsenceReason.TRIMMED) for run in trimmed]
        runs += [(*run, AbsenceReason.OTHER_KEY) for run in other]
    return sorted(runs)

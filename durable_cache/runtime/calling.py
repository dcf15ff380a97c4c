"""What a cache asks and decides to call named runs as those do who give them.

Of two epochs of a named run the later stands (ADR 0116). A run that others give under an epoch
that is free here gets their name for it before its samples come in (ADR 0265).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import (
    Alias,
    EpochsAgreed,
    Event,
    NumberingNamed,
    Origin,
)
from durable_cache.protocol.cache.fitting import belongs
from durable_cache.protocol.cache.later_names import Stranger, later_name, place_stranger
from durable_cache.protocol.cache.numbering import KnownSource
from durable_cache.protocol.cache.questions import (
    Conversation,
    Declaration,
    Disagreed,
    Done,
    Keep,
    answer_of,
)
from durable_cache.protocol.wire import Incarnation, own_names
from durable_cache.runtime.effects import Arrived


class _Others(NamedTuple):
    """How others call the runs of a source."""

    names: tuple[Incarnation, ...]
    strangers: tuple[Stranger, ...]


class Calling:
    """How a cache comes to call named runs as others do; owned by the core's thread.

    `shown` says which incarnations of a source live tokens name: those say how to call them.
    """

    def __init__(
        self,
        engine: CacheEngine,
        shown: Callable[[SourceId], frozenset[str]],
        engine_takes: Callable[[Event], None],
        renamed: Callable[[Alias], None],
    ) -> None:
        self._engine, self._epochs, self._shown = engine, engine.epochs, shown
        self._engine_takes, self._renamed = engine_takes, renamed
        self._others: dict[SourceId, _Others] = {}
        """How others call the runs of which some are still to get a later name."""

    def as_others(self, known: KnownSource, event: Arrived) -> Conversation[None]:
        """Call a run by the later epoch that stands.

        An epoch that a run left, and by which others call another run, is that one's again as soon
        as nothing of the first is stored under it. Of two runs that go by one epoch here and there,
        one gives way.
        """
        theirs = tuple(name for name in event.names if name.source == known.source)
        for source, epoch, incarnation in theirs:
            left = _left(known, epoch, incarnation, self._epochs)
            if left is not None:
                yield from self._reuse(left)
                if known.of_incarnation(incarnation) is None:  # else it goes by that from now on
                    yield from self._name(NumberingNamed(source, epoch, incarnation))
        strangers: list[Stranger] = []
        if event.origin is Origin.ALIGNED:  # a publisher's own cache names its run as it declared
            shown = self._shown(known.source)
            strangers = yield from _strangers(known, event.batch, theirs, shown)
        yield from self._take_later_name(known, _Others(theirs, tuple(strangers)))
        yield from self._name_behind_empty(known, strangers)

    def _name_behind_empty(
        self, known: KnownSource, strangers: Iterable[Stranger]
    ) -> Conversation[None]:
        """Name runs that others call as one is called here of which nothing came (ADR 0351).

        Nobody is given anything of such a run, so the giver never learns that both go by one epoch.
        """
        for stranger in strangers:
            if not stranger.behind_empty:
                continue
            yield from self.make_free(known, stranger.epoch)
            if not known.is_taken(stranger.epoch):
                yield from self._name(NumberingNamed(known.source, *stranger[:2]))

    def waits(self, source: SourceId) -> bool:
        """Tell whether a run may get a later name as soon as another one has left it."""
        return source in self._others

    def go_on(self, source: SourceId) -> Conversation[None]:
        """Go on where a run has left its name: the one before it may be called so."""
        others = self._others.pop(source, None)
        if others is not None:
            known = self._engine.known(source)
            left = [one for one in others.strangers if not known.of_incarnation(one.incarnation)]
            yield from self._take_later_name(known, others._replace(strangers=tuple(left)))

    def as_given(
        self, known: KnownSource, batch: SampleBatch, names: Iterable[Incarnation]
    ) -> Conversation[None]:
        """Name the runs that others give by their tokens' names; then no other token takes them.

        Not what may be the run whose first samples came here before its token: that tells. Nor
        while a token of the source is here, unless samples say so: the next come the same way.
        """
        heard = own_names(batch) if self._shown(known.source) else names
        theirs = {(source, epoch): incarnation for source, epoch, incarnation in heard}
        for epoch, given in _by_epoch(known, batch).items():
            incarnation = theirs.get((known.source, epoch), "")
            if not incarnation or known.of_incarnation(incarnation) is not None:
                continue
            if known.canonical(epoch, 0) != epoch or known.can_adopt(epoch, epoch, incarnation):
                continue
            ours = known.numberings.get(epoch)
            if ours is not None:
                if ours.named and ours.expected != incarnation:
                    continue
                if (yield from belongs(ours, given)) is False:
                    continue
            yield from self._name(NumberingNamed(known.source, epoch, incarnation))

    def make_free(self, known: KnownSource, epoch: int) -> Conversation[None]:
        """Free an epoch for another run as soon as the one that left it is moved whole."""
        if known.is_left(epoch) and known.is_moved(epoch):
            yield from self._reuse(Alias(known.source, epoch, 0, known.canonical(epoch, 0)))

    def _take_later_name(self, known: KnownSource, others: _Others) -> Conversation[None]:
        later = later_name(known, others.names, others.strangers)
        if later is None:
            return
        alias, incarnation = later
        yield from self.make_free(known, alias.epoch)
        declaration = Declaration(alias.source, alias.epoch, incarnation, alias.stored)
        yield from answer_of(Keep(declaration), Done)
        self._engine_takes(EpochsAgreed(alias.source, alias.stored, alias.epoch))
        self._others[known.source] = others
        self._renamed(alias)

    def _reuse(self, left: Alias) -> Conversation[None]:
        yield from answer_of(Keep(Disagreed(left)), Done)
        self._epochs.reuse(left.source, left.stored)

    def _name(self, named: NumberingNamed) -> Conversation[None]:
        """Which incarnation an epoch is becomes durable before the first sample under it."""
        declaration = Declaration(named.source, named.epoch, named.incarnation)
        yield from answer_of(Keep(declaration), Done)
        self._engine_takes(named)


def _strangers(
    known: KnownSource, batch: SampleBatch, names: Iterable[Incarnation], shown: frozenset[str]
) -> Conversation[list[Stranger]]:
    """Return the runs of which others give samples under epochs that are another run's here."""
    given = _by_epoch(known, batch)
    strangers: list[Stranger] = []
    for _, epoch, incarnation in names:
        taken = known.numberings.get(epoch)
        if taken is None or not taken.incarnation or epoch not in given or incarnation in shown:
            continue
        if known.of_incarnation(incarnation) is None:
            placed = yield from place_stranger(known, epoch, incarnation, given[epoch])
            empty = taken.newest_held < 0 and taken.incarnation not in shown
            strangers.append(placed._replace(behind_empty=empty and not placed.earlier))
    return strangers


def _by_epoch(known: KnownSource, batch: SampleBatch) -> dict[int, list[Sample]]:
    given: dict[int, list[Sample]] = {}
    for (_, source, epoch), samples in batch.by_stream.items():
        if source == known.source:
            given.setdefault(epoch, []).extend(samples)
    return given


def _left(known: KnownSource, epoch: int, incarnation: str, epochs: Epochs) -> Alias | None:
    """Return where the run went that an epoch was the name of, when all of it did.

    None where it is the very run that others call so.
    """
    if epoch in known.numberings or epochs.moved_to(known.source, epoch) is None:
        return None
    standing = known.numberings.get(known.canonical(epoch, 0))
    if standing is None or standing.incarnation in ("", incarnation):
        return None
    return Alias(known.source, epoch, 0, standing.epoch)

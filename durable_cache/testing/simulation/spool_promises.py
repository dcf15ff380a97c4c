"""What a publisher with a spool promises, compared with the truth as it happens.

What a put wrote is held by as many caches as were wanted in the end, under the number it had from
the beginning, or somebody was told that this is not known. Nobody is told that it is held before it
is. A put that raised may come all the same, but never beside another under its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from durable_cache.protocol.publisher.events import Resend, Standing
from durable_cache.testing.simulation.pipe_ends import SimTarget
from durable_cache.testing.simulation.truth import Publication, Truth
from durable_cache.testing.simulation.world import World


class SpoolPromise:
    """What was put, and what has become of it."""

    def __init__(self, world: World, truth: Truth, acknowledgements: int) -> None:
        self._world, self._truth = world, truth
        self._wanted = acknowledgements
        self.targets: Sequence[SimTarget] = ()
        self._kept: dict[Publication, None] = {}
        """In the order in which they were put."""
        self._raised: set[Publication] = set()
        self._unknown: set[Publication] = set()
        self._done: set[Publication] = set()
        self._told: set[Publication] = set()
        """Done or unknown in this life."""
        self._under: dict[tuple[str, int], Publication] = {}
        """What was sent under each number."""
        self._rows: dict[tuple[str, int], Publication] = {}
        """What the disk has last under each number."""

    def began(self) -> None:
        """Hear that a process begins: it may tell again what the one before told."""
        self._told.clear()

    def kept(self, publication: Publication) -> None:
        """Hear that a put returns, or will: its row is on the disk."""
        self._kept[publication] = None
        self._rows[_place(publication)] = publication

    def raised(self, publication: Publication) -> None:
        """Hear that a put raised, and left its row."""
        self._raised.add(publication)
        self._rows[_place(publication)] = publication

    def sent(self, resend: Resend) -> None:
        """Hear what leaves: as it was put, in order, no two samples under one number."""
        last = -1
        for sample in resend.samples:
            publication = self._truth.of(sample)
            if publication is None:
                self._world.fail(f"sends what nobody put: {sample}")
                continue
            numbering = publication.numbering
            if (resend.incarnation, resend.epoch) != (numbering.incarnation, numbering.epoch):
                self._world.fail(f"sends {_said(publication)} as one of another run")
            if sample.sn <= last:
                self._world.fail(f"sends {_said(publication)} behind {last}")
            last = sample.sn
            other = self._under.setdefault((resend.incarnation, sample.sn), publication)
            if other is not publication:
                self._world.fail(f"sends two samples as {_said(publication)}")

    def finished(self, standings: Iterable[Standing]) -> None:
        """Hear what the program is told."""
        for standing in standings:
            publication = self._rows.get((standing.incarnation, standing.sn))
            if publication is None:
                self._world.fail(f"tells of {standing.incarnation} {standing.sn}, never put")
                continue
            if publication in self._told:
                self._world.fail(f"tells twice of {_said(publication)}")
            self._told.add(publication)
            if standing.unknown:
                self._world.occur("unknown in the end")
                self._unknown.add(publication)
            elif len(self._holders(publication)) < self._wanted:
                self._world.fail(f"is told that {_said(publication)} is held, and it is not")
            else:
                self._world.occur("receipt done")
                self._done.add(publication)

    def all_over(self, unacknowledged: int) -> bool:
        """Tell whether everything that can be held is, and whoever waited was told.

        A process that goes on with what was left asks again for receipts that the one before it
        had: `unacknowledged` says for how many it waits.
        """
        return unacknowledged <= self._never_come and not any(self._waits())

    def check(self, unacknowledged: int) -> None:
        """Compare at the end, when all is healed and quiet."""
        for publication in self._waits():
            held = len(self._holders(publication))
            told = "told" if publication in self._done else "not told"
            self._world.fail(f"{_said(publication)} is held {held} times, {told}")
        stuck = self._never_come
        if unacknowledged > stuck:
            self._world.fail(f"waits for {unacknowledged} receipts, of which {stuck} never come")
        for target in self.targets:
            numbers = [(one.numbering, one.sample.sn) for one in target.held]
            if len(numbers) != len(set(numbers)):
                self._world.fail(f"{target.name} holds two samples under one number")

    @property
    def _never_come(self) -> int:
        """How many receipts no cache will ever give."""
        return sum(self._is_refused(one) for one in (*self._kept, *self._raised))

    def _waits(self) -> Iterable[Publication]:
        """Yield what must come to an end still."""
        for publication in self._kept:
            if publication in self._unknown or self._is_refused(publication):
                continue
            if publication not in self._done or len(self._holders(publication)) < self._wanted:
                yield publication

    def _is_refused(self, publication: Publication) -> bool:
        """Tell whether a cache will never take it, or has let it go: it may lack one for ever."""
        return any(publication in one.conflicts | one.removed for one in self.targets)

    def _holders(self, publication: Publication) -> list[SimTarget]:
        return [
            one for one in self.targets if publication in one.held or publication in one.removed
        ]


def _place(publication: Publication) -> tuple[str, int]:
    return publication.numbering.incarnation, publication.sample.sn


def _said(publication: Publication) -> str:
    numbering = publication.numbering
    return f"{numbering.source} run {numbering.at} number {publication.sample.sn}"

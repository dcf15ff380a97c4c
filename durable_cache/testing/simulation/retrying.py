"""A subscriber in the mode at-least-once, with the real `Retries`; its program confirms at leisure.

What its engine delivers comes to it without a hole, which other histories judge. A program confirms
what it was handed after a while, too late, or not at all, and not in that order.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from durable_cache.model.delivery import DeliveryRates
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.modes import Mode, ModeOptions, Passed
from durable_cache.protocol.retries import Retries
from durable_cache.testing.simulation.network import Network, Node
from durable_cache.testing.simulation.truth import Publication, Truth
from durable_cache.testing.simulation.world import SECOND_NS, World

_LOOK_SECONDS = 0.05
_SOURCES_MAX = 100


class SimRetrying(Node):
    """One subscriber whose program must confirm each sample in time."""

    def __init__(self, world: World, network: Network, truth: Truth) -> None:
        super().__init__(world, network, "retrying")
        random = world.random
        self._truth = truth
        self._timeout_seconds = random.choice((0.2, 1.0))
        self._retries_max = random.choice((0, 1, 3))
        self._unconfirmed_max = random.choice((2, 100))
        options = ModeOptions(
            retries=self._retries_max,
            confirm_timeout_seconds=self._timeout_seconds,
            unconfirmed_max=self._unconfirmed_max,
        )
        self._retries = Retries(Mode.of("at-least-once", options))
        self._losses = Losses(_SOURCES_MAX)
        self._coming: deque[Publication] = deque()
        self._handed: dict[Publication, list[int]] = {}
        """When each was handed over."""
        self._confirmed: set[Publication] = set()
        self._given_up: set[Publication] = set()
        self.running = True
        self.later(_LOOK_SECONDS, self._turn)

    def delivered(self, publication: Publication) -> None:
        """Take what the engine delivers; it waits while too much is not confirmed."""
        self._coming.append(publication)

    @property
    def all_over(self) -> bool:
        """Whether everything was handed over, and confirmed or given up."""
        return not (self._coming or self._retries.unconfirmed)

    def _turn(self) -> None:
        now_ns = self.world.now_ns
        due = self._retries.due(now_ns)
        if due.again:
            self._losses.passed_on(due.again, Passed.AGAIN)
        for sample in due.again:
            self.world.occur("handed over again")
            self._hand(sample)
        for sample in due.given_up:
            self._give_up(sample)
        if self._coming and not self._retries.room:
            self.world.occur("too much is not confirmed")
        while self._coming and self._retries.room:
            publication = self._coming.popleft()
            sample = replace(publication.sample, epoch=publication.numbering.epoch)
            self._retries.hand_over((sample,), now_ns)
            self._losses.passed_on((sample,))
            self._hand(sample)
        if self._retries.unconfirmed > self._unconfirmed_max:
            self.world.fail(f"{self._retries.unconfirmed} samples wait for confirmations")
        self.later(_LOOK_SECONDS, self._turn)

    def _hand(self, sample: Sample) -> None:
        """Give a sample to the program, and judge that it may be given."""
        publication, now_ns = self._of(sample), self.world.now_ns
        handed = self._handed.setdefault(publication, [])
        if publication in self._confirmed | self._given_up:
            self._fail("is handed over after it was settled", publication)
        if handed and now_ns < handed[-1] + self._timeout_seconds * SECOND_NS:
            self._fail("is handed over again before its time", publication)
        handed.append(now_ns)
        if len(handed) > self._retries_max + 1:
            self._fail(f"is handed over {len(handed)} times", publication)
        random = self.world.random
        if random.random() < 0.3:
            self.world.occur("never confirmed")
        else:
            self.later(1.5 * random.random() * self._timeout_seconds, lambda: self._confirm(sample))

    def _confirm(self, sample: Sample) -> None:
        publication = self._of(sample)
        awaited = publication not in self._confirmed | self._given_up
        if self._retries.confirm(sample) is not awaited:
            self._fail("is confirmed, and was to be awaited otherwise", publication)
        if awaited:
            self._confirmed.add(publication)
        else:
            self.world.occur("confirmed for nothing")

    def _give_up(self, sample: Sample) -> None:
        publication = self._of(sample)
        self.world.occur("given up")
        if publication in self._confirmed or len(self._handed[publication]) <= self._retries_max:
            self._fail("is given up too early", publication)
        self._given_up.add(publication)
        self._losses.in_vain(sample.source)
        self._losses.lost(sample.source, 1)

    def check(self) -> None:
        """Judge the end: each came in order, and is confirmed or reported; R and UR say so."""
        sources: dict[SourceId, list[Publication]] = {}
        for publication in self._truth.publications:
            if publication not in self._confirmed | self._given_up:
                self._fail("is neither confirmed nor reported", publication)
            sources.setdefault(publication.sample.source, []).append(publication)
        firsts = list(self._handed)
        rates = {row.source: row.rates for row in self._losses.rows()}
        for source, published in sources.items():
            if [one for one in firsts if one.sample.source == source] != published:
                self.world.fail(f"{source} is not handed over in order")
            confirmed = sum(one in self._confirmed for one in published)
            times = sum(len(self._handed.get(one, ())) for one in published)
            if not confirmed:
                continue
            wanted = DeliveryRates.measured(len(published), times, confirmed)
            if rates.get(source) != wanted:
                self.world.fail(f"{source} has R and UR {rates.get(source)}, not {wanted}")

    def _of(self, sample: Sample) -> Publication:
        publication = self._truth.of(sample)
        assert publication is not None
        return publication

    def _fail(self, finding: str, publication: Publication) -> None:
        sample = publication.sample
        self.world.fail(f"{sample.source} number {sample.sn} {finding}")

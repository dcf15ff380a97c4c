"""What is promised to a program that publishes, compared with the truth as it happens.

A receipt is done when as many caches as were wanted hold its sample durably, told once, and of no
other run's sample that had the same number.
"""

from __future__ import annotations

from collections.abc import Sequence

from durable_cache.protocol.publisher.events import Standing
from durable_cache.testing.simulation.caches import SimCache
from durable_cache.testing.simulation.promises import Finding
from durable_cache.testing.simulation.publishers import OwnPublisher
from durable_cache.testing.simulation.truth import Publication


class PublisherPromise:
    """What one publisher was told of its samples."""

    def __init__(self, publisher: OwnPublisher, caches: Sequence[SimCache]) -> None:
        self._publisher, self._caches = publisher, caches
        publisher.on_done.append(self._done)

    def _done(self, standing: Standing, publication: Publication) -> None:
        finding = Finding(publication.numbering, standing.sn)
        if (publication.numbering.incarnation, publication.sample.sn) != (
            standing.incarnation,
            standing.sn,
        ):
            self._fail(f"has a receipt of another sample: {finding}")
        if len(standing.caches) < self._publisher.plan.acknowledgements:
            self._fail(f"has a receipt that {len(standing.caches)} caches gave: {finding}")
        for cache in self._caches:
            if cache.cache_ids & standing.caches.keys() and not cache.has_durably(publication):
                self._fail(f"has a receipt of {cache.name}, which has it not: {finding}")

    def check(self) -> None:
        """Compare at the end: what was acknowledged often enough is done."""
        publisher = self._publisher
        for standing, publication in publisher.receipts.items():
            heard = [
                cache_id
                for (numbering, cache_id), sns in publisher.acked.items()
                if numbering is publication.numbering and standing.sn in sns
            ]
            if len(heard) >= publisher.plan.acknowledgements:
                finding = Finding(publication.numbering, standing.sn)
                self._fail(f"waits for a receipt that {len(heard)} caches gave: {finding}")

    def _fail(self, finding: str) -> None:
        self._publisher.world.fail(f"{self._publisher.name} {finding}")

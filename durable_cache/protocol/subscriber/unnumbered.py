"""Which samples without a number a subscriber passes on: each once, behind what history brought.

A cache gives them by the identity of their timestamp (ADR 0160), and live ones have the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from durable_cache.model.sample import Identity, Sample
from durable_cache.model.selection import Cursor
from durable_cache.model.unnumbered import identified
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.held import Held
from durable_cache.protocol.subscriber.outputs import Outputs


class Unnumbered:
    """Remembers the newest `pending_samples_max` that were delivered; part of the engine.

    While history is read, so many at most wait behind it, with all that waits; later ones pass.
    """

    def __init__(
        self, outputs: Outputs, held: Held, losses: Losses, options: DeliveryOptions
    ) -> None:
        self.has_history = False
        """Without history nothing comes twice but over two routes, which is passed on as it comes.
        """
        self._outputs = outputs
        self._held = held
        self._losses = losses
        self._samples_max = options.pending_samples_max
        self._delivered: OrderedDict[Identity, None] = OrderedDict()
        self._read_up_to: Cursor = ()
        """Read anew, history goes on behind this place."""
        self.repeats = 0

    def live(self, sample: Sample, *, reading: bool) -> None:
        """Pass on what was just published, or keep it until history is read."""
        named = None if sample.stamped else identified(sample)
        if reading and len(self._held) < self._samples_max:
            self._held.add(named or sample)
        elif named is not None and self.has_history and not self._is_first(named):
            self.repeats += 1
            self._losses.repeated(named.source)
        else:
            self._outputs.ready.append(named or sample)

    def unread(self, samples: Iterable[Sample]) -> list[Sample]:
        """Return what of a page of history lies behind what was read before.

        Nothing where no history is wanted: nothing remembers what came live.
        """
        if not self.has_history:
            return []
        return [sample for sample in samples if sample.time_order > self._read_up_to]

    def read(self, sample: Sample) -> bool:
        """Take history's next; tells whether it is to be delivered."""
        self._read_up_to = max(self._read_up_to, sample.time_order)
        return self._is_first(sample)

    def _is_first(self, sample: Sample) -> bool:
        if sample.identity in self._delivered:
            return False
        self._delivered[sample.identity] = None
        while len(self._delivered) > self._samples_max:
            self._delivered.popitem(last=False)
        return True

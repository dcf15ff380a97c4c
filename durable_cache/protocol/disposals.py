"""Which instances were disposed and unregistered, and since when: what their cleanup goes by.

A publisher whose instances are disposed with it marks the delete of its `unregister` (ADR 0145).
The mark is part of a stored sample: every cache reads the same, after a restart and from a backup,
and a link that is cut looks like nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Iterable

from durable_cache.model.sample import Kind, Sample

UNREGISTERED = b"@durable/unregistered"
"""The attachment of a delete with which a publisher also says that it writes the key no more."""


def is_disposal(sample: Sample) -> bool:
    """Tell whether a sample says that its writer disposed the instance and unregistered it."""
    return sample.kind is Kind.DELETE and sample.attachment == UNREGISTERED


class Disposals:
    """Instances that were disposed, and when the first cache heard so; one thread's.

    It says which instances are worth a look, not what they are: a newer sample may have come.
    """

    def __init__(self, instances_max: int) -> None:
        self._instances_max = instances_max
        self._received_ns: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._received_ns)

    def note(self, samples: Iterable[Sample]) -> bool:
        """Take samples in any order; False where there was no room for one, to be found again."""
        room = True
        for sample in samples:
            if not is_disposal(sample):
                continue
            known = self._received_ns.get(sample.key)
            if known is not None or len(self._received_ns) < self._instances_max:
                self._received_ns[sample.key] = max(known or 0, sample.received_ns)
            else:
                room = False
        return room

    def due(self, before_ns: int, limit: int) -> list[str]:
        """Return up to `limit` keys disposed at `before_ns` or earlier, the earliest first."""
        found = [(at, key) for key, at in self._received_ns.items() if at <= before_ns]
        return [key for _, key in sorted(found)[:limit]]

    def forget(self, key: str) -> None:
        """Let an instance go: it was purged, or is none of these any more. Idempotent."""
        self._received_ns.pop(key, None)

"""What becomes of samples that come without a number: stored, warned of, or ignored."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum
from threading import Lock

import msgspec

from durable_cache.errors import ConfigError
from durable_cache.model.arguments import refused
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache.model.unnumbered import identified, is_unnumbered

_log = logging.getLogger(__name__)


class Unnumbered(Enum):
    """What a cache does with samples without a number (ADR 0160)."""

    STORE = "store"
    """Known by key and timestamp; acknowledged to nobody."""
    WARN = "warn"
    """Not stored; said once for each key expression."""
    IGNORE = "ignore"
    """Not stored, as the specification says."""


class Plain:
    """Gives samples without a number their identity, or leaves them out; any thread.

    `key_exprs` are the storage's: a sample that several of them name is taken once.
    """

    def __init__(
        self, storage: str, choice: Unnumbered, key_exprs: Sequence[KeyExpression]
    ) -> None:
        self._storage = storage
        self.choice = choice
        self._key_exprs = key_exprs
        self._warned: set[int] = set()
        self._lock = Lock()
        self._newest_stamp = 0
        self.stamped = 0
        """Samples that came without a timestamp and bear this cache's now."""
        self.unidentified = 0
        """Samples whose timestamp tells them apart from no other; not stored."""

    def wants(self, place: int) -> bool:
        """Tell whether to hand in what comes under the key expression at `place`."""
        return self.choice is Unnumbered.STORE or (
            self.choice is Unnumbered.WARN and place not in self._warned
        )

    def take(self, samples: list[Sample], place: int) -> list[Sample]:
        """Return what is to be stored of what came under the key expression at `place`."""
        if not any(is_unnumbered(sample.source) for sample in samples):
            return samples
        taken: list[Sample] = []
        for sample in samples:
            if not is_unnumbered(sample.source):
                taken.append(sample)
            elif self.choice is not Unnumbered.STORE:
                self._warn(sample, place)
            elif not self._came_before(sample.key, place):
                self._identify(sample, taken)
        return taken

    def _identify(self, sample: Sample, taken: list[Sample]) -> None:
        named = identified(self._apart(sample) if sample.stamped else sample)
        if named is None:
            with self._lock:
                self.unidentified += 1
        else:
            taken.append(named)

    def _apart(self, sample: Sample) -> Sample:
        """Give a sample that has no timestamp one that no other of this cache has."""
        with self._lock:
            self._newest_stamp = min(NTP64_MAX, max(sample.ntp64, self._newest_stamp + 1))
            self.stamped += 1
            return msgspec.structs.replace(sample, ntp64=self._newest_stamp)

    def _came_before(self, key: str, place: int) -> bool:
        return any(key_expr.concerns(key) for key_expr in self._key_exprs[:place])

    def _warn(self, sample: Sample, place: int) -> None:
        with self._lock:
            if self.choice is Unnumbered.IGNORE or place in self._warned:
                return
            self._warned.add(place)
        _log.warning(
            "samples without a number come and are not stored: publish with a ReliablePublisher or "
            'an AdvancedPublisher with miss detection, or write unnumbered: "store"',
            extra={
                "storage": self._storage,
                "key_expr": str(self._key_exprs[place]),
                "key": repr(sample.key[:200]),
            },
        )


def parse_unnumbered(text: Unnumbered | str) -> Unnumbered:
    """Return what a word means; raises ConfigError for any other."""
    if not isinstance(text, (str, Unnumbered)):
        raise refused("unnumbered", text, '"store", "warn" or "ignore"')
    try:
        return Unnumbered(text)
    except ValueError as error:
        raise ConfigError(f'unnumbered {text!r}: write "store", "warn" or "ignore"') from error

"""Restarts of foreign publishers that nothing tells: what is promised of a source ends there.

A foreign publisher names no run. That its numbers began anew shows in a number at or below those
that came of the run before it, with a later time (ADR 0046). Where the first numbers of the new run
are lost, refused or overtaken, or its own cache is asked and has them no more (ADR 0218), the first
that comes may be one above those of the old run: then it is, with its number and its time, what the
old run's next sample would be, and nobody can tell the two apart. So it is filed under the old run,
for what is persisted waits for nothing. A heartbeat names a number and no time, so that one above
what came tells nothing either. And 0 after a number near 2^32 is a wrap.

What is excused is narrow: for a subscriber that heard it so, for all where a cache did, for caches
give it to everybody; of this source alone; from the run before the one that nothing told of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_cache.model.sample import SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.restarts import RESTART_NTP64

if TYPE_CHECKING:
    from durable_cache.testing.simulation.truth import Numbering, Publication

_EVERYBODY = ""


class Heard:
    """What one process has heard of each run of foreign sources: how far, and until when."""

    def __init__(self) -> None:
        self._runs: dict[SourceId, dict[int, tuple[int, int]]] = {}

    def add(self, publication: Publication) -> None:
        """Take what came."""
        sample = publication.sample
        runs = self._runs.setdefault(sample.source, {})
        top, newest = runs.get(publication.numbering.at, (-1, 0))
        runs[publication.numbering.at] = max(top, sample.sn), max(newest, sample.ntp64)

    def knows(self, numbering: Numbering) -> bool:
        """Tell whether something of a run came."""
        return numbering.at in self._runs.get(numbering.source, ())

    def before(self, numbering: Numbering) -> tuple[int, int, int] | None:
        """Return the last run before one that something came of, its highest number and time."""
        runs = self._runs.get(numbering.source, {})
        last = max((at for at in runs if at < numbering.at), default=None)
        return None if last is None else (last, *runs[last])


class Untold:
    """The restarts that nothing told somebody."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, SourceId], int] = {}

    def judge(
        self, listener: str, heard: Heard, numbering: Numbering, sn: int, ntp64: int, *, gives: bool
    ) -> bool:
        """Tell whether a run's first number that a process hears does not show that it began.

        `ntp64`: 0 where no time came with the number. `gives`: others learn from this process.
        """
        named = bool(numbering.incarnation)
        before = None if named or heard.knows(numbering) else heard.before(numbering)
        if before is None:
            return False
        run, top, newest_ntp64 = before
        if top >= SOURCE_SN_MODULUS // 2 > sn:
            told = numbering.wraps
        else:
            told = sn <= top and (not ntp64 or ntp64 > newest_ntp64 + RESTART_NTP64)
        if told:
            return False
        name = _EVERYBODY if gives else listener
        self._since[name, numbering.source] = min(
            run, self._since.get((name, numbering.source), run)
        )
        return True

    def excuses(self, listener: str, numbering: Numbering) -> bool:
        """Tell whether nothing is promised of a run, to somebody or of it."""
        return any(
            numbering.at >= self._since.get((name, numbering.source), numbering.at + 1)
            for name in (listener, _EVERYBODY)
        )

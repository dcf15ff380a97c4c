"""What waits for a token: live samples of a source that shows none at the moment.

A publisher that ends takes its token back; one that begins again under the same identity shows
another, and its first samples may be faster than that. Nothing on the wire says of which run a
sample is that comes in between. So it waits, for a bounded time, until a token comes; where none
does, it is a late one of the run before (ADR 0111).

A process that has only begun has seen no tokens: then what waits in vain once does not again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from durable_cache.model.ranges import SnRange
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.restarts import RESTART_NTP64, is_later

_TOKENS_MAX = 16
"""Tokens of one source that are told apart: a wrap shows two for a moment."""


class Parted(NamedTuple):
    """What waited, by run; of the others nothing shows of which run they are."""

    before: list[Sample]
    begun: list[Sample]
    unknown: list[Sample]


def part(
    samples: Sequence[Sample], had: Callable[[int], bool], reached: int, newest_ntp64: int
) -> Parted:
    """Tell the last samples of a run from the first of the next, whose token has come.

    `samples` are in the order in which they came, which is that of their runs. `had` tells which
    numbers of the run before came, `reached` the highest, `newest_ntp64` when the last of them was
    published. A number that was there, with a later time, is of the run that begins, and so is what
    follows it. One that was not is of the run before if it is older than that; but a hole is not
    filled by what is later than all around it (ADR 0272). Nor is what was published so shortly
    before the first of the next run that no restart fits between (ADR 0359).
    """
    later = [is_later(one, newest_ntp64) for one in samples]
    shows = (at for at, one in enumerate(samples) if later[at] and had(one.sn))
    first = next(shows, len(samples))
    parted = Parted([], list(samples[first:]), [])
    since_ntp64 = parted.begun[0].ntp64 if parted.begun else 0
    for sample, is_later_than_all in zip(samples[:first], later, strict=False):
        if had(sample.sn):
            continue  # it is a repeat, or the clock was set back and it is asked for
        older, near = sample.ntp64 < since_ntp64, since_ntp64 <= sample.ntp64 + RESTART_NTP64
        fits = older and not (is_later_than_all and (near or sample.sn <= reached))
        (parted.before if fits else parted.unknown).append(sample)
    return parted


class BetweenRuns:
    """Which sources show a token, and what came of those that show none.

    At most `samples_max` samples wait; at most `sources_max` sources that show a token are
    remembered, and as many that show none any more. Owned by one thread.
    """

    def __init__(self, sources_max: int, samples_max: int, wait_seconds: float) -> None:
        self._sources_max, self._samples_max = sources_max, samples_max
        self._wait_ns = round(wait_seconds * 1e9)
        self._shown: OrderedDict[SourceId, dict[str, None]] = OrderedDict()
        self._hidden: OrderedDict[SourceId, None] = OrderedDict()
        """Those whose last token went; one that had a name and is forgotten counts as one, too."""
        self._waiting: dict[SourceId, list[tuple[int, Sample | SnRange]]] = {}
        """What came of each, with the time at which it waits no longer."""
        self._forgetful = False
        """More sources showed a token than are remembered: what is not known means nothing."""
        self.held = 0
        """How many samples wait."""

    def __contains__(self, source: SourceId) -> bool:
        """Tell whether something of a source waits."""
        return source in self._waiting

    def shows(self, source: SourceId, incarnation: str) -> None:
        """See a token."""
        shown = self._shown.pop(source, {})
        shown.pop("", None)
        shown[incarnation] = None
        while len(shown) > _TOKENS_MAX:
            del shown[next(iter(shown))]
        self._note(source, shown)

    def hides(self, source: SourceId, incarnation: str) -> None:
        """See a token go."""
        shown = self._shown.get(source, {})
        shown.pop(incarnation, None)
        if not shown:
            self._shown.pop(source, None)
            self._hidden[source] = None
            if len(self._hidden) > self._sources_max:
                self._hidden.popitem(last=False)

    def is_open(self, source: SourceId, *, named: bool) -> bool:
        """Tell whether a source shows no token; `named`: its last run had one, perhaps long ago."""
        if self.shows_one(source):
            return False
        return source in self._hidden or (named and not self._forgetful)

    def shows_one(self, source: SourceId) -> bool:
        """Tell whether a source shows a token."""
        return source in self._shown

    def shown(self, source: SourceId) -> frozenset[str]:
        """Return which incarnations of a source show a token, as far as they were seen."""
        return frozenset(filter(None, self._shown.get(source, ())))

    def hold(self, source: SourceId, heard: Iterable[Sample | SnRange], now_ns: int) -> None:
        """Let samples wait, and numbers of samples that were refused.

        Of samples beyond the bound only the numbers wait.
        """
        due_ns = now_ns + self._wait_ns
        for one in heard:
            waiting = self._waiting.setdefault(source, [])
            if isinstance(one, SnRange):
                _refuse(waiting, one, due_ns)
            elif self.held < self._samples_max:
                self.held += 1
                waiting.append((due_ns, one))
            else:
                _refuse(waiting, SnRange(one.sn, one.sn), due_ns)

    def tell(self, source: SourceId, sn: int, now_ns: int) -> None:
        """Let a heartbeat's number wait; where much of its source waits, a later one tells it."""
        if len(self._waiting.get(source, ())) < self._samples_max:
            self.hold(source, (SnRange(sn, sn),), now_ns)

    def take(self, source: SourceId) -> list[Sample | SnRange]:
        """Return what waited of a source, in the order in which it came."""
        return self._given([one for _, one in self._waiting.pop(source, ())])

    def expired(self, now_ns: int) -> list[tuple[SourceId, list[Sample | SnRange]]]:
        """Return what waited in vain, by source: it is of the run before."""
        expired: list[tuple[SourceId, list[Sample | SnRange]]] = []
        for source, waiting in list(self._waiting.items()):
            over = [one for due_ns, one in waiting if due_ns <= now_ns]
            if not over:
                continue
            del waiting[: len(over)]
            if not waiting:
                del self._waiting[source]
            expired.append((source, self._given(over)))
            if source not in self._shown and source not in self._hidden:
                self._note(source, {"": None})  # it shows its tokens to others, if to anybody
        return expired

    def wake_ns(self) -> int | None:
        """Return when the first waits no longer, or None."""
        if not self._waiting:  # asked for with every batch
            return None
        return min((waiting[0][0] for waiting in self._waiting.values()), default=None)

    def _note(self, source: SourceId, shown: dict[str, None]) -> None:
        self._shown[source] = shown
        self._hidden.pop(source, None)
        if len(self._shown) > self._sources_max:
            self._shown.popitem(last=False)
            self._forgetful = True

    def _given(self, heard: list[Sample | SnRange]) -> list[Sample | SnRange]:
        self.held -= sum(isinstance(one, Sample) for one in heard)
        return heard


def _refuse(waiting: list[tuple[int, Sample | SnRange]], run: SnRange, due_ns: int) -> None:
    """Put numbers behind what waits, joined to those before them."""
    if waiting:
        before_ns, before = waiting[-1]
        if isinstance(before, SnRange) and before.first <= run.first <= before.last + 1:
            waiting[-1] = before_ns, SnRange(before.first, max(before.last, run.last))
            return
    waiting.append((due_ns, run))

"""The publisher's own cache: the newest samples, and those nobody acknowledged yet.

The specification's ReliabilityCache with a SessionLocal origin, fed by the publisher itself and not
over Zenoh: the same answers at a tenth of the cost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from durable_cache.model.newest import newest_per_key
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Sample
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.publisher.events import Send

_Place = tuple[int, int]
"""(epoch, sn): the history is of one source."""


class History:
    """At most `depth` samples whatever becomes of them; older ones stay until they are released.

    Every older sample precedes every recent one: both are kept in the order they were sent. The
    recent ones of one run are one after another, without holes. What is kept is what was to be
    sent: samples are made of it for those who ask (ADR 0300).

    Where nothing waits to be acknowledged, one thread may add while another reads: a deque becomes
    a list in one step of the interpreter (ADR 0318).
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._older: OrderedDict[_Place, Send] = OrderedDict()
        self._recent: deque[Send] = deque()

    def __len__(self) -> int:
        return len(self._older) + len(self._recent)

    def add(self, sent: Send, waits: Callable[[Send], bool] | None) -> None:
        """Keep a sample; hold the one that is no longer among the newest, if that `waits`.

        Whoever is ended by Ctrl-C in here calls it again with the same sample: it is kept once, and
        what leaves is held before it is gone.
        """
        recent = self._recent
        if not recent or recent[-1] is not sent:
            recent.append(sent)
        if len(recent) > self._depth:
            if waits is not None and waits(recent[0]):
                self.hold(recent[0])
            recent.popleft()

    def hold(self, sent: Send) -> None:
        """Keep a sample that is not among the newest until it is released."""
        self._older[sent.epoch, sent.sn] = sent

    def release(self, epoch: int, sn: int) -> None:
        """Forget a sample unless it is among the newest."""
        self._older.pop((epoch, sn), None)

    def samples(self) -> list[Sample]:
        """Return everything kept, in the order it was sent."""
        return [sent.sample for sent in self._all()]

    def read(
        self, selection: Selection, limit: int, cursor: Cursor | None
    ) -> tuple[list[Sample], Cursor | None]:
        """Return a page in the selection's order, and where it ended if there is more."""
        found = [sample for sample in self._candidates(selection) if _concerns(selection, sample)]
        found = sorted(newest_per_key(found, selection.newest), key=selection.place)
        if cursor is not None:
            found = [sample for sample in found if selection.place(sample) > cursor]
        page = found[:limit]
        return page, selection.place(page[-1]) if len(found) > limit else None

    def other_keys(self, selection: Selection) -> list[tuple[int, SnRange]]:
        """Return the runs of numbers asked for, with their epochs, that are under other keys."""
        others: dict[int, RangeSet] = {}
        for sample in self._candidates(selection):
            if selection.sns.holds(sample.sn) and not _concerns(selection, sample):
                others.setdefault(sample.epoch, RangeSet()).add(sample.sn, sample.sn)
        return [(epoch, run) for epoch, runs in others.items() for run in runs]

    def _candidates(self, selection: Selection) -> Iterable[Sample]:
        """Return what may be asked for; a few numbers of many samples are looked up one by one."""
        first, last = selection.sns
        if first is None or last is None or last - first >= len(self):
            return self.samples()
        epochs = {edge.epoch for edge in self._edges()}
        if len(epochs) > 1:
            return self.samples()  # numbers of several runs: rare, and there may be runs in between
        numbers = range(first, last + 1)
        older = [self._older.get((epoch, sn)) for epoch in epochs for sn in numbers]
        found = [*(sent for sent in older if sent is not None), *self._among_recent(numbers)]
        return [sent.sample for sent in found]

    def _all(self) -> Iterable[Send]:
        return [*self._older.values(), *self._recent]

    def _among_recent(self, numbers: range) -> Iterable[Send]:
        """Return the recent samples of these numbers, where all are of one run."""
        recent = [*self._recent]
        if not recent:
            return ()
        begin = recent[0].sn
        until = min(numbers.stop - begin, len(recent))
        return [recent[at] for at in range(max(0, numbers.start - begin), until)]

    def _edges(self) -> list[Send]:
        """Return the first and the last sample of each part: runs are kept in their order."""
        older = self._older.values()
        edges = [next(iter(older)), next(reversed(older))] if older else []
        return [*edges, self._recent[0], self._recent[-1]] if self._recent else edges


def _concerns(selection: Selection, sample: Sample) -> bool:
    """Tell whether a sample is asked for: a wildcard update is, of every key that it is about."""
    return (
        selection.has_numbering(sample.source, sample.epoch)
        and selection.sns.holds(sample.sn)
        and selection.times.holds(sample.ntp64)
        and selection.key_expr.concerns(sample.key)
    )

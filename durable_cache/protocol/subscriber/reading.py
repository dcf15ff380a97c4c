"""How far a run was read from what caches hold, and where reading began."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, WRAP_GAP
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.restarts import RESTART_NTP64
from durable_cache.protocol.subscriber.events import AnswerPart
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.naming import frame_beside, is_of_an_earlier
from durable_cache.protocol.subscriber.run_names import RunNames
from durable_cache.protocol.subscriber.run_table import RunTable

_FIRST_PAGE_SAMPLES = 500
"""A page that is there within a few milliseconds; each one after it may hold twice as many."""


@dataclass(slots=True)
class Reading:
    """How far history of one (source, epoch) was delivered."""

    first_sn: int
    next_sn: int
    newest_ntp64: int = 0
    began: tuple[int, int] | None = None
    """The number and the time of the first sample that was passed on."""
    shows: Sample | None = None
    """That sample, without its payload, of a run that no answer names: it shows the run."""
    numbering: Numbering | None = None
    """It is followed live: what it lacks goes through there."""
    late: bool = False
    """A later numbering is followed already: nothing of this one can come in order."""
    resumed: bool = False
    """It goes on where an earlier life ended: what caches removed since then is a loss."""
    gone_from: int | None = None
    """Nothing was passed on from this number on: what follows was reported or passed over."""
    end_sought: bool = False
    """What follows its last sample was asked for: a later run is on a page."""
    handed_over: bool = False
    untold: RangeSet = field(default_factory=RangeSet)
    """Numbers among those read that were neither passed on nor reported: they come too late."""

    def begin(self, sample: Sample, names: RunNames) -> None:
        """Note the first sample that is passed on."""
        if self.began is not None:
            return
        self.began = sample.sn, sample.ntp64
        if not names.of((sample.source, sample.epoch)):
            self.shows = replace(sample, payload=b"", attachment=None)

    @classmethod
    def of_samples(cls, samples: Sequence[Sample]) -> Reading:
        """Return how far a run would be read with some samples, in order of their numbers."""
        first = samples[0]
        return cls(first.sn, samples[-1].sn + 1, began=(first.sn, first.ntp64))

    @classmethod
    def of_ended(cls, run: Numbering) -> Reading:
        """Return how far a run was followed that has ended.

        What was delivered of it is not missed, nor what was of before us where an earlier life
        followed it.
        """
        first = 0 if run.resumed else run.first_sn or 0
        stood = first, run.next_sn or 0, run.newest_ntp64, run.began
        return cls(*stood, late=True, handed_over=True, untold=run.untold)

    def take_over(self, other: Reading) -> None:
        """Be as far as both are that turned out to be of one run."""
        if other.first_sn < self.first_sn or self.began is None:
            self.began, self.shows = other.began or self.began, other.shows or self.shows
        self.begins_as_early_as(other)
        self.next_sn = max(self.next_sn, other.next_sn)
        self.newest_ntp64 = max(self.newest_ntp64, other.newest_ntp64)

    def begins_as_early_as(self, other: Reading) -> None:
        """Begin where both do that are of one run; what one was told of, so is the run."""
        mine, theirs = self.untold.difference(other._told), other.untold.difference(self._told)
        self.untold = RangeSet.union((mine, theirs))
        self.first_sn = min(self.first_sn, other.first_sn)

    @property
    def _told(self) -> RangeSet:
        """What was passed on or reported."""
        return RangeSet([(self.first_sn, self.next_sn - 1)]).difference(self.untold)

    def too_late(self, sns: Sequence[int]) -> list[int]:
        """Return which of some numbers lie before what was read, or among it and untold."""
        return [sn for sn in sns if sn < self.first_sn or sn in self.untold]

    def tell(self, sns: Sequence[int], ranges_max: int) -> RangeSet:
        """Return what to report where some numbers, in their order, come too late.

        What lies between, and was not told, a later page may bring. So many ranges of it are
        remembered; of more, the lowest are reported now.
        """
        if not sns:
            return RangeSet()
        between = RangeSet([(sns[0], self.first_sn - 1), (self.next_sn, sns[-1])])
        self.first_sn = min(self.first_sn, sns[0])
        self.next_sn = max(self.next_sn, sns[-1] + 1)
        told = RangeSet.of(sns)
        self.untold = RangeSet.union((self.untold, between)).difference(told)
        if len(self.untold) > ranges_max:
            runs = [*self.untold]
            told = RangeSet.union((told, RangeSet(runs[:-ranges_max])))
            self.untold = RangeSet(runs[-ranges_max:])
        return told

    def began_after(self, samples: Sequence[Sample]) -> bool:
        """Tell whether all of some samples are older than the first that was passed on."""
        since = 0 if self.began is None else self.began[1]
        return not any(one.stamped or one.ntp64 >= since for one in samples)

    def goes_on_in(self, samples: Sequence[Sample]) -> bool:
        """Tell whether all of some samples, in order of numbers, lie behind what was passed on."""
        behind = 0 <= samples[0].sn - self.next_sn < WRAP_GAP
        return behind and all(not s.stamped and s.ntp64 >= self.newest_ntp64 for s in samples)

    def has_read(self, sample: Sample) -> bool:
        """Tell whether a sample lies among the numbers and the times that were delivered."""
        since = 0 if self.began is None else self.began[1] - RESTART_NTP64
        numbers = self.first_sn <= sample.sn < self.next_sn and sample.sn not in self.untold
        return numbers and since <= sample.ntp64 <= self.newest_ntp64


class Readings(RunTable[Reading]):
    """How far each run was read; hands over what was read since, without a look at all others."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[tuple[SourceId, int], None] = {}

    def __setitem__(self, key: tuple[SourceId, int], value: Reading) -> None:
        super().__setitem__(key, value)
        self._since[key] = None

    def __delitem__(self, key: tuple[SourceId, int]) -> None:
        super().__delitem__(key)
        self._since.pop(key, None)

    def go_on(self, key: tuple[SourceId, int]) -> None:
        """A page brings more of a run; that of one that is over nobody follows."""
        reading = self.get(key)
        if reading is not None and not reading.late:
            reading.handed_over = False
            self._since[key] = None

    def forget(self, key: tuple[SourceId, int], began: tuple[int, int] | None) -> None:
        """Forget a run, if what was given of it began with that number and time."""
        reading = self.get(key)
        if reading is not None and reading.began == began:
            del self[key]

    def place(
        self,
        key: tuple[SourceId, int],
        samples: Sequence[Sample],
        reached: int,
        page: Container[tuple[SourceId, int]],
    ) -> tuple[int, bool]:
        """Return by which epoch a run without a name goes, and whether it is over.

        `samples` are in order of their numbers; `reached` is the run that was read last. What lies
        before a wrap goes by another epoch than what was read behind it, one that no run on the
        `page` goes by. What is older than all that was read, and has lower numbers, is of the same
        run, whose first samples then come too late. What has no epoch and goes on behind it is of
        it, too (ADR 0389).
        """
        source, epoch = key
        read, last = self.get(key), self.get((source, reached))
        if read is not None and read.shows is not None:
            if samples[-1].sn - read.next_sn <= WRAP_GAP:
                return epoch, False

            def is_taken(epoch: int) -> bool:
                return (source, epoch) in self or (source, epoch) in page

            return frame_beside(samples[-1], is_taken, over=True), True
        if read is not None or last is None or last.shows is None:
            return epoch, False
        if samples[-1].sn < last.first_sn and last.began_after(samples):
            return reached, False
        if epoch == EPOCH_UNKNOWN and last.goes_on_in(samples):
            return reached, False
        return epoch, is_of_an_earlier(last, samples)

    def first_of(
        self,
        key: tuple[SourceId, int],
        first: Sample,
        names: RunNames,
        page: Mapping[tuple[SourceId, int], Sequence[Sample]],
    ) -> int:
        """Return from which number on a run is read of which `first` is there.

        Where nothing names it and the run before, and this may be that one going on, what lies
        between is missing: it was published in either case (ADR 0388). Whoever gives the later one
        alone an epoch tells them apart. Behind a wrap a run begins with 0.
        """
        source, epoch = key
        before = source, max((at for at in self.of(source) if at < epoch), default=epoch)
        if before == key or first.stamped or names.of(key) or names.of(before):
            return first.sn
        read, given = self[before], page.get(before, ())
        last = max([read.next_sn - 1, *(one.sn for one in given)])
        if max([read.newest_ntp64, *(one.ntp64 for one in given)]) > first.ntp64:
            return first.sn
        if last - first.sn >= SOURCE_SN_MODULUS - WRAP_GAP:
            return 0
        goes_on = before[1] != EPOCH_UNKNOWN and 0 < first.sn - last <= WRAP_GAP
        return last + 1 if goes_on else first.sn

    def given(self, parts: Sequence[AnswerPart]) -> AnswerPart | None:
        """Return what shows the runs without a name that were given so far of sources on a page."""
        samples = (one for part in parts for one in part.samples) if self else ()
        runs = (
            run
            for source in dict.fromkeys(one.source for one in samples)
            for run in self.of(source).values()
        )
        given = [run.shows for run in runs if run.shows is not None]
        return AnswerPart(given) if given else None

    def let_go_read(
        self, groups: dict[tuple[SourceId, int], list[Sample]], names: RunNames
    ) -> bool:
        """Let go of what bears no name, and was given as a named run's; tell whether any was.

        Who lost the name of a run may give some of it without. Runs follow each other: no other
        one has a number and a time among those that were given (ADR 0343).
        """
        let_go = False
        for key in [key for key in groups if not (is_unnumbered(key[0]) or names.of(key))]:
            source, samples = key[0], groups[key]
            named = [run for at, run in self.of(source).items() if names.of((source, at))]
            left = [
                one for one in samples if one.stamped or not any(run.has_read(one) for run in named)
            ]
            groups[key], let_go = left, let_go or len(left) < len(samples)
            if not left:
                del groups[key]
        return let_go

    def unread(
        self,
        came: Sequence[Sample],
        key: tuple[SourceId, int],
        page: Mapping[tuple[SourceId, int], Sequence[Sample]],
    ) -> list[Sample]:
        """Return, of what came while we looked, what is of no other run that a page brought."""
        source, epoch = key
        runs = [run for at, run in self.of(source).items() if at != epoch]
        groups = [group for (of, at), group in page.items() if of == source and at != epoch]
        known = {(one.sn, one.ntp64) for group in groups for one in group}
        unknown = (one for one in came if (one.sn, one.ntp64) not in known)
        return [one for one in unknown if not any(run.has_read(one) for run in runs)]

    def over(self) -> list[tuple[tuple[SourceId, int], Reading]]:
        """Return the runs that were passed on since `hand_over` was called last, and are over."""
        since = ((key, self[key]) for key in self._since)
        return [(key, read) for key, read in since if read.handed_over and read.began is not None]

    def hand_over(self) -> list[tuple[tuple[SourceId, int], Reading]]:
        """Return the runs that were read since this was called last, but those that are over."""
        fresh = [(key, self[key]) for key in self._since if not self[key].handed_over]
        self._since.clear()
        for _, reading in fresh:
            reading.handed_over = True
        return fresh


@dataclass(slots=True)
class Seam:
    """A place in order of time from which on history is read.

    Before it lies nothing that is still to be delivered, but samples of `sources`, whose clocks
    went back: those are asked for by number.
    """

    place: Sample
    sources: Collection[SourceId]
    """Those that an earlier life knew: each goes on with the one run that it knew last."""
    answerers: int
    """How many said from when on there is something."""
    page: int = _FIRST_PAGE_SAMPLES

    def page_samples(self, samples_max: int) -> int:
        """Return how much to ask for next: little at first, for somebody waits for it."""
        page, self.page = self.page, min(2 * self.page, samples_max)
        return min(page, samples_max)

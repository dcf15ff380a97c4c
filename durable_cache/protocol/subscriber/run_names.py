"""By which epoch a named run goes here, whatever each answerer calls it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache.protocol.subscriber.events import AnswerPart
from durable_cache.protocol.subscriber.run_table import RunTable, shorten

if TYPE_CHECKING:
    from durable_cache.protocol.subscriber.following import Numbering
    from durable_cache.protocol.subscriber.reading import Reading

_Key = tuple[SourceId, int]
_Run = tuple[SourceId, str]
_Named = list[tuple[str, int]]
"""The runs of one source that an answerer names, each with its epoch there."""


class RunNames:
    """The runs that answers named; of each table the oldest beyond `places_max` are forgotten.

    `readings` tell how far each run was given, `followed` returns by which epoch each run of a
    source goes that a token named here, and `followed_began` what was passed on first of one.
    """

    def __init__(
        self,
        places_max: int,
        readings: Mapping[_Key, Reading],
        followed: Callable[[SourceId], Mapping[str, int]],
        followed_began: Callable[[SourceId, str], tuple[int, int] | None],
    ) -> None:
        self._places_max, self._readings = places_max, readings
        self._followed, self._followed_began = followed, followed_began
        self.incarnations: RunTable[str] = RunTable()
        """The name of each run, by source and the epoch by which it goes here."""
        self.called: dict[_Run, int] = {}
        """The epoch by which each named run goes here."""

    def of(self, key: _Key) -> str:
        """Return the name of a run; empty where no answer named it."""
        return self.incarnations.get(key, "")

    def key_of(self, run: Numbering) -> _Key:
        """Return the source of a run that is followed, and the epoch by which it goes here."""
        source, name = run.source, run.incarnation
        epoch = run.epoch if run.called is None else run.called
        if name:  # as it began it may have gone by no name, or by that of another
            epoch = self._followed(source).get(name, epoch)
            epoch = epoch if self.known((source, epoch)) in ("", name) else run.epoch
        return source, self.called.get((source, name), epoch)

    def known(self, key: _Key) -> str:
        """Return the name of a run, also of one that a token alone named."""
        followed = (name for name, epoch in self._followed(key[0]).items() if epoch == key[1])
        return self.of(key) or next(followed, "")

    def is_taken(self, source: SourceId, epoch: int, name: str) -> bool:
        """Tell whether an answer named another run of the source that goes by an epoch here."""
        return self.incarnations.get((source, epoch), name) != name

    def agree(self, parts: Sequence[AnswerPart], shown: Callable[[SourceId], str]) -> None:
        """Choose how runs are called: as whoever knows most calls them, and no two alike.

        A run whose token is `shown` goes behind all that were published before it, unless somebody
        knows of a later one, or something of it was read already (ADR 0262).
        A publisher's own cache knows of no run before, and may call its run as a cache calls that.
        A run that comes before one that has its epoch here, or an earlier, goes by the next lower
        that is nobody's name (ADR 0266). Of two that nobody tells apart though they go by one epoch
        the one published first does, as far as these parts show it (ADR 0333); else the one that is
        named later goes behind all.
        """
        told = _told(parts)
        last = self._shown_behind(told, parts, shown)
        for source, answers in told.items():
            self._choose(source, answers, last.get(source, ""), parts)
        shorten(self.called, self._places_max)
        shorten(self.incarnations, self._places_max)

    def _choose(
        self,
        source: SourceId,
        answers: Sequence[_Named],
        last: str,
        parts: Sequence[AnswerPart],
    ) -> None:
        """Choose how the runs of one source are called; the one that is `last` goes behind all."""
        epochs = _latest(answers)
        self._take_over(source, answers)
        known: Counter[str] = Counter()
        for named in answers:
            for name, _ in named:
                known[name] = max(len(named), known[name])
        for name in sorted(epochs, key=lambda name: (name == last, -known[name], -epochs[name])):
            run = source, name
            if name == last:
                self.called[run] = 1 + max(self._others(source, name, epochs))
            elif run not in self.called:
                self.called[run] = self._free(run, epochs, answers, parts)
            self.incarnations[source, self.called[run]] = name

    def _take_over(self, source: SourceId, answers: Sequence[_Named]) -> None:
        """Call runs as they are followed, unless an answerer has them in another order."""
        followed = self._followed(source)
        for name, epoch in followed.items():
            if (source, name) in self.called or self.is_taken(source, epoch, name):
                continue
            here = {one: self.called.get((source, one), followed.get(one)) for one in followed}
            key = source, epoch
            was_given = key in self._readings or self._began(key) is not None
            if was_given or all(_fits(name, epoch, dict(named), here) for named in answers):
                self.called[source, name] = epoch
                self.incarnations[source, epoch] = name

    def _others(self, source: SourceId, name: str, epochs: Mapping[str, int]) -> list[int]:
        """Return by which epochs other runs of a source go, here or in these answers."""
        known = self.incarnations.of(source).items()
        here = [epoch for epoch, other in known if other != name]
        return here + [epoch for other, epoch in epochs.items() if other != name]

    def _shown_behind(
        self,
        told: Mapping[SourceId, Sequence[_Named]],
        parts: Sequence[AnswerPart],
        shown: Callable[[SourceId], str],
    ) -> dict[SourceId, str]:
        """Return the run of each source that shows its token behind others of later epochs."""
        last: dict[SourceId, str] = {}
        for source, answers in told.items():
            epochs, name = _latest(answers), shown(source)
            if name not in epochs:
                continue
            key = source, self.called.get((source, name), epochs[name])
            is_earlier = key[1] < max(self._others(source, name, epochs), default=0)
            if is_earlier and self._began(key) is None and not any(_behind(name, answers)):
                last[source] = name
        last = self._published_behind(last, parts) if last else last
        for source, name in last.items():
            for epoch in [at for at, one in self.incarnations.of(source).items() if one == name]:
                del self.incarnations[source, epoch]
        return last

    def _published_behind(
        self, runs: Mapping[SourceId, str], parts: Sequence[AnswerPart]
    ) -> dict[SourceId, str]:
        """Return those of these runs that times show behind another of their source."""
        first: dict[SourceId, Sample] = {}
        others: dict[SourceId, list[int]] = {source: [] for source in runs}
        for source, name in runs.items():
            for epoch, other in self.incarnations.of(source).items():
                if other != name and (began := self._began((source, epoch))) is not None:
                    others[source].append(began[1])
        for part in parts:
            names = part.names()
            for sample in part.samples:
                source = sample.source
                called = names.get((source, sample.epoch)) if source in runs else ""
                if called and called == runs[source]:
                    if source not in first or sample.sn < first[source].sn:
                        first[source] = sample
                elif called and not sample.stamped:
                    others[source].append(sample.ntp64)
        return {
            source: runs[source]
            for source, sample in first.items()
            if not sample.stamped and min(others[source], default=NTP64_MAX) < sample.ntp64
        }

    def _free(
        self,
        run: _Run,
        epochs: Mapping[str, int],
        answers: Sequence[_Named],
        parts: Sequence[AnswerPart],
    ) -> int:
        """Return the epoch by which a run is to go that has none here yet."""
        (source, name), epoch = run, epochs[run[1]]
        later = [self.called.get((source, one), epoch + 1) for one in _behind(name, answers)]
        other = self.incarnations.get((source, epoch), name)
        told_apart = any({name, other} <= {one for one, _ in named} for named in answers)
        began = self._began((source, epoch))
        if (other in epochs or began is not None) and not told_apart:
            began_ntp64 = NTP64_MAX if began is None else began[1]
            later += [epoch] if _is_over(run, other, began_ntp64, parts) else []
        before = min(later, default=epoch + 1)
        if before > epoch and not self.is_taken(source, epoch, name):
            return epoch
        taken = {*self.incarnations.of(source), *epochs.values()}
        lower = (at for at in range(before - 1, EPOCH_UNKNOWN, -1) if at not in taken)
        return (next(lower, EPOCH_UNKNOWN) if before <= epoch else 0) or 1 + max(taken)

    def _began(self, key: _Key) -> tuple[int, int] | None:
        """Return number and time of the first sample that was given of a run, if it is known."""
        reading, name = self._readings.get(key), self.known(key)
        given = None if reading is None else reading.began
        return given or (self._followed_began(key[0], name) if name else None)

    def renamed(
        self, part: AnswerPart, samples: Sequence[Sample], stand: Mapping[_Key, int]
    ) -> Iterable[Sample]:
        """Return samples of a part under the epochs by which their runs go here.

        `stand`: by which epochs runs without a name go.
        """
        named = part.names()
        epochs = {key: epoch for key, epoch in stand.items() if key not in named}
        for key, name in named.items():
            epoch = self.called.get((key[0], name), key[1])
            if epoch != key[1]:
                epochs[key] = epoch
        if not epochs:
            return samples
        return (
            under(sample, epochs.get((sample.source, sample.epoch), sample.epoch))
            for sample in samples
        )


def _told(parts: Iterable[AnswerPart]) -> dict[SourceId, list[_Named]]:
    """Return, by source, how each answerer that names runs of it calls them."""
    told: dict[SourceId, list[_Named]] = {}
    for part in parts:
        of_part: dict[SourceId, _Named] = {}
        for source, epoch, name in part.incarnations:
            of_part.setdefault(source, []).append((name, epoch))
        for source, named in of_part.items():
            told.setdefault(source, []).append(named)
    return told


def _latest(answers: Iterable[_Named]) -> dict[str, int]:
    """Return the latest epoch by which each run of a source is called."""
    latest: dict[str, int] = {}
    for named in answers:
        for name, epoch in named:
            latest[name] = max(epoch, latest.get(name, epoch))
    return latest


def _behind(name: str, answers: Iterable[_Named]) -> Iterator[str]:
    """Yield the runs that an answerer calls by later epochs than a run of the same source."""
    for named in answers:
        epochs = dict(named)
        if name in epochs:
            yield from (one for one, epoch in epochs.items() if epoch > epochs[name])


def _is_over(run: _Run, other: str, began_ntp64: int, parts: Iterable[AnswerPart]) -> bool:
    """Tell whether times in these parts show that a run ended before another began.

    Parts come in the order of time: what they lack of the other is later than what they have.
    """
    (source, name), newest = run, None
    for part in parts:
        names = part.names()
        for sample in part.samples:
            called = names.get((sample.source, sample.epoch)) if sample.source == source else ""
            if called in (name, other) and sample.stamped:
                return False  # by a cache, when it came
            if called == name:
                newest = max(newest or 0, sample.ntp64)
            elif called == other:
                began_ntp64 = min(began_ntp64, sample.ntp64)
    return newest is not None and newest < began_ntp64


def _fits(name: str, epoch: int, told: Mapping[str, int], here: Mapping[str, int | None]) -> bool:
    """Tell whether an answerer has a run behind the same others as it goes behind here."""
    others = ((here.get(one) or at, at) for one, at in told.items() if one != name)
    return name not in told or all((at < told[name]) == (one < epoch) for one, at in others)


def under(sample: Sample, epoch: int) -> Sample:
    """Return a sample under an epoch: itself, where it bears that."""
    return sample if sample.epoch == epoch else msgspec.structs.replace(sample, epoch=epoch)

"""Which runs that an answer calls by different epochs are one, where a token names one at most.

Caches name the runs of a foreign source themselves, and agree on one name a while after they meet.
Until then one sample may come under two epochs. It was published once: the same key, number and
time show that its runs are one, unless another number has two. They go by the epoch of the one that
a token names: a cache that saw that token late may have some of its run under another epoch. Else
they go by the epoch under which something was delivered already, else by the later one. So do a
named run and one without a name of which samples were published so shortly one after another that
no restart fits between (ADR 0374), and two that go on in each other (ADR 0379, 0389).

Nor does 0 say that two answerers mean one run: one may have been down when the other heard the
run before. A number with two times shows that; the later run goes by the name that it has in the
same answer, else by its time, as caches call it when they meet (ADR 0112). What was given so far
counts as one more answer: its first sample shows of each run which one it is (ADR 0263).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import msgspec

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, WRAP_GAP, frame
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.protocol.restarts import RESTART_NTP64
from durable_cache.protocol.subscriber.events import AnswerPart
from durable_cache.protocol.subscriber.reading import Reading
from durable_cache.protocol.subscriber.run_names import RunNames
from durable_cache.protocol.subscriber.run_table import RunTable

Key = tuple[SourceId, int]
_Run = dict[int, tuple[str, int]]
"""What was published under each number: its key and its time."""


def parted(parts: Sequence[AnswerPart]) -> tuple[AnswerPart, ...]:
    """Return the parts of an answer; of two runs that two call by one epoch the later has the next
    one, as caches come to call it (ADR 0304, 0322).

    No token named them, and no number that both have is the same.
    """
    runs: dict[Key, dict[int, _Run]] = {}
    by_tokens = {key for part in parts for key in part.names()}
    for at, part in enumerate(parts if len(parts) > 1 else ()):
        for sample in part.samples:
            key = sample.source, sample.epoch
            if sample.epoch and key not in by_tokens and sample.ntp64 and not sample.stamped:
                runs.setdefault(key, {}).setdefault(at, {})[sample.sn] = sample.key, sample.ntp64
    told = list(parts)
    for (source, epoch), by in runs.items():
        above = runs.get((source, epoch + 1), {}).values()
        for at in _later(by):
            if (source, epoch + 1) not in by_tokens and all(_is_one(by[at], run) for run in above):
                told[at] = _called(told[at], source, epoch, epoch + 1)
    return tuple(told)


def _later(by: dict[int, _Run]) -> list[int]:
    """Return whose run was published after that of another answerer: no number is the same."""
    later: set[int] = set()
    for one, two in combinations(by, 2):
        both = by[one].keys() & by[two]
        if both and not any(by[one][sn] == by[two][sn] for sn in both):
            _, at = max((by[at][min(both)][1], at) for at in (one, two))
            later.add(at)
    return sorted(later)


def told_apart(
    parts: Sequence[AnswerPart], given: AnswerPart | None = None
) -> tuple[AnswerPart, ...]:
    """Return the parts of an answer; of two runs without an epoch the later has one now.

    `given`, what was given so far, counts as an answer: its run without an epoch has none still.
    """
    every = [*([] if given is None else [given]), *parts]
    nameless: dict[SourceId, dict[int, _Run]] = {}
    for at, part in enumerate(every):
        for sample in part.samples if len(every) > 1 else ():
            if sample.epoch == EPOCH_UNKNOWN and sample.ntp64 and not sample.stamped:
                run = nameless.setdefault(sample.source, {}).setdefault(at, {})
                run[sample.sn] = sample.key, sample.ntp64
    told = list(every)
    named = [_named_runs(part, nameless) for part in every]
    first = None if given is None else 0
    for source, runs in nameless.items():
        of_source = [by.get(source, {}) for by in named]
        for at, epoch in _others(runs, of_source, first).items():
            told[at] = _called(told[at], source, EPOCH_UNKNOWN, epoch)
    return tuple(told[len(every) - len(parts) :])


def _others(
    runs: dict[int, _Run], named: Sequence[dict[int, _Run]], given: int | None
) -> dict[int, int]:
    """Return whose runs are not the one that was given, else the first, and the epoch of each.

    Of one source: what each answerer has without an epoch, by answerer, and under epochs.
    """
    first: _Run = {}
    epochs: dict[int, int] = {}

    def comes(at: int) -> tuple[bool, int]:
        return at != given, min(ntp64 for _, ntp64 in runs[at].values())

    for at in sorted(runs, key=comes):
        run = runs[at]
        same = [run[sn] == first[sn] for sn in run.keys() & first]
        # Who has a run without an epoch, and this one under an epoch, parts the two.
        by_others = (other for by in runs.keys() - {at} for other in named[by].values())
        parted = any(_is_one(run, other) for other in by_others)
        parted |= any(_is_one(first, other) for other in named[at].values())
        # Nor is one run what lies before a wrap, and what another has behind it.
        parted |= bool(first) and max(first) - max(run) > WRAP_GAP
        # What errs here and there is of one run all the same.
        if at == given or any(same) or not (same or parted):
            first |= run
            continue
        others: dict[int, _Run] = {}
        for epoch, other in (one for part in named for one in part.items()):
            others[epoch] = others.get(epoch, {}) | other
        begun = frame(ntp64_to_ns(run[min(run)][1]))
        while begun in others:  # by another run within the same time
            begun -= 1
        epochs[at] = next((epoch for epoch in sorted(others) if _is_one(run, others[epoch])), begun)
    return epochs


def _named_runs(part: AnswerPart, sources: Collection[SourceId]) -> dict[SourceId, dict[int, _Run]]:
    """Return the runs that an answerer has under epochs, by source and epoch."""
    named: dict[SourceId, dict[int, _Run]] = {}
    for sample in part.samples if sources else ():
        if sample.source in sources and sample.epoch != EPOCH_UNKNOWN:
            runs = named.setdefault(sample.source, {})
            runs.setdefault(sample.epoch, {})[sample.sn] = sample.key, sample.ntp64
    return named


def _is_one(run: _Run, other: _Run) -> bool:
    """Tell whether two runs have numbers in common, and the same under all of these."""
    same = [run[sn] == other[sn] for sn in run.keys() & other]
    return bool(same) and all(same)


def _is_near(run: _Run, other: _Run) -> bool:
    """Tell whether no restart fits between two that have no number in common, nor a wrap (0374)."""
    if run.keys() & other or max(*run, *other) - min(*run, *other) > WRAP_GAP:
        return False
    times = sorted(
        [(at, True) for _, at in run.values()] + [(at, False) for _, at in other.values()]
    )
    return any(
        ours != theirs and until - since <= RESTART_NTP64
        for (since, ours), (until, theirs) in pairwise(times)
    )


def _goes_on(run: _Run, other: _Run) -> bool:
    """Tell whether two that have no number in common go on in each other by numbers and times.

    Of a number of one the next is the other's, and wherever they meet the higher number is not the
    earlier one (ADR 0379).
    """
    if run.keys() & other:
        return False
    both = sorted(
        [(sn, at, True) for sn, (_, at) in run.items()]
        + [(sn, at, False) for sn, (_, at) in other.items()]
    )
    meet = [(one, two) for one, two in pairwise(both) if one[2] != two[2]]
    in_order = all(one[1] <= two[1] + RESTART_NTP64 for one, two in meet)
    return in_order and any(one[0] + 1 == two[0] for one, two in meet)


def _by_different(given_as: Iterable[set[int]], two: set[int]) -> bool:
    """Tell whether two runs are called so by answerers of which none tells them apart."""
    both = [epochs & two for epochs in given_as]
    return set().union(*both) == two and two not in both


def _comes_behind(runs: dict[int, _Run], one: int, two: int) -> bool:
    """Tell whether one has no epoch, and was published after the other.

    Whoever knew that it is the later run would have given it an epoch: it tells nothing apart.
    """
    if EPOCH_UNKNOWN not in (one, two):
        return False
    ended = max(ntp64 for _, ntp64 in runs[max(one, two)].values())
    return ended <= min(ntp64 for _, ntp64 in runs[EPOCH_UNKNOWN].values())


def _look_alike(run: _Run, other: _Run, named: int) -> bool:
    """Tell whether two are one which have no number in common; tokens name so many of them."""
    if named > 1:
        return False
    return _is_near(run, other) if named else _goes_on(run, other)


def _called(part: AnswerPart, source: SourceId, was: int, epoch: int) -> AnswerPart:
    def name(samples: Iterable[Sample]) -> list[Sample]:
        return [
            msgspec.structs.replace(one, epoch=epoch) if (one.source, one.epoch) == key else one
            for one in samples
        ]

    key = source, was
    return replace(part, samples=name(part.samples))


class Twins:
    """The runs that were seen to be one; at most `runs_max`, the oldest is forgotten.

    `readings` tell how far each was read. Of two that were read, what comes after both is missed
    nowhere else: what lies between them is told to `report`.
    """

    def __init__(
        self,
        runs_max: int,
        readings: RunTable[Reading],
        report: Callable[[SourceId, int, int, int], None],
    ) -> None:
        self._runs_max, self._readings, self._report = runs_max, readings, report
        self.stand: dict[Key, int] = {}
        """The epochs that stand for others."""

    def names(self, key: Key) -> set[Key]:
        """Return what else a run is called that goes by a name."""
        return {other for other, epoch in self.stand.items() if (other[0], epoch) == key}

    def learn(
        self, parts: Sequence[AnswerPart], names: RunNames, given: AnswerPart | None = None
    ) -> None:
        """Look for samples that came under two epochs, of which one at least is not named.

        `given`: what was given so far counts, too.
        """
        parts = parts if given is None else (*parts, given)
        called: dict[SourceId, set[int]] = {}
        nameless: set[SourceId] = set()
        for part in parts:
            named = part.names()
            for source, epoch in {(sample.source, sample.epoch) for sample in part.samples}:
                name = named.get((source, epoch), "")
                called.setdefault(source, set()).add(names.called.get((source, name), epoch))
                if not name:
                    nameless.add(source)
        doubtful = {source for source in nameless if len(called[source]) > 1}
        if not doubtful:
            return
        published: dict[SourceId, dict[int, _Run]] = {}
        given_as: dict[SourceId, list[set[int]]] = {source: [] for source in doubtful}
        """By which epochs each answerer calls the runs of a source."""
        for part in parts:
            by: dict[SourceId, set[int]] = {source: set() for source in doubtful}
            samples = [sample for sample in part.samples if sample.source in doubtful]
            for sample in names.renamed(part, samples, self.stand):
                if sample.ntp64 and not sample.stamped:
                    runs = published.setdefault(sample.source, {})
                    runs.setdefault(sample.epoch, {})[sample.sn] = sample.key, sample.ntp64
                    by[sample.source].add(sample.epoch)
            for source, epochs in by.items() if part is not given else ():
                given_as[source].append(epochs)
        for source, runs in published.items():
            for one, two in combinations([*runs], 2):
                # A number with two times is of two runs, of which one errs.
                if _is_one(runs[one], runs[two]):
                    self._unite(source, one, two, names)
                elif _by_different(given_as[source], {one, two}) or _comes_behind(runs, one, two):
                    by_tokens = sum(1 for epoch in (one, two) if names.of((source, epoch)))
                    if _look_alike(runs[one], runs[two], by_tokens):
                        self._unite(source, one, two, names)

    def _unite(self, source: SourceId, one: int, two: int, names: RunNames) -> None:
        """Let two epochs of a source be one, unless each is that of a run with a name."""

        def rank(epoch: int) -> tuple[bool, bool, int]:
            key = source, epoch
            return not names.of(key), key not in self._readings, -epoch

        one, two = self.stand.get((source, one), one), self.stand.get((source, two), two)
        if one == two or (names.of((source, one)) and names.of((source, two))):
            return
        stands, falls = sorted((one, two), key=rank)
        self._read_as_one((source, falls), (source, stands))
        for key in [key for key, epoch in self.stand.items() if key[0] == source]:
            if self.stand[key] == falls:
                self.stand[key] = stands
        self.stand[source, falls] = stands
        while len(self.stand) > self._runs_max:
            del self.stand[next(iter(self.stand))]

    def _read_as_one(self, falls: Key, stands: Key) -> None:
        """Go on behind what was read of a run, by either name or by both."""
        reading, other = self._readings.get(stands), self._readings.get(falls)
        if other is None:
            return
        if reading is None:
            del self._readings[falls]
            self._readings[stands] = other
            return
        if other.next_sn < reading.first_sn:
            self._report(*stands, other.next_sn, reading.first_sn - 1)
        reading.take_over(other)
        del self._readings[falls]

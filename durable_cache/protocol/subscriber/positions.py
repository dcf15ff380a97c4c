"""How far a durable consumer has come in each run that it follows, and what of it is open.

Theory of operation (ADR 0152). A run's samples are handed out in its order, so two things say where
a consumer stands in it: the highest number that was handed out or given up, and which of those up
to there are *open*, handed out and not confirmed.

    confirmed ..4, 6 and 9        open 5, 7..8        reached 9

What is confirmed stays confirmed. So of two positions of one run both are right, and the consumer
stands where they are joined: what either says is confirmed, is. Confirming twice, in any order, or
reading an older position beside a newer one can therefore never move it backwards. Only a rewind
does: it takes back what was confirmed; it is counted, and outweighs all before it.

A run goes by its incarnation where its publisher names one. Caches may come to call a run by
another epoch; every epoch under which samples of it are handed out leads to the one run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import msgspec

from durable_cache.errors import Fenced, LocalProtocolError
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId, by_run
from durable_cache.model.unnumbered import UNNUMBERED_EID, is_unnumbered
from durable_cache.protocol.consumers import OPEN_RUNS_MAX, Position
from durable_cache.protocol.standings import Standing

_HANDLED_MAX = 1_000
"""Samples whose handlers returned that may wait to be joined with the rest."""
_LOOKED_AT_MAX = 1_000
"""Runs looked at for one that may be forgotten."""
_SN = attrgetter("sn")
_Key = tuple[SourceId, int]


class Point(NamedTuple):
    """The run and the number of a source from which on its samples are to come again."""

    epoch: int
    sn: int


@dataclass(slots=True, eq=False)
class _Run:
    """One run of a source, as a consumer takes it."""

    source: SourceId
    epoch: int
    incarnation: str = ""
    reached: int = -1
    open: RangeSet = field(default_factory=RangeSet)
    """Handed out in this life and not confirmed."""
    left: RangeSet = field(default_factory=RangeSet)
    """Open since an earlier life; not handed out again yet."""
    resumed_to: int = -1
    """What an earlier life reached: up to here only what is left is handed out."""
    called: list[int] = field(default_factory=list)
    """The epochs under which its samples are handed out."""
    rewinds: int = 0
    ntp64: int = 0
    """When the highest number was published that was handed out; 0 where that is not known."""
    left_ntp64: int = 0
    """What an earlier life left was published then or later."""
    open_ntp64: dict[int, int] = field(default_factory=dict)
    """When each number was published that is open in this life."""

    def hand_out(self, samples: Sequence[Sample]) -> int:
        """Samples go to the consumer; they are open. Return how many were not before."""
        sns, before = [sample.sn for sample in samples], len(self.open_ntp64)
        self.open.update(RangeSet.of(sns))
        self.open_ntp64.update(zip(sns, [sample.ntp64 for sample in samples], strict=True))
        self.reach(samples)
        return len(self.open_ntp64) - before

    def reach(self, samples: Sequence[Sample]) -> None:
        """Samples go to the consumer."""
        if self.left:
            for sample in samples:
                self.left.remove(sample.sn, sample.sn)
        last = samples[-1] if len(samples) == 1 else max(samples, key=_SN)
        if last.sn >= self.reached:
            self.reached, self.ntp64 = last.sn, last.ntp64

    def has(self, sns: Sequence[int]) -> bool:
        """Tell whether all these numbers were handed out, or confirmed in an earlier life."""
        return max(sns) <= self.reached and not (self.left and any(sn in self.left for sn in sns))

    def confirm(self, sns: Iterable[int]) -> int:
        """Return how many were open."""
        opened = self.open_ntp64
        done = [sn for sn in sns if opened.pop(sn, None) is not None]
        for first, last in RangeSet.of(done):
            self.open.remove(first, last)
        return len(done)

    def since_ntp64(self, first_open: int | None) -> int:
        """Return from when on what is not confirmed was published; 0 where that is not known."""
        if first_open is None:
            return self.ntp64
        return self.open_ntp64.get(first_open, self.left_ntp64)

    def position(self, key_expr: str, fence: int) -> Position:
        still_open = self.open.copy()
        still_open.update(self.left)
        runs = [(first, last) for first, last in still_open]
        if len(runs) > OPEN_RUNS_MAX:
            runs[OPEN_RUNS_MAX - 1 :] = [(runs[OPEN_RUNS_MAX - 1][0], runs[-1][1])]
        return Position(
            key_expr,
            self.source,
            self.epoch,
            self.incarnation,
            self.reached,
            tuple(runs),
            self.rewinds,
            self.since_ntp64(runs[0][0] if runs else None),
            fence,
        )


class Positions:
    """A consumer's positions; owned by whoever holds its lock, but for `handled`.

    `runs_max` bounds the runs that are remembered. One that is forgotten has nothing open; what
    comes of it later begins a position that says no more than the one before.
    """

    def __init__(
        self, key_expr: str, known: Iterable[Position] = (), *, runs_max: int = 100_000
    ) -> None:
        self._key_expr = key_expr
        self._runs_max = runs_max
        self._runs: dict[_Key, _Run] = {}
        self._named: dict[tuple[SourceId, str], _Run] = {}
        self._changed: dict[_Run, None] = {}
        self.fence = 0
        """What positions bear that are written from now on (ADR 0156)."""
        self.in_hand = 0
        """Samples that were handed out in this life and are not confirmed."""
        self._handled: deque[Sample] = deque()
        """Handed out and confirmed in one, and not joined with the rest yet."""
        for position in known:
            self._know(position)

    def _know(self, position: Position) -> _Run:
        run = self._add(position.source, position.epoch, position.incarnation)
        run.reached = run.resumed_to = position.reached
        run.left.update(RangeSet(position.open))
        run.rewinds = position.rewinds
        run.ntp64 = run.left_ntp64 = position.ntp64
        return run

    @property
    def changed(self) -> int:
        """How many runs stand elsewhere than was last taken to be written, as far as is known."""
        return len(self._changed) or min(1, len(self._handled))

    def call(self, source: SourceId, epoch: int, named: tuple[int, str]) -> None:
        """Learn which run is meant by an epoch: by which epoch and incarnation it goes now."""
        self.join()
        canonical, incarnation = named
        run = self._runs.get((source, epoch))
        if run is not None and run.incarnation in ("", incarnation):
            if incarnation and not run.incarnation:
                run.epoch, run.incarnation = canonical, incarnation
                self._named[source, incarnation] = run
            return
        if run is not None and not incarnation:
            return
        run = self._named.get((source, incarnation)) if incarnation else None
        if run is None:
            self._add(source, epoch, incarnation).epoch = canonical
        else:
            self._alias(run, epoch)

    def unconfirmed(self, samples: Sequence[Sample], keys: Iterable[_Key]) -> Sequence[Sample]:
        """Return those that were not confirmed in an earlier life; `keys` are their runs."""
        self.join()
        runs = map(self._runs.get, keys)
        if all(run is None or run.resumed_to < 0 for run in runs):
            return samples
        return [sample for sample in samples if not self._is_confirmed(sample)]

    def is_confirmed(self, sample: Sample) -> bool:
        """Tell whether a sample was confirmed in an earlier life."""
        self.join()
        return self._is_confirmed(sample)

    def _is_confirmed(self, sample: Sample) -> bool:
        run = self._runs.get((sample.source, sample.epoch))
        return run is not None and sample.sn <= run.resumed_to and sample.sn not in run.left

    def hand_out(self, *samples: Sample) -> Sequence[Sample]:
        """Samples go to the consumer, those that were not confirmed in an earlier life: return
        them. They are open until they are confirmed.
        """
        self.join()
        runs = by_run(samples)
        known = [run for run in map(self._runs.get, runs) if run is not None]
        if len(samples) > 1 and any(run.left for run in known):
            return [one for each in samples for one in self.hand_out(each)]  # each of these once
        fresh = self.unconfirmed(samples, runs)
        if len(fresh) < len(samples):
            runs = by_run(fresh)
        for key, some in runs.items():
            if not is_unnumbered(key[0]):
                run = self._run(key)
                self.in_hand += run.hand_out(some)
                self._changed[run] = None
        return fresh

    def handled(self, sample: Sample) -> bool:
        """A sample was handed out and confirmed in one; of one thread, which needs no lock.

        It counts from then on, and is joined with the rest by whoever asks. True where the owner
        is to be told, for it is the first since, or there are many: `join_many`.
        """
        if sample.source.eid == UNNUMBERED_EID:
            return False
        handled = self._handled
        handled.append(sample)
        return len(handled) % _HANDLED_MAX == 1

    def join_many(self) -> None:
        """Take over what was handled since, where it is much."""
        if len(self._handled) >= _HANDLED_MAX:
            self.join()

    def join(self) -> None:
        """Take over what was handled since."""
        handled = self._handled
        if not handled:
            return
        # Whoever handles adds at the other end meanwhile: what comes now is joined the next time.
        for key, some in by_run([handled.popleft() for _ in range(len(handled))]).items():
            run = self._run(key)
            run.reach(some)
            self._changed[run] = None

    def confirm(self, *samples: Sample) -> int:
        """Confirm what was handed out, in this order; return how many were not confirmed before.

        LocalProtocolError at the first that this consumer was never handed.
        """
        self.join()
        runs = {
            key: [sample.sn for sample in some]
            for key, some in by_run(samples).items()
            if not is_unnumbered(key[0])
        }
        known = [(self._runs.get(key), sns) for key, sns in runs.items()]
        if not all(run is not None and run.has(sns) for run, sns in known):
            numbered = [one for one in samples if not is_unnumbered(one.source)]
            return sum([self._confirm(self._delivered(one), (one.sn,)) for one in numbered])
        return sum([self._confirm(run, sns) for run, sns in known if run is not None])

    def _confirm(self, run: _Run, sns: Sequence[int]) -> int:
        done = run.confirm(sns)
        if done:
            self.in_hand -= done
            self._changed[run] = None
        return done

    def standing_with(self, sample: Sample) -> Position:
        """Return where a sample's run will stand once the sample is confirmed, too.

        Raises LocalProtocolError as `confirm`, and for a sample without a number.
        """
        self.join()
        if is_unnumbered(sample.source):
            raise LocalProtocolError("a sample without a number has no position")
        run = self._delivered(sample)
        position = run.position(self._key_expr, self.fence)
        still_open = RangeSet(position.open)
        still_open.remove(sample.sn, sample.sn)
        return msgspec.structs.replace(
            position,
            open=tuple((first, last) for first, last in still_open),
            ntp64=run.since_ntp64(still_open.first),
        )

    def is_open(self, sample: Sample) -> bool:
        """Tell whether what was handed out is not confirmed; LocalProtocolError as `confirm`."""
        if is_unnumbered(sample.source):
            return True
        return sample.sn in self._delivered(sample).open

    def _delivered(self, sample: Sample) -> _Run:
        self.join()
        run, sn = self._runs.get((sample.source, sample.epoch)), sample.sn
        if run is None or sn > run.reached or sn in run.left:
            raise LocalProtocolError(
                f"sample {sn} of {sample.source}, epoch {sample.epoch}, was not delivered by this "
                "subscriber, or not since a rewind took it back: confirm samples as they were "
                "received from it"
            )
        return run

    def pass_over(self, source: SourceId, epoch: int, first: int, last: int) -> list[_Range]:
        """Numbers will not come: return those of them that were not confirmed before, as runs."""
        self.join()
        run = self._runs.get((source, epoch)) or self._add(source, epoch, "")
        fresh = RangeSet([(max(first, run.resumed_to + 1), last)])
        fresh.update(run.left.clip(first, last))
        run.left.remove(first, last)
        run.reached = max(run.reached, last)
        self._changed[run] = None
        return [(lost.first, lost.last) for lost in fresh]

    def take(self) -> list[Position]:
        """Return where the runs stand that have moved since, to be written."""
        self.join()
        changed, self._changed = self._changed, {}
        return [run.position(self._key_expr, self.fence) for run in changed]

    def put_back(self, positions: Iterable[Position]) -> None:
        """Writing failed: these runs are to be written again, as they stand by then."""
        for position in positions:
            named = self._named.get((position.source, position.incarnation))
            run = named or self._runs.get((position.source, position.epoch))
            if run is not None:
                self._changed[run] = None

    def in_hand_of(self, concerns: Callable[[SourceId], bool]) -> int:
        """Return how many samples of some sources were handed out and are not confirmed."""
        runs = dict.fromkeys(self._runs.values())
        return sum(len(run.open_ntp64) for run in runs if concerns(run.source))

    def go_on(
        self, owns: Callable[[SourceId], bool], gained: Iterable[Position] = ()
    ) -> list[Position]:
        """Forget what another member has now, and learn where it stood that is ours from now on.

        What is in hand of the rest stays so, and is not handed out again. Returns where all stand.
        """
        self.join()
        for run in dict.fromkeys(self._runs.values()):
            if owns(run.source):
                run.resumed_to = run.reached
            else:
                self.in_hand -= len(run.open_ntp64)
                self._changed.pop(run, None)
                self._forget(run)
        for position in gained:
            self._know(position)
        return self.all()

    def epoch_of(self, sample: Sample) -> int | None:
        """Return the epoch by which a sample's run goes; None where the run is not known."""
        self.join()
        run = self._runs.get((sample.source, sample.epoch))
        return None if run is None else run.epoch

    def rewind(
        self, points: Mapping[SourceId, Point] | None, *, shared: bool = False
    ) -> list[Position]:
        """Go on as a later life that stood where `rewound` says; return where all runs stand.

        `shared`: raises Fenced, and nothing changes, where nothing is known of a source: it is
        another member's now. Otherwise nothing of such a source was held, and all of it comes.
        """
        self.join()
        before = self.all()
        lost = set(points or ()) - {run.source for run in before}
        if shared and lost:
            raise Fenced(
                f"nothing was rewound: {', '.join(map(str, sorted(lost)))} went to another member "
                "meanwhile; rewind there"
            )
        moved = rewound(before, points)
        self._runs, self._named, self.in_hand = {}, {}, 0
        unwritten = {(run.source, run.epoch, run.incarnation) for run in self._changed}
        unwritten.update((one.source, one.epoch, one.incarnation) for one in moved)
        stands = {(one.source, one.epoch, one.incarnation): one for one in [*before, *moved]}
        self._changed = {}
        for key, position in stands.items():
            run = self._know(position)
            if key in unwritten:
                self._changed[run] = None
        return list(stands.values())

    def all(self) -> list[Position]:
        """Return where every run stands that is remembered."""
        self.join()
        return [
            run.position(self._key_expr, self.fence) for run in dict.fromkeys(self._runs.values())
        ]

    def _run(self, key: _Key) -> _Run:
        return self._runs.get(key) or self._add(*key, "")

    def _add(self, source: SourceId, epoch: int, incarnation: str) -> _Run:
        if len(self._runs) >= self._runs_max:
            self._forget_one()
        run = _Run(source, epoch, incarnation)
        if incarnation:
            self._named[source, incarnation] = run
        self._alias(run, epoch)
        return run

    def _alias(self, run: _Run, epoch: int) -> None:
        before = self._runs.get((run.source, epoch))
        if before is not None:
            before.called.remove(epoch)
        self._runs[run.source, epoch] = run
        run.called.append(epoch)

    def _forget_one(self) -> None:
        """Forget the run that was met first, of those of which nothing is open or to be written."""
        for _, run in zip(range(_LOOKED_AT_MAX), self._runs.values(), strict=False):
            if not (run.open or run.left or run in self._changed):
                self._forget(run)
                return

    def _forget(self, run: _Run) -> None:
        for epoch in run.called:
            del self._runs[run.source, epoch]
        self._named.pop((run.source, run.incarnation), None)


_Range = tuple[int, int]


def join_positions(positions: Iterable[Position]) -> list[Position]:
    """Return one position for each run: what any says is confirmed, is.

    One without an incarnation, of a source that has one with it, was written before the source's
    token came: the other knows better.
    """
    runs: dict[tuple[SourceId, str | int], Position] = {}
    named = set()
    for position in positions:
        before = runs.get(position.run)
        runs[position.run] = position if before is None else _joined(before, position)
        if position.incarnation:
            named.add(position.source)
    kept = (one for one in runs.values() if one.incarnation or one.source not in named)
    return sorted(kept, key=lambda one: (one.source, one.epoch))


def _joined(one: Position, other: Position) -> Position:
    if one.rewinds != other.rewinds:
        return other if one.weight.is_less(other.weight) else one
    further = one if one.reached >= other.reached else other
    both = _open_within(one, further.reached).intersection(_open_within(other, further.reached))
    runs = tuple((first, last) for first, last in both)
    if len(runs) > OPEN_RUNS_MAX:
        runs = (*runs[: OPEN_RUNS_MAX - 1], (runs[OPEN_RUNS_MAX - 1][0], runs[-1][1]))
    ntp64, fence = max(one.ntp64, other.ntp64), max(one.fence, other.fence)
    return msgspec.structs.replace(further, open=runs, ntp64=ntp64, fence=fence)


def _open_within(position: Position, reached: int) -> RangeSet:
    still_open = RangeSet(position.open)
    still_open.add(position.reached + 1, reached)
    return still_open


def resumed_from(positions: Sequence[Position]) -> Mapping[SourceId, list[Position]]:
    """Return the runs of each source that are to be gone on with, in their order.

    A source's later run begins when all of the earlier one was handed out: an earlier run counts
    from the first on of which something is open, else the last alone.
    """
    sources: dict[SourceId, list[Position]] = {}
    for position in sorted(positions, key=lambda one: (one.source, one.epoch)):
        if position.reached >= 0:  # else it is followed as one that is met for the first time
            sources.setdefault(position.source, []).append(position)
    for runs in sources.values():
        begins = next((at for at, one in enumerate(runs) if one.open), len(runs) - 1)
        del runs[:begins]
    return sources


def standings_of(positions: Iterable[Position]) -> list[Standing]:
    """Return where positions stand, for who asks what lies behind."""
    return [
        Standing(one.source, one.epoch, one.incarnation, one.confirmed_to + 1, one.ntp64)
        for one in positions
    ]


def rewound(
    positions: Iterable[Position], points: Mapping[SourceId, Point] | None
) -> list[Position]:
    """Return the positions that move, as they stand after a rewind; what is open stays open.

    Of each source in `points` its run is taken back to the number, and its later runs whole; None
    takes every run back to the first number that caches keep.
    """
    moved = []
    for position in positions:
        rewinds = position.rewinds + 1
        if points is None:
            whole = msgspec.structs.replace(position, reached=-1, open=(), rewinds=rewinds, ntp64=0)
            moved.append(whole)
            continue
        point = points.get(position.source)
        if point is None or position.epoch < point.epoch:
            continue
        first = point.sn if position.epoch == point.epoch else 0
        if first > position.reached:
            continue
        still_open = RangeSet(position.open)
        still_open.add(first, position.reached)
        runs = tuple((begin, end) for begin, end in still_open)
        moved.append(msgspec.structs.replace(position, open=runs, rewinds=rewinds, ntp64=0))
    return moved

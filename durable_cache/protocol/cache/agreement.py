"""Which epochs of a source are one incarnation that two caches named differently.

A foreign publisher declares no epoch, so caches name its restarts themselves. Where a cache missed
the first samples, or began only later, it has another name for what the other has as well. What
another cache gives shows that: the same key, number, timestamp and content under another epoch.
Then it is asked for everything that is here under the other name: one number with another content
says that they are two, of which one holds samples of the other by mistake. Otherwise the one stands
that the source's token declared, else the later: epochs only rise (ADR 0048, 0322).

Where two caches have samples of a source without an epoch, numbers in common tell whether they are
of one run, too (ADR 0098). Timestamps do not: a publisher chooses its own, and they may go back.
They only give the occasion to ask. Where they are of two, the later run is called by its own
time (ADR 0112).

Pure: what is stored is asked for in conversations (`questions`); a question that stays unanswered
puts the samples off that raised it, for they are given again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, WRAP_GAP
from durable_cache.protocol.cache.events import Alias
from durable_cache.protocol.cache.fitting import (
    adjoin,
    begun_between,
    belongs,
    by_time,
    came_before,
    compared,
    is_out_of_order,
    may_be_of,
    name_behind,
    runs_of,
    same_here,
    sn_of,
    was_removed,
    wrapped_between,
    wrapped_within,
)
from durable_cache.protocol.cache.inquiries import (
    HELD_BACK_SECONDS,
    Asked,
    Inquiries,
    Pair,
)
from durable_cache.protocol.cache.names import (
    KnownOf,
    beyond_live,
    both_declared,
    is_unnamed,
    later_first,
    named_too,
    together,
    under,
)
from durable_cache.protocol.cache.numbering import KnownSource, Numbering
from durable_cache.protocol.cache.questions import (
    Agreed,
    Conversation,
    Disagreed,
    Done,
    Keep,
    Numbers,
    NumbersFound,
    answer_of,
)
from durable_cache.protocol.restarts import is_later
from durable_cache.protocol.wire import Incarnation

_REMEMBERED_MAX = 4096
_NAMED_SECONDS = 300.0
"""How long what another has without an epoch, and is of another run than ours, waits for its name:
caches align with each of the others within a few minutes."""
_UNDECIDED_PART = 0.5
"""What waits for an answer that tells of which run it is, waits no longer than this part of what
the cache waits before it reports a number missed."""
_IN_COMMON_MAX = 1_000
"""So many numbers next to those that others give are asked for, to see whether they are of one run:
what both caches heard before they were parted is among them."""
_PULLED_PAUSE_SECONDS_MAX = 20.0
"""What others pull again and again is asked for twice, no more."""
_SN_END = 1 << 36
KeyT = TypeVar("KeyT")
_ValueT = TypeVar("_ValueT")


class Agreement:
    """Looks at what other caches give before it comes in; owned by one thread.

    `settle` and `answered` are conversations. `inquiries` holds what is to be asked of others: what
    they give comes in as anything else does, then `answered` is called. `agreed` holds what was
    agreed on since it was last taken.
    """

    def __init__(
        self,
        known_of: KnownOf,
        agreements: Iterable[Alias] = (),
        *,
        gap_timeout_seconds: float = 60.0,
    ) -> None:
        self._known_of = known_of
        self._undecided_seconds = _UNDECIDED_PART * gap_timeout_seconds
        self._now = 0.0
        self._different: OrderedDict[Pair, bool] = OrderedDict()
        self._held_back: OrderedDict[SourceId, float] = OrderedDict()
        self._waited_for: OrderedDict[SourceId, bool] = OrderedDict()
        self._undecided: OrderedDict[SourceId, float] = OrderedDict()
        self._left: OrderedDict[tuple[SourceId, int], float] = OrderedDict()
        self._declared: OrderedDict[tuple[SourceId, int], str] = OrderedDict()
        self._parted: OrderedDict[Alias, bool] = OrderedDict()
        self._agreed = {(alias.source, alias.stored): alias for alias in agreements}
        self.inquiries = Inquiries()
        self.agreed: list[Alias] = []
        self.revoked: list[Alias] = []
        for alias in self._agreed.values():
            if alias.stored == EPOCH_UNKNOWN:
                self._held_back[alias.source] = float("inf")

    def hear_names(self, names: Iterable[Incarnation]) -> None:
        """Note which epochs tokens declared, as another cache says with what it gives."""
        for source, epoch, incarnation in names:
            _put(self._declared, (source, epoch), incarnation)

    def agree(self, alias: Alias) -> Conversation[None]:
        """Take two epochs for one, durably; what is stored under the loser is then moved."""
        yield from answer_of(Keep(Agreed(alias)), Done)
        self._agreed[alias.source, alias.stored] = alias
        self.agreed.append(alias)
        if alias.stored == EPOCH_UNKNOWN:
            self._hold_back(alias.source, float("inf"))

    def release(self, source: SourceId) -> None:
        """What this cache had of the source without an epoch has one now."""
        self._held_back.pop(source, None)

    def differ(self, source: SourceId, winner: int, loser: int) -> None:
        """Two epochs are two after all."""
        self._agreed.pop((source, loser), None)
        self._differ((source, *later_first(winner, loser)))

    def settle(self, batch: SampleBatch, now: Moment) -> Conversation[SampleBatch]:
        """Return what of others' samples may come in now; what is held back is given again."""
        self._now = now.monotonic_ns / 1e9
        kept: list[Sample] = []
        as_given = True
        # What is here without an epoch and has one there shows first: then what has none there is
        # of another run, and waits.
        for source, epoch, samples in sorted(runs_of(batch), key=_is_nameless):
            welcome = yield from self._welcome(source, epoch, samples)
            as_given &= len(welcome) == len(samples) and welcome[0].epoch == epoch
            kept += welcome
        return batch if as_given else SampleBatch(kept)

    def answered(self, inquiry_id: int, *, whole: bool = True) -> Conversation[None]:
        """What others gave for an inquiry has come in, all of it if that is so: decide.

        Its source is in memory.
        """
        pair, inquiry = self.inquiries.take_answered(inquiry_id, whole=whole)
        if pair is None or inquiry is None:
            return
        source, winner, loser = pair
        if winner == loser:  # what was given for it shows other names, if there are any
            if winner == EPOCH_UNKNOWN:
                yield from self._nameless_answered(pair, inquiry)
            return
        known = self._known_of(source)
        if self._declared_by(known, loser) > self._declared_by(known, winner):
            winner, loser = loser, winner
        if (yield from self._are_one(pair, inquiry, loser)):
            yield from self.agree(Alias(source, loser, 0, winner))
        elif loser == EPOCH_UNKNOWN:
            self._hold_back_no_longer(source, inquiry)

    def name_own(self, source: SourceId, now: Moment) -> Conversation[None]:
        """Ask for what is here under two names: a question may be forgotten, or never be asked."""
        self._now = now.monotonic_ns / 1e9
        known = self._known_of(source)
        pairs = [(source, epoch, EPOCH_UNKNOWN) for epoch in named_too(known)]
        pairs += [(source, *later_first(known.current, epoch)) for epoch in beyond_live(known)]
        for pair in dict.fromkeys(pairs):
            if pair in self._different:
                continue
            if (yield from same_here(known, *pair[1:])):
                self._inquire(pair, together(known, pair[2:], ()), in_common=True)

    def name_pulled(self, source: SourceId, epoch: int, now: Moment) -> None:
        """Ask how others call a run that one of them pulls again: by this name it does not keep it.

        That one has it by the name that stands, and may give nothing of it unasked (ADR 0355). The
        source is in memory.
        """
        self._now = now.monotonic_ns / 1e9
        known = self._known_of(source)
        pair = (source, epoch, epoch)
        asked = self.inquiries.of(pair)
        if asked is not None and asked.pause >= _PULLED_PAUSE_SECONDS_MAX:
            return  # it was asked several times and showed nothing
        if self._unproven(known, epoch) is not None and known.canonical(epoch, 0) == epoch:
            self._inquire(pair, known.numberings[epoch].window.held, in_common=False)

    def _are_one(self, pair: Pair, inquiry: Asked, loser: int) -> Conversation[bool]:
        """Tell whether what others gave, and what is here, show two epochs to be one."""
        if pair in self._different:
            return False
        source, one, two = pair
        known = self._known_of(source)
        if not inquiry.in_common:
            may_be_cut = inquiry.whole and not inquiry.overlap
            if not (may_be_cut and (yield from self._is_cut_in_two(known, one, two))):
                return False
        if any(known.canonical(epoch, 0) != epoch for epoch in (one, two)):
            return False  # one of them has become another meanwhile
        name, other = self._name_of(known, one), self._name_of(known, two)
        two_runs = self._declared_by(known, loser) and not (name and name == other)
        if (
            two_runs
            or wrapped_within(known, (one, two))
            or (yield from same_here(known, one, two)) is False
        ):
            self._differ(pair)
            return False
        return True

    def _is_cut_in_two(self, known: KnownSource, one: int, two: int) -> Conversation[bool]:
        """Tell whether two runs are one: whoever was asked knows of nothing between them.

        What others gave for that, and have without an epoch, may be of either while it waits.
        """
        if self._now < self._held_back.get(known.source, 0.0):
            return False
        if not (yield from adjoin(known, one, two)):
            return False
        for third in [epoch for epoch in known.numberings if epoch not in (one, two)]:
            if (yield from same_here(known, third, max(one, two))):
                return False
        return True

    def _declared_by(self, known: KnownSource, epoch: int) -> int:
        """Return 2 where a token named an epoch here, 1 where at another cache, else 0."""
        numbering = known.numberings.get(epoch)
        if numbering is not None and (numbering.declared or numbering.incarnation):
            return 2
        return int((known.source, epoch) in self._declared)

    def _name_of(self, known: KnownSource, epoch: int) -> str:
        """Return what a token called the run of an epoch: here, or as another cache says."""
        numbering = known.numberings.get(epoch)
        here = "" if numbering is None else numbering.incarnation
        return here or self._declared.get((known.source, epoch), "")

    def _welcome(
        self, source: SourceId, epoch: int, samples: list[Sample]
    ) -> Conversation[list[Sample]]:
        known = self._known_of(source)
        if epoch == EPOCH_UNKNOWN:
            return (yield from self._nameless(source, known, samples))
        if known.canonical(epoch, 0) != epoch:
            contradicts = yield from self._check(known, epoch, samples)
            return [] if contradicts else samples
        ours = self._unproven(known, epoch)
        fits = None if ours is None else (yield from belongs(ours, samples))
        proven = fits is True or ours is None or not ours.named_here
        twins: list[int] = []
        if ours is not None and (fits is False or not proven):
            twins = yield from self._twins(known, ours, samples)
            for twin in twins if fits is None else ():
                same = yield from same_here(known, epoch, twin)
                proven |= same is True
                if same is False:  # they are two here, whatever others call them
                    self._differ((source, *later_first(epoch, twin)))
        if ours is not None and fits is False:
            for twin in twins:
                self._differ((source, *later_first(epoch, twin)))
            if not twins:
                return (yield from self._called_alike(known, ours, samples))
        else:
            yield from self._compare_names(known, epoch, samples, proven=proven)
        if twins and (fits is False or not proven):
            return under(max(twins), samples)
        return samples

    def _compare_names(
        self, known: KnownSource, epoch: int, samples: list[Sample], *, proven: bool
    ) -> Conversation[None]:
        """See which other names the run of samples may have here; they have or get this one.

        Not `proven`: what is here under this one may be another run that two caches call alike.
        """
        for other in [*known.numberings.values()]:
            own = is_unnamed(other) and not other.foreign
            pair = (known.source, *later_first(epoch, other.epoch))
            if (
                other.epoch == epoch
                or pair in self._different
                or both_declared(known, epoch, other)
            ):
                continue
            same = yield from compared(other, samples)
            if same is False:
                if proven:
                    self._differ(pair)
            elif same or own:
                if proven:
                    self._inquire(pair, other.window.held, in_common=same is True)
                else:
                    yield from self._seek_proof(known, pair, epoch, other.window.held)
            elif (yield from adjoin(known, epoch, other.epoch, samples)):
                self._inquire(pair, together(known, pair[1:], samples), in_common=False)
            else:  # what retention removed here lies between, or before
                self.inquiries.overlap(pair)

    def _seek_proof(
        self, known: KnownSource, pair: Pair, epoch: int, held: RangeSet
    ) -> Conversation[None]:
        """Ask for numbers of a run, and for the nearest of those that are here by an epoch.

        Who gives both by that epoch means one run by it, and the same one as this cache. At first
        as few as there are, for there may be room for few (ADR 0380).
        """
        first, sns = held.first or 0, self.inquiries.to_prove(pair)
        above = yield from answer_of(Numbers(pair[0], epoch, first, _SN_END, 1), NumbersFound)
        ours = known.numberings[epoch].window.held.clip(0, first).last
        sought = held.copy()
        if above.samples:
            meets = above.samples[0].sn
            last = held.clip(0, meets).last or 0
            sought = held.clip(max(0, last - sns + 1), last)
            sought.add(meets, meets)
        elif ours is not None:
            sought = held.clip(first, first + sns - 1)
            sought.add(ours, ours)
        if self._inquire(pair, sought, in_common=False):
            self.inquiries.proves(pair, sns)

    def _twins(
        self, known: KnownSource, ours: Numbering, samples: list[Sample]
    ) -> Conversation[list[int]]:
        """Return under which epochs samples are here that come under the epoch of another run."""
        twins: list[int] = []
        for other in [*known.numberings.values()]:
            same = other is not ours and (yield from compared(other, samples))
            twins += [other.epoch] if same else []
        return twins

    def _unproven(self, known: KnownSource, epoch: int) -> Numbering | None:
        """Return the run here under an epoch, where nothing but samples tells which run it is."""
        ours = known.numberings.get(epoch)
        if ours is None or not ours.window.held or ours.named or ours.declared:
            return None
        return None if (known.source, epoch) in self._declared else ours

    def _called_alike(
        self, known: KnownSource, ours: Numbering, samples: list[Sample]
    ) -> Conversation[list[Sample]]:
        """Part two runs that two caches call by one epoch: the later goes by a later one.

        The other finds what it gave under that name and takes it over. Samples that come from among
        those of our run wait, and so do those whose run has no free epoch yet.
        """
        following = ours.epoch + 1
        if (yield from came_before(ours, samples)):
            yield from self._give_way(known, ours.epoch)
        elif all(is_later(sample, ours.newest_ntp64) for sample in samples):
            if following in known.numberings:
                yield from self._give_way(known, following)
            elif (yield from self._is_free(known, following)):
                self._differ((known.source, following, ours.epoch))
                return under(following, samples)
        return []

    def _give_way(self, known: KnownSource, epoch: int) -> Conversation[None]:
        """Call the last of the runs that go by an epoch and those just behind it by the next one.

        Not a run that tokens name, nor one that is here by another epoch, too: those are agreed on.
        """
        while epoch + 1 in known.numberings:
            epoch += 1
        run = known.numberings[epoch]
        if run.named or run.declared or not (yield from self._is_free(known, epoch + 1)):
            return
        for other in [one for one in known.numberings if one != epoch]:
            if (yield from same_here(known, epoch, other)):
                return
        alias = Alias(known.source, epoch, 0, epoch + 1)
        _put(self._parted, alias, True)
        yield from self.agree(alias)

    def _is_free(self, known: KnownSource, epoch: int) -> Conversation[bool]:
        """Tell whether no run went by an epoch; one that all of a run has left is free soon."""
        alias = self._agreed.get((known.source, epoch))
        if alias is not None and known.is_moved(epoch):
            yield from self._take_back(alias, moved=True)
        return not known.is_taken(epoch)

    def _take_back(self, alias: Alias, *, moved: bool) -> Conversation[None]:
        """Take two epochs for two; where all is `moved` from one, it may be another run's."""
        yield from answer_of(Keep(Disagreed(alias)), Done)
        self.differ(alias.source, alias.epoch, alias.stored)
        self.revoked.append(alias)
        if moved:
            self._forget(alias.source, alias.stored)

    def _check(self, known: KnownSource, epoch: int, samples: list[Sample]) -> Conversation[bool]:
        """Tell whether others' samples under a name that lost are not of the run that it became.

        The agreement was wrong, or the name is another run's: it is theirs once nothing of the
        first is stored under it any more.
        """
        source = known.source
        alias = self._agreed.get((source, epoch))
        winner = known.numberings.get(known.canonical(epoch, 0))
        if alias is None or winner is None:
            return False
        moved = known.is_moved(epoch)
        fits = yield from compared(winner, samples)
        if fits is None and moved and self._unproven(known, winner.epoch):
            fits = yield from belongs(winner, samples)
            if fits is None:
                return self._waits(source, epoch)
        if fits is not False:
            return False
        if moved or alias not in self._parted:
            yield from self._take_back(alias, moved=moved)
        return True

    def _waits(self, source: SourceId, epoch: int) -> bool:
        """Tell whether what shows of which run others' samples are may still come."""
        if (source, epoch) not in self._left:
            _put(self._left, (source, epoch), self._now + self._undecided_seconds)
        return self._now < self._left[source, epoch]

    def _forget(self, source: SourceId, epoch: int) -> None:
        """Forget what was found of the run that had an epoch which is another one's now."""
        self.inquiries.forget(source, epoch)
        for pair in [pair for pair in self._different if pair[0] == source and epoch in pair[1:]]:
            del self._different[pair]

    def _nameless(
        self, source: SourceId, known: KnownSource, samples: list[Sample]
    ) -> Conversation[list[Sample]]:
        """Return what of samples without an epoch may come in: not what is here under one."""
        if self._now < self._held_back.get(source, 0.0):
            is_ours = yield from self._compare_nameless(source, known, samples)
            return samples if is_ours else []
        elsewhere: list[Numbering] = []
        fitting: list[Numbering] = []
        for other in [other for epoch, other in sorted(known.numberings.items()) if epoch]:
            same = yield from compared(other, samples)
            gone = same is None and (yield from was_removed(other, samples))
            elsewhere += [other] if same or gone else []
            if same is not False and (yield from may_be_of(other, samples)):
                fitting.append(other)
        begun = yield from begun_between(known, fitting, samples)
        apart = (wrapped := wrapped_between(known, samples)) or begun
        if apart or source not in self._waited_for:
            same = False if apart else (yield from self._of_one_run(source, known, samples))
            if same is False and not elsewhere and (epoch := by_time(known, fitting, samples)):
                return under(epoch, samples)
            if len(elsewhere) == 1 and elsewhere[0] in fitting:
                if same:  # and some of it is here without one as well
                    pair = source, elsewhere[0].epoch, EPOCH_UNKNOWN
                    self._inquire(pair, together(known, pair[2:], ()), in_common=True)
                return under(elsewhere[0].epoch, samples)
            if elsewhere or same is False:
                # The giver, or this cache, finds out how others call them: then they have a name.
                if not elsewhere:
                    yield from self._name_later(known, samples)
                if not (elsewhere and wrapped):  # else what lies on our side may come in
                    self._await_name(source)
                return []
            if same is None:
                return []
        for other in elsewhere:
            samples = [sample for sample in samples if sample.sn not in other.window.held]
        return samples

    def _name_later(self, known: KnownSource, samples: list[Sample]) -> Conversation[None]:
        """Ask how others call what is here without an epoch: another has another run so (ADR 0264).

        Nobody gives it unasked where retention removed it here, under the name that it has there.
        Behind a wrap it gets its own name where nobody has one (ADR 0399).
        """
        ours = known.numberings.get(EPOCH_UNKNOWN)
        if ours is None or not is_unnamed(ours):
            return
        pair = (known.source, EPOCH_UNKNOWN, EPOCH_UNKNOWN)
        last = ours.window.held.last or 0
        newest = ours.window.held.clip(max(0, last - _IN_COMMON_MAX + 1), last)
        self._inquire(pair, newest, in_common=False)
        if min(map(sn_of, samples)) - last > WRAP_GAP and (yield from came_before(ours, samples)):
            self.inquiries.is_behind(pair)

    def _of_one_run(
        self, source: SourceId, known: KnownSource, samples: list[Sample]
    ) -> Conversation[bool | None]:
        """Tell whether samples without an epoch belong to the run that is here without one.

        None while others are asked for numbers in common.
        """
        ours = known.numberings.get(EPOCH_UNKNOWN)
        if ours is None or not is_unnamed(ours):
            return True
        same = yield from compared(ours, samples)
        if same is not None:
            return same
        held = ours.window.held
        lowest, highest = min(samples, key=sn_of), max(samples, key=sn_of)
        in_order = not (yield from is_out_of_order(ours, lowest))
        if in_order and not (yield from is_out_of_order(ours, highest)):
            return True
        if source not in self._undecided:
            _put(self._undecided, source, self._now + self._undecided_seconds)
        if self._now >= self._undecided[source]:
            return True
        below, above = held.clip(0, lowest.sn).last, held.clip(lowest.sn, _SN_END).first
        if below is not None:
            held = held.clip(max(0, below - _IN_COMMON_MAX + 1), below)
        elif above is not None:
            held = held.clip(above, above + _IN_COMMON_MAX - 1)
        self._inquire((source, EPOCH_UNKNOWN, EPOCH_UNKNOWN), held, in_common=False)
        return None

    def _compare_nameless(
        self, source: SourceId, known: KnownSource, samples: list[Sample]
    ) -> Conversation[bool]:
        """Tell whether what others give is of the run that is here without an epoch, too.

        Where it is given for an inquiry, the answer to that tells it.
        """
        pair = (source, EPOCH_UNKNOWN, EPOCH_UNKNOWN)
        inquiry, ours = self.inquiries.of(pair), known.numberings.get(EPOCH_UNKNOWN)
        if ours is None or pair in self._different:
            return False
        same = yield from compared(ours, samples)
        if inquiry is None:
            return same is True
        if same is False:
            self._differ(pair)
        inquiry.in_common |= same is True
        return False

    def _nameless_answered(self, pair: Pair, inquiry: Asked) -> Conversation[None]:
        """Let samples without an epoch in if they are of the run that is here, or name that one."""
        source, known = pair[0], self._known_of(pair[0])
        if EPOCH_UNKNOWN not in known.numberings:
            self._hold_back_no_longer(source, inquiry)  # it has a name by now
        elif inquiry.behind and inquiry.whole and not inquiry.in_common:
            if epoch := (yield from name_behind(known)):
                yield from self.agree(Alias(source, EPOCH_UNKNOWN, 0, epoch))
        elif pair in self._different:
            self._await_name(source)
        elif inquiry.in_common:
            _put(self._waited_for, source, True)
            self._hold_back_no_longer(source, inquiry)

    def _hold_back_no_longer(self, source: SourceId, inquiry: Asked) -> None:
        """Let samples without an epoch in again, unless they wait for something else, too."""
        if self._held_back.get(source, 0.0) <= inquiry.until:
            self.release(source)

    def _await_name(self, source: SourceId) -> None:
        _put(self._waited_for, source, True)
        self._hold_back(source, _NAMED_SECONDS)

    def _inquire(self, pair: Pair, held: RangeSet, *, in_common: bool) -> bool:
        """Ask others for what is here under the other name; what is without waits for the end."""
        asked_anew = self.inquiries.ask(pair, held, self._now, in_common=in_common)
        if asked_anew and EPOCH_UNKNOWN in pair:
            self._hold_back(pair[0], HELD_BACK_SECONDS)
        return asked_anew

    def _hold_back(self, source: SourceId, seconds: float) -> None:
        until = self._now + seconds
        _put(self._held_back, source, max(until, self._held_back.get(source, 0.0)))

    def _differ(self, pair: Pair) -> None:
        _put(self._different, pair, True)


def _is_nameless(given: tuple[SourceId, int, list[Sample]]) -> bool:
    """Tell whether samples, by source and epoch, have no epoch."""
    return given[1] == EPOCH_UNKNOWN


def _put(memory: OrderedDict[KeyT, _ValueT], key: KeyT, value: _ValueT) -> None:
    memory[key] = value
    while len(memory) > _REMEMBERED_MAX:
        memory.popitem(last=False)

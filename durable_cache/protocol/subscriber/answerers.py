"""What is asked when a cache appears that was not in reach (ADR 0187).

A subscriber that begins while its side of the network is cut reads whole what the caches on this
side hold, and takes that for all there is. Once the link is back, a cache appears that it never
saw. Caches say then since when they hold something behind where each source stands here, which
costs one question; where they do, the subscriber reads on from there.

So it is where a cache appears again, though another stayed: behind the link that was cut, a
publisher may have come and gone, of which no token ever told. There nothing is read that is older
than the cut, whatever is answered; and sources that are known are not asked for, whose tokens went
with the cut (ADR 0185).

Of runs that ended while a cache was away it asks for what that cache has (ADR 0348). While all are
away nobody in reach knows where a run ended.

A cache that was away when history was read is asked as one that was never seen (ADR 0371).

It asks at once, and again `token_wait_seconds` later, for a router behind a link that healed knows
the token of a cache before it knows how to ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from durable_cache.model.clock import Moment
from durable_cache.model.sample import SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.model.timestamp import NTP64_MAX, ntp64_to_ns
from durable_cache.protocol.standings import Standing
from durable_cache.protocol.subscriber.ends import UNNOTICED_NS, Ends
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AskBeginning,
    BeginningTold,
    DeliveryOptions,
    Fetch,
)
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.history import History
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.places import Sources
from durable_cache.protocol.subscriber.reading import Reading
from durable_cache.protocol.subscriber.tails import Tails

_SECOND_NS = 1_000_000_000
_ROUNDED_NS = 1_000
"""What a time may lose on its way from NTP64 to nanoseconds and back."""


class Answerers:
    """Those that answer questions, as they come into reach; part of the engine."""

    def __init__(
        self,
        options: DeliveryOptions,
        ids: Iterator[int],
        outputs: Outputs,
        sources: Sources,
        history: History,
        tails: Tails,
        ask: Callable[[Numbering, int, int | None], Fetch],
    ) -> None:
        self._recovery = options.recovery
        self.ends = Ends(options, outputs, ask, self.tell_ends)
        self._away = False
        """There were some, and none is in reach."""
        self._wait_ns = round(options.token_wait_seconds * _SECOND_NS)
        self._ids, self._outputs, self._sources = ids, outputs, sources
        self._history, self._tails = history, tails
        self._due_ns: list[int] = []
        """When to ask: at most two times."""
        self._question: int | None = None
        self._strange = False
        """One of those that appeared took no part when history was read."""
        self._cut_ns: int | None = None
        """Unix time of the earliest cut behind which one of the others was."""

    def appeared(self, event: AnswererAppeared) -> None:
        """Ask what nobody answered before; of one that was out of reach, what it alone holds."""
        if event.gone is not None and event.gone.monotonic_ns <= self._history.read_ns:
            event = replace(event, strange=True)  # history was read without it
        now_ns, was_away = event.now.monotonic_ns, event.strange or event.gone is not None
        self._away = False
        self._tails.answerer_appeared(now_ns, was_away=was_away)
        self.ends.appeared(event)
        for followed in self._sources.followed.values() if was_away and self._recovery else ():
            followed.doubt_end()  # others said where it is, and this one may have more
        is_read = self._history.is_whole
        if event.strange and self._history.wanted:  # what it holds may be older than the last cut
            is_read = self._history.complete
        if self._recovery and was_away and is_read:
            self._note_cut(event)
            self._due_ns = [now_ns, now_ns + self._wait_ns]
            self.tick(now_ns)
        self._history.in_reach = True
        self._history.ask_again(now_ns)

    def stored(self, source: SourceId, epoch: int, sn: int, now: Moment) -> None:
        """Ask for what a cache says that it has of a run, where that is not known here."""
        if not self.ends.stored(source, epoch, sn, now.monotonic_ns):
            self._tails.stored(source, epoch, sn, now)

    def doubt(self, source: SourceId, now_ns: int) -> None:
        """Ask for the last numbers of a source, of which its publisher says that there are more."""
        self._tails.told((source,), now_ns)

    def gone(self, heard_ns: int, began_ns: int) -> None:
        """None is in reach any more; something came last at `heard_ns`, we began at `began_ns`."""
        self._away = True
        self._history.cut_off(heard_ns, began_ns)

    def tell_ends(self, answerers: int) -> bool:
        """Tell whether so many can say where a run ended: publishers know their own runs only."""
        return answerers > 0 and not self._away

    def ended(self, run: Numbering, now: Moment) -> None:
        """Remember a run that is not followed any more: where it stood, and that more may come."""
        self._history.ended(run)
        self.ends.ended(run, now)

    def read(self, key: tuple[SourceId, int], name: str, reading: Reading, now: Moment) -> None:
        """Remember a run that history read and that is over: a cache may store more of it yet."""
        source, epoch = key
        if name and self.ends.of(source, name) is None:
            run = Numbering(source, epoch, name)
            run.go_on_behind(reading, epoch, None)
            self.ends.ended(run, now)

    def _note_cut(self, event: AnswererAppeared) -> None:
        """Remember how far back what it alone holds may go."""
        self._strange |= event.strange
        if event.gone is not None:
            cut_ns = max(0, event.gone.unix_ns - UNNOTICED_NS)
            self._cut_ns = cut_ns if self._cut_ns is None else min(cut_ns, self._cut_ns)

    def wake_times(self) -> list[int]:
        """Return when to ask next, if at all."""
        return self.ends.wake_times() + (self._due_ns[:1] if self._question is None else [])

    def tick(self, now_ns: int) -> None:
        """Ask if it is time; of the beginning one question at a time."""
        self.ends.tick(now_ns)
        if self._question is None and self._due_ns and self._due_ns[0] <= now_ns:
            del self._due_ns[0]
            self._question = next(self._ids)
            standings = tuple(
                standing for one in self._sources.every() for standing in _standings_of(one)
            )
            self._outputs.ask(AskBeginning(self._question, standings))

    def told(self, event: BeginningTold, began_ns: int) -> None:
        """Read on where somebody holds what is not known here; `began_ns`: when we began."""
        if event.question_id != self._question:
            return
        self._question = None
        if event.ntp64 != NTP64_MAX:
            now_ns = event.now.monotonic_ns
            since_ns = ntp64_to_ns(event.ntp64) - _ROUNDED_NS
            if not self._strange and self._cut_ns is not None:
                since_ns = max(since_ns, self._cut_ns)
            self._history.parted(since_ns, began_ns)
            self._history.ask_again(now_ns)
            if self._strange:
                self._tails.doubt_all(now_ns)
        if not self._due_ns:
            self._strange, self._cut_ns = False, None


def _standings_of(followed: Followed) -> Iterator[Standing]:
    """Yield where the runs of a source stand; those that ended stand behind their last number."""
    source, named = followed.source, set()
    for run in (followed.ended, *followed.numberings):
        if run is None:
            continue
        named.add(run.incarnation)
        if run.next_sn is not None:
            yield Standing(source, run.epoch, run.incarnation, run.next_sn, run.newest_ntp64)
    for incarnation, epoch in followed.seen.items():
        if incarnation and incarnation not in named:
            yield Standing(source, epoch, incarnation, SOURCE_SN_MODULUS)

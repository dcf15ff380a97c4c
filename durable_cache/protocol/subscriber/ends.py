"""Of runs that ended while a cache was away: what that cache alone has of them (ADR 0348).

Where the next run of a source begins, everybody in reach is asked where the one before ended. A
cache that is away may hold more of it. When that is there again, the run is asked for by its name;
what comes is too late to be delivered in order, and is reported. So it is where those in reach
failed until the next run went on without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerPart,
    DeliveryOptions,
    Fetch,
    Fetched,
    FetchFailed,
)
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.naming import named_otherwise
from durable_cache.protocol.subscriber.outputs import Outputs

_Key = tuple[SourceId, str]
_SECOND_NS = 1_000_000_000
UNNOTICED_NS = 15 * _SECOND_NS
"""A link may have been cut for so long before its tokens went, whatever the clocks: Zenoh's lease
is 10 s."""
_SPAN = 1000
"""Numbers of a question."""
_RUNS_MAX = 256
"""Runs that are remembered: the last that ended."""
_UNDER_WAY_MAX = 4
"""Questions under way: what they bring is late already, and gaps are not to wait behind them."""


@dataclass(slots=True, eq=False)
class _End:
    """A run that was followed to its end."""

    run: Numbering
    ended_ns: int
    """Unix time at which the next one was passed on."""
    owed: bool = False
    """A cache appeared that was away then, and did not answer yet."""
    due_ns: int = 0
    pause_ns: int = 0
    until_ns: int = 0
    """Until then it is asked for again where somebody failed."""


class Ends:
    """The runs that ended last, at most `_RUNS_MAX`; those without a name nobody can ask for.

    `ask(numbering, first, last)` asks everybody for numbers; `may_tell(answerers)` tells whether so
    many answers can be those of caches.
    """

    def __init__(
        self,
        options: DeliveryOptions,
        outputs: Outputs,
        ask: Callable[[Numbering, int, int | None], Fetch],
        may_tell: Callable[[int], bool],
    ) -> None:
        self._options, self._outputs = options, outputs
        self._ask, self._may_tell = ask, may_tell
        self._ends: dict[_Key, _End] = {}
        self._due: dict[_Key, _End] = {}
        """Those that are to be asked for: mostly none, and who wakes us looks at no other."""
        self._asked: dict[int, _End] = {}
        """Those of which a question is under way, by its number."""
        self._reached_ns = 0
        """When routers know how to ask all caches that are there."""
        self._told: dict[tuple[SourceId, int], int] = {}
        """The last number that a cache says it has of a run that is followed; at most `_RUNS_MAX`.
        """

    def ended(self, run: Numbering, now: Moment) -> None:
        """Remember a run that is not followed any more.

        It is asked for once more where nobody said where it ends, where a cache has appeared just
        now that may not have been asked, and where a cache says that it has more.
        """
        told_sn = self._told.pop((run.source, run.epoch), -1)
        if self._options.recovery and run.incarnation and run.next_sn is not None:
            key, now_ns = (run.source, run.incarnation), now.monotonic_ns
            self._ends[key] = end = _End(run, now.unix_ns)
            if (run.end_given_up and not run.end_told) or told_sn > run.reached:
                self._ask_at(key, end, now_ns)
            elif now_ns < self._reached_ns:
                self._ask_at(key, end, self._reached_ns)
            if len(self._ends) > _RUNS_MAX:
                first = next(iter(self._ends))
                self._due.pop(first, None)
                del self._ends[first]

    def of(self, source: SourceId, incarnation: str) -> Numbering | None:
        """Return a run that ended, if it is remembered."""
        end = self._ends.get((source, incarnation))
        return None if end is None else end.run

    def appeared(self, event: AnswererAppeared) -> None:
        """Ask for what ended while a cache was away, as soon as routers know how to ask it."""
        now_ns, gone = event.now.monotonic_ns, event.gone
        self._reached_ns = now_ns + round(self._options.token_wait_seconds * _SECOND_NS)
        for key, end in self._ends.items():
            was_away = gone is not None and end.ended_ns >= gone.unix_ns - UNNOTICED_NS
            if end.owed or event.strange or was_away:
                self._ask_at(key, end, self._reached_ns)

    def stored(self, source: SourceId, epoch: int, sn: int, now_ns: int) -> bool:
        """Ask for what a cache says that it has of a run; False where that is none of these.

        It was on its way to that cache's disk when others said where the run ended (ADR 0350), or
        to that cache (ADR 0390). Where the run has not ended yet, it is kept in mind.
        """
        for key, end in self._ends.items():
            if key[0] == source and end.run.epoch == epoch:
                if sn > end.run.reached:
                    self._ask_at(key, end, now_ns)
                return True
        self._told[source, epoch] = max(sn, self._told.pop((source, epoch), -1))
        if len(self._told) > _RUNS_MAX:
            del self._told[next(iter(self._told))]
        return False

    def _ask_at(self, key: _Key, end: _End, due_ns: int) -> None:
        end.owed, self._due[key] = True, end
        end.due_ns = due_ns
        end.pause_ns = round(self._options.retry_seconds * _SECOND_NS)
        end.until_ns = due_ns + round(self._options.gap_timeout_seconds * _SECOND_NS)

    def wake_times(self) -> list[int]:
        """Return when something is to be asked for next, if it is."""
        if not self._due or len(self._asked) >= _UNDER_WAY_MAX:
            return []
        asked = self._asked.values()
        times = (end.due_ns for end in self._due.values() if end not in asked)
        first = min(times, default=None)
        return [] if first is None else [first]

    def tick(self, now_ns: int) -> None:
        """Ask for what is due."""
        for key, end in [*self._due.items()]:
            if end.due_ns > now_ns or end in self._asked.values():
                continue
            if len(self._asked) >= _UNDER_WAY_MAX:
                return
            del self._due[key]
            first = max(end.run.next_sn or 0, end.run.top + 1)
            self._asked[self._ask(end.run, first, first + _SPAN - 1).fetch_id] = end

    def answered(self, fetch: Fetch, run: Numbering, event: Fetched | FetchFailed) -> bool:
        """Report what an answer brings of a run that ended; False where none was asked for."""
        end = self._asked.pop(fetch.fetch_id, None)
        if end is None:
            return False
        key, now_ns = (run.source, run.incarnation), event.now.monotonic_ns
        answer = event.answer if isinstance(event, Fetched) else None
        if answer is None or not (answer.whole and self._may_tell(answer.answerers)):
            self._failed(key, end, now_ns)
            return True
        others = named_otherwise(run, answer.parts)
        for part in answer.parts:
            _take(run, fetch, part, answer.parts, others)
        if answer.cut_after is not None or run.top >= (fetch.last or 0):
            end.due_ns, self._due[key] = now_ns, end
        elif key not in self._due:
            end.owed = False
        if answer.cut_after is None:
            run.give_up(self._outputs, run.top, now_ns)
        return True

    def _failed(self, key: _Key, end: _End, now_ns: int) -> None:
        """Ask again later; when the time for that is over, report what is known so far."""
        if key in self._due:
            return
        if now_ns >= end.until_ns:
            end.run.give_up(self._outputs, end.run.top, now_ns)
            return
        end.due_ns, self._due[key] = now_ns + end.pause_ns, end
        longest_ns = round(self._options.retry_seconds_max * _SECOND_NS)
        end.pause_ns = min(2 * end.pause_ns, longest_ns)


def _take(
    run: Numbering,
    fetch: Fetch,
    part: AnswerPart,
    beside: tuple[AnswerPart, ...],
    of_others: Collection[tuple[int, int]],
) -> None:
    """Note which numbers of a run somebody has, and which are another key's.

    What others have of the next run is of that one: it overtook its token on the way to this one.
    """

    def owns(sample: Sample, names: Mapping[tuple[SourceId, int], str]) -> bool:
        is_of = names.get((sample.source, sample.epoch)) == run.incarnation
        return is_of and sample.source == run.source and (sample.sn, sample.ntp64) not in of_others

    names, last = part.names(), min(fetch.last or 0, SOURCE_SN_MODULUS - 1)
    for sample in part.samples:
        if fetch.first <= sample.sn <= last and owns(sample, names):
            run.lost.add(sample.sn, sample.sn)
            run.top = max(run.top, sample.sn)
    run.learn_absent(part, fetch.first, last, owns=owns, whole=True, beside=beside)

"""Whose last numbers may have passed by, and when they are asked for (ADR 0185).

A gap shows when a later number comes. Behind a last number nothing comes: a publisher may have gone
on while a link was cut, and have fallen silent or ended since. Its token tells of the cut, for it
goes with the link. So a source is in doubt from the moment its token goes until everybody in reach
was asked for all that follows its last number:

- at once when the token is there again, for then publisher and caches are in reach; and once more
  `token_wait_seconds` later, for routers behind a link that healed know tokens before they know
  whom to ask;
- when `token_wait_seconds` passed without it, for then the publisher ended;
- when a cache appears, for before nobody may have been there to answer;
- when a cache says that it has something of it since: what it takes for a late sample waits there
  for the next token, and what a publisher did not live to send is sent by its next life (ADR 0347);
- when a cache says, as the token goes there, that it has more than we know: a link between us and
  the publisher alone was cut, and the publisher ended behind it (ADR 0350);
- when history that is read after a cut shows more of it than is known.

So is a run that is ours, by its token or as nobody had anything of it when all history was read
(ADR 0298), and of which nothing came when a cache is in
reach again: it may have begun while the link was cut, and have fallen silent (ADR 0284).

What answers while the token is away may be a cache on this side of a cut, that lacks the tail as
well. So where nothing follows by such an answer, the source is remembered: it is asked for once
more when its token is there again, or a cache is.

A question spans a thousand numbers, for what it brings of earlier runs of the source is thrown
away. The next thousand are asked for where the run it is about reaches as far as it asked. Where it
does not, all that caches had is here, and what is published meanwhile shows a gap by itself.

In a stable situation no token goes, and nothing is asked. Of publishers without a token nothing
tells; for those there are periodic queries (RFC, "periodic queries"), which are asked here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.asking import asked_from
from durable_cache.protocol.subscriber.events import (
    DeliveryOptions,
    Fetch,
    Fetched,
    FetchFailed,
)
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.places import Sources

if TYPE_CHECKING:
    from durable_cache.protocol.subscriber.history import History

_SECOND_NS = 1_000_000_000
_SPAN = 1000
"""Numbers of a question."""
_UNDER_WAY_MAX = 16
"""Questions under way: when a router restarts every source is in doubt, and gaps are not to wait
behind all of them."""
_AWAY_MAX = 256
"""Sources without a token that are asked for again when a cache appears: the last that left."""


@dataclass(slots=True)
class _Doubt:
    """A source whose token went."""

    since_ns: int
    """When there was an occasion to ask last: from then on its time runs where somebody fails."""
    pause_ns: int
    due_ns: int | None = None
    """When to ask; None while a question is under way, and where nobody is there to be asked."""
    asked: Numbering | None = None
    """Of which a question is under way."""
    last: int = -1
    """The last number that was asked for."""
    sure_ns: int = 0
    """From when on an answer is one of all that are in reach, now that the token is there again."""
    away: bool = True
    """The token is not there again."""
    again: bool = False
    """Something changed while the question was under way: its answer may be of before."""
    ended: list[Numbering] = field(default_factory=list)
    """Nothing follows the last number of these, as far as those know who could be asked."""


class Tails:
    """The sources in doubt, at most `places_max`; beyond them the oldest doubt is dropped.

    `ask(numbering, first, last)` asks everybody for numbers; with `last` None for all from one on.
    """

    def __init__(
        self,
        options: DeliveryOptions,
        sources: Sources,
        history: History,
        ask: Callable[[Numbering, int, int | None], Fetch],
    ) -> None:
        self._options = options
        self._sources, self._history = sources, history
        self._ask = ask
        self._doubts: dict[SourceId, _Doubt] = {}
        self._queue: list[tuple[int, int, SourceId]] = []
        """When each is due; an entry whose time is not its source's any more is passed over."""
        self._order = count()
        self._away: dict[SourceId, None] = {}
        """Sources of which nothing follows by what was answered while their token was away."""
        self._under_way = 0
        self._wait_ns = round(options.token_wait_seconds * _SECOND_NS)
        self._parted_until_ns = 0
        """Runs that begin until then may have begun behind a link that was cut."""

    def gone(self, source: SourceId, now_ns: int) -> None:
        """Doubt a source, for its token went."""
        if not self._options.recovery:
            return
        doubt = self._doubts.pop(source, None)
        if doubt is None:
            doubt = _Doubt(now_ns, round(self._options.retry_seconds * _SECOND_NS))
        self._doubts[source] = doubt
        doubt.since_ns, doubt.away = now_ns, True
        doubt.ended.clear()
        self._ask_at(source, now_ns + self._wait_ns)
        while len(self._doubts) > self._options.places_max:
            self._drop(next(iter(self._doubts)))

    def shown(self, source: SourceId, now_ns: int) -> None:
        """Ask for a source in doubt now, for its token is there again."""
        doubt = self._doubts.get(source)
        if doubt is not None:
            doubt.away = False
            doubt.sure_ns = now_ns + self._wait_ns
            doubt.ended.clear()
            self._ask_anew(source, now_ns, now_ns)

    def stored(self, source: SourceId, epoch: int, sn: int, now: Moment) -> None:
        """Ask for a source of which a cache says that it has a number, unless that is known."""
        followed = self._sources.known(source)
        runs = () if followed is None else followed.numberings
        if not any(run.epoch == epoch and run.reached >= sn for run in runs):
            self.told((source,), now.monotonic_ns)

    def told(self, sources: Collection[SourceId], now_ns: int) -> None:
        """Ask for sources of which a cache has more (ADR 0347)."""
        if self._options.recovery:
            self._doubt(sources, now_ns)

    def began(self, source: SourceId, now_ns: int) -> None:
        """Doubt a source whose run begins here just when a link healed: of it nothing may come."""
        followed = self._sources.known(source)
        if now_ns < self._parted_until_ns and followed is not None and self._is_unheard(followed):
            self._doubt([source], now_ns, self._wait_ns)

    def doubt_all(self, now_ns: int) -> None:
        """Ask for every source that is known: of any the last numbers may have passed by."""
        self._doubt([followed.source for followed in self._sources.every()], now_ns)

    def _doubt(self, sources: Iterable[SourceId], now_ns: int, wait_ns: int = 0) -> None:
        pause_ns = round(self._options.retry_seconds * _SECOND_NS)
        sure_ns = now_ns + self._wait_ns
        for source in sources:
            doubt = self._doubts.get(source)
            if doubt is None:
                doubt = _Doubt(now_ns, pause_ns, sure_ns=sure_ns, away=False)
                self._doubts[source] = doubt
            doubt.ended.clear()
            self._ask_anew(source, now_ns, now_ns + wait_ns)
        while len(self._doubts) > self._options.places_max:
            self._drop(next(iter(self._doubts)))

    def answerer_appeared(self, now_ns: int, *, was_away: bool) -> None:
        """Ask for all that are in doubt, for a cache is there.

        Where it `was_away`, a run may have begun behind the link that was cut, all of which is ours
        and of which nothing came: it is in doubt, too (ADR 0284).
        """
        if was_away and self._options.recovery:
            self._parted_until_ns = now_ns + self._wait_ns
            unheard = [one.source for one in self._sources.every() if self._is_unheard(one)]
            self._doubt(unheard, now_ns)
        for source, doubt in self._doubts.items():
            if doubt.away:
                doubt.ended.clear()
            self._ask_anew(source, now_ns, now_ns)

    def wake_times(self) -> list[int]:
        """Return when the first is to be asked for, if one is."""
        queue = self._queue
        while queue and not self._is_due_at(queue[0][2], queue[0][0]):
            heappop(queue)
        return [queue[0][0]] if queue and self._under_way < _UNDER_WAY_MAX else []

    def tick(self, now_ns: int, *, reading: bool) -> None:
        """Ask for what is due; while history is `reading`, it may bring the same."""
        while (times := self.wake_times()) and times[0] <= now_ns:
            self._look_at(heappop(self._queue)[2], now_ns, reading=reading)
        if self._options.periodic_queries_seconds is not None:
            for followed in self._sources.followed.values():
                for numbering in followed.polled():
                    self._poll(numbering, self._options.periodic_queries_seconds, now_ns)

    def _look_at(self, source: SourceId, now_ns: int, *, reading: bool) -> None:
        """Ask for the tail of a source, unless something else is asked of it now."""
        doubt, followed = self._doubts[source], self._sources.known(source)
        runs = () if followed is None else followed.polled()
        begun = (run for run in runs if self._is_ours(run) and run not in doubt.ended)
        numbering = next(begun, None)
        no_room = followed is None and (reading or self._sources.rests(source))
        if numbering is None and doubt.away and doubt.ended:
            doubt.due_ns = None
            self._away[source] = None
            if len(self._away) > _AWAY_MAX:
                self._drop(next(iter(self._away)))
        elif numbering is None and now_ns < doubt.sure_ns and doubt.ended:
            doubt.ended.clear()
            self._ask_at(source, doubt.sure_ns)
        elif numbering is None and not no_room:
            self._drop(source)
        elif (
            numbering is None
            or reading
            or numbering.fetch is not None
            or numbering.opened_ns is not None
        ):
            self._ask_anew(source, now_ns, now_ns + doubt.pause_ns)  # nobody was asked yet
        else:
            first = asked_from(numbering)
            doubt.asked, doubt.last = numbering, first + _SPAN - 1
            numbering.fetch = self._ask(numbering, first, doubt.last)
            doubt.due_ns, doubt.again = None, False
            self._under_way += 1

    def asks_before(self, numbering: Numbering, sample: Sample) -> bool:
        """Tell whether what was published before the first sample that came is asked for.

        So it is of a run that nobody had anything of. The first that is given begins it; a number
        far from it shows that the numbers wrapped, and does not wait.
        """
        if not (self._options.recovery and self._is_ours(numbering)):
            return False
        far = abs(sample.sn - numbering.top) > self._options.window_size_samples
        if numbering.pending and far:
            numbering.begin(min(numbering.pending))
            return False
        if not sample.sn:
            return False
        if numbering.fetch is None:
            numbering.fetch = self._ask(numbering, max(0, sample.sn - _SPAN), sample.sn - 1)
        return True

    def _poll(self, numbering: Numbering, period_seconds: float, now_ns: int) -> None:
        if numbering.fetch is not None or numbering.opened_ns is not None:
            return
        if now_ns >= numbering.poll_ns > 0 and self._is_ours(numbering):
            numbering.fetch = self._ask(numbering, numbering.next_sn or 0, None)
        if now_ns >= numbering.poll_ns:
            numbering.poll_ns = now_ns + round(period_seconds * _SECOND_NS)

    def waits(self, numbering: Numbering) -> bool:
        """Tell whether an answer about a run of which nothing came comes while history is read.

        It is asked for again behind that, which brings what was before the run, too (ADR 0334).
        """
        doubt = self._doubts.get(numbering.source)
        is_tail = doubt is not None and doubt.asked is numbering
        nothing_came = numbering.reached < 0 and not numbering.pending
        return self._history.active and is_tail and nothing_came

    def answered(self, numbering: Numbering, event: Fetched | FetchFailed, *, whole: bool) -> None:
        """Take the end of a question about a numbering; `whole`: everybody in reach answered."""
        if numbering.next_sn is None and numbering.pending:
            numbering.begin(min(numbering.pending))
        if numbering.fetch is not None and numbering.fetch.fetch_id == event.fetch_id:
            numbering.fetch = None
        source, now_ns = numbering.source, event.now.monotonic_ns
        doubt = self._doubts.get(source)
        if doubt is None or doubt.asked is not numbering:
            return
        doubt.asked = None
        self._under_way -= 1
        whole = whole and isinstance(event, Fetched) and event.answer.answerers > 0
        if whole and not doubt.again and numbering.reached < doubt.last:
            doubt.ended.append(numbering)
        if whole or doubt.again or self._history.active:
            self._ask_at(source, now_ns)
        elif now_ns < doubt.since_ns + round(self._options.gap_timeout_seconds * _SECOND_NS):
            self._ask_at(source, now_ns + doubt.pause_ns)
            longest_ns = round(self._options.retry_seconds_max * _SECOND_NS)
            doubt.pause_ns = min(2 * doubt.pause_ns, longest_ns)

    def _ask_anew(self, source: SourceId, now_ns: int, due_ns: int) -> None:
        """Ask on a new occasion, and again for as long as on the first where somebody fails."""
        self._doubts[source].since_ns = now_ns
        self._ask_at(source, due_ns)

    def _ask_at(self, source: SourceId, due_ns: int) -> None:
        doubt = self._doubts[source]
        if doubt.asked is not None:
            doubt.again = True
            return
        self._away.pop(source, None)
        doubt.due_ns = due_ns
        heappush(self._queue, (due_ns, next(self._order), source))

    def _is_due_at(self, source: SourceId, due_ns: int) -> bool:
        doubt = self._doubts.get(source)
        return doubt is not None and doubt.due_ns == due_ns

    def _drop(self, source: SourceId) -> None:
        self._away.pop(source, None)
        if self._doubts.pop(source).asked is not None:
            self._under_way -= 1

    def _is_ours(self, numbering: Numbering) -> bool:
        """Tell whether it is known from where on a run is ours.

        Of one that a token names nobody had anything when all history was read: what anybody has
        since is ours, though it is not known at which number that begins.
        """
        nothing_was = numbering.declared and self._history.is_whole
        return numbering.next_sn is not None or nothing_was

    def _is_unheard(self, followed: Followed) -> bool:
        """Tell whether all of the newest run is ours, by its token, and nothing of it came."""
        newest = followed.numberings[-1] if followed.numberings else None
        if newest is None or not newest.declared or newest.top >= 0:
            return False
        return not newest.next_sn and self._is_ours(newest)

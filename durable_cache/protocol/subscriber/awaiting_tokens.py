"""What of a subscriber's live samples waits for a token, and of which run it is (ADR 0111)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import SnRange
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import frame
from durable_cache.protocol.between_runs import BetweenRuns, part
from durable_cache.protocol.restarts import is_later
from durable_cache.protocol.subscriber.events import Declared, DeliveryOptions, TokenGone
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.places import Sources

_FRESH_FRAMES = 7
"""A publisher began within our sight if its epoch is at most so many frames (a minute) old."""
_STALE_NS = 2_000_000_000
"""How long after our start tokens of runs that ended may still be listed beside later ones."""


class Met(NamedTuple):
    """What waited for a token."""

    late: Sequence[Sample]
    """Of the run that was the newest when it came."""
    begun: Sequence[Sample]
    """Of the run that the token names."""
    unknown: Sequence[Sample]
    """Of either; answers name the run of what they hold."""


def age_of(token: Declared, began_ns: int) -> tuple[bool, bool]:
    """Tell whether a token's run began in our sight, and whether it may be left of an earlier one.

    `began_ns` is when we began, as Unix time.
    """
    now_ns = token.now.unix_ns
    since_ns = max(began_ns, now_ns - (_FRESH_FRAMES << 33))
    fresh = not token.listed and token.epoch >= frame(since_ns)
    return fresh, not fresh and now_ns - began_ns < _STALE_NS


def overlooked(followed: Followed, now: Moment) -> Declared | None:
    """Return the token that is there of a run which is taken to be over, for a sample came live.

    By its epoch it lies before all that history brought: its publisher's clock was set back, and no
    cache told it of those. Nobody else's token was seen here since.
    """
    shown, runs, ended = followed.shown, followed.numberings, followed.ended
    if not shown or any(run.declared or run.incarnation == shown for run in runs):
        return None
    if (ended is not None and ended.incarnation == shown) or shown not in followed.seen:
        return None
    return Declared(followed.source, followed.seen.pop(shown), shown, now)


class AwaitingTokens:
    """Live samples of sources that show no token; at most `pending_samples_max`."""

    def __init__(self, options: DeliveryOptions) -> None:
        self._span = options.window_size_samples
        self._between = BetweenRuns(
            options.places_max, options.pending_samples_max, options.token_wait_seconds
        )
        self._sources_max = options.sources_max
        self._before: dict[SourceId, set[tuple[int, int]]] = {}
        """Number and time of what found no room and came before the token went."""

    def wake_times(self) -> list[int]:
        """Return when the first waits no longer, if one waits."""
        wake_ns = self._between.wake_ns()
        return [] if wake_ns is None else [wake_ns]

    def is_open(self, followed: Followed) -> bool:
        """Tell whether a source shows no token, though its newest run had one."""
        newest = followed.numberings[-1] if followed.numberings else None
        named = newest is not None and bool(newest.incarnation)
        return self._between.is_open(followed.source, named=named)

    def shown_by(self, source: SourceId) -> frozenset[str]:
        """Return which runs of a source show a token."""
        return self._between.shown(source)

    def keeps(self, followed: Followed, sample: Sample, now_ns: int) -> bool:
        """Let a sample wait if it must."""
        if not self.is_open(followed):
            return False
        if (sample.sn, sample.ntp64) in self._before.get(followed.source, ()):
            return False
        self._between.hold(followed.source, (sample,), now_ns)
        return True

    def keeps_number(self, followed: Followed, source_sn: int, now_ns: int) -> bool:
        """Let wait, if it must, what a heartbeat says.

        Whoever brings the rest of a publisher that was killed says so when its token is gone.
        """
        if not self.is_open(followed):
            return False
        self._between.hold(followed.source, (SnRange(source_sn, source_sn),), now_ns)
        return True

    def gone(self, token: TokenGone, came: Iterable[Sample]) -> None:
        """See a token go; what `came` of its source waits for room, and is not of the next run."""
        self._between.hides(token.source, token.incarnation)
        before = {(one.sn, one.ntp64) for one in came}
        if before:
            self._before[token.source] = before
            while len(self._before) > self._sources_max:
                del self._before[next(iter(self._before))]

    def shown(self, token: Declared, followed: Followed) -> Met:
        """See that a run began before its source does, and return what waited for its token."""
        if not token.by_sample:
            self._between.shows(token.source, token.incarnation)
        self._before.pop(token.source, None)
        samples = [s for s in self._between.take(token.source) if isinstance(s, Sample)]
        newest = followed.numberings[-1] if samples and followed.numberings else None
        if newest is None:
            return Met((), samples, ())
        if newest.incarnation == token.incarnation:
            return Met(samples, (), ())
        newest_ntp64 = max([newest.newest_ntp64, *(one.ntp64 for one in newest.pending.values())])
        return Met(*part(samples, newest.has_come, newest.reached, newest_ntp64))

    @staticmethod
    def with_early(early: Iterable[Sample], begun: Sequence[Sample]) -> list[Sample]:
        """Return the first samples of a run; in front those that came before the last token went.

        One of these with a later number and an earlier time than what came between the tokens is
        of the run before, whose own times went back (ADR 0356).
        """

        def is_left_over(sample: Sample) -> bool:
            return any(one.sn < sample.sn and is_later(one, sample.ntp64) for one in begun)

        return [*(sample for sample in early if not is_left_over(sample)), *begun]

    def over(self, sources: Sources, now_ns: int) -> Iterator[Sample | Followed]:
        """Yield what waited in vain, and behind it a source whose numbers found no room to wait.

        Its newest run is known to reach those then, far ones aside.
        """
        for source, heard in self._between.expired(now_ns):
            yield from (one for one in heard if isinstance(one, Sample))
            last = max((one.last for one in heard if isinstance(one, SnRange)), default=-1)
            followed = sources.known(source)
            if followed is None or not followed.numberings or last < 0:
                continue
            newest = followed.numberings[-1]
            if newest.next_sn is not None and last <= newest.reached + self._span:
                newest.top = max(newest.top, last)
                yield followed

"""From which number on each source comes again after a rewind, as far as caches keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from durable_cache.endpoints.asking import Asking, Gathered
from durable_cache.errors import ConfigError, StorageUnavailable
from durable_cache.model.arguments import refused
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import format_ntp64, ntp64_at
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.subscriber.positions import Point
from durable_cache.protocol.wire import AbsenceReason

RewindTo = Sample | int | datetime | None
"""A sample, a number of one source, or a time, from which on samples come again; None: all."""

_BELOW = 100
"""Numbers below the first one that are looked at for one of these keys that was removed."""
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def check_target(to: object, source: object) -> None:
    """ConfigError where nothing can be rewound to it."""
    if isinstance(to, bool) or not isinstance(to, Sample | int | datetime | None):
        raise refused("to", to, "a sample, a number, a time, or None for all that caches keep")
    if isinstance(to, int) and to < 0:
        raise refused("to", to, "a number from 0 on")
    if isinstance(to, datetime) and to.tzinfo is None:
        raise refused("to", to, "a time with a time zone, as datetime.now(UTC) has one")
    if isinstance(to, Sample) and is_unnumbered(to.source):
        raise ConfigError("to: a sample without a number has no position: rewind to a time")
    if source is not None and not isinstance(source, SourceId):
        raise refused("source", source, "a SourceId, as sample.source is one")
    if source is not None and not isinstance(to, int):
        raise ConfigError("source: it says whose number is meant, and none is; leave it out")


def points_of(
    asking: Asking,
    key_expr: KeyExpression,
    positions: Sequence[Position],
    to: RewindTo,
    source: SourceId | None = None,
) -> Mapping[SourceId, Point] | None:
    """Return the point of each source that is rewound; None for all that caches keep.

    `to` is checked already; a sample's epoch is the one by which its run goes. Raises ConfigError
    for a number that was not reached or that caches no longer keep, StorageUnavailable, to be tried
    again, where a cache does not answer.
    """
    looking = _Looking(asking, key_expr, positions)
    match to:
        case None:
            return None
        case Sample():
            run = looking.run(to.source, to.epoch)
            return {to.source: looking.at(run, to.sn)}
        case datetime():
            return looking.since(to)
        case _:
            run = looking.newest_run(source)
            return {run.source: looking.at(run, to)}


class _Looking:
    """Asks caches what they keep of a consumer's runs."""

    def __init__(
        self, asking: Asking, key_expr: KeyExpression, positions: Sequence[Position]
    ) -> None:
        self._asking, self._key_expr = asking, str(key_expr)
        self._positions = sorted(positions, key=lambda one: (one.source, one.epoch))
        self._named = {(one.source, one.incarnation): one for one in positions if one.incarnation}
        self._numbered = {(one.source, one.epoch): one for one in positions}

    def run(self, source: SourceId, epoch: int) -> Position:
        found = self._numbered.get((source, epoch))
        if found is None:
            raise ConfigError(
                f"to: nothing of {source}, epoch {epoch}, was delivered by this consumer"
            )
        return found

    def newest_run(self, source: SourceId | None) -> Position:
        """Return the run of a source that it numbers now; of the only source where none is said."""
        sources = {position.source for position in self._positions}
        if source is None and len(sources) > 1:
            raise ConfigError(
                f"to: {len(sources)} sources were delivered, and each has numbers of its own: "
                "name the source whose is meant, too, or rewind to a time"
            )
        found = [one for one in self._positions if source in (None, one.source)]
        if not found:
            raise ConfigError(f"to: nothing of {source or 'any source'} was delivered yet")
        return found[-1]

    def at(self, run: Position, sn: int) -> Point:
        if sn > run.reached:
            raise ConfigError(
                f"to: number {sn} of {run.source} is ahead of what was reached, {run.reached}: a "
                "rewind goes back"
            )
        if (kept := self._kept_from(run, sn)) is not None:
            raise ConfigError(
                f"to: caches keep {run.source} from number {kept} on, {sn} was removed: rewind to "
                f"{kept}, or to all that is kept"
            )
        return Point(run.epoch, sn)

    def since(self, time: datetime) -> Mapping[SourceId, Point]:
        """Return the first number of each source that bears the time or a later one."""
        first_ntp64 = ntp64_at(1000 * ((time - _UNIX) // _MICROSECOND))
        points: dict[SourceId, Point] = {}
        after: Sample | None = None
        selected = f"_time=[{format_ntp64(first_ntp64)}..]"
        while True:
            page = self._asking.page(self._key_expr, "*", selected, after)
            after = page.following(after)
            _check_whole(page)
            for run, sample in self._samples(page):
                if sample.ntp64 >= first_ntp64:
                    point = Point(run.epoch, sample.sn)
                    points[run.source] = min(point, points.get(run.source, point))
            if after is None:
                break
        for source, point in points.items():
            run = self.run(source, point.epoch)
            if point.sn > 0 and self._was_removed(run, point.sn - 1):
                raise ConfigError(
                    f"to: since {time.isoformat()}, caches keep {source} from number {point.sn} "
                    "on, and what lies before it was removed: rewind to a later time, or to all "
                    "that is kept"
                )
        return points

    def _called(self, source: SourceId, epoch: int, incarnation: str) -> Position | None:
        """Return the run that an answer means."""
        named = self._named.get((source, incarnation))
        if named is not None:
            return named
        found = self._numbered.get((source, epoch))
        return None if found is None or (incarnation and found.incarnation) else found

    def _samples(self, page: Gathered) -> Iterator[tuple[Position, Sample]]:
        for samples, names in page.by_names():
            named = {(source, epoch): name for source, epoch, name in names}
            for sample in samples:
                key = (sample.source, sample.epoch)
                run = self._called(*key, named.get(key, ""))
                if run is not None:
                    yield run, sample

    def _was_removed(self, run: Position, last: int) -> bool:
        """Tell whether the last number up to here that is of these keys was removed."""
        first = max(0, last - _BELOW)
        page = self._ask(run, first, last)
        kept = max(self._kept(run, page), default=-1)
        removed = max((last for _, last in self._removed(run, page)), default=-1)
        return min(removed, last) > kept

    def _kept_from(self, run: Position, sn: int) -> int | None:
        """Return None where a number is kept, else the first one behind it that is."""
        page = self._ask(run, sn, sn)
        if self._kept(run, page) or not any(
            first <= sn <= last for first, last in self._removed(run, page)
        ):
            return None
        page = self._ask(run, sn, run.reached)
        return min(self._kept(run, page), default=run.reached + 1)

    def _ask(self, run: Position, first: int, last: int) -> Gathered:
        page = self._asking.caches(self._key_expr, str(run.source), f"_sn={first}..{last}")
        _check_whole(page)
        return page

    def _kept(self, run: Position, page: Gathered) -> list[int]:
        return [sample.sn for found, sample in self._samples(page) if found is run]

    def _removed(self, run: Position, page: Gathered) -> list[tuple[int, int]]:
        removed = []
        for part in page.parts.values():
            named = {(source, epoch): name for source, epoch, name in part.incarnations}
            for absence in part.absent:
                key = (absence.source, absence.epoch)
                ours = self._called(*key, named.get(key, "")) is run
                if ours and absence.reason is AbsenceReason.TRIMMED:
                    removed.append((absence.first, absence.last))
        return removed


def _check_whole(page: Gathered) -> None:
    if not page.whole:
        reason = page.errors[0] if page.errors else "no cache answered"
        raise StorageUnavailable(f"what caches keep is unknown ({reason}); rewind again")

"""How durable consumers stand, seen from outside, and how one that is not running is rewound."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import Session, check_session, tokens_for_certain, zid_of
from durable_cache.endpoints.subscriber.keeping import ConsumerOptions, Keeping
from durable_cache.endpoints.subscriber.rewinding import RewindTo, check_target, points_of
from durable_cache.endpoints.subscriber.tables import ask_tables, by_consumer
from durable_cache.errors import (
    ConfigError,
    OutcomeUnknown,
    RemoteProtocolError,
    StorageUnavailable,
)
from durable_cache.model.arguments import check_kind, read_timeout
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.consumers import (
    Position,
    check_consumer,
    consumer_of,
    consumer_tokens,
    dead_letters_key_expr,
    decode_position,
    is_claim_key,
    positions_key_expr,
)
from durable_cache.protocol.majority import LEASE_SECONDS
from durable_cache.protocol.members import owner_of
from durable_cache.protocol.subscriber.positions import join_positions, rewound
from durable_cache.protocol.wire import own_key

_TOKENS_SECONDS_MAX = 2.0
ANY = "*"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Where a consumer stands in one run of a source."""

    source: SourceId
    epoch: int
    confirmed_to: int
    """The last number below which nothing is open; -1 where the first one is."""
    reached: int
    open: int
    """Numbers up to `reached` that were handed out and not confirmed."""
    newest: int | None
    """The highest number of the newest samples of its keys; None where caches hold none of it."""
    member: str = ""
    """Which of the members that live processes the source; empty where none lives."""
    fence: int = 0
    """How often sources went from one member to another until this was written."""

    @property
    def behind(self) -> int:
        """How many of the source's numbers are still to be confirmed, as far as caches show."""
        newest = self.reached if self.newest is None else self.newest
        return self.open + max(0, newest - self.reached)


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """How a consumer stands, as caches and tokens tell it."""

    consumer: str
    key_expr: str = ""
    """What it consumes; empty while nothing of it is confirmed."""
    runs: tuple[RunStatus, ...] = ()
    members: tuple[str, ...] = ()
    """The sources of the subscribers of that name that live."""
    dead_letters: int = 0
    errors: tuple[str, ...] = ()
    """Positions that could not be read."""
    processed_twice: int | None = None
    """Samples that one of its members processed, and another one too, as was found when a partition
    healed; None unless every member that lives answered. Those that are gone tell nothing more."""
    exclusive: bool = False
    """Whether a majority of the caches decides who processes a source."""

    @property
    def behind(self) -> int:
        return sum(run.behind for run in self.runs)

    @property
    def open(self) -> int:
        return sum(run.open for run in self.runs)


@dataclass(slots=True)
class _Found:
    positions: list[Position] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    dead_letters: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    exclusive: bool = False


def find_consumers(
    session: Session,
    consumer: str = ANY,
    *,
    domain: str = "default",
    query_timeout_seconds: float = 5.0,
) -> list[ConsumerStatus]:
    """Return how consumers stand, by name; "*" for all.

    Reads positions, dead letters and the newest sample of each key that is consumed. Raises
    ConfigError on a bad argument; StorageUnavailable, to be tried again, where caches do not
    answer.
    """
    check_session(session)
    name = consumer if consumer == ANY else check_consumer(consumer)
    positions, letters = positions_key_expr(domain, name), dead_letters_key_expr(domain, name)
    tokens = tokens_for_certain(session, consumer_tokens(domain, name), _TOKENS_SECONDS_MAX)
    if tokens is None:
        raise StorageUnavailable("which consumers live is unknown; try again")
    asking = Asking(session, zid_of(session), timeout_seconds=query_timeout_seconds)
    found: dict[str, _Found] = {}
    for key in tokens:
        of = found.setdefault(consumer_of(domain, key), _Found())
        of.members.add(key.rpartition("/")[2])
    for sample in _newest(asking, str(positions)):
        if sample.kind is Kind.PUT:
            _take(domain, found.setdefault(consumer_of(domain, sample.key), _Found()), sample)
    for sample in _newest(asking, str(letters)):
        if sample.kind is Kind.PUT:
            of = found.setdefault(consumer_of(domain, sample.key), _Found())
            of.dead_letters.add(sample.key)
    told = by_consumer(
        ask_tables(session, own_key(domain, "loss", "*"), timeout_seconds=query_timeout_seconds)[0]
        if tokens
        else ()
    )
    twice = {
        one.consumer: one.processed_twice
        for one in told
        if one.consumer in found and one.members >= len(found[one.consumer].members)
    }
    return [
        replace(_status(asking, name, found[name]), processed_twice=twice.get(name))
        for name in sorted(found)
    ]


def rewind_consumer(
    session: Session,
    consumer: str,
    to: RewindTo = None,
    *,
    source: SourceId | None = None,
    domain: str = "default",
    options: ConsumerOptions | None = None,
    timeout_seconds: float = 10.0,
) -> int:
    """Rewind a consumer that is not running, as its `rewind` does; return how many runs moved.

    It has the name until it returns. Raises ConfigError where a subscriber of the name lives, or
    nothing was confirmed under it, and what `rewind` raises.
    """
    check_session(session)
    check_target(to, source)
    timeout_seconds = read_timeout(timeout_seconds)
    given = ConsumerOptions() if options is None else options
    chosen = check_kind("options", given, ConsumerOptions, "a ConsumerOptions").checked()
    keeping = Keeping(session, domain, consumer, None, chosen, timeout_seconds)
    try:
        if keeping.key_expr is None:
            raise ConfigError(f"consumer {consumer!r}: nothing was confirmed under that name")
        asking = Asking(session, zid_of(session), timeout_seconds=timeout_seconds)
        known = _claimed(keeping, timeout_seconds)
        moved = rewound(known, points_of(asking, keeping.key_expr, known, to, source))
        end = time.monotonic() + timeout_seconds
        if not keeping.write(moved, lambda: time.monotonic() < end):
            raise OutcomeUnknown(
                f"whether consumer {consumer!r} was rewound is unknown: caches did not "
                "acknowledge in time; rewind again"
            )
        return len(moved)
    finally:
        keeping.close()


def _claimed(keeping: Keeping, timeout_seconds: float) -> Sequence[Position]:
    """Return where a consumer stands; an exclusive one, once a majority gives its sources to us.

    Who was cut off from us may have confirmed more since it was read (ADR 0236).
    """
    known = keeping.positions
    if keeping.claiming is None:
        return known
    fence, claimed = 1 + keeping.fence_read, set[SourceId]()
    end = time.monotonic() + timeout_seconds
    while gained := {one.source for one in known} - claimed:
        claimed |= gained
        if not keeping.claim(gained, fence, lambda: time.monotonic() < end):
            raise OutcomeUnknown("no majority of the caches acknowledges claims; rewind again")
        known = keeping.read_claimed(claimed, timeout_seconds, lambda: time.sleep(LEASE_SECONDS))
    return [msgspec.structs.replace(one, fence=fence) for one in known]


def _newest(asking: Asking, key_expr: str) -> Iterator[Sample]:
    """Yield the newest sample of each key, from every cache that holds it."""
    after: Sample | None = None
    while True:
        page = asking.page(key_expr, "*", "_max=1", after)
        after = page.following(after)
        if not page.whole:
            if not page.errors and not page.answers:
                raise StorageUnavailable(
                    f"{key_expr}: no cache answered; start one whose storage has this key "
                    "expression, ** alone does not hold it"
                )
            reason = page.errors[0] if page.errors else "no cache answered all of it"
            raise StorageUnavailable(f"{key_expr} ({reason}); try again")
        yield from page.ordered()
        if after is None:
            return


def _take(domain: str, found: _Found, sample: Sample) -> None:
    if is_claim_key(domain, sample.key):
        found.exclusive = True
        return
    try:
        found.positions.append(decode_position(sample.payload))
    except RemoteProtocolError as error:
        found.errors.append(f"the position at {sample.key}: {error}")


def _status(asking: Asking, name: str, found: _Found) -> ConsumerStatus:
    members, letters = tuple(sorted(found.members)), len(found.dead_letters)
    status = ConsumerStatus(
        name, "", (), members, letters, tuple(found.errors), exclusive=found.exclusive
    )
    if not found.positions:
        return status
    key_exprs = sorted({position.key_expr for position in found.positions})
    positions = join_positions(found.positions)
    newest = _newest_numbers(_newest(asking, key_exprs[0]))
    runs = [_run(position, newest.pop(_run_key(position), None)) for position in positions]
    runs += [RunStatus(*run, -1, -1, 0, sn) for run, sn in newest.items()]
    living = [member for text in members if (member := _source(text)) is not None]
    runs = [replace(run, member=str(owner_of(run.source, living) or "")) for run in runs]
    runs.sort(key=lambda run: (run.source, run.epoch))
    return replace(status, key_expr=key_exprs[0], runs=tuple(runs))


def _source(text: str) -> SourceId | None:
    try:
        return SourceId.parse(text)
    except ValueError:
        return None


def _run_key(position: Position) -> tuple[SourceId, int]:
    return position.source, position.epoch


def _run(position: Position, newest: int | None) -> RunStatus:
    unconfirmed = sum(last - first + 1 for first, last in position.open)
    return RunStatus(
        position.source,
        position.epoch,
        position.confirmed_to,
        position.reached,
        unconfirmed,
        newest,
        fence=position.fence,
    )


def _newest_numbers(samples: Iterable[Sample]) -> dict[tuple[SourceId, int], int]:
    newest: dict[tuple[SourceId, int], int] = {}
    for sample in samples:
        if not is_unnumbered(sample.source):
            key = (sample.source, sample.epoch)
            newest[key] = max(sample.sn, newest.get(key, -1))
    return newest

"""What a reliable subscriber is told, what it answers, and within which bounds; frozen values.

Every question is answered: a `Fetch` by `Fetched` or `FetchFailed`, an `AskHistory` by
`HistoryPage` or `HistoryFailed`, an `AskBeginning` by `BeginningTold`, each once, with the
question's number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from durable_cache.model.arguments import check_fields, check_number, refused
from durable_cache.model.clock import Moment
from durable_cache.model.quantities import bytes_of, seconds_of
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.modes import Passed
from durable_cache.protocol.standings import Standing
from durable_cache.protocol.wire import Absence, Incarnation, with_own_names

_SECOND_NS = 1_000_000_000


def _is_above_zero(value: object) -> bool:
    return isinstance(value, (int, float)) and value > 0


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """The subscriber's bounds and delays; each default carries its reason."""

    recovery: bool = True
    """Ask for what is missing; without it a gap is reported at once."""
    periodic_queries_seconds: float | None = None
    """How often to ask for missed tails; None asks only on gaps."""
    gap_timeout_seconds: float = 30.0
    """How long later samples are held back for a missing one: a killed cache is back by then."""
    request_samples_max: int = 10_000
    """Numbers that one request spans, holes and what is between them."""
    retry_seconds: float = 0.1
    """The first pause after an answer that left the gap open; doubles up to the next."""
    retry_seconds_max: float = 2.0
    token_wait_seconds: float = 1.0
    """How long live samples of a source whose token went wait for the next one: tokens are late by
    a round trip, not by a second."""
    window_size_samples: int = 1 << 17
    """A jump beyond this is confirmed first."""
    pending_samples_max: int = 20_000
    """Samples of one source held back, and of all while history runs; later ones are dropped and
    recovered from caches."""
    sources_max: int = 10_000
    """Sources followed; one not used for longest rests, and goes on where it stood. Where all wait
    for something missing, the others wait for room, with up to three samples each: as many as may
    rest (`places_max`). Of more, what came is reported."""
    losses_max: int = 10_000
    """Sources whose losses are counted one by one; those of further ones are counted together."""
    loss_keys_max: int = 100
    """Key expressions that one advisory names; further ones are in its sum."""
    places_max: int = 100_000
    """Sources that rest: about 90 MB. One beyond it counts as new when it comes again."""
    runs_max: int = 64
    """Runs of one source that wait one behind the other, as where a publisher is started again and
    again. Of more, one of which nothing came is not asked for; where there is none, what the first
    lacks is reported."""
    history_page_samples: int = 20_000
    """Samples of a page of history, held until its holes are explained: about 20 MB of small
    ones, from each cache."""
    sub_window_size: int | str = 4_000_000
    """What the window of subject sequences may take in memory, in bytes or as "10 mb"."""
    sub_window_time: float | str = 10.0
    """How long a subject of which nothing comes stays in it at least, in seconds or as "60 sec"."""
    convergence_seconds: float = 10.0
    """How long a network takes until all that is published reaches us: a time frame that we join
    and that is younger is perhaps incomplete."""
    keeps_trailers: bool = False
    """Leave what a publisher of subject sequences put behind attachments where it is, as whoever
    carries samples on must."""
    subject_losses_max: int = 1_000
    """Subjects whose losses are remembered one by one; all are in the sum."""
    history_timeout_seconds: float = 10.0
    """How long live samples wait for history that nobody answers whole: a link comes up and a
    cache restarts within seconds. Each page that comes begins the wait anew."""

    def check(self) -> None:
        """ConfigError names what no subscriber can work with, by the name of its argument."""
        period = self.periodic_queries_seconds
        if period is not None and (isinstance(period, bool) or not _is_above_zero(period)):
            raise refused("periodic_queries", period, "a number of seconds above 0")
        check_fields(self)
        for name in (
            *("gap_timeout_seconds", "history_timeout_seconds", "convergence_seconds"),
            *("retry_seconds", "retry_seconds_max", "token_wait_seconds"),
        ):
            check_number(name, getattr(self, name), 0, whole=False)
        for name in (
            *("request_samples_max", "window_size_samples", "pending_samples_max", "sources_max"),
            *("losses_max", "loss_keys_max", "places_max", "runs_max", "history_page_samples"),
            "subject_losses_max",
        ):
            check_number(name, getattr(self, name), 1, whole=True)
        self.sub_window  # noqa: B018  # raises where it is none

    @property
    def sub_window(self) -> tuple[int, int]:
        """Bytes and nanoseconds of the window of subjects; ConfigError names what is none."""
        seconds = seconds_of("sub_window_time", self.sub_window_time, 0)
        return bytes_of("sub_window_size", self.sub_window_size, 1), round(seconds * _SECOND_NS)


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """What one session answered: its names for the epochs hold for its samples only."""

    samples: Sequence[Sample]
    absent: tuple[Absence, ...] = ()
    incarnations: tuple[Incarnation, ...] = ()
    oversized: Sequence[Sample] = ()
    """Without their payload, which is above what the subscriber takes: they are, but not here."""

    def names(self) -> Mapping[tuple[SourceId, int], str]:
        """Return the incarnation of each (source, epoch) that is named."""
        return {(source, epoch): name for source, epoch, name in self.incarnations}

    def with_own_names(self) -> AnswerPart:
        """Return it with the names that its samples say themselves (ADR 0366)."""
        names = with_own_names(self.incarnations, self.samples)
        return self if len(names) == len(self.incarnations) else replace(self, incarnations=names)

    def called(self, key: tuple[SourceId, int], incarnation: str) -> tuple[SourceId, int] | None:
        """Return the (source, epoch) by which a run goes here; None where another one does."""
        source, _ = key
        for named, epoch, name in self.incarnations if incarnation else ():
            if named == source and name == incarnation:
                return source, epoch
        return None if incarnation and key in self.names() else key


@dataclass(frozen=True, slots=True)
class Answer:
    """What the answers to one question hold together."""

    parts: tuple[AnswerPart, ...] = ()
    answerers: int = 0
    """Caches that answered, empty-handed or not; 0: nobody was there but publishers."""
    whole: bool = True
    """Nobody who answered did so with an error."""
    cut_after: Sample | None = None
    """Some answer was cut here, the earliest: ask for what comes behind it."""

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all parts."""
        for part in self.parts:
            yield from part.samples


class Received(msgspec.Struct, frozen=True):
    """Samples came as they were published."""

    samples: Sequence[Sample]
    now: Moment
    oversized: Sequence[Sample] = ()
    """Without their payload, which is above what the subscriber takes: their numbers are lost."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A publisher's token was seen; `incarnation` is empty where an older publisher names none."""

    source: SourceId
    epoch: int
    incarnation: str
    now: Moment
    listed: bool = False
    """It was there before us: what it published until now is history, and not awaited."""
    by_sample: bool = False
    """A sample named the run, and no token did yet (ADR 0366)."""


@dataclass(frozen=True, slots=True)
class TokenGone:
    """A publisher's token went: it ended, or is out of reach."""

    source: SourceId
    incarnation: str
    now: Moment


@dataclass(frozen=True, slots=True)
class AnswererAppeared:
    """A cache's token was seen: what nobody answered before may be answered now."""

    now: Moment
    strange: bool = False
    """It was never seen before: nothing that it alone holds was in reach so far."""
    gone: Moment | None = None
    """When its token had gone, where it had: the cache ended, or was cut off."""


@dataclass(frozen=True, slots=True)
class AnswerersGone:
    """The token of the last cache in reach went: it ended, or our own link is cut."""

    now: Moment


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A publisher says what the last number of a source is, as it stands on the wire."""

    source: SourceId
    source_sn: int
    now: Moment
    first_sn: int | None = None
    """From here on subscribers may not have heard it, and caches hold it; None where unsaid."""
    stored_as: int | None = None
    """A cache says so, which has it, of a run that it calls by this epoch: the source showed no
    token, or its token went just then (ADR 0347, 0350)."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A `Fetch` was answered, by whoever was there."""

    fetch_id: int
    answer: Answer
    now: Moment


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A `Fetch` could not be asked or read."""

    fetch_id: int
    now: Moment


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """An `AskHistory` was answered: what caches hold behind a place, in order of time."""

    question_id: int
    answer: Answer
    now: Moment


@dataclass(frozen=True, slots=True)
class HistoryFailed:
    """An `AskHistory` could not be asked or read."""

    question_id: int
    reason: str
    now: Moment


@dataclass(frozen=True, slots=True)
class BeginningTold:
    """An `AskBeginning` was answered, or could not be.

    `ntp64` is the least time of what caches hold behind the standings: NTP64_MAX where they hold
    nothing, FROM_THE_BEGINNING where that is not known.
    """

    question_id: int
    ntp64: int
    now: Moment


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time that `wake_ns` named has come."""

    now: Moment


Event = (
    Received
    | Declared
    | TokenGone
    | AnswererAppeared
    | AnswerersGone
    | HeartbeatReceived
    | Fetched
    | FetchFailed
    | HistoryPage
    | HistoryFailed
    | BeginningTold
    | TimePassed
)


class Deliver(msgspec.Struct, frozen=True):
    """Pass these on, in this order."""

    samples: tuple[Sample, ...]
    unsure: bool = False
    """Nobody told where the run before the first of them ended: some of it may be missing."""
    passed: Passed = Passed.FIRST
    """What is not passed on for the first time comes so in modes that allow it."""


@dataclass(frozen=True, slots=True)
class Missed:
    """These numbers will not be delivered; comes before what follows them."""

    source: SourceId
    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask every cache for these numbers; `last` None asks for all from `first` on.

    `after` goes on behind that sample, where an answer to the same question was cut.
    """

    fetch_id: int
    source: SourceId
    epoch: int
    first: int
    last: int | None
    after: Sample | None = None


@dataclass(frozen=True, slots=True)
class AskHistory:
    """Ask every cache for a page in order of time, from behind `after` on.

    `since_ns`: of what bears a timestamp of that Unix time or a later one; None for all.
    """

    question_id: int
    after: Sample | None
    samples_max: int
    since_ns: int | None = None
    as_wanted: bool = False
    """Of each key only as much as history is wanted of, whatever `since_ns` says."""


@dataclass(frozen=True, slots=True)
class AskBeginning:
    """Ask every cache since when it holds something behind `standings`."""

    question_id: int
    standings: tuple[Standing, ...]


Output = Deliver | Missed | Fetch | AskHistory | AskBeginning

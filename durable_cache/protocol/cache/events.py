"""What goes into the cache's engine and what comes out of it; frozen values, no behaviour.

What comes and goes with every batch is a struct, as samples are: it is made in a tenth of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, sample_digest


class Origin(Enum):
    """By which way samples came."""

    LIVE = "live"
    """Published just now: the epoch is for the engine to decide, a far jump must be confirmed."""
    LATE = "late"
    """As LIVE, and known to be of the run before: no token came that could have been theirs."""
    RECOVERED = "recovered"
    """From another cache's answer: its epoch is known and it is confirmed."""
    ALIGNED = "aligned"
    """Pulled by the aligner: as RECOVERED."""
    NATIVE = "native"
    """From a foreign publisher's own cache: confirmed, under the source's current epoch."""
    REFILED = "refiled"
    """From this cache's own storage, now under the epoch that was agreed on: to be stored again."""
    RESENT = "resent"
    """Sent once more, to this cache alone: of a known epoch, what lies before them is awaited."""
    UNNUMBERED = "unnumbered"
    """Without a number (ADR 0160) and judged already: stored as they are, acknowledged to nobody.
    """


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine's bounds and delays; each default carries its reason."""

    window_size_samples: int = 1 << 17
    """A live jump beyond this is confirmed first: 2.6 s of 50 k samples/s."""
    runs_max: int = 1024
    """Runs remembered per window; older numbers are looked up in the storage."""
    sources_max: int = 10_000
    """Windows in memory; further ones are read back from the stream index."""
    tokens_max: int = 100_000
    """Sources whose tokens are remembered, a few hundred bytes each; samples of further ones wait
    for no token."""
    losses_max: int = 10_000
    """Sources whose losses are counted one by one; those of further ones are counted together."""
    gaps_open_max: int = 10_000
    """Gaps awaited at once; beyond it those near each other are one, and then the oldest go."""
    recovery_delay_seconds: float = 0.02
    """Reordering between links is shorter than this; asking sooner would be for nothing."""
    fetch_retry_seconds: float = 0.25
    """The first pause after a fetch that left the gap open; doubles up to the next."""
    fetch_retry_seconds_max: float = 5.0
    fetches_max: int = 16
    """Fetches under way at once."""
    gap_timeout_seconds: float = 60.0
    """How long a gap is awaited; restarts of a publisher's host take less."""
    doubtful_samples_max: int = 20_000
    """Live samples held, in all, behind numbers that are being looked up, as many again behind
    tokens that wait for them, and as many for a token to come; later ones are refused and
    recovered."""
    token_wait_seconds: float = 1.0
    """How long live samples of a source whose token went wait for the next one: tokens are late by
    a round trip, not by a second."""
    unnumbered_remembered_max: int = 20_000
    """The newest unnumbered samples whose repeats are told without reading the storage: what comes
    over two routes comes within a second."""
    verify_retry_seconds: float = 0.25
    """The first pause after a look-up that failed; doubles up to `fetch_retry_seconds_max`."""
    append_retry_seconds: float = 0.2
    """The pause before gaps are given up again after an append that failed."""


class Alias(NamedTuple):
    """What was learned later: samples stored under `stored` from `from_sn` on are of `epoch`."""

    source: SourceId
    stored: int
    from_sn: int
    epoch: int


@dataclass(frozen=True, slots=True)
class NumberingState:
    """What is stored of one (source, epoch), for its window."""

    epoch: int
    held: RangeSet
    skipped: RangeSet
    newest_ntp64: int = 0
    incarnation: str = ""
    """What its publisher's token called it; empty where no token did."""
    name_lost: bool = False
    """A token may have called it something that is not known any more."""


@dataclass(frozen=True, slots=True)
class SourceLoaded:
    """What the storage knows of a source; comes before the first batch with it."""

    source: SourceId
    numberings: tuple[NumberingState, ...]
    now: Moment


class BatchReceived(msgspec.Struct, frozen=True):
    """Samples came in; every source in them was loaded before."""

    batch: SampleBatch
    origin: Origin
    now: Moment


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """Live samples came in that there was no room to keep; others are asked for again anyway."""

    refused: tuple[tuple[SourceId, SnRange], ...]
    now: Moment
    late: bool = False
    """Known to be of the run before: no token came that could have been theirs."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Others gave samples that retention or a purge removed here: they are awaited no more."""

    batch: SampleBatch
    """Each under its epoch; every source in it was loaded before."""


class Found(NamedTuple):
    """What a look-up says of one sample's number."""

    sample: Sample
    stored: Sample | None
    """What is stored under the number, under whichever key; None where nothing is."""
    removed: bool = False
    """Retention or a purge removed the number: it is not to come in again."""

    @property
    def same(self) -> bool:
        """Whether the sample is what is stored."""
        sample, stored = self.sample, self.stored
        return (
            stored is not None
            and stored.key == sample.key
            and sample_digest(stored) == sample_digest(sample)
        )


@dataclass(frozen=True, slots=True)
class Verified:
    """The answer to `Verify`, sample by sample."""

    verify_id: int
    found: tuple[Found, ...]
    now: Moment


@dataclass(frozen=True, slots=True)
class VerifyFailed:
    """The samples could not be looked up: nothing is known of them."""

    verify_id: int
    now: Moment


class Appended(msgspec.Struct, frozen=True):
    """The outstanding `Append` is durable."""

    now: Moment


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The outstanding `Append` is not known to be durable."""

    now: Moment


@dataclass(frozen=True, slots=True)
class EpochDeclared:
    """A publisher declared the epoch of its numbering, or came back into reach."""

    source: SourceId
    epoch: int
    fresh: bool
    """The publisher began just now, within our sight: nothing came before its number 0."""
    now: Moment
    incarnation: str = ""
    """Names this run of the numbering and no other; empty in tokens of older publishers."""
    by_sample: bool = False
    """A sample named the run, and no token did yet (ADR 0366)."""


@dataclass(frozen=True, slots=True)
class TokenGone:
    """A publisher's token went: it ended, or is out of reach."""

    source: SourceId
    incarnation: str
    now: Moment
    key_expr: str = ""
    """Of what it may have published, as its token said; empty: nobody is told (ADR 0350)."""


@dataclass(frozen=True, slots=True)
class NumberingNamed:
    """A resend, or what another cache gave, says which incarnation an epoch is."""

    source: SourceId
    epoch: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Compared:
    """What is stored under numbers that are held and were sent once more."""

    source: SourceId
    incarnation: str
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class EpochsAgreed:
    """Two caches named one incarnation of a source by two epochs; from now on it has one."""

    source: SourceId
    loser: int
    winner: int


@dataclass(frozen=True, slots=True)
class EpochFreed:
    """Nothing of an agreement's loser is stored any more: the number may mean another numbering."""

    source: SourceId
    loser: int


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A publisher said which number it published last."""

    source: SourceId
    source_sn: int
    now: Moment


@dataclass(frozen=True, slots=True)
class FetchEnded:
    """A `Fetch` is over; what it found came before as a `BatchReceived`."""

    fetch_id: int
    now: Moment
    failed: bool = False
    """Some answer was an error, or did not come: that a number is not there means nothing."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""

    now: Moment


Event = (
    SourceLoaded
    | BatchReceived
    | BatchRefused
    | Compared
    | NumberingNamed
    | Removed
    | Verified
    | VerifyFailed
    | Appended
    | AppendFailed
    | EpochDeclared
    | EpochFreed
    | EpochsAgreed
    | HeartbeatReceived
    | FetchEnded
    | Tick
)


class Append(msgspec.Struct, frozen=True):
    """Make these durable, then say `Appended` or `AppendFailed` before anything else."""

    batch: SampleBatch
    skips: tuple[Skip, ...] = ()
    moved: int = 0
    """So many of the batch are stored here already, under another epoch."""
    heard: int = 0
    """So many came from their publisher."""
    heard_since_ns: int = 0
    """When the first of those was received."""
    unnumbered: int = 0
    """So many of the batch came without a number."""


class SendAck(msgspec.Struct, frozen=True):
    """These numbers are durable; comes out of `Appended`, and again when they were asked about."""

    source: SourceId
    epoch: int
    runs: tuple[SnRange, ...]
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask every cache and the publisher for these numbers, then say `FetchEnded`."""

    fetch_id: int
    source: SourceId
    epoch: int
    first: int
    last: int | None
    """None asks for everything from `first` on."""
    native_first: int | None = None
    """The publisher's own cache is asked from this number on, which is here; None: from `first`."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Look up what is stored under these numbers, then say `Verified` or `VerifyFailed`.

    Read what the `Append` before it made durable: outputs are carried out in order.
    """

    verify_id: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class ReportMiss:
    """These numbers were given up; the skip is durable."""

    source: SourceId
    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ReportConflict:
    """Another payload came under a stored identity; the stored one is kept."""

    offered: Sample
    stored: Sample | None
    """None where it is on its way to the storage, and only its digest is at hand."""


@dataclass(frozen=True, slots=True)
class ReportAbsent:
    """A number that the windows know as held is not in the storage; it is stored anew."""

    sample: Sample


@dataclass(frozen=True, slots=True)
class Declared:
    """Keep durably, before what follows, which incarnation of a source an epoch is."""

    source: SourceId
    epoch: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Learned:
    """An alias to be kept durably."""

    alias: Alias


Output = (
    Append
    | SendAck
    | Fetch
    | Verify
    | ReportMiss
    | ReportConflict
    | ReportAbsent
    | Declared
    | Learned
)

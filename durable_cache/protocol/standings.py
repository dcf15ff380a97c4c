"""What somebody who goes on knows of each run, and when what lies behind that was published.

A subscriber that goes on where it stood asks caches with `Standing`s; each answers with the least
NTP64 of what it holds behind them (ADR 0155). The answer decides where reading begins, and so how
long it takes. It never decides what is delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.checks import check_identity
from durable_cache.protocol.wire import Content, is_incarnation, seal, unseal

FROM_THE_BEGINNING = 0
"""Everything is to be read: it is not known what lies behind, or in which order."""
_STANDINGS_BYTES_MAX = 16 << 20
_BEGINNING_BYTES_MAX = 1024


class Standing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where somebody stands in one run of a source."""

    source: SourceId
    epoch: int
    incarnation: str
    following: int
    """The first number that is not known."""
    ntp64: int = 0
    """When the one before was published; 0 where that is not known."""


class Beginning(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From when on there is something behind standings; NTP64_MAX where there is nothing."""

    ntp64: int


_standings = msgspec.msgpack.Decoder(tuple[Standing, ...])
_beginnings = msgspec.msgpack.Decoder(Beginning)


def encode_standings(standings: Sequence[Standing]) -> bytes:
    """Return the payload of the question for what lies behind."""
    return seal(Content.STANDINGS, standings)


def decode_standings(frame: bytes) -> tuple[Standing, ...]:
    """Read where somebody stands; RemoteProtocolError where it cannot be so."""
    standings = unseal(frame, Content.STANDINGS, _standings, _STANDINGS_BYTES_MAX)
    for one in standings:
        check_identity(one.source, one.epoch, max(0, one.following - 1), one.ntp64)
        if one.following < 0 or (one.incarnation and not is_incarnation(one.incarnation)):
            raise RemoteProtocolError(f"no standing: {one.following} of {one.incarnation[:40]!r}")
    return standings


def encode_beginning(ntp64: int) -> bytes:
    """Return the answer."""
    return seal(Content.BEGINNING, Beginning(ntp64))


def decode_beginning(frame: bytes) -> int:
    """Read the NTP64 of an answer; RemoteProtocolError where it is none."""
    ntp64 = unseal(frame, Content.BEGINNING, _beginnings, _BEGINNING_BYTES_MAX).ntp64
    if not 0 <= ntp64 <= NTP64_MAX:
        raise RemoteProtocolError(f"{ntp64} is no NTP64")
    return ntp64


class Standings:
    """Standings by the run that they are of.

    A run goes by its incarnation where it has one, for its epoch may be called otherwise here.
    """

    def __init__(self, standings: Iterable[Standing]) -> None:
        self._runs: dict[tuple[SourceId, int, str], Standing] = {}
        self._sources: set[SourceId] = set()
        for one in standings:
            epoch = 0 if one.incarnation else one.epoch
            self._runs[one.source, epoch, one.incarnation] = one
            self._sources.add(one.source)

    def of(self, source: SourceId, epoch: int, incarnation: str) -> Standing | None:
        """Return where is stood in a run; None where the run is not known."""
        return self._runs.get((source, 0 if incarnation else epoch, incarnation))

    def knows(self, source: SourceId) -> bool:
        """Tell whether some run of a source is known."""
        return source in self._sources

    def beginning(self, samples: Iterable[tuple[Sample, str]]) -> int:
        """Return from when on samples, each with its run's incarnation, lie behind.

        FROM_THE_BEGINNING where one is of another run of a source that is known: its order with
        that run is not told by time.
        """
        earliest = NTP64_MAX
        for sample, incarnation in samples:
            standing = self.of(sample.source, sample.epoch, incarnation)
            if standing is not None and sample.sn < standing.following:
                continue
            if standing is None and self.knows(sample.source) and not is_unnumbered(sample.source):
                return FROM_THE_BEGINNING
            earliest = min(earliest, sample.ntp64)
        return earliest

"""What a process lost of each source: RaiMS's `show loss`, counted where it is seen (ADR 0157).

Pure: its owner tells what happened and when. A row is a value that is replaced as a whole, so any
thread may read the rows while the owner's thread counts.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import NamedTuple, assert_never

import msgspec

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.delivery import DeliveryRates
from durable_cache.model.sample import Sample, SampleAfterMiss, SourceId
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.modes import Passed
from durable_cache.protocol.subjects import SubjectCounts

_NO_SUBJECTS = SubjectCounts()
OTHERS = "*"
"""The user of the row that takes the counts of those there was no room for."""


class LossRow(NamedTuple):
    """What happened to the samples of one source; times are Unix nanoseconds, 0 is never."""

    source: SourceId | None
    """None in the row of all those that there was no room for, and of questions about no source."""
    user: str
    """The publisher's name, or else its source id."""
    repeats: int = 0
    """Samples that came as they were published and were not the first to be passed on, and those
    that were handed over again, or in vain."""
    repeat_ns: int = 0
    unsubscribed: int = 0
    """Samples that came when the subscriber was undeclared."""
    unsubscribed_ns: int = 0
    lost: int = 0
    """Numbers that were given up and reported, but for those that came after all."""
    lost_ns: int = 0
    inbox_lost: int = 0
    """Questions about its numbers that were not, or not whole, answered."""
    inbox_ns: int = 0
    delivered: int = 0
    """Samples that were passed on, each once; caches do not count them."""

    @property
    def rates(self) -> DeliveryRates | None:
        """R and UR of the way from publisher to program; None where nothing was passed on.

        Sent is what was passed on or lost, received what was passed on or came again (ADR 0159).
        """
        if not self.delivered:
            return None
        sent, received = self.delivered + self.lost, self.delivered + self.repeats
        return DeliveryRates.measured(sent, received, self.delivered)

    def joined(self, other: LossRow) -> LossRow:
        """Return the row of both: counts are added, of the times the later one stands."""
        return self._replace(
            repeats=self.repeats + other.repeats,
            repeat_ns=max(self.repeat_ns, other.repeat_ns),
            unsubscribed=self.unsubscribed + other.unsubscribed,
            unsubscribed_ns=max(self.unsubscribed_ns, other.unsubscribed_ns),
            lost=self.lost + other.lost,
            lost_ns=max(self.lost_ns, other.lost_ns),
            inbox_lost=self.inbox_lost + other.inbox_lost,
            inbox_ns=max(self.inbox_ns, other.inbox_ns),
            delivered=self.delivered + other.delivered,
        )


class Losses:
    """Counts for each source; owned by one thread, `rows` may be read by any.

    Of more than `sources_max` sources the row that is there for longest is added to one row for all
    such, so that sums stay exact.
    """

    def __init__(self, sources_max: int) -> None:
        self.now_ns = 0
        """When what is told happens, as Unix time; its owner sets it."""
        self._sources_max = sources_max
        self._rows: dict[SourceId, LossRow] = {}
        """All but what was passed on."""
        self._delivered: dict[SourceId, int] = {}
        """What was passed on of each source that has a row: counted for every sample, so apart."""
        self._others = LossRow(None, OTHERS)
        self._names: OrderedDict[SourceId, str] = OrderedDict()
        self._missed: OrderedDict[SourceId, int] = OrderedDict()
        """What was lost of a source since the last sample of it that was passed on."""

    def rows(self) -> Sequence[LossRow]:
        """Return a row for each source, and one for all others where something is in it."""
        rows, others = tuple(self._whole(row) for row in list(self._rows.values())), self._others
        return rows if others == LossRow(None, OTHERS) else (*rows, others)

    def name(self, source: SourceId, user: str) -> None:
        """Call a source by the name that its publisher goes by."""
        self._names[source] = user
        self._shorten(self._names)
        row = self._rows.get(source)
        if row is not None:
            self._rows[source] = row._replace(user=user)

    def user(self, source: SourceId) -> str:
        """Return the name that a source's publisher goes by, or else the source id."""
        return self._names.get(source, str(source))

    def seen(self, source: SourceId) -> None:
        """Have a row for a source of which nothing was lost, while there is room."""
        if source not in self._rows and len(self._rows) < self._sources_max:
            self._put(self._row(source))

    def repeated(self, source: SourceId, count: int = 1) -> None:
        """Count samples that had come before."""
        row = self._row(source)
        self._put(row._replace(repeats=row.repeats + count, repeat_ns=self.now_ns))

    def unsubscribed(self, samples: Iterable[Sample]) -> None:
        """Count samples that came when the subscriber was undeclared."""
        for sample in samples:
            row = self._row(sample.source)
            count = row.unsubscribed + 1
            self._put(row._replace(unsubscribed=count, unsubscribed_ns=self.now_ns))

    def lost(self, source: SourceId, count: int) -> None:
        """Count numbers that were reported as missed; the next sample of the source bears them."""
        row = self._row(source)
        self._put(row._replace(lost=row.lost + count, lost_ns=self.now_ns))
        self._missed[source] = self._missed.pop(source, 0) + count
        self._shorten(self._missed)

    def unanswered(self, source: SourceId | None) -> None:
        """Count a question that was not, or not whole, answered; None: it was about no source."""
        row = self._others if source is None else self._row(source)
        self._put(row._replace(inbox_lost=row.inbox_lost + 1, inbox_ns=self.now_ns))

    def passed_on(self, samples: Sequence[Sample], passed: Passed = Passed.FIRST) -> None:
        """Count samples that the program gets; those without a number have no rates."""
        source, delivered = samples[0].source, self._delivered
        if passed is Passed.FIRST and source in delivered:
            # Most often all are of one source, and to count each costs more than to say so.
            count = len(samples)
            if count == 1 or [sample.source for sample in samples].count(source) == count:
                delivered[source] += count
                return
        for source, count in Counter([sample.source for sample in samples]).items():
            if not is_unnumbered(source):
                self._count(source, count, passed)

    def _count(self, source: SourceId, count: int, passed: Passed) -> None:
        row = self._row(source)
        match passed:
            case Passed.FIRST:
                pass
            case Passed.AGAIN:
                self.repeated(source, count)
                return
            case Passed.FOUND:
                row = self._less(row, count)
                if source in self._missed:
                    self._missed[source] = max(0, self._missed[source] - count)
            case _:
                assert_never(passed)
        self._put(row)
        self._delivered[source] = self._delivered.get(source, 0) + count

    def in_vain(self, source: SourceId) -> None:
        """Take back that a sample was passed on: nobody confirmed it, and it counts as lost next.

        It came all the same, and so it is among the repeats.
        """
        if self._delivered.get(source, 0):
            self._delivered[source] -= 1
        else:
            self._others = self._others._replace(delivered=self._others.delivered - 1)
        self.repeated(source)

    def after_misses(self, samples: Sequence[Sample], *, unsure: bool) -> Sequence[Sample]:
        """Return samples that are passed on, each that follows a loss with what was missed before.

        `unsure`: it is not known whether something is missing before the first of them.
        """
        if not (unsure or self._missed):
            return samples
        marked = list(samples)
        for at, sample in enumerate(marked):
            count: int | None = self._missed.pop(sample.source, 0)
            if unsure and at == 0:
                count = None
            if count != 0:
                marked[at] = SampleAfterMiss.of(sample, count)
        return marked

    def _row(self, source: SourceId) -> LossRow:
        return self._rows.get(source) or LossRow(source, self.user(source))

    def _put(self, row: LossRow) -> None:
        if row.source is None:
            self._others = row
            return
        self._rows[row.source] = row
        if len(self._rows) > self._sources_max:
            source = next(iter(self._rows))
            self._others = self._others.joined(self._whole(self._rows.pop(source)))
            self._delivered.pop(source, None)

    def _less(self, row: LossRow, lost: int) -> LossRow:
        """Return a row with fewer losses; where they were added to all others, those have fewer."""
        of_row, others = min(lost, row.lost), self._others
        self._others = others._replace(lost=others.lost - (lost - of_row))
        return row._replace(lost=row.lost - of_row)

    def _whole(self, row: LossRow) -> LossRow:
        """Return a row with what was passed on."""
        delivered = 0 if row.source is None else self._delivered.get(row.source, 0)
        return row._replace(delivered=delivered) if delivered else row

    def _shorten(self, table: OrderedDict[SourceId, str] | OrderedDict[SourceId, int]) -> None:
        while len(table) > self._sources_max:
            table.popitem(last=False)


class LossTable(msgspec.Struct, frozen=True):
    """What one process answers: who it is, what it listens to, and its rows."""

    name: str
    """A subscriber's source id, or a cache's storage."""
    key_expr: str
    rows: tuple[LossRow, ...]
    mode: str = ""
    """The delivery mode of a subscriber; empty of a cache, which passes nothing on."""
    subjects: SubjectCounts = _NO_SUBJECTS
    """What a subscriber counted of subject sequences."""
    consumer: str = ""
    """The durable consumer that a subscriber is a member of; empty where it is of none."""
    processed_twice: int = 0
    """Samples that this member processed, and another one too: found when a partition healed."""

    def at(self, name: str) -> LossTable:
        """Return the table under another name."""
        return msgspec.structs.replace(self, name=name)

    def naming(self, users: Mapping[SourceId, str]) -> LossTable:
        """Return the table with the names of those that go by their source id in it."""
        return msgspec.structs.replace(self, rows=tuple(_named(row, users) for row in self.rows))


class _Row(msgspec.Struct, frozen=True):
    source: str
    user: str
    repeats: int
    repeat_ns: int
    unsubscribed: int
    unsubscribed_ns: int
    lost: int
    lost_ns: int
    inbox_lost: int
    inbox_ns: int
    delivered: int = 0


class _Table(msgspec.Struct, frozen=True):
    name: str
    key_expr: str
    rows: tuple[_Row, ...]
    mode: str = ""
    subjects: SubjectCounts = _NO_SUBJECTS
    consumer: str = ""
    processed_twice: int = 0


def _named(row: LossRow, users: Mapping[SourceId, str]) -> LossRow:
    if row.source is None or row.user != str(row.source):
        return row
    return row._replace(user=users.get(row.source, row.user))


_tables = msgspec.json.Decoder(_Table)


def encode_rows(
    name: str,
    key_expr: str,
    rows: Sequence[LossRow],
    mode: str = "",
    subjects: SubjectCounts = _NO_SUBJECTS,
) -> bytes:
    """Return a process's table as it answers with it: JSON, a source of nobody empty."""
    return encode_table(LossTable(name, key_expr, tuple(rows), mode, subjects))


def encode_table(table: LossTable) -> bytes:
    """Return a table as a process answers with it."""
    rows = tuple(
        _Row("" if row.source is None else str(row.source), *row[1:]) for row in table.rows
    )
    _, _, _, *rest = msgspec.structs.astuple(table)
    return msgspec.json.encode(_Table(table.name, table.key_expr, rows, *rest))


def decode_rows(payload: bytes) -> LossTable:
    """Read a process's table; RemoteProtocolError, never to be retried, when it is none."""
    try:
        table = _tables.decode(payload)
        rows = tuple(_read(row) for row in table.rows)
        if min(*astuple(table.subjects), table.processed_twice) < 0:
            raise ValueError("a negative count of subjects, or of what was processed twice")
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a table of losses that cannot be read: {error}") from error
    name, key_expr, _, *rest = msgspec.structs.astuple(table)
    return LossTable(name, key_expr, rows, *rest)


def _read(row: _Row) -> LossRow:
    source, *rest = msgspec.structs.astuple(row)
    if min(rest[1:]) < 0:
        raise ValueError(f"a negative count of {row.user[:40]!r}")
    return LossRow(SourceId.parse(source) if source else None, *rest)

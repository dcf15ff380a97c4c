"""What a publisher put and nobody is known to hold yet, on its own disk.

The file is a cache's journal: one row for each put, with one fsync. It owns the identity of its
samples: their source, epochs and numbers stay what they are, in whichever session they are sent.
One process uses a spool at a time, always for the same key expression of the same domain.

A spool of which something is missing is refused, for its next number would be one that was given
already. Who deletes its mark says that what is left is all there is: that is handed over, and no
numbering goes on (ADR 0285).
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

from durable_cache.errors import ConfigError, StorageCorrupt, StorageFull, StorageLocked
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.publisher.events import Spooled, Standing
from durable_cache.protocol.spool_rows import SpoolRows
from durable_cache.protocol.wire import is_incarnation
from durable_cache.storage.journaled.journal import IncompleteJournal, Journal
from durable_cache.storage.journaled.locks import DirectoryLock

_FORMAT = "3"
_WHOLE_ROWS = "2"
"""Written by earlier versions: each row says whose it is. It is of our format from now on."""
_UNSUMMED = "1"
"""Written by earlier versions; nothing tells whether a fact is as they wrote it."""
_WAL_PAGES = 512
"""8 MiB between checkpoints: two more fsyncs for some five hundred puts."""
_REMEDY = "move the directory away and lose what only it holds"
_Place = tuple[str, int]
"""(incarnation, sn)."""


class Spool:
    """A publisher's spool; `append` is for one thread at a time, `settle` for any one other.

    Raises ConfigError where the spool is another publisher's, StorageLocked where another process
    has it, StorageCorrupt where it is damaged, StorageUnavailable where it cannot be opened.
    """

    def __init__(self, directory: Path, domain: str, key_expr: str, *, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._closed = False
        self._waiting: deque[tuple[int, _Place]] = deque()
        """The rows in their order, each with what it is of."""
        self._settled: set[_Place] = set()
        self._rows = SpoolRows()
        self._current = self._mark = ""
        """The numbering it was at last, and what the mark beside the file was called then."""
        try:
            self._lock = DirectoryLock(directory, "spool", "spool_dir")
        except StorageLocked as error:
            raise StorageLocked(f"{error}: two publishers need two spools") from error
        try:
            self._journal = self._opened()
        except BaseException:
            self._lock.release()
            raise
        try:
            ours = {"format": _FORMAT, "domain": domain, "key_expr": key_expr}
            self._recognise({**ours, "sum": _sum(*ours.values())})
            self.spooled = self._read()
        except BaseException:
            self.close()
            raise

    def _opened(self) -> Journal:
        path = self._directory / "spool.db"
        try:
            return Journal(
                path,
                bytes_max=self._bytes_max,
                refuses_loss=True,
                remedy=_REMEDY,
                rows=self._rows,
                wal_pages=_WAL_PAGES,
            )
        except IncompleteJournal as error:
            raise self._damaged(
                f"{error}; delete {path.with_suffix('.mark')} to hand over what is left and begin "
                "a new numbering, or move the directory away"
            ) from error
        except StorageCorrupt as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, found: str) -> StorageCorrupt:
        return StorageCorrupt(f"spool {self._directory} is damaged: {found}")

    def _recognise(self, ours: dict[str, str]) -> None:
        """Make a new spool ours, and refuse one that is another's."""
        found = self._journal.kept("spool")
        if not found and not self._journal.entries:
            self._journal.keep("spool", ours)
            return
        is_unsummed = found.get("format") == _UNSUMMED
        total = found.get("sum", "")
        summed = _sum(*(found.get(name, "") for name in ours if name != "sum"))
        if total != summed and not (is_unsummed and not total):
            raise self._damaged(f"it does not say whose it is; {_REMEDY}")
        if is_unsummed:
            ours = {**ours, "format": _UNSUMMED}
            self._rows.short = False
        is_earlier = found.get("format") == _WHOLE_ROWS
        if is_earlier:
            found = {**found, "format": _FORMAT}
        for name, wanted in ours.items():
            if name != "sum" and found.get(name) != wanted:
                raise ConfigError(
                    f"spool {self._directory} is not this publisher's: its {name} is "
                    f"{found.get(name)!r}, not {wanted!r}; choose another spool_dir"
                )
        if is_earlier:
            self._journal.keep("spool", ours)

    def _read(self) -> tuple[Spooled, ...]:
        """Return what an earlier process left, by numbering, the one it was at last."""
        try:
            return self._read_rows()
        except StorageCorrupt as error:
            raise self._damaged(str(error)) from error

    def _read_rows(self) -> tuple[Spooled, ...]:
        numberings, sums = self._journal.kept("numbering"), self._journal.kept("numbering_sum")
        for name, incarnation in numberings.items():
            source, _, epoch = name.rpartition("/")
            try:
                self._rows.know(SourceId.parse(source), int(epoch), incarnation)
            except ValueError as error:
                raise StorageCorrupt(f"numbering {name[:80]!r}; {_REMEDY}") from error
            if not is_incarnation(incarnation):
                raise StorageCorrupt(f"incarnation {incarnation[:40]!r}; {_REMEDY}")
        for name, total in sums.items():
            if total != _sum(name, numberings.get(name, "")):
                raise StorageCorrupt(f"numbering {name[:80]!r} fails its check; {_REMEDY}")
        samples: dict[tuple[SourceId, int], dict[int, Sample]] = {}
        for entry in self._journal.replay():
            for sample in entry.batch:
                numbering = (sample.source, sample.epoch)
                name = self._rows.names.get(numbering, "")
                if not name:
                    raise StorageCorrupt(
                        f"a sample of {sample.source}, which was never begun; {_REMEDY}"
                    )
                # Of two rows for one number the first one's put raised: it was never sent.
                samples.setdefault(numbering, {})[sample.sn] = sample
                self._waiting.append((entry.entry_id, (name, sample.sn)))
        facts = self._journal.kept("spool")
        self._check_last(facts)
        self._current = last = facts.get("current", "")
        self._mark = facts.get("mark", "")
        ordered = sorted(self._rows.names, key=lambda at: f"{at[0]}/{at[1]}" == last)
        is_whole = self._mark in ("", self._journal.name)  # earlier versions wrote none
        return tuple(
            Spooled(
                *at,
                self._rows.names[at],
                tuple(samples.get(at, {}).values()),
                goes_on=is_whole and f"{at[0]}/{at[1]}" == last,
            )
            for at in ordered
            if at in samples or f"{at[0]}/{at[1]}" == last
        )

    def _check_last(self, facts: dict[str, str]) -> None:
        """Raise StorageCorrupt where the facts do not say, for certain, which numbering goes on."""
        last = [facts.get(name, "") for name in ("current", "mark")]
        total = facts.get("last_sum", "")
        begun = any(last) or self._waiting  # a name alone: the power went before its first sample
        if not total and (facts.get("format") == _UNSUMMED or not begun):
            return  # nothing began, or it cannot be known
        if total != _sum(*last):
            raise StorageCorrupt(f"it does not say which numbering is its last; {_REMEDY}")

    def begin(self, source: SourceId, epoch: int, incarnation: str) -> None:
        """Know a numbering durably, before its first sample. Idempotent."""
        name, mark = f"{source}/{epoch}", self._journal.name
        known = self._rows.names.get((source, epoch)) == incarnation
        if known and (self._current, self._mark) == (name, mark):
            return
        if not known:
            self._journal.keep("numbering", {name: incarnation})
            self._journal.keep("numbering_sum", {name: _sum(name, incarnation)})
        last = {"current": name, "mark": mark, "last_sum": _sum(name, mark)}
        self._journal.keep("spool", last)
        self._rows.know(source, epoch, incarnation)
        self._current, self._mark = name, mark

    def append(self, sample: Sample, incarnation: str) -> None:
        """Keep a sample durably.

        Raises StorageFull at `spool_bytes_max` or on a full disk, and other StorageErrors. Whether
        the sample is kept is unknown then; it is not to be sent.
        """
        batch = SampleBatch((sample,))
        try:
            entry_id = self._journal.commit(batch)
        except StorageFull:
            self._journal.flush()
            entry_id = self._commit_again(batch)
        self._waiting.append((entry_id, (incarnation, sample.sn)))

    def _commit_again(self, batch: SampleBatch) -> int:
        try:
            return self._journal.commit(batch)
        except StorageFull as error:
            waiting = len(self._waiting)
            if isinstance(error.__cause__, sqlite3.Error):
                raise StorageFull(
                    f"spool {self._directory}: the disk is full, {waiting} samples wait for "
                    "acknowledgements; make room"
                ) from error
            raise StorageFull(
                f"spool {self._directory}: no room for a sample, {waiting} wait for "
                f"acknowledgements (spool_bytes_max = {self._bytes_max}); is a cache in reach?"
            ) from error

    def settle(self, standings: Iterable[Standing]) -> None:
        """Let go of what caches hold; the newest row stays, for it says which number is next."""
        self._settled.update((standing.incarnation, standing.sn) for standing in standings)
        last = 0
        while len(self._waiting) > 1 and self._waiting[0][1] in self._settled:
            last, place = self._waiting.popleft()
            if self._waiting[0][1] != place:  # a put that raised may have left a row of its own
                self._settled.discard(place)
        if last:
            self._journal.trim(last)

    def close(self) -> None:
        """Write what was let go and close; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._journal.flush()
        except StorageFull:
            pass  # it is let go again after the next start
        finally:
            self._journal.close()
            self._lock.release()


def _sum(*facts: str) -> str:
    return f"{crc32(' '.join(facts).encode()):08x}"

"""What is stored per source and per stream, beside the journal: windows and alignment start here.

A SQLite file of its own, so that recording a drained batch never holds up a commit of the journal.
It is written after the backend and before the journal is trimmed. `rebuild` reads it anew from the
backend; what no backend gives back (who the cache is, what was purged, which epochs are one) has a
second copy in the journal's file (ADR 0090).
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any

import msgspec

from durable_cache.errors import Closed, StorageCorrupt
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream, StreamSummary
from durable_cache.model.selection import SnBounds
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.unnumbered import UNNUMBERED_EID, is_unnumbered
from durable_cache.protocol.cache.events import Alias, NumberingState
from durable_cache.protocol.cache.questions import Standing
from durable_cache.protocol.wire import Incarnation
from durable_cache.storage.contract import Floor, Retention, Storage
from durable_cache.storage.journaled import index_blocks as blocks
from durable_cache.storage.journaled.index_rows import (
    DROP_BLOCKS,
    GET_SOURCE,
    GET_STREAMS,
    HAS_ZID,
    LOSE_NAMES,
    RUN_NAMES,
    WITH_HOLES,
    NumberingKey,
    NumberingRuns,
    StreamInfo,
    agreement_fact,
    alias_fact,
    alias_of,
    drop_timestamps,
    escape,
    info_of,
    is_held,
    json_rows,
    json_text,
    name_run,
    no_runs,
    note_held,
    numberings_of,
    prepare,
    put_numberings,
    put_streams,
    put_timestamps,
    read_numberings,
    read_tails,
    set_meta,
    skip_removed,
    skipped_from,
    state_of,
    streams_of_source,
    unpack,
)
from durable_cache.storage.journaled.journal import sqlite_error
from durable_cache.storage.journaled.marks import marks_of, read_marks, write_marks
from durable_cache.storage.journaled.purge_times import note_purges
from durable_cache.storage.journaled.purges import Keeper
from durable_cache.storage.journaled.run_names import names_in

_NAMELESS = (("agreements", "loser"), ("aliases", "stored"), ("purge_times", "epoch"))
_REBUILD_STREAMS = 1_000
_PUT_ALIAS = "INSERT OR REPLACE INTO aliases VALUES (?, ?, ?, ?, ?)"
_PUT_AGREEMENT = "INSERT OR REPLACE INTO agreements VALUES (?, ?, ?, ?)"
_PUT_INCARNATION = "INSERT OR REPLACE INTO incarnations VALUES (?, ?, ?, ?)"
_DROP_INCARNATION = "DELETE FROM incarnations WHERE zid = ? AND eid = ? AND epoch = ?"
_fact = msgspec.json.Decoder(list[str | int])
_NOTHING: Mapping[Stream, StreamSummary] = MappingProxyType({})
_EVERY_NUMBER = SnBounds()


class StreamIndex:
    """The durable index; any thread, one writer process (the state directory's lock sees to it).

    `path` None keeps it in memory. Raises `StorageUnavailable` and `StorageFull` (retry),
    `StorageCorrupt` (move the file away: it is rebuilt).
    """

    def __init__(self, path: Path | None = None, *, streams_cached_max: int = 50_000) -> None:
        self._path = path
        self._lock = RLock()
        self._cached_max = streams_cached_max
        self._cache: OrderedDict[Stream, StreamInfo] = OrderedDict()
        self._db: sqlite3.Connection | None = None
        try:
            self._connect()
        except sqlite3.Error as error:
            self.close()
            raise sqlite_error(error, f"stream index {path}") from error
        except StorageCorrupt as error:
            self.close()
            raise StorageCorrupt(f"stream index {path}: {error}") from error
        self._keeper: Keeper | None = None
        self.streams = int(self.rows("SELECT count(*) FROM streams")[0][0])
        self.generation = self._once("generation")
        """Changes when the state directory is lost: what peers know of this cache is void then."""
        self.cache_id = self._once("cache_id")

    def _connect(self) -> None:
        self._db = database = sqlite3.connect(
            ":memory:" if self._path is None else self._path,
            timeout=10,
            isolation_level=None,
            check_same_thread=False,
        )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        prepare(database)

    def record(self, batch: SampleBatch, skips: Sequence[Skip] = (), drained: int = 0) -> None:
        """Take in what the backend now holds durably; `drained` is the last journal entry in it."""
        with self.transaction() as database:
            infos = self._infos(list(batch.summaries))
            marks = marks_of(batch, infos, self.rows)
            numberings = read_tails(self.rows, skipped_from(batch.summaries, skips))
            for stream, new in batch.summaries.items():
                info = infos[stream]
                if not is_unnumbered(stream.source):
                    blocks.add(database, info.owner, info.held, info.since, new.runs)
                infos[stream] = info._replace(
                    newest_ntp64=max(info.newest_ntp64, new.newest_ntp64),
                    newest_received_ns=max(info.newest_received_ns, new.newest_received_ns),
                )
            note_held(database, numberings, batch.summaries)
            for skip in skips:
                numberings[NumberingKey(skip.source, skip.epoch)].skipped.add(skip.first, skip.last)
            self._put_streams(database, infos)
            put_timestamps(database, {at: new.runs for at, new in batch.summaries.items()})
            put_numberings(database, numberings)
            if drained:
                set_meta(database, "drained", str(drained))
            if marks:  # else those before it still tell
                set_meta(database, "marks", write_marks(marks))

    def witnesses(self, edges: int) -> list[tuple[Stream, int]]:
        """Return streams with numbers that the backend must hold of them.

        Some that were new when they were recorded last (ADR 0330); the last of their streams, and
        of `edges` streams from each end of the keys.
        """
        marks = read_marks(self._get("marks"))
        recorded = self.infos([Stream(key, source, epoch) for key, source, epoch, _ in marks])
        numbers = zip(recorded.values(), marks, strict=True)
        found = {(info.stream, sn): None for info, (*_, sn) in numbers if sn in info.held}
        found.update({(i.stream, i.held.last): None for i in recorded.values() if i.held.last})
        ordered = "ORDER BY key {0}, zid {0}, eid {0}, epoch {0} LIMIT ?"
        for direction in ("ASC", "DESC"):
            rows = self.rows(
                f"SELECT * FROM whole_streams WHERE held <> '[]' {ordered.format(direction)}",  # noqa: S608
                (edges,),
            )
            for info in map(info_of, rows):
                found[info.stream, info.held.last or 0] = None
        return list(found)

    def journal(self) -> str | None:
        """Return the identity of the journal that `drained` counts the entries of."""
        return self._get("journal")

    def adopt(self, journal: str, drained: int, *, doubted: bool) -> None:
        """Count the entries of this journal from now on.

        `doubted`: what is known here may be older than the backend, until it is read anew.
        """
        with self.transaction() as database:
            set_meta(database, "journal", journal)
            set_meta(database, "drained", str(drained))
            if doubted:
                set_meta(database, "doubted", "1")

    @property
    def doubted(self) -> bool:
        """Whether this is to be read anew from the backend, even if a start was broken off."""
        return self._get("doubted") is not None

    def keep_copies(self, keeper: Keeper) -> None:
        """Keep a second copy of what no backend gives back, or take it from there when new."""
        kept = keeper.kept("cache")
        if self.journal() is None and kept:
            aliases, agreements = keeper.kept("alias"), keeper.kept("agreement")
            declared = keeper.kept("incarnation")
            with self.transaction() as database:
                set_meta(database, "cache_id", kept["cache_id"])
                for value in aliases.values():
                    database.execute(_PUT_ALIAS, _fact.decode(value))
                for value in agreements.values():
                    database.execute(_PUT_AGREEMENT, _fact.decode(value))
                for value in declared.values():
                    database.execute(_PUT_INCARNATION, _fact.decode(value))
            self.cache_id = kept["cache_id"]
        self._keeper = keeper
        keeper.keep("cache", {"cache_id": self.cache_id})
        keeper.keep("alias", dict(map(alias_fact, self.aliases())))
        keeper.keep("agreement", dict(map(agreement_fact, self.agreements())))
        rows = self.rows("SELECT zid, eid, epoch, incarnation FROM names")
        named = {json_text(row[:3]): json_text(row) for row in rows}
        keeper.keep("incarnation", named)
        # A power cut may take an index's last writes; a run without its name is taken for another.
        lost = [value for name, value in keeper.kept("incarnation").items() if name not in named]
        if lost:
            with self.transaction() as database:
                for value in lost:
                    database.execute(_PUT_INCARNATION, _fact.decode(value))

    def drained(self) -> int:
        """Return the journal entry up to which everything is in the backend and in here."""
        return int(self._get("drained") or 0)

    def load(self, source: SourceId) -> tuple[tuple[NumberingState, ...], tuple[Alias, ...]]:
        """Return what is stored of a source, for its windows."""
        rows = self.rows(GET_SOURCE, source)
        states = tuple(state_of(row) for *row, called in rows if not called)
        return states, tuple(Alias(source, *map(int, row[:3])) for row in rows if row[5])

    def aliases(self) -> list[Alias]:
        """Return every alias; earlier versions learned some, agreements stand for them now."""
        rows = self.rows("SELECT zid, eid, stored, from_sn, epoch FROM aliases")
        return [*map(alias_of, rows)]

    def declare(
        self, source: SourceId, epoch: int, incarnation: str, instead_of: int | None = None
    ) -> None:
        """Keep durably which run an epoch is, and instead of which other one; idempotent."""
        declared = (*source, epoch, incarnation)
        with self.transaction() as database:
            database.execute(_PUT_INCARNATION, declared)
            if instead_of is not None:
                database.execute(_PUT_AGREEMENT, (*source, instead_of, epoch))
                database.execute(_DROP_INCARNATION, (*source, instead_of))
        if self._keeper is not None:
            gone = [] if instead_of is None else [json_text((*source, instead_of))]
            self._keeper.keep("incarnation", {json_text(declared[:3]): json_text(declared)}, gone)
            if instead_of is not None:
                name, value = agreement_fact(Alias(source, instead_of, 0, epoch))
                self._keeper.keep("agreement", {name: value})

    def incarnations(self, sources: Iterable[SourceId]) -> list[Incarnation]:
        """Return what tokens declared of these sources."""
        return [
            Incarnation(source, int(epoch), str(incarnation))
            for source in sources
            for epoch, incarnation in self.rows(
                "SELECT epoch, incarnation FROM names WHERE zid = ? AND eid = ?", source
            )
        ]

    def agree(self, agreement: Alias) -> None:
        """Keep durably that an epoch is another cache's name for an incarnation; idempotent."""
        name, value = agreement_fact(agreement)
        with self.transaction() as database:
            database.execute(_PUT_AGREEMENT, _fact.decode(value))
        if self._keeper is not None:
            self._keeper.keep("agreement", {name: value})

    def disagree(self, agreement: Alias) -> None:
        """Forget an agreement that was wrong; what was moved by it stays where it is."""
        with self.transaction() as database:
            database.execute(
                "DELETE FROM agreements WHERE zid = ? AND eid = ? AND loser = ?",
                (*agreement.source, agreement.stored),
            )
        if self._keeper is not None:
            self._keeper.keep("agreement", {}, gone=[agreement_fact(agreement)[0]])

    def agreements(self) -> list[Alias]:
        """Return what was agreed on and not forgotten."""
        return [*map(alias_of, self.rows("SELECT zid, eid, loser, 0, winner FROM agreements"))]

    def infos_of_source(
        self, source: SourceId, streams_max: int, sns: SnBounds = _EVERY_NUMBER
    ) -> list[StreamInfo] | None:
        """Return every stream of a source with at least what it holds of some numbers.

        None when they are more than `streams_max`, or have too many runs of these numbers.
        """
        return streams_of_source(self.rows, source, streams_max, sns)

    def infos_of(self, source: SourceId, epoch: int) -> list[StreamInfo]:
        """Return the streams of one numbering."""
        statement = "SELECT * FROM whole_streams WHERE zid = ? AND eid = ? AND epoch = ?"
        return [*map(info_of, self.rows(statement, (*source, epoch)))]

    def forget(self, source: SourceId, epoch: int) -> None:
        """Forget all of a numbering, of which the backend has nothing any more; idempotent.

        An agreement about an epoch that nobody knew goes with it: it may mean another numbering.
        """
        with self.transaction() as database:
            numbering = (*source, epoch)
            where = "WHERE zid = ? AND eid = ? AND epoch = ?"
            database.execute(DROP_BLOCKS, numbering)
            gone = database.execute(f"DELETE FROM streams {where}", numbering).rowcount  # noqa: S608
            database.execute(f"DELETE FROM numberings {where}", numbering)  # noqa: S608
            if epoch == EPOCH_UNKNOWN:
                for table, column in _NAMELESS:
                    where = f"WHERE zid = ? AND eid = ? AND {column} = ?"
                    database.execute(f"DELETE FROM {table} {where}", numbering)  # noqa: S608
            self._cache.clear()
            self.streams -= gone
        if epoch == EPOCH_UNKNOWN and self._keeper is not None:
            lost = agreement_fact(Alias(source, epoch, 0, 0))[0]
            self._keeper.keep("agreement", {}, gone=[lost])

    def sources_with_holes(self, limit: int) -> list[SourceId]:
        """Return up to `limit` sources whose numbers are not one unbroken run of one epoch.

        Behind them those of which tokens named runs, and some numbers have no epoch: perhaps one's.
        """
        rows = self.rows(WITH_HOLES, (limit,))
        return [SourceId(str(zid), int(eid)) for zid, eid in rows]

    def has_zid(self, zid: str) -> bool:
        """Tell whether something of this Zenoh id is stored."""
        return bool(self.rows(HAS_ZID, (zid, zid)))

    def infos(self, streams: Sequence[Stream]) -> dict[Stream, StreamInfo]:
        """Return what is known of these streams; an empty record for one that is not known."""
        with self._lock:
            infos = self._infos(streams)
            parted = [at for at, info in infos.items() if info.since or is_unnumbered(at.source)]
            whole = self._select(parted, "whole_streams")
            return {
                stream: whole.get(stream) or info._replace(held=info.held.copy())
                for stream, info in infos.items()
            }

    def floors(self, streams: Iterable[Stream]) -> dict[Stream, int]:
        """Return below which number each stream had what it held removed; 0 where nothing was."""
        with self._lock:
            infos = self._infos([*dict.fromkeys(streams)])
        return {stream: max(info.floor, info.purged) for stream, info in infos.items()}

    def standings(self, samples: Sequence[Sample]) -> tuple[Standing, ...]:
        """Return how each sample stands: without copying what is held of its stream."""
        with self._lock:
            infos = self._infos([*{sample.stream: None for sample in samples}])
            return tuple(self._standing(infos[sample.stream], sample.sn) for sample in samples)

    def _standing(self, info: StreamInfo, sn: int) -> Standing:
        if sn < max(info.floor, info.purged):
            return Standing.REMOVED
        return Standing.HELD if is_held(self.rows, info, sn) else Standing.NEW

    def wildcard_infos(self) -> list[StreamInfo]:
        """Return the streams of wildcard updates, each under its key expression; a scan."""
        return [
            info_of(row) for row in self.rows("SELECT * FROM whole_streams WHERE instr(key, '*')")
        ]

    def all_infos(self, page: int = 1000) -> Iterator[StreamInfo]:
        """Yield every stream, in order of key, zid, eid and epoch as SQLite sorts them."""
        after: tuple[Any, ...] = ("", "", -1, -1)
        while True:
            rows = self.rows(
                "SELECT * FROM whole_streams WHERE (key, zid, eid, epoch) > (?, ?, ?, ?) "
                "ORDER BY key, zid, eid, epoch LIMIT ?",
                (*after, page),
            )
            if not rows:
                return
            yield from map(info_of, rows)
            after = rows[-1][:4]

    def trimmed(
        self,
        floors: Sequence[Floor],
        *,
        purged: bool = False,
        unrecorded: Mapping[Stream, StreamSummary] = _NOTHING,
    ) -> None:
        """Take in that what is below was removed: by an operator where `purged`, else by retention.

        `unrecorded`: what was there of it, and was never in here.
        """
        with self.transaction() as database:
            numberings = read_numberings(self.rows, numberings_of(unrecorded))
            put_numberings(database, note_held(database, numberings, unrecorded))
            infos = self._infos([floor.stream for floor in floors])
            for stream, sn in floors:
                info = infos[stream]
                blocks.remove(database, info.owner, info.held, info.since, 0, sn - 1)
                drop_timestamps(database, stream, 0, sn - 1)
                infos[stream] = info._replace(
                    floor=max(info.floor, sn), purged=max(info.purged, sn if purged else 0)
                )
            note_purges(database, infos.values() if purged else (), unrecorded)
            self._put_streams(database, infos)

    def purges(self) -> list[Floor]:
        """Return the floors of what was purged; a scan."""
        rows = self.rows("SELECT * FROM streams WHERE purged > 0")
        return [Floor(info.stream, info.purged) for info in map(info_of, rows)]

    def disclaim(self, batch: SampleBatch) -> None:
        """Forget that these are held: the backend turned out not to have them."""
        with self.transaction() as database:
            infos = self._infos(list(batch.summaries))
            numberings = read_numberings(self.rows, numberings_of(batch.summaries))
            for stream, gone in batch.summaries.items():
                runs = numberings.get(NumberingKey(stream.source, stream.epoch))
                info = infos[stream]
                for first, last in gone.runs:
                    blocks.remove(database, info.owner, info.held, info.since, first, last)
                    drop_timestamps(database, stream, first, last)
                    if runs is not None:
                        runs.held.remove(first, last)
            self._put_streams(database, infos)
            put_numberings(database, numberings)

    def keep_by(self, retention: Retention, *, release: bool = True) -> int:
        """Remember what is trimmed by; where it keeps more than what was before, forget the floors.

        What the narrower retention removed may then come back from other caches, purges stay.
        Returns how many streams that concerns. With windows loaded, call it without `release`.
        """
        now = msgspec.json.encode(retention).decode()
        before = self._get("retention")
        if before == now:
            return 0
        with self.transaction() as database:
            old = None if before is None else msgspec.json.decode(before, type=Retention)
            widened = old is not None and retention.keeps_more_than(old)
            if widened and not release:
                return 0  # until the next start
            released = self._release(database) if widened else 0
            set_meta(database, "retention", now)
        return released

    def _release(self, database: sqlite3.Connection) -> int:
        """Forget floors of trimming; numbers only they removed count as skipped, not as held."""
        self._cache.clear()
        rows = database.execute(
            "SELECT * FROM whole_streams WHERE eid <> ? ORDER BY zid, eid, epoch", (UNNUMBERED_EID,)
        )
        numberings: dict[NumberingKey, NumberingRuns] = {}
        for (zid, eid, epoch), group in groupby(rows, key=lambda row: row[1:4]):
            infos = [*map(info_of, group)]
            if not any(info.floor > info.purged for info in infos):
                continue
            numbering = NumberingKey(SourceId(zid, eid), epoch)
            numberings |= read_numberings(self.rows, [numbering])
            skip_removed(numberings[numbering], infos)
        put_numberings(database, numberings)
        return database.execute("UPDATE streams SET floor = purged WHERE floor > purged").rowcount

    def rebuild(self, storage: Storage) -> None:
        """Read what is held from the backend in place of what was; what was removed stays removed.

        Floors, purges, the numbers that only they removed, aliases and agreements are kept: what is
        claimed afterwards can be read or was removed on purpose. A backend knows the names of runs
        as far as its samples say them.
        """
        with self.transaction() as database:
            numberings = self._removed(database)
            self._cache.clear()
            database.execute("DELETE FROM streams WHERE floor = 0 AND purged = 0")
            database.execute("UPDATE streams SET held = '[]', since = 0")
            for table in ("numberings", "blocks"):
                database.execute(f"DELETE FROM {table}")  # noqa: S608
            database.execute("DELETE FROM timestamps")
            database.execute("DELETE FROM meta WHERE name IN ('marks', 'doubted')")
            every = storage.held()
            while page := [*islice(every, _REBUILD_STREAMS)]:
                known = self._infos([held.stream for held in page])
                infos: dict[Stream, StreamInfo] = {}
                for stream, held, *newest in (
                    (one.stream, one.runs, one.newest_ntp64, one.newest_received_ns) for one in page
                ):
                    floor, purged = known[stream].floor, known[stream].purged
                    held.remove(0, purged - 1)
                    infos[stream] = StreamInfo(stream, held, floor, purged, *newest)
                    if is_unnumbered(stream.source):
                        continue
                    numbering = NumberingKey(stream.source, stream.epoch)
                    runs = numberings.setdefault(numbering, no_runs())
                    runs.held.update(held)
                    runs.newest = max(runs.newest, newest[0])
                self._put_streams(database, infos)
                put_timestamps(database, {at: info.held for at, info in infos.items()})
            for skip in storage.skips():
                runs = numberings.setdefault(NumberingKey(skip.source, skip.epoch), no_runs())
                runs.skipped.add(skip.first, skip.last)
            put_numberings(database, numberings)
            database.execute(LOSE_NAMES)
            called = (Incarnation(SourceId(*at[:2]), *at[2:]) for at in database.execute(RUN_NAMES))
            for run in names_in(storage, [*called]):
                name_run(database, run)
            self.generation = secrets.token_hex(8)
            set_meta(database, "generation", self.generation)
            self.streams = int(database.execute("SELECT count(*) FROM streams").fetchone()[0])

    def _removed(self, database: sqlite3.Connection) -> dict[NumberingKey, NumberingRuns]:
        """Return numbers that were held and that no stream holds, for they were removed.

        The newest time of their run tells the next one from it.
        """
        rows = database.execute("SELECT zid, eid, epoch, held FROM whole_streams ORDER BY 1, 2, 3")
        removed: dict[NumberingKey, NumberingRuns] = {}
        for (zid, eid, epoch), group in groupby(rows, key=lambda row: row[:3]):
            numbering = NumberingKey(SourceId(zid, eid), epoch)
            known = read_numberings(self.rows, [numbering])[numbering]
            for *_, held in group:
                known.held = known.held.difference(unpack(held))
            if known.held:
                removed[numbering] = NumberingRuns(known.held, RangeSet(), known.newest)
        return removed

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            database, self._db = self._db, None
            if database is not None:
                database.close()

    def _infos(self, streams: Sequence[Stream]) -> dict[Stream, StreamInfo]:
        """Return what is known of streams, with the tails alone of what they hold."""
        found = {stream: self._cache[stream] for stream in streams if stream in self._cache}
        missing = [stream for stream in streams if stream not in found]
        stored = self._select(missing)
        for stream in missing:
            found[stream] = stored.get(stream) or StreamInfo(stream, RangeSet())
        return found

    def _select(
        self, streams: Sequence[Stream], table: str = "streams"
    ) -> dict[Stream, StreamInfo]:
        if not streams:
            return {}
        wanted = [(escape(stream.key), *stream.source, stream.epoch) for stream in streams]
        rows = self.rows(GET_STREAMS.format(table), (json_rows(wanted),))
        return {info.stream: info for info in map(info_of, rows)}

    def _put_streams(self, database: sqlite3.Connection, infos: dict[Stream, StreamInfo]) -> None:
        new = [stream for stream in infos if stream not in self._cache]
        self.streams += len(new) - len(self._select(new))
        for info in put_streams(database, infos.values()):
            self._cache[info.stream] = info
            self._cache.move_to_end(info.stream)
        while len(self._cache) > self._cached_max:
            self._cache.popitem(last=False)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Change the file at once, or not at all; raises StorageError."""
        with self._lock:
            database = self._open()
            try:
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            except BaseException as error:
                self._cache.clear()
                if database.in_transaction:
                    database.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise sqlite_error(error, f"stream index {self._path}") from error
                raise

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return what a reading statement finds."""
        with self._lock:
            try:
                return self._open().execute(statement, tuple(values)).fetchall()
            except sqlite3.Error as error:
                raise sqlite_error(error, f"stream index {self._path}") from error

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            raise Closed(f"stream index {self._path} is closed")
        return self._db

    def _get(self, name: str) -> str | None:
        rows = self.rows("SELECT value FROM meta WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def _once(self, name: str) -> str:
        value = self._get(name)
        if value is None:
            value = secrets.token_hex(8)
            with self.transaction() as database:
                set_meta(database, name, value)
        return value

"""What a service answers in Zenoh's admin space, under ``@/<zid>/durable_cache/``.

``status``, ``config`` (secrets masked), and per storage ``streams``, ``losses``, ``skips``,
``alignment``, ``purge`` and, page by page, ``keys``, ``sources`` and ``samples``; ``changes`` tells
what became of changes of storages. Purging needs Zenoh's own ``adminspace.permissions.write`` in
the configuration.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from urllib.parse import unquote

import msgspec

from durable_cache.endpoints.alignment import Differences
from durable_cache.endpoints.cache import ReliabilityCache
from durable_cache.endpoints.questions import Questions
from durable_cache.endpoints.session import (
    Query,
    Session,
    hear_queries,
    query_parts,
    undeclare,
    zid_of,
)
from durable_cache.endpoints.workers import Pool
from durable_cache.errors import ConfigError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import SourceId
from durable_cache.model.selection import parse_source
from durable_cache.model.timestamp import format_ntp64
from durable_cache.protocol.losses import encode_rows
from durable_cache.service.changing import NOT_ALLOWED
from durable_cache.service.looking import Looking
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.index_rows import StreamInfo

ROWS_DEFAULT = 1000
ROWS_MAX = 100_000
_QUERIES_WAITING_MAX = 64
_DRAIN_SECONDS_MAX = 2.0
"""Under load the journal never runs empty; what is missing then is a moment old."""
Values = object


def may_write(zenoh: Mapping[str, object]) -> bool:
    """Tell whether Zenoh's own configuration lets the admin space change things."""
    space = zenoh.get("adminspace")
    permissions = space.get("permissions") if isinstance(space, Mapping) else None
    return isinstance(permissions, Mapping) and permissions.get("write") is True


def prefix_of(session: Session) -> str:
    """Return below which key a session's service is found."""
    return f"@/{zid_of(session)}/durable_cache"


class AdminSpace:
    """Answers one service's admin queries, one after the other, until closed."""

    def __init__(
        self,
        session: Session,
        caches: Callable[[], Mapping[str, ReliabilityCache]],
        pages: Mapping[str, Callable[[Mapping[str, str]], Values]],
        pool: Pool,
        *,
        looking: Looking,
        writable: bool,
    ) -> None:
        self._caches = caches
        self._plain = pages
        self._looking = looking
        self._writable = writable
        self._prefix = prefix_of(session)
        self._lane = pool.lane("admin", running_max=1, waiting_max=_QUERIES_WAITING_MAX)
        self._questions = Questions(self._lane, "admin space", self._answer)
        self._queryable = hear_queries(session, f"{self._prefix}/**", self._questions.take)

    def close(self) -> None:
        """Stop answering; idempotent."""
        undeclare(self._queryable)
        self._lane.close(5)
        self._questions.refuse_all("the service is closing")

    def _answer(self, query: Query) -> None:
        parts = query_parts(query)
        asked = KeyExpression(parts.key_expr)
        parameters = dict(parts.parameters)
        for path, make in self._pages():
            key = f"{self._prefix}/{path}"
            named = asked.chunks[-1] == path.rpartition("/")[2]
            if not asked.matches(key) or (make.costly and not named):
                continue  # what changes or lists much is answered only to who names it
            text = json.dumps(make.values(parameters), default=str)
            query.reply(key, text, encoding="application/json")

    def _pages(self) -> Iterator[tuple[str, _Page]]:
        for path, make in self._plain.items():
            yield path, _Page(make)
        for name, cache in self._caches().items():
            yield f"storages/{name}/streams", _Page(partial(_streams, cache), True)
            yield f"storages/{name}/losses", _Page(partial(loss_table, cache), True)
            yield f"storages/{name}/skips", _Page(partial(skip_rows, cache), True)
            yield f"storages/{name}/alignment", _Page(partial(alignment_rows, cache), True)
            yield f"storages/{name}/purge", _Page(partial(self._purge, cache), True)
            looking = self._looking
            for path, look in (
                ("keys", looking.keys),
                ("sources", looking.sources),
                ("samples", looking.samples),
            ):
                yield f"storages/{name}/{path}", _Page(partial(_looked, look, cache), True)

    def _purge(self, cache: ReliabilityCache, parameters: Mapping[str, str]) -> Values:
        if not self._writable:
            raise ConfigError(f"purging {NOT_ALLOWED}")
        cache.wait_drained(_DRAIN_SECONDS_MAX)  # the index knows what the backend has
        below = parameters.get("below")
        floors = []
        samples = 0
        for info in _chosen(cache, parameters):
            last = max(last for _, last in info.held)
            floor = last + 1 if below is None else min(_whole(below, "below"), last + 1)
            lost = sum(min(end, floor - 1) - first + 1 for first, end in info.held if first < floor)
            if lost:
                floors.append(Floor(info.stream, floor))
                samples += lost
        if parameters.get("yes") != "1":
            return {"streams": len(floors), "samples": samples, "removed": 0}
        return {"streams": len(floors), "samples": samples, "removed": cache.purge(floors)}


class _Page:
    """How the values of one admin key are made."""

    __slots__ = ("costly", "values")

    def __init__(self, values: Callable[[Mapping[str, str]], Values], costly: bool = False) -> None:
        self.values = values
        self.costly = costly


def _looked(
    look: Callable[[ReliabilityCache, Mapping[str, str]], Values],
    cache: ReliabilityCache,
    parameters: Mapping[str, str],
) -> Values:
    """Look with parameters that are percent-encoded, for a key may hold ``;`` and ``=``."""
    return look(cache, {name: unquote(text) for name, text in parameters.items()})


def _chosen(cache: ReliabilityCache, parameters: Mapping[str, str]) -> Iterator[StreamInfo]:
    """Yield the streams that a key expression and a source name."""
    key_expr = KeyExpression(parameters.get("key_expr", "**"))
    zid, eid = parse_source(parameters.get("source", "*"))
    for info in cache.store.index.all_infos():
        source = info.stream.source
        fits = (zid is None or source.zid == zid) and (eid is None or source.eid == eid)
        if fits and info.held and key_expr.matches(info.stream.key):
            yield info


def _limit(parameters: Mapping[str, str]) -> int:
    return min(_whole(parameters.get("limit", str(ROWS_DEFAULT)), "limit"), ROWS_MAX)


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ValueError(f"{name}={text[:40]!r}: write a whole number")
    return int(text)


def _streams(cache: ReliabilityCache, parameters: Mapping[str, str]) -> Values:
    cache.wait_drained(_DRAIN_SECONDS_MAX)
    chosen = itertools.islice(_chosen(cache, parameters), _limit(parameters))
    return [
        {
            "storage": cache.options.name,
            "key": info.stream.key,
            "source": str(info.stream.source),
            "epoch": info.stream.epoch,
            "samples": sum(last - first + 1 for first, last in info.held),
            "runs": _runs(info),
            "floor": max(info.floor, info.purged),
            "newest": format_ntp64(info.newest_ntp64) if info.newest_ntp64 else "",
        }
        for info in chosen
    ]


def _runs(info: StreamInfo, shown: int = 8) -> str:
    runs = [str(first) if first == last else f"{first}..{last}" for first, last in info.held]
    more = f",… {len(runs) - shown} more" if len(runs) > shown else ""
    return ",".join(runs[:shown]) + more


def alignment_rows(cache: ReliabilityCache, _: Mapping[str, str]) -> Values:
    """Return how a cache stands with each other one."""
    aligning = cache.aligning
    if aligning is None:
        return []
    counts, lags = aligning.counts, aligning.counts.lags()
    return [
        {
            "storage": cache.options.name,
            "peer": peer.cache_id,
            "live": peer.live,
            "equal": peer.equal,
            "complete": peer.complete,
            "streams": peer.streams,
            "streams_there": peer.streams_there,
            "samples": peer.samples,
            "samples_there": peer.samples_there,
            "different": found.streams,
            "missing": found.missing,
            "lag_seconds": round(lags.get(peer.cache_id, 0.0), 1),
            "quiet": peer.known_differences,
            "pulls": cache.options.aligner.pull,
            "pulled": counts.pulled_from.get(peer.cache_id, 0),
            "conflicts": aligning.conflicts,
            "refused": peer.refused or counts.refusals.get(peer.cache_id, ""),
        }
        for peer in aligning.status()
        for found in [Differences() if peer.equal else counts.difference(peer.cache_id)]
    ]


def skip_rows(cache: ReliabilityCache, parameters: Mapping[str, str]) -> Values:
    """Return what was given up; the parameter ``limit`` says how many rows."""
    known: Iterator[tuple[SourceId, int, int, int]] = itertools.chain(
        cache.store.backend.skips(), cache.store.backlog.skips()
    )
    rows = (
        {
            "storage": cache.options.name,
            "source": str(source),
            "epoch": epoch,
            "first": first,
            "last": last,
            "samples": last - first + 1,
        }
        for source, epoch, first, last in known
    )
    return list(itertools.islice(rows, _limit(parameters)))


def loss_table(cache: ReliabilityCache, _: Mapping[str, str]) -> Values:
    """Return what a storage's cache lost of each source, as a subscriber answers it."""
    key_expr = ",".join(map(str, cache.key_exprs))
    return msgspec.json.decode(encode_rows(cache.options.name, key_expr, cache.losses))

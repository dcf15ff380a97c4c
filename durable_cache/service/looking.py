"""What people see of a storage's inside: its keys, its sources and single samples, page by page.

The same values for the admin space, the status page and ``durable-cache top``. Each answer is
bounded: in rows by its parameter ``limit``, in characters, and in the time it reads values.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from durable_cache.endpoints.cache import ReliabilityCache
from durable_cache.errors import DurableCacheError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.selection import Selection, TimeBounds, parse_source
from durable_cache.model.timestamp import format_ntp64
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.service.payloads import payload_text
from durable_cache.service.rates import Rates
from durable_cache.storage.journaled.index_pages import (
    COUNTED_MAX,
    NumberingLook,
    StreamLook,
    counted_above,
    keys_page,
    numberings_of_key,
    numberings_page,
    streams_of,
)

LIMIT_DEFAULT = 50
LIMIT_MAX = 1_000
CHARS_DEFAULT = 120
CHARS_MAX = 65_536
_ANSWER_CHARS_MAX = 800_000
_STREAMS_OF_KEY_MAX = 64
_RUNS_SHOWN_MAX = 8
_VALUES_SECONDS_MAX = 0.3
_VALUES_KEPT_MAX = 5_000
_VALUE_SECONDS_MAX = 15.0

Parameters = Mapping[str, str]
Row = dict[str, object]


class _Value(NamedTuple):
    newest_ntp64: int
    read_seconds: float
    row: Row

    def is_fresh(self, newest_ntp64: int, now_seconds: float) -> bool:
        """Tell whether it need not be read again; wildcard updates and purges show with time."""
        is_young = now_seconds - self.read_seconds < _VALUE_SECONDS_MAX
        return self.newest_ntp64 == newest_ntp64 and is_young


class Looking:
    """Answers for the storages of one service; any thread.

    Every method raises ValueError for a parameter that cannot be read, and StorageError.
    """

    def __init__(self) -> None:
        self._rates = Rates()
        self._values: OrderedDict[tuple[str, str], _Value] = OrderedDict()
        self._lock = Lock()

    def keys(self, cache: ReliabilityCache, parameters: Parameters) -> Row:
        """Return a page of keys with their rates and last values.

        Parameters: ``key_expr``, ``source``, ``after`` (the ``next`` of the page before),
        ``limit``, ``values`` (0: do not read any). A value that could not be read in time is left
        out, and there at a later look.
        """
        key_expr = KeyExpression(parameters.get("key_expr") or "**")
        source = SourceId.parse(named) if (named := parameters.get("source")) else None
        found, after = keys_page(
            cache.store.index, key_expr, source, parameters.get("after", ""), _limit(parameters)
        )
        now = time.monotonic()
        rows = [row for key in found if (row := self._key(cache, key, now))["samples"]]
        if parameters.get("values") != "0":
            self._read_values(cache, rows)
        for row in rows:
            del row["newest_ntp64"]
        return _page(cache, rows, after)

    def _key(self, cache: ReliabilityCache, key: str, now: float) -> Row:
        looks = streams_of(cache.store.index, key, _STREAMS_OF_KEY_MAX)
        rates = [self._rate_of(cache, look, now) for look in looks]
        known = [rate for rate in rates if rate is not None]
        newest = max((look.newest_ntp64 for look in looks), default=0)
        return {
            "key": key,
            "samples": sum(look.samples for look in looks),
            "at_least": len(looks) == _STREAMS_OF_KEY_MAX or any(map(_is_cut, looks)),
            "streams": len(looks),
            "per_second": round(sum(known), 2) if known else None,
            "newest": format_ntp64(newest) if newest else "",
            "newest_ntp64": newest,
        }

    def _rate_of(self, cache: ReliabilityCache, look: StreamLook, now: float) -> float | None:
        def above(sn: int) -> int:
            if is_unnumbered(look.stream.source):
                return counted_above(cache.store.index, look.stream, sn)
            return look.held.clip(sn + 1, look.last).count

        return self._rates.per_second((cache.options.name, look.stream), look.last, above, now)

    def _read_values(self, cache: ReliabilityCache, rows: Sequence[Row]) -> None:
        deadline = time.monotonic() + _VALUES_SECONDS_MAX
        failed = ""
        for row in rows:
            key, newest = str(row["key"]), int(str(row["newest_ntp64"]))
            name = (cache.options.name, key)
            with self._lock:
                known = self._values.get(name)
            if known is not None and known.is_fresh(newest, time.monotonic()):
                row.update(known.row)
            elif failed:
                row["error"] = failed
            elif "*" not in key and time.monotonic() < deadline:
                try:
                    row.update(self._read_value(cache, key, newest))
                except DurableCacheError as error:
                    failed = row["error"] = str(error)[:200]

    def _read_value(self, cache: ReliabilityCache, key: str, newest_ntp64: int) -> Row:
        samples = cache.values(Selection(KeyExpression(key), newest=1), 1).samples.samples
        row = _value(samples[-1], CHARS_DEFAULT) if samples else {}
        with self._lock:
            self._values[cache.options.name, key] = _Value(newest_ntp64, time.monotonic(), row)
            self._values.move_to_end((cache.options.name, key))
            while len(self._values) > _VALUES_KEPT_MAX:
                self._values.popitem(last=False)
        return row

    def sources(self, cache: ReliabilityCache, parameters: Parameters) -> Row:
        """Return a page of sources with their rates, what they miss and what was given up.

        Parameters: ``source`` (``<zid>`` or ``<zid>:<eid>``), ``after``, ``limit``; with ``key``,
        the sources of this key, at most 64, those of samples without a number too. The numbers are
        those of all keys of a source; what the journal alone holds counts as missing until the
        backend has it.
        """
        limit, now = _limit(parameters), time.monotonic()
        index = cache.store.index
        if key := parameters.get("key"):
            looks = streams_of(index, key, _STREAMS_OF_KEY_MAX)
            plain = [look for look in looks if is_unnumbered(look.stream.source)]
            found = numberings_of_key(index, looks)
            rows = [self._source(cache, look, now) for look in found]
            rows += [self._unnumbered(cache, look, now) for look in plain]
            return _page(cache, rows, None)
        zid, eid = parse_source(parameters.get("source") or "*")
        found = numberings_page(index, zid, eid, _place(parameters.get("after", "")), limit)
        last = found[-1] if len(found) == limit else None
        after = None if last is None else f"{last.source}:{last.epoch}"
        return _page(cache, [self._source(cache, look, now) for look in found], after)

    def _source(self, cache: ReliabilityCache, look: NumberingLook, now: float) -> Row:
        missing, last = look.missing, look.held.last or 0
        rate = self._rates.per_second(
            (cache.options.name, look.source, look.epoch),
            last,
            lambda sn: look.held.clip(sn + 1, last).count,
            now,
        )
        return {
            "source": str(look.source),
            "epoch": look.epoch,
            "samples": look.held.count,
            "at_least": False,
            "last": last,
            "missing": missing.count,
            "missing_runs": _runs(missing),
            "given_up": look.skipped.count,
            "given_up_runs": _runs(look.skipped),
            "per_second": rate,
            "newest": format_ntp64(look.newest_ntp64) if look.newest_ntp64 else "",
        }

    def _unnumbered(self, cache: ReliabilityCache, look: StreamLook, now: float) -> Row:
        return {
            "source": str(look.stream.source),
            "epoch": 0,
            "samples": look.samples,
            "at_least": _is_cut(look),
            "last": None,
            "missing": 0,
            "missing_runs": "",
            "given_up": 0,
            "given_up_runs": "",
            "per_second": self._rate_of(cache, look, now),
            "newest": format_ntp64(look.newest_ntp64) if look.newest_ntp64 else "",
        }

    def samples(self, cache: ReliabilityCache, parameters: Parameters) -> Row:
        """Return a page of the samples of one key, the newest first, payloads decoded.

        Of more than ``limit`` samples of one key and one moment the others are left out.
        Parameters: ``key``, ``source``, ``after`` (go on further back), ``at`` (only this
        ``ntp64``), ``limit``, ``chars`` (of a payload, at most 65,536).
        """
        key_expr = KeyExpression(parameters.get("key") or "")
        if not key_expr.is_key:
            raise ValueError(f"key={str(key_expr)[:80]!r}: name one key, without wildcards")
        limit = _limit(parameters)
        chars = min(_whole(parameters, "chars", CHARS_DEFAULT), CHARS_MAX)
        zid, eid = parse_source(parameters.get("source") or "*")
        after = parameters.get("after", "")
        times = TimeBounds(0, _whole(parameters, "after", 0) - 1) if after else TimeBounds()
        if parameters.get("at"):
            times = TimeBounds(at := _whole(parameters, "at", 0), at)
        chosen = Selection(key_expr, zid, eid, times=times, newest=limit + 1)
        found = sorted(
            cache.read(chosen, limit + 1).samples,
            key=lambda sample: sample.time_order,
            reverse=True,
        )
        rows: list[Row] = []
        taken = 0
        for sample in _whole_moments(found, limit):
            rows.append({"key": sample.key, **_named(sample), **_value(sample, chars)})
            taken += len(str(rows[-1]["value"])) + 200
            if taken > _ANSWER_CHARS_MAX:
                break
        is_last = len(found) <= limit and len(rows) == len(found)
        return _page(cache, rows, None if is_last else str(found[len(rows) - 1].ntp64))


def _whole_moments(found: Sequence[Sample], limit: int) -> Sequence[Sample]:
    """Leave those of the oldest moment to the next page where there may be more of them."""
    if len(found) <= limit:
        return found
    oldest = found[-1].ntp64
    return [sample for sample in found if sample.ntp64 > oldest] or found


def _named(sample: Sample) -> Row:
    plain = is_unnumbered(sample.source)
    return {
        "source": str(sample.source),
        "epoch": None if plain else sample.epoch,
        "sn": None if plain else sample.sn,
        "ntp64": str(sample.ntp64),
    }


def _value(sample: Sample, chars_max: int) -> Row:
    form, text = payload_text(sample.payload, sample.encoding, chars_max)
    attachment = sample.attachment
    return {
        "time": format_ntp64(sample.ntp64) if sample.ntp64 else "",
        "kind": sample.kind.name.lower(),
        "encoding": sample.encoding[:120],
        "bytes": len(sample.payload),
        "form": "" if sample.kind is Kind.DELETE else form,
        "value": text,
        "attachment": "" if attachment is None else payload_text(attachment, "", chars_max)[1],
    }


def _is_cut(look: StreamLook) -> bool:
    return is_unnumbered(look.stream.source) and look.samples >= COUNTED_MAX


def _runs(runs: RangeSet) -> str:
    shown = [
        str(first) if first == last else f"{first}..{last}"
        for (first, last), _ in zip(runs, range(_RUNS_SHOWN_MAX), strict=False)
    ]
    left = len(runs) - len(shown)
    return ", ".join(shown) + (f", … {left} more" if left > 0 else "")


def _page(cache: ReliabilityCache, rows: Sequence[Row], after: str | None) -> Row:
    return {"storage": cache.options.name, "rows": list(rows), "next": after}


def _place(after: str) -> tuple[str, int, int]:
    if not after:
        return "", -1, -1
    source, _, epoch = after.rpartition(":")
    try:
        return (*SourceId.parse(source), int(epoch[:20]))
    except ValueError as error:
        raise ValueError(f"after={after[:80]!r}: use the `next` of the page before") from error


def _limit(parameters: Parameters) -> int:
    return max(1, min(_whole(parameters, "limit", LIMIT_DEFAULT), LIMIT_MAX))


def _whole(parameters: Parameters, name: str, default: int) -> int:
    text = parameters.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ValueError(f"{name}={text[:40]!r}: write a whole number")
    return int(text)

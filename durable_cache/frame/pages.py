"""Which samples make the pages of a frame: a storage's, or those of the caches in reach."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from durable_cache.endpoints.asking import Asking
from durable_cache.errors import StorageUnavailable
from durable_cache.model.newest import is_update, latest_values
from durable_cache.model.sample import Kind, Sample
from durable_cache.model.selection import NO_TIME, Cursor, Selection, TimeBounds
from durable_cache.model.timestamp import NTP64_MAX, format_ntp64
from durable_cache.service.client import NOBODY_ANSWERED, Pages, are_caches_in_reach, history_pages
from durable_cache.storage.contract import Page, Storage
from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.merged import MergedReading
from durable_cache.storage.journaled.storage import JournalOptions
from durable_cache.storage.shared.wildcards import WildcardUpdates, read_values
from durable_cache.storage.sized_pages import Reading, sized_pages

_log = logging.getLogger(__name__)


def storage_pages(
    storage: Storage, selection: Selection, *, latest: bool
) -> Iterator[list[Sample]]:
    """Yield what a storage holds of a selection, page by page; raises what it raises.

    With `latest`, the newest value of each key, wildcard updates applied, deleted keys left out.
    """
    if not latest:
        yield from sized_pages(storage.read, selection)
        return
    for samples in sized_pages(_values(storage, selection), replace(selection, newest=1)):
        yield [sample for sample in samples if sample.kind is Kind.PUT]


def _values(storage: Storage, selection: Selection) -> Reading:
    """Return how the values of keys are read, by the one rule for the newest (ADR 0095)."""
    bounds = JournalOptions()
    updates = WildcardUpdates(bounds.wildcard_updates_max, bounds.wildcard_bytes_max)
    updates.expect(
        (held.stream, held.runs) for held in storage.held() if is_update(held.stream.key)
    )
    stored = MergedReading(storage, Backlog(0), lambda _: ())
    concerning = updates.concerning(selection, stored.updates_of)
    if updates.unapplied:
        _log.warning("wildcard updates are not applied", extra={"updates": updates.unapplied})

    def read(selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        return read_values(storage.read, concerning, selection, limit, cursor)

    return read


def cache_pages(asking: Asking, selection: Selection, *, latest: bool) -> Iterator[list[Sample]]:
    """Yield what all caches in reach hold together, each sample once, page by page.

    With `latest` as `storage_pages`, but in one page. Raises StorageUnavailable (retry) where no
    cache is in reach or one could not answer.
    """
    found = _checked(asking, selection, "_max=1" if latest else "")
    if not latest:
        for page in found:
            # A cache also tells of updates that change these keys under expressions of their own.
            yield [s for s in page if not is_update(s.key) or selection.key_expr.matches(s.key)]
        return
    values = latest_values(sample for page in found for sample in page)
    yield [sample for sample in values if sample.kind is Kind.PUT]


def _checked(asking: Asking, selection: Selection, parameters: str) -> Iterator[Sequence[Sample]]:
    trouble = Pages()
    if selection.times == NO_TIME:
        return  # it cannot be written as a parameter
    prefix = "*" if selection.zid is None else selection.zid
    if selection.eid is not None:
        prefix = f"{prefix}:{selection.eid}"
    asked = ";".join(filter(None, (_time_parameter(selection.times), parameters)))
    for page in history_pages(asking, str(selection.key_expr), prefix, asked, trouble):
        if trouble.errors:
            raise StorageUnavailable("; ".join(sorted(set(trouble.errors))))
        yield page
    if not trouble.answers and not are_caches_in_reach(asking):
        raise StorageUnavailable(NOBODY_ANSWERED)


def _time_parameter(times: TimeBounds) -> str:
    """Write bounds as ``_time``; both are whole nanoseconds and both included."""
    if times == TimeBounds():
        return ""
    first = format_ntp64(times.first) if times.first else ""
    last = format_ntp64(times.last) if times.last < NTP64_MAX else ""
    return f"_time=[{first}..{last}]"

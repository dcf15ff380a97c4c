"""Does every reader name the same newest sample of a key?

`NEWEST_CASES` is the rule of `durable_cache.model.newest` as a table. Every backend is held against
it here; the journaled storage, plain answers and Spark's `latest` in the project's own tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import pytest

from durable_cache.model.newest import is_update, latest_values, newest_per_key
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Storage
from durable_cache.storage.shared.wildcards import read_values
from durable_cache.testing.conformance.hooks import StorageHooks, read_all
from durable_cache.testing.samples import batch, sample, stamp

LOW, HIGH = SourceId("9", 1), SourceId("10", 1)
"""By number, not by text."""
PUT, DELETE = Kind.PUT, Kind.DELETE


def _at(
    time: int,
    key: str = "t/a",
    kind: Kind = PUT,
    source: SourceId = LOW,
    epoch: int = 1,
    sn: int | None = None,
    clock: str = "c10c",
) -> Sample:
    made = sample(time if sn is None else sn, key, source, epoch, ntp64=stamp(time))
    payload = b"" if kind is DELETE else made.payload
    return msgspec.structs.replace(made, kind=kind, payload=payload, timestamp_id=clock)


class NewestCase(NamedTuple):
    """What was published, in the order it came, and which of it each key's newest value is."""

    name: str
    samples: tuple[Sample, ...]
    newest: dict[str, Sample]
    """By key; a DELETE where the key is deleted."""


def _case(name: str, *samples: Sample, **newest: int) -> NewestCase:
    """Write a case: ``a=3`` says that the newest value of ``t/a`` is the sample at place 3."""
    named = {f"t/{key}": samples[at] for key, at in newest.items()}
    return NewestCase(name, samples, named)


NEWEST_CASES = (
    _case("the last in time", _at(1), _at(3), _at(2, sn=9), a=1),
    _case("a clock that goes back", _at(5, sn=1), _at(4, sn=2), a=0),
    _case("two sources", _at(1, source=HIGH, sn=9), _at(2, source=LOW, sn=0), a=1),
    _case("one time, two sources", _at(1, source=HIGH), _at(1, source=LOW), a=0),
    _case("one time, two numbers", _at(1, sn=4), _at(1, sn=5), _at(1, sn=3), a=1),
    _case("one time, two epochs", _at(1, epoch=2, sn=0), _at(1, epoch=1, sn=7), a=0),
    _case("one time, two clocks", _at(1, sn=9, clock="9"), _at(1, sn=3, clock="10"), a=1),
    _case("one time, two clocks and sources",
          _at(1, source=HIGH, clock="9"), _at(1, source=LOW, clock="10"), a=1),
    _case("an older epoch with a later time", _at(2, epoch=1), _at(1, epoch=2), a=0),
    _case("a delete", _at(1), _at(2, kind=DELETE), a=1),
    _case("a late put before a delete", _at(2, kind=DELETE), _at(1), a=0),
    _case("a put after a delete", _at(1, kind=DELETE), _at(2), a=1),
    _case("keys apart", _at(1), _at(2, "t/b"), a=0, b=1),
    _case("a wildcard put", _at(1), _at(2, "t/*"), a=1),
    _case("an older wildcard put", _at(2), _at(1, "t/*"), a=0),
    _case("a wildcard delete", _at(1), _at(2, "t/**", DELETE), a=1),
    _case("an older wildcard delete", _at(2), _at(1, "t/**", DELETE), a=0),
    _case("a late put, older than a wildcard put", _at(2, "t/*"), _at(1), a=0),
    _case("a late put, older than a wildcard delete", _at(2, "**", DELETE), _at(1), a=0),
    _case("a wildcard put on what is not named", _at(1), _at(2, "t/b/*"), a=0),
    _case("a wildcard put creates nothing", _at(1), _at(2, "t/$*b"), a=0),
    _case("a wildcard put on a deleted key", _at(1, kind=DELETE), _at(2, "t/*"), a=0),
    _case("a put after a delete, both wild", _at(1), _at(2, "t/*", DELETE), _at(3, "t/*"), a=1),
    _case("a put between them", _at(1, "t/*", DELETE), _at(3, "t/*"), _at(2), a=1),
    _case("two expressions", _at(1), _at(3, "t/*"), _at(2, "t/a/**"), _at(1, "t/b"), a=1, b=1),
    _case("updates of two sources", _at(1), _at(2, "t/*", source=HIGH), _at(2, "t/*"), a=1),
)  # fmt: skip


def values(case: NewestCase) -> list[Sample]:
    """Return the newest values of a case, each under its key, in order of keys."""
    newest = case.newest
    return [msgspec.structs.replace(newest[key], key=key) for key in sorted(newest)]


def updates_of(samples: Iterable[Sample]) -> list[Sample]:
    """Return the wildcard updates."""
    return [each for each in samples if is_update(each.key)]


_CASES = pytest.mark.parametrize("case", NEWEST_CASES, ids=lambda case: case.name)


class NewestTests(StorageHooks):
    """Clauses of `Selection.newest`, and of the rule that readers build on it."""

    @_CASES
    def test_newest_of_what_is_stored(self, storage: Storage, case: NewestCase) -> None:
        storage.append(batch(case.samples))
        expected = sorted(newest_per_key(case.samples, 1), key=lambda each: each.order)
        assert read_all(storage, Selection(newest=1)) == expected

    @_CASES
    def test_newest_values_with_wildcard_updates(self, storage: Storage, case: NewestCase) -> None:
        storage.append(batch(case.samples))
        page = read_values(storage.read, updates_of(case.samples), Selection(newest=1), 100, None)
        assert list(page.samples) == values(case)
        assert latest_values(read_all(storage)) == values(case)

"""Does a backend keep the storage contract? Subclass `StorageTests` and let pytest run it.

    class TestMine(StorageTests):
        def open(self, tmp_path, name="suite", writer=True):
            return MyBackend().open(name, MyOptions(path=str(tmp_path)), writer=writer)

What a backend declares in its `Capabilities` decides what is skipped, nothing else does.
"""

from __future__ import annotations

from durable_cache.testing.conformance.append import AppendTests
from durable_cache.testing.conformance.fields import FieldTests
from durable_cache.testing.conformance.filters import FilterTests
from durable_cache.testing.conformance.histories import HistoryTests
from durable_cache.testing.conformance.lifetime import LifetimeTests
from durable_cache.testing.conformance.newest import NewestTests
from durable_cache.testing.conformance.paging import PagingTests
from durable_cache.testing.conformance.removal import RemovalTests
from durable_cache.testing.conformance.skips import SkipTests
from durable_cache.testing.conformance.unnumbered import UnnumberedTests


class StorageTests(
    AppendTests,
    FieldTests,
    FilterTests,
    HistoryTests,
    LifetimeTests,
    NewestTests,
    PagingTests,
    RemovalTests,
    SkipTests,
    UnnumberedTests,
):
    """Every clause of the contract; the hooks are those of `StorageHooks`."""

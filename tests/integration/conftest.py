"""What tests that need more than one network share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durable_cache.testing.network import LocalNetwork


@pytest.fixture
def farther() -> Iterator[LocalNetwork]:
    """Run a second network, which nothing connects with the first."""
    with LocalNetwork() as network:
        yield network

"""C11: no ``**`` matches a chunk that begins with ``@``, and no token behind one was ever seen.

Samples under such a key were stored without their publisher's epoch, and never acknowledged.
"""

from __future__ import annotations

import pytest

from durable_cache import declare_reliability_cache, declare_reliable_publisher
from durable_cache.testing.network import LocalNetwork


@pytest.mark.parametrize("key_expr", ["@plant/hall/**", "plant/@line/**"])
def test_what_lies_behind_a_verbatim_chunk_is_stored_with_its_epoch_and_acknowledged(
    key_expr: str,
) -> None:
    key = key_expr.replace("**", "speed")
    with (
        LocalNetwork() as network,
        declare_reliability_cache(network.client(), ["other/**", key_expr]) as cache,
        declare_reliable_publisher(
            network.client(), key_expr, acknowledgements=1, level="memory"
        ) as publisher,
    ):
        receipt = publisher.put(b"1", key=key)
        assert receipt.wait(10)
        (stored,) = cache.find(key)
        assert stored.epoch == publisher.epoch

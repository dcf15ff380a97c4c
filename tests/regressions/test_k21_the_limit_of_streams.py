"""K21: `resources_limit` admits as many streams as it says."""

from __future__ import annotations

import pytest

from durable_cache import declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import token_of
from tests.servers.zenoh_sources import Numbered, connected


@pytest.mark.parametrize("with_token", [True, False])
def test_exactly_so_many_streams_are_admitted(network: LocalNetwork, with_token: bool) -> None:
    with declare_reliability_cache(network.client(), "a/**", resources_limit=10) as cache:
        source = Numbered(network.client(), "a/**")
        token = token_of(source) if with_token else None
        connected(source.publisher)
        for sn in range(15):
            source.put(sn, key=f"a/{sn}")
            wait_until(lambda sn=sn: cache.status().appended + cache.status().refused > sn)
        wait_until(lambda: len(cache.find("a/**")) == 10, 5, "ten streams")
        assert cache.status().streams == 10
        assert cache.status().refused == 5
        if token is not None:
            token.undeclare()

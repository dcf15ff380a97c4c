"""A key so long that Zenoh cannot send it with a source in front ends no session and no cache."""

from __future__ import annotations

import subprocess
import sys

import pytest
import zenoh

from durable_cache import declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, make_known

LONG = "a/" + "k" * 65_520
"""Zenoh takes it alone; with a source in front its session panics."""
USER = """
import sys
import durable_cache as dc
from durable_cache.errors import ConfigError

endpoint, length = sys.argv[1:]
long = "a/" + "k" * (int(length) - 2)
session = dc.open_session(
    {"connect": {"endpoints": [endpoint]}, "scouting": {"multicast": {"enabled": False}}}
)
for declare in (dc.declare_reliable_publisher, dc.declare_reliable_subscriber):
    try:
        declare(session, long)
    except ConfigError as error:
        print(str(error)[:20])
many = dc.declare_reliable_publisher(session, "a/**", acknowledgements=1, level="memory")
with many as publisher:
    try:
        publisher.put(b"1", key=long)
    except ConfigError as error:
        print(str(error)[:8])
    print(publisher.put(b"2", key="a/b").wait(timeout_seconds=5))
session.close()
"""


@pytest.mark.parametrize("numbered", [False, True])
def test_a_sample_on_such_a_key_is_refused_and_costs_no_query_its_answer(
    network: LocalNetwork, numbered: bool
) -> None:
    session, caching = network.client(), network.client()
    with declare_reliability_cache(caching, "a/**", unnumbered="store") as cache:
        make_known(caching)
        if numbered:
            wide, narrow = Numbered(session, "a/**"), Numbered(session, "a/b")
            wait_until(lambda: narrow.publisher.matching_status.matching, what="matching")
            wide.put(0, key=LONG)
            narrow.put(0)
        else:
            for key in (LONG, "a/b"):  # what finds no room behind the long one is dropped else
                session.put(key, b"0", congestion_control=zenoh.CongestionControl.BLOCK)
        wait_until(lambda: cache.status().appended == 1, what="the sample beside it")
        wait_until(lambda: cache.status().refused == 1, what="the refusal")
        for asked in ("*/a/**", "a/**"):
            replies = list(session.get(asked, consolidation=zenoh.ConsolidationMode.NONE))
            assert [str(reply.ok and reply.ok.key_expr).split("/", 1)[-1] for reply in replies] == [
                "b" if asked == "a/**" else "a/b"
            ]


def test_who_declares_or_publishes_on_such_a_key_is_told(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "a/**"):
        ran = subprocess.run(
            [sys.executable, "-c", USER, network.endpoint, str(len(LONG))],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-500:]
    assert ran.stdout.splitlines() == [
        "key expression 'a/kk",
        "key expression 'a/kk",
        "key 'a/k",
        "True",
    ]

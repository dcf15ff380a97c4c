"""Is a port named for each that the system is to choose, and nothing else changed?"""

from __future__ import annotations

import re
import socket

import pytest

from durable_cache.service.ports import with_ports


def listening(*endpoints: str) -> list[str]:
    found = with_ports({"listen": {"endpoints": list(endpoints)}})["listen"]
    assert isinstance(found, dict)
    return found["endpoints"]


@pytest.mark.parametrize(
    "endpoint", ["tcp/127.0.0.1:{}", "tcp/[::]:{}", "udp/localhost:{}", "tls/0.0.0.0:{}#iface=lo"]
)
def test_the_system_chooses_a_port_that_is_free(endpoint: str) -> None:
    (named,) = listening(endpoint.format(0))
    port = re.fullmatch(re.escape(endpoint).replace(r"\{\}", "([1-9][0-9]*)"), named)
    assert port is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", int(port[1])))


def test_two_ports_of_one_host_are_two() -> None:
    one, two = listening("tcp/127.0.0.1:0", "tcp/127.0.0.1:0")
    assert one != two


@pytest.mark.parametrize(
    "endpoint",
    ["tcp/127.0.0.1:7447", "tcp/[::]:70", "unixsock-stream/x:0y", "tcp/nobody.invalid:0", ":0"],
)
def test_every_other_endpoint_stays_as_it_is(endpoint: str) -> None:
    assert listening(endpoint) == [endpoint]


def test_endpoints_by_mode_and_other_settings_stay_in_their_places() -> None:
    given = {
        "mode": "router",
        "listen": {"endpoints": {"peer": ["tcp/127.0.0.1:0"], "router": []}, "timeout_ms": 5},
    }
    found = with_ports(given)
    assert found["mode"] == "router"
    listen = found["listen"]
    assert isinstance(listen, dict)
    assert listen["timeout_ms"] == 5
    assert listen["endpoints"]["router"] == []
    assert not listen["endpoints"]["peer"][0].endswith(":0")
    assert with_ports({"mode": "client"}) == {"mode": "client"}

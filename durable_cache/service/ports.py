"""On which ports does a service listen whose settings leave them to the system?

For port 0 Zenoh takes a port that is free, and tells only its own admin space which, where that is
on. So a free one is named before Zenoh is asked to listen. Another program may take it in between;
then Zenoh says that it is taken.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import ExitStack

_LEFT_TO_THE_SYSTEM = re.compile(r"([a-z]+)/(.+):0([?#].*)?", re.DOTALL)
_DATAGRAMS = frozenset({"udp", "quic"})


def with_ports(zenoh: Mapping[str, object]) -> Mapping[str, object]:
    """Return Zenoh's settings with a free port for every port 0 that it would listen on."""
    listen = zenoh.get("listen")
    if not isinstance(listen, Mapping) or "endpoints" not in listen:
        return zenoh
    with ExitStack() as taken:  # until all are chosen: no two get the same
        endpoints = _chosen(listen["endpoints"], taken)
    return {**zenoh, "listen": {**listen, "endpoints": endpoints}}


def _chosen(endpoints: object, taken: ExitStack) -> object:
    if isinstance(endpoints, Mapping):  # by mode
        return {mode: _chosen(named, taken) for mode, named in endpoints.items()}
    if isinstance(endpoints, list):
        return [_chosen(one, taken) for one in endpoints]
    found = _LEFT_TO_THE_SYSTEM.fullmatch(endpoints) if isinstance(endpoints, str) else None
    if found is None:
        return endpoints
    protocol, host, rest = found.groups()
    port = _free_port(host.strip("[]"), protocol in _DATAGRAMS, taken)
    return f"{protocol}/{host}:{port}{rest or ''}"


def _free_port(host: str, is_datagram: bool, taken: ExitStack) -> int:
    """Return a port that is free there; 0 where nobody can listen, as Zenoh will say better."""
    kind = socket.SOCK_DGRAM if is_datagram else socket.SOCK_STREAM
    try:
        family, *_, address = socket.getaddrinfo(host, 0, type=kind, flags=socket.AI_PASSIVE)[0]
        listening = taken.enter_context(socket.socket(family, kind))
        listening.bind(address)
    except OSError:
        return 0
    port = listening.getsockname()[1]
    return int(port)

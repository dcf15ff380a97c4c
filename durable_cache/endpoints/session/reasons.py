"""What Zenoh's errors say, in one line for people, with what was probably meant.

Only texts are read here; where one is not known, it stays as Zenoh wrote it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

_PROTOCOLS = ("tcp", "udp", "tls", "quic", "ws", "serial", "vsock", "unixpipe", "unixsock-stream")
_WITH_PORT = ("tcp", "udp", "tls", "quic", "ws")
_PORT = re.compile(r":[0-9]+(?:[?#].*)?$")
_PLACE_IN_SOURCES = re.compile(r" at /[^ ]*\.rs:[0-9]+\.?")
_IN_JSON = re.compile(r'Json5Err\(Message { msg: "(.*)", location: ', re.DOTALL)
_NAMES_EXPECTED = re.compile(r"unknown (?:field|variant) `(.*?)`, expected (?:one of )?(.*)")
_NO_PROTOCOL = re.compile(r"(Endpoints must be of the form .*): ([^ ]*)$")
_UNANSWERED = re.compile(r"Unable to connect to any of \[(.*)\]!?")
_REFUSED = re.compile(r"Can(?: ?not|not) create a new [A-Z]+ listener (?:bound to|on) (.*)")
_OF_THE_SYSTEM = re.compile(r"(.*?): \[[^ ]*: (.*) \(os error [0-9]+\)\]")


def setting_reason(key: str, error: Exception, known: Iterable[str]) -> str:
    """Say why Zenoh does not take what stands under `key`; `known` are its own names."""
    text = _bare(error)
    if text == 'Str("unknown key")':
        near = difflib.get_close_matches(key, list(known), n=1)
        return "Zenoh knows no such setting" + _meant(near)
    inner = _IN_JSON.match(text)
    if inner is None:
        return text
    said = inner[1].replace('\\"', '"')
    names = _NAMES_EXPECTED.match(said)
    if names is not None:
        near = difflib.get_close_matches(names[1], re.findall(r"`(.*?)`", names[2]), n=1)
        return f"Zenoh: {said}{_meant(near)}"
    endpoint = _NO_PROTOCOL.match(said)
    if endpoint is not None:
        return f"Zenoh: {said}{_meant([f'tcp/{endpoint[2]}'] if ':' in endpoint[2] else [])}"
    return f"Zenoh: {said}"


def opening_reason(error: Exception, endpoints: Collection[str]) -> str:
    """Say why Zenoh opens no session that connects to, or listens on, `endpoints`."""
    for endpoint in endpoints:
        protocol = endpoint.partition("/")[0]
        near = difflib.get_close_matches(protocol, _PROTOCOLS, n=1)
        if near and near[0] != protocol:
            return f"{endpoint}: no protocol is called {protocol!r}{_meant(near)}"
        if protocol in _WITH_PORT and not _PORT.search(endpoint):
            return f"{endpoint}: it names no port{_meant([f'{endpoint}:7447'])}"
    text = _bare(error)
    if found := _UNANSWERED.match(text):
        tried = re.sub(r"Single\((.*?)\)", r"\1", found[1])
        return f"nobody answers at {tried}"
    if found := _REFUSED.match(text):
        system = _OF_THE_SYSTEM.match(found[1])
        return f"cannot listen on {f'{system[1]}: {system[2]}' if system else found[1]}"
    named = ", ".join(endpoints)
    return f"{named}: {text}" if named and text.startswith("invalid ") else text


def _bare(error: Exception) -> str:
    """Return an error's text without the places in Zenoh's sources."""
    return _PLACE_IN_SOURCES.sub("", str(error)).strip()


def _meant(near: list[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""

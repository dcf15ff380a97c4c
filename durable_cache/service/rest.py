"""``GET``, ``PUT`` and ``DELETE`` of keys over HTTP, as zenohd's REST plugin answers them.

Off unless the configuration names an address. There is no password; a web page that a browser on
this machine shows can neither write nor read (`durable_cache.service.http`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socket import socket
from threading import Lock
from urllib.parse import unquote

from durable_cache.endpoints.publisher import Receipt, ReliablePublisher
from durable_cache.endpoints.publisher.declaring import declare_reliable_publisher
from durable_cache.endpoints.session import (
    PlainReply,
    Session,
    ZError,
    get_plain,
    put_plain,
    read_encoding,
    zid_of,
)
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.key_expression import KeyExpression, parse_short
from durable_cache.service.addresses import split_address
from durable_cache.service.config import StorageSettings
from durable_cache.service.http import Handler, Server
from durable_cache.service.sections import RestSettings
from durable_cache.service.streams import Streams, StreamsFull

BODY_BYTES_MAX = 8 << 20
REPLIES_MAX = 10_000
_LENGTH_DIGITS_MAX = 18
_GET_SECONDS_MAX = 8.0
_STORED_SECONDS_MAX = 5.0
_JSON = frozenset({"application/json", "text/json", "text/json5"})
_TEXT = frozenset({"text/plain", "zenoh/string"})
_EVENTS = "text/event-stream"
_DEFAULT_ENCODING = "zenoh/bytes"
_LOCAL = "@/local/"
"""What zenohd's REST plugin calls the admin space of its own session."""


class Writing:
    """Publishes what is put: with acknowledgement where this service stores the key."""

    def __init__(
        self,
        session: Session,
        domain: str,
        storages: Callable[[], Iterable[StorageSettings]],
    ) -> None:
        self.session = session
        self._domain = domain
        self._storages = storages
        self._publishers: dict[str, ReliablePublisher[Receipt]] = {}
        self._is_closed = False
        self._lock = Lock()

    def write(self, key: str, payload: bytes | None, encoding: str) -> None:
        """Put, or delete where `payload` is None; returns once a cache has stored it.

        A key that this service does not store is published and left to others.
        Raises DurableCacheError and ZError; whether the sample is stored is then unknown.
        """
        publisher = self._publisher_of(key)
        if publisher is None:
            put_plain(self.session, key, payload, encoding)
        else:
            receipt = (
                publisher.delete(key=key)
                if payload is None
                else publisher.put(payload, encoding=encoding, key=key)
            )
            if not receipt.wait(_STORED_SECONDS_MAX):
                raise DurableCacheError(f"{key}: not acknowledged in {_STORED_SECONDS_MAX:g} s")

    def _publisher_of(self, key: str) -> ReliablePublisher[Receipt] | None:
        """Return the publisher of the key expression that stores a key; None where none does."""
        written = KeyExpression(key)
        storages = [storage for storage in self._storages() if not storage.source]
        with self._lock:
            if self._is_closed:
                raise DurableCacheError("the service is stopping")
            there = {key_expr for storage in storages for key_expr in storage.key_exprs}
            for gone in {*self._publishers} - there:
                self._publishers.pop(gone).close()
            for storage in storages:
                if any(KeyExpression(one).includes(written) for one in storage.excluded):
                    continue
                for name in storage.key_exprs:
                    if KeyExpression(name).includes(written):
                        return self._publisher_on(name)
        return None

    def _publisher_on(self, name: str) -> ReliablePublisher[Receipt]:
        found = self._publishers.get(name)
        if found is None:
            found = self._publishers[name] = declare_reliable_publisher(
                self.session,
                name,
                acknowledgements=1,
                level="memory",
                domain=self._domain,
                cache=False,
            )
        return found

    def close(self) -> None:
        """Close the publishers; idempotent."""
        with self._lock:
            self._is_closed = True
            while self._publishers:
                self._publishers.popitem()[1].close()


class RestServer(Server):
    """Where keys are read and written."""

    hosts_setting = "rest.hosts"

    def __init__(self, settings: RestSettings, writing: Writing, lane: Lane) -> None:
        self.writing = writing
        self.streams = Streams(
            writing.session, _values, settings.streams_max, settings.stream_bytes_max
        )
        address = split_address(settings.listen, "rest.listen")
        super().__init__(address, settings.hosts, RestHandler, lane, "--rest-http-port")


class RestHandler(Handler):
    """Answers one request."""

    server: RestServer

    def do_GET(self) -> None:  # noqa: N802 - the name http.server looks for
        if not self.is_allowed():
            return
        key = self._key()
        if key is None:
            return
        if key.startswith("@") and key.rpartition("/")[2] == "purge":
            self.refuse(HTTPStatus.FORBIDDEN, "nothing is removed by GET; durable-cache purge")
            return
        wanted = self.headers.get("Accept", "").partition(",")[0].partition(";")[0].strip()
        if wanted == _EVENTS and self.command == "GET":
            self._follow(key)
            return
        parts = unquote(self.asked.query).split(";")
        names = {part.partition("=")[0] for part in parts}
        parameters = ";".join(part for part in parts if part and part != "_raw")
        selector = f"{key}?{parameters}" if parameters else key
        try:
            replies = get_plain(
                self.server.writing.session,
                selector,
                timeout_seconds=_GET_SECONDS_MAX,
                replies_max=REPLIES_MAX + 1,
                is_newest_only="_time" not in names,
            )
        except ValueError as error:  # a selector to us and none to Zenoh, or the service ends
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        if len(replies) > REPLIES_MAX:
            self.refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {REPLIES_MAX}; ask for fewer keys"
            )
        elif "_raw" in names:
            first = replies[0] if replies else PlainReply("", b"", "", None)
            failed = first.key == "ERROR"
            status = HTTPStatus.BAD_GATEWAY if failed else HTTPStatus.OK
            self.send(status, _content_type(first.encoding), first.payload)
        else:
            text = json.dumps([_values(reply) for reply in replies], ensure_ascii=False)
            self.send(HTTPStatus.OK, "application/json", f"{text}\n".encode())

    do_HEAD = do_GET  # noqa: N815 - the name http.server looks for

    def _follow(self, key: str) -> None:
        """Answer with what is published from now on; the streams have the connection then."""
        streams = self.server.streams
        try:
            stream = streams.open(key)
        except StreamsFull as error:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        except ZError as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        try:
            self.send_head(_EVENTS)
        except OSError:
            streams.forget(stream)
            raise
        streams.give(stream, socket(fileno=self.connection.detach()))

    def do_PUT(self) -> None:  # noqa: N802 - the name http.server looks for
        length = self.headers.get("Content-Length", "")
        if not self.is_allowed():
            return
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self.refuse(HTTPStatus.LENGTH_REQUIRED, "send the body with a Content-Length")
        elif len(length) > _LENGTH_DIGITS_MAX or int(length) > BODY_BYTES_MAX:
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {BODY_BYTES_MAX} bytes")
        else:
            body = self.read_body(int(length))
            if len(body) == int(length):
                self._write(body)

    def do_DELETE(self) -> None:  # noqa: N802 - the name http.server looks for
        if self.is_allowed():
            self._write(None)

    def _write(self, payload: bytes | None) -> None:
        key = self._key()
        if key is None:
            return
        try:
            encoding = read_encoding(self.headers.get("Content-Type", _DEFAULT_ENCODING))
        except ConfigError as error:
            self.refuse(HTTPStatus.BAD_REQUEST, f"Content-Type: {error}")
            return
        try:
            self.server.writing.write(key, payload, encoding)
        except (DurableCacheError, ZError, ValueError) as error:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        else:
            self.send(HTTPStatus.OK, "text/plain", b"")

    def _key(self) -> str | None:
        """Return the key expression of the path; None where it is none, and says so."""
        path = unquote(self.asked.path).removeprefix("/")
        if path.startswith(_LOCAL):
            path = f"@/{zid_of(self.server.writing.session)}/{path.removeprefix(_LOCAL)}"
        try:
            return str(parse_short(path))
        except ValueError as error:
            self.refuse(HTTPStatus.BAD_REQUEST, f"{path[:80]!r}: {error}")
            return None


def _content_type(encoding: str) -> str:
    is_plain = encoding.isascii() and encoding.isprintable() and "/" in encoding
    return encoding if is_plain else "application/octet-stream"


def _values(reply: PlainReply) -> dict[str, object]:
    """Return a reply with the names and in the order of zenohd's REST plugin."""
    return {
        "key": reply.key,
        "value": _value(reply.payload, reply.encoding.partition(";")[0]),
        "encoding": reply.encoding,
        "timestamp": reply.timestamp,
    }


def _value(payload: bytes, encoding: str) -> object:
    if not payload:
        return None
    try:
        if encoding in _JSON:
            return json.loads(payload)
        if encoding in _TEXT:
            return payload.decode("utf-8")
    except (ValueError, RecursionError):
        pass
    return base64.b64encode(payload).decode()

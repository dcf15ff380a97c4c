"""Who answers health checks, scrapers and browsers, only where the configuration says so.

There is no password. A web page of another origin that a browser shows reads nothing here: no
answer allows another origin, a request that comes from one is refused, and so is one for a host
name that is not the service's (DNS rebinding).
"""

from __future__ import annotations

import io
import ipaddress
import json
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import socket
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from durable_cache.endpoints.session import start_thread
from durable_cache.endpoints.workers import Lane, Pool
from durable_cache.errors import DurableCacheError
from durable_cache.service.metrics import CONTENT_TYPE, metrics_text
from durable_cache.service.report import ServiceReport, report_values
from durable_cache.service.web import FILES, read_file

LOOKS = ("keys", "sources", "samples", "peers", "losses")
"""What can be seen of a storage's inside, each under ``/<name>.json?storage=…``."""
Look = Callable[[str, Mapping[str, str]], object]

_REQUESTS_MAX = 2
"""A client that sends slowly keeps a thread of the pool: others stay for queries."""
_WAITING_MAX = 16
_REQUEST_SECONDS_MAX = 3.0
"""For a whole request's head, however it comes: a client that trickles keeps a thread, too."""
_BODY_BYTES_PER_SECOND_MIN = 64 << 10
_LOOK_SECONDS = 0.2
_JSON = "application/json"
_FOR_ALL = frozenset({"/healthz", "/readyz", "/metrics"})
"""What names no key and no payload: probes and scrapers call a service by names it never heard."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class HttpServer:
    """Serves until closed: two requests at once, sixteen wait, further ones are cut off.

    One thread accepts for all servers; the pool answers.
    """

    def __init__(self, servers: Sequence[Server], lane: Lane) -> None:
        self._servers = tuple(servers)
        self._lane = lane
        self._is_closed = False
        self._thread = start_thread(self._accept, "dc-http")

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            for server in self._servers:
                selector.register(server, selectors.EVENT_READ, server)
            while not self._is_closed:
                for ready, _ in selector.select(_LOOK_SECONDS):
                    ready.data.handle_request()

    def close(self) -> None:
        """Stop answering; idempotent."""
        self._is_closed = True
        self._thread.join(5)
        for server in self._servers:
            server.server_close()
        self._lane.close(1)


def http_lane(pool: Pool) -> Lane:
    """Open the lane in which a pool answers requests."""
    return pool.lane("http", running_max=_REQUESTS_MAX, waiting_max=_WAITING_MAX)


class _Arriving(io.RawIOBase):
    """What a client sends, until `deadline`; then TimeoutError."""

    def __init__(self, connection: socket) -> None:
        self._connection = connection
        self.deadline = time.monotonic() + _REQUEST_SECONDS_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(min(left, _REQUEST_SECONDS_MAX))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(_REQUEST_SECONDS_MAX)


class Server(HTTPServer):
    """A listening socket; the pool answers what comes to it.

    It may be called by addresses, by ``localhost``, by its own address's name and by `hosts`.
    Raises DurableCacheError that names `option` where it cannot listen.
    """

    timeout = 0
    hosts_setting = ""
    """Where further names are added."""

    def __init__(
        self,
        address: tuple[str, int],
        hosts: Sequence[str],
        handler: type[BaseHTTPRequestHandler],
        lane: Lane,
        option: str,
    ) -> None:
        self._lane = lane
        self.hosts = frozenset({"localhost", address[0].lower(), *map(str.lower, hosts)})
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        try:
            super().__init__(address, handler)
        except OSError as error:
            host, port = address
            reason = error.strerror or error
            raise DurableCacheError(
                f"HTTP cannot listen on {host}:{port}: {reason}; choose another address with "
                f"{option}"
            ) from error

    @property
    def url(self) -> str:
        """Where it is reached."""
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Let the pool answer; a request too many is cut off."""

        def answer() -> None:
            try:
                self.finish_request(request, client_address)
            except OSError:
                return  # the browser is gone
            finally:
                self.shutdown_request(request)

        if not self._lane.submit(answer):
            self.shutdown_request(request)


class StatusServer(Server):
    """Serves what `report` says, and what `look(what, parameters)` finds inside a storage.

    `look` raises ValueError for a wrong question, and DurableCacheError.
    """

    hosts_setting = "http.hosts"

    def __init__(
        self,
        address: tuple[str, int],
        hosts: Sequence[str],
        report: Callable[[], ServiceReport],
        look: Look,
        lane: Lane,
    ) -> None:
        self.report = report
        self.look = look
        super().__init__(address, hosts, _StatusHandler, lane, "--http")


class Handler(BaseHTTPRequestHandler):
    """One connection, one request; says nothing of the software behind it."""

    server: Server
    timeout = _REQUEST_SECONDS_MAX
    server_version = "durable-cache"
    sys_version = ""

    def setup(self) -> None:
        """Take the connection; its request has to come in time."""
        super().setup()
        self.rfile.close()
        self._arriving = _Arriving(self.connection)
        self.rfile = io.BufferedReader(self._arriving)

    def parse_request(self) -> bool:
        """Read the request's head; answers it where it is none."""
        if not super().parse_request():
            return False
        try:
            self.asked = urlsplit(self.path)
        except ValueError as error:
            self.send_error(HTTPStatus.BAD_REQUEST, f"{self.path[:80]!r}: {error}")
            return False
        return True

    def read_body(self, length: int) -> bytes:
        """Return the body, shorter where the client stops; TimeoutError where it is too slow."""
        self._arriving.deadline += length / _BODY_BYTES_PER_SECOND_MIN
        return self.rfile.read(length)

    def send(self, status: HTTPStatus, content_type: str, data: bytes) -> None:
        """Answer the request."""
        self.send_head(content_type, status=status, length=len(data))
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_head(
        self, content_type: str, *, status: HTTPStatus = HTTPStatus.OK, length: int | None = None
    ) -> None:
        """Begin an answer; one without a length goes on until the connection ends."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def is_allowed(self) -> bool:
        """Tell whether a request may come from where it says; answers it where it may not."""
        named = self.headers.get("Host", "")
        if not named:
            self.refuse(HTTPStatus.BAD_REQUEST, "the request names no Host; send one, as HTTP/1.1")
            return False
        host = _host_of(named)
        if host not in self.server.hosts and not _is_address(host):
            self.refuse(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"{named[:80]!r} is no name of this service; add it to {self.server.hosts_setting}",
            )
            return False
        origin = self.headers.get("Origin")
        if (origin is not None and _place_of(origin) != named) or not self._is_fetched_here():
            self.refuse(HTTPStatus.FORBIDDEN, "pages of other origins are not served")
            return False
        return True

    def _is_fetched_here(self) -> bool:
        return self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")

    def refuse(self, status: HTTPStatus, reason: str) -> None:
        """Answer with a reason on one line, and close."""
        self.close_connection = True
        self.send(status, "text/plain; charset=utf-8", f"{reason}\n".encode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request, or has another method than these."""
        status = HTTPStatus(code)
        if not self.command:  # what came is no request; the answer has a head and a body
            self.command, self.request_version = "GET", "HTTP/1.0"
        self.refuse(status, _printable(message or explain or status.phrase))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
        """Say nothing: a scraper comes every few seconds."""


class _StatusHandler(Handler):
    server: StatusServer

    def do_GET(self) -> None:
        asked = self.asked
        if asked.path in _FOR_ALL or self.is_allowed():
            self._answer(asked.path, dict(parse_qsl(asked.query, keep_blank_values=True)))

    def _is_fetched_here(self) -> bool:
        """Let a link on another page lead to this one, which it cannot read."""
        is_link = self.headers.get("Sec-Fetch-Mode") == "navigate"
        return super()._is_fetched_here() or (is_link and self.asked.path == "/")

    do_HEAD = do_GET  # noqa: N815 - the name http.server looks for

    def _answer(self, path: str, parameters: Mapping[str, str]) -> None:
        report = self.server.report
        match path:
            case "/healthz":
                self._send(HTTPStatus.OK, "text/plain", "alive\n")
            case "/readyz":
                now = report()
                status = HTTPStatus.OK if now.ready else HTTPStatus.SERVICE_UNAVAILABLE
                self._send(status, "text/plain", "ready\n" if now.ready else "not ready\n")
            case "/metrics":
                self._send(HTTPStatus.OK, CONTENT_TYPE, metrics_text(report()))
            case "/status.json":
                values = report_values(report(), with_events=parameters.get("events") != "0")
                self._send(HTTPStatus.OK, _JSON, json.dumps(values, indent=2))
            case _ if path in FILES:
                self._send(HTTPStatus.OK, FILES[path].content_type, read_file(FILES[path]))
            case _ if path.removeprefix("/").removesuffix(".json") in LOOKS:
                self._look(path.removeprefix("/").removesuffix(".json"), parameters)
            case _:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", "no such page\n")

    def _look(self, what: str, parameters: Mapping[str, str]) -> None:
        status = HTTPStatus.OK
        try:
            found = self.server.look(what, parameters)
        except ValueError as error:
            status, found = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except DurableCacheError as error:
            status, found = HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}
        self._send(status, _JSON, json.dumps(found))

    def _send(self, status: HTTPStatus, content_type: str, text: str) -> None:
        self.send(status, content_type, text.encode("utf-8", "replace"))


def _host_of(named: str) -> str:
    try:
        return urlsplit(f"//{named}").hostname or ""
    except ValueError:
        return ""


def _printable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:200]


def _place_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

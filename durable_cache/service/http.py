"""Who answers health checks, scrapers and browsers, only where the configuration says so."""

from __future__ import annotations

import json
import selectors
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

from durable_cache.endpoints.session import start_thread
from durable_cache.endpoints.workers import Lane, Pool
from durable_cache.errors import DurableCacheError
from durable_cache.service.metrics import CONTENT_TYPE, metrics_text
from durable_cache.service.page import status_page
from durable_cache.service.report import ServiceReport, report_values

__all__ = ["Handler", "HttpServer", "Server", "StatusServer", "http_lane"]

_REQUESTS_MAX = 2
"""A client that sends slowly keeps a thread of the pool: others stay for queries."""
_WAITING_MAX = 16
_REQUEST_SECONDS_MAX = 3.0
_LOOK_SECONDS = 0.2
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
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


class Server(HTTPServer):
    """A listening socket; the pool answers what comes to it.

    Raises DurableCacheError that names `option` where it cannot listen.
    """

    timeout = 0

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        lane: Lane,
        option: str,
    ) -> None:
        self._lane = lane
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
    """Serves what `report` says."""

    def __init__(
        self, address: tuple[str, int], report: Callable[[], ServiceReport], lane: Lane
    ) -> None:
        self.report = report
        super().__init__(address, _StatusHandler, lane, "--http")


class Handler(BaseHTTPRequestHandler):
    """One connection, one request; says nothing of the software behind it."""

    timeout = _REQUEST_SECONDS_MAX
    server_version = "durable-cache"
    sys_version = ""

    def send(self, status: HTTPStatus, content_type: str, data: bytes) -> None:
        """Answer the request."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
        """Say nothing: a scraper comes every few seconds."""


class _StatusHandler(Handler):
    server: StatusServer

    def do_GET(self) -> None:
        self._answer(urlsplit(self.path).path)

    do_HEAD = do_GET  # noqa: N815 - the name http.server looks for

    def _answer(self, path: str) -> None:
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
                text = json.dumps(report_values(report()), indent=2)
                self._send(HTTPStatus.OK, "application/json", text)
            case "/":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", status_page(report()))
            case _:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", "no such page\n")

    def _send(self, status: HTTPStatus, content_type: str, text: str) -> None:
        self.send(status, content_type, text.encode("utf-8", "replace"))

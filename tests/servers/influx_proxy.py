"""What if the server said something else? A proxy in front of the real one lets a test decide."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Fault = Callable[[str, bytes], "Answer | None"]


class Answer(Exception):
    """What the proxy says in the server's place, before or after the server acted."""

    def __init__(
        self, status: int, body: bytes = b"{}", *, after: bool = False, **headers: str
    ) -> None:
        self.status, self.body, self.after, self.headers = status, body, after, headers


class Proxy:
    """Stands before the real server and lets a test decide about single requests."""

    def __init__(self, url: str) -> None:
        self.fault: Fault = lambda path, body: None
        self.requests: list[str] = []
        target = urlsplit(url)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                self.forward()

            def do_POST(self) -> None:
                self.forward()

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.requests.append(self.path)
                instead = proxy.fault(self.path, body)
                if instead is not None and not instead.after:
                    self.say(instead.status, instead.body, instead.headers)
                    return
                upstream = HTTPConnection(target.hostname or "", target.port, timeout=30)
                try:
                    upstream.request(self.command, self.path, body, dict(self.headers.items()))
                    real = upstream.getresponse()
                    answer = real.read()
                    if instead is not None:
                        self.close_connection = True
                        if instead.status:
                            self.say(instead.status, instead.body, instead.headers)
                        return
                    kept = {
                        name: value
                        for name, value in real.getheaders()
                        if name.lower() in ("content-type", "content-encoding", "retry-after")
                    }
                    self.say(real.status, answer, kept)
                finally:
                    upstream.close()

            def say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if status != 204:
                    self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

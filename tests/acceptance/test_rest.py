"""Are keys read and written over HTTP as zenohd's REST plugin does it, and by no hostile page?"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest

from durable_cache.testing.network import free_port as find_port
from durable_cache.testing.network import wait_until
from tests.acceptance.conftest import Process, environment_of_tests

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Any]


class Served(NamedTuple):
    """A running service and where it is reached."""

    process: Process
    endpoint: str
    port: int


SLOW = "its reader is too slow"
"""What the service says of a stream that it cuts off."""
CONFIG = """{
  scouting: { multicast: { enabled: false } },
  adminspace: { permissions: { write: true } },
  plugins: { durable_cache: {
    rest: { hosts: ["cache.example"], streams_max: 2, stream_bytes_max: "1 MiB" },
    storages: {
    demo: { key_expr: "demo/**", exclude: "demo/secret/**" } } } } }"""


def served_with(process: Process, endpoint: str, port: int) -> Served:
    said = process.wait_for("try from another terminal")
    assert f"REST       http://127.0.0.1:{port}/" in said
    return Served(process, endpoint, port)


@pytest.fixture
def served(start: Start, free_port: Callable[[], int], tmp_path: Path) -> Served:
    endpoint, port = f"tcp/127.0.0.1:{free_port()}", free_port()
    (tmp_path / "cache.json5").write_text(CONFIG)
    return served_with(start(*serve(endpoint, port)), endpoint, port)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One service for all questions that change nothing which another one looks at."""
    folder = tmp_path_factory.mktemp("shared")
    endpoint, port = f"tcp/127.0.0.1:{find_port()}", find_port()
    (folder / "cache.json5").write_text(CONFIG)
    process = Process(serve(endpoint, port), folder, environment_of_tests())
    try:
        yield served_with(process, endpoint, port)
    finally:
        process.stop()


def serve(endpoint: str, port: int) -> list[str]:
    return ["serve", "-c", "cache.json5", "-l", endpoint, "--rest-http-port", str(port)]


def curl(served: Served, *arguments: str) -> tuple[int, str]:
    """Run curl as zenohd's documentation does; returns status and body."""
    *options, path = arguments
    result = subprocess.run(
        ["curl", "-s", "-w", "\n%{http_code}", *options, f"http://127.0.0.1:{served.port}{path}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    body, _, code = result.stdout.rpartition("\n")
    return int(code), body


def values(served: Served, path: str) -> list[dict[str, Any]]:
    code, body = curl(served, path)
    assert code == 200, body
    found: list[dict[str, Any]] = json.loads(body)
    return found


def test_zenohds_examples_run_with_curl_and_what_is_put_is_stored(served: Served, run: Run) -> None:
    text = ("-X", "PUT", "-H", "content-type:text/plain", "-d", "Hello World!")
    assert curl(served, *text, "/demo/example/test") == (200, "")
    as_json = ("-X", "PUT", "-H", "content-type:application/json", "-d", '{"value": 12}')
    assert curl(served, *as_json, "/demo/example/json") == (200, "")
    (one,) = values(served, "/demo/example/test")
    assert list(one) == ["key", "value", "encoding", "timestamp"]
    assert (one["key"], one["value"]) == ("demo/example/test", "Hello World!")
    assert one["encoding"] == "text/plain"
    assert re.fullmatch(r"\S+/[0-9a-f]+", one["timestamp"])
    found = {reply["key"]: reply["value"] for reply in values(served, "/demo/example/**")}
    assert found == {"demo/example/test": "Hello World!", "demo/example/json": {"value": 12}}
    assert curl(served, "/demo/example/test?_raw") == (200, "Hello World!")
    assert curl(served, "-X", "DELETE", "/demo/example/test") == (200, "")
    assert [reply["key"] for reply in values(served, "/demo/**")] == ["demo/example/json"]
    history = run("query", "demo/example/test", "-e", served.endpoint, "--format", "json")
    kinds = [json.loads(line)["kind"] for line in history.stdout.splitlines()]
    assert kinds == ["put", "delete"], "it has a number, and its history is kept"
    assert values(served, "/nobody/there") == []


def test_the_admin_space_is_reached_as_on_zenohd(served: Served) -> None:
    (status,) = values(served, "/@/local/durable_cache/status")
    assert status["value"]["ready"] is True
    storage = ("-X", "PUT", "-d", '{key_expr: "lab/**"}')
    assert curl(served, *storage, "/@/local/durable_cache/config/storages/lab")[0] == 200
    served.process.wait_for("a storage was added storage=lab")
    assert curl(served, "-X", "PUT", "-d", "x", "/lab/a")[0] == 200
    wait_until(lambda: len(values(served, "/lab/**")) == 1)


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("PUT", "/demo/a", {"Origin": "http://evil.example"}, 403),
        ("PUT", "/demo/a", {"Origin": "null"}, 403),
        ("DELETE", "/demo/a", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", "/demo/a", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("PUT", "/demo/a", {"Host": "evil.example:8000"}, 421),
        ("GET", "/demo/a", {"Host": "evil.example"}, 421),
        ("GET", "/demo/**", {"Accept": "text/event-stream", "Origin": "http://evil.example"}, 403),
        ("OPTIONS", "/demo/a", {"Origin": "http://evil.example"}, 501),
        ("POST", "/demo/a", {}, 501),
        ("GET", "/@/local/durable_cache/storages/demo/purge?yes=1", {}, 403),
        ("GET", "/demo//a", {}, 400),
        ("PUT", "/demo/a", {"Content-Length": "99999999999"}, 413),
        ("PUT", "/demo/a", {"Content-Length": "-1"}, 411),
        ("PUT", "/demo/a", {"Transfer-Encoding": "chunked"}, 411),
        ("PUT", "/demo/b", {"Origin": "http://127.0.0.1:PORT", "Content-Length": "0"}, 200),
        ("PUT", "/demo/b", {"Host": "localhost:PORT", "Content-Length": "0"}, 200),
        ("PUT", "/demo/b", {"Host": "cache.example", "Content-Length": "0"}, 200),
    ],
)
def test_a_page_of_another_origin_neither_writes_nor_reads(
    method: str, path: str, headers: dict[str, str], code: int, shared: Served
) -> None:
    connection = HTTPConnection("127.0.0.1", shared.port, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value.replace("PORT", str(shared.port)))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == code, response.read()
    assert response.getheader("Access-Control-Allow-Origin") is None
    assert values(shared, "/demo/a") == [], "nothing was written"


class Following:
    """curl that follows keys, as zenohd's documentation has it."""

    def __init__(self, served: Served, path: str) -> None:
        self.process = subprocess.Popen(
            [
                *("curl", "-s", "-N", "-i", "-H", "Accept:text/event-stream"),
                f"http://127.0.0.1:{served.port}{path}",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.head = [*iter(self.process.stdout.readline, "\n")]

    def event(self) -> tuple[str, dict[str, Any]]:
        assert self.process.stdout is not None
        lines = (line for line in self.process.stdout if line not in (":\n", "\n"))
        kind, data = next(lines), next(lines)
        assert kind.startswith("event: ")
        assert data.startswith("data: ")
        return kind[7:-1], json.loads(data[6:])


@pytest.fixture
def follow(served: Served) -> Iterator[Callable[[str], Following]]:
    started: list[Following] = []

    def begin(path: str) -> Following:
        started.append(Following(served, path))
        return started[-1]

    yield begin
    for following in started:
        following.process.kill()
        following.process.communicate()


def test_keys_are_followed_as_on_zenohd_until_the_service_ends(
    served: Served, follow: Callable[[str], Following]
) -> None:
    following = follow("/demo/example/**")
    assert "200 OK" in following.head[0]
    assert "Content-Type: text/event-stream\n" in following.head
    text = ("-X", "PUT", "-H", "content-type:text/plain", "-d", "Hello World!")
    assert curl(served, *text, "/demo/example/test")[0] == 200
    assert curl(served, "-X", "PUT", "-d", "other", "/demo/elsewhere")[0] == 200
    assert curl(served, "-X", "DELETE", "/demo/example/test")[0] == 200
    as_json = ("-X", "PUT", "-H", "content-type:application/json", "-d", '{"value": "ä\\n"}')
    assert curl(served, *as_json, "/demo/example/json")[0] == 200
    kind, sample = following.event()
    assert list(sample) == ["key", "value", "encoding", "timestamp"]
    assert (kind, sample["key"], sample["value"], sample["encoding"]) == (
        *("PUT", "demo/example/test", "Hello World!", "text/plain"),
    )
    kind, sample = following.event()
    assert (kind, sample["key"], sample["value"]) == ("DELETE", "demo/example/test", None)
    assert following.event()[1]["value"] == {"value": "ä\n"}
    served.process.send(signal.SIGINT)
    assert following.process.wait(20) is not None, "it ends with the service"


def test_streams_have_a_bound_and_give_their_places_back(
    served: Served, follow: Callable[[str], Following]
) -> None:
    first, _ = follow("/demo/a"), follow("/demo/b")
    events = ("-H", "Accept: text/event-stream")
    code, body = curl(served, *events, "/demo/c")
    assert (code, "rest.streams_max" in body) == (503, True)
    first.process.kill()
    wait_until(lambda: "200" in follow("/demo/c").head[0])


def publish_to(served: Served, file: Path, body: str, reader: Following) -> None:
    """Publish a body, and see that a reader is told of it next."""
    file.write_text(body)
    put = ("-X", "PUT", "-H", "content-type:text/plain", "--data-binary")
    assert curl(served, *put, f"@{file}", "/demo/big")[0] == 200
    assert reader.event()[1]["value"] == body


def test_a_slow_reader_is_cut_off_and_told_why_and_costs_others_nothing(
    served: Served, follow: Callable[[str], Following], tmp_path: Path
) -> None:
    quick = follow("/demo/**")
    with socket.create_connection(("127.0.0.1", served.port)) as slow:
        slow.sendall(
            b"GET /demo/** HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        )
        head = slow.recv(4096)
        assert b"200 OK" in head
        for at in range(40):  # more than both ends of a connection hold
            if SLOW in served.process.stderr:
                break  # it is cut off soon: what is read later lacks its last words
            publish_to(served, tmp_path / "body", f"{at}" + "x" * 500_000, quick)
        served.process.wait_for(SLOW)
        slow.settimeout(20)
        last = b""
        while part := slow.recv(1 << 20):
            last = (last + part)[-1000:]
    publish_to(served, tmp_path / "body", "the next", quick)
    assert b"event: ERROR\ndata: " in last
    assert b"rest.stream_bytes_max" in last


@pytest.mark.parametrize("path", ["/demo/type", "/elsewhere/type"])
def test_a_content_type_or_a_key_that_zenoh_cannot_send_is_refused_and_ends_nothing(
    shared: Served, path: str
) -> None:
    for kind, key in (("x" * 300, path), ("text/plain", f"{path}/{'k' * 40_000}")):
        body = ("-X", "PUT", "-H", f"content-type:{kind}", "-d", "1")
        status, said = curl(shared, *body, key)
        assert status == 400, said
    assert curl(shared, "-X", "PUT", "-H", "content-type:text/plain", "-d", "1", path)[0] == 200


LOCAL = b"Host: localhost\r\n"


def answered(port: int, request: bytes, pause_seconds: float = 0.0) -> bytes:
    """Send bytes as they are, one by one where there is a pause, and return what comes."""
    parts = [request[at : at + 1] for at in range(len(request))] if pause_seconds else [request]
    found = b""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        with suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_seconds)
            while more := connection.recv(65536):
                found += more
    return found


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [(b"GET /demo/a HTTP/1.0\r\n\r\n", 400, b"names no Host"),
     (b"GET http://[ HTTP/1.1\r\n" + LOCAL, 400, b"Invalid IPv6 URL"),
     (b"GET / HTTP/9.9\r\n" + LOCAL, 505, b"Invalid HTTP version"),
     (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + LOCAL, 414, b"Request-URI Too Long"),
     (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n" + LOCAL, 431, b"Line too long"),
     (b"PATCH /demo/a HTTP/1.1\r\n" + LOCAL, 501, b"Unsupported method ('PATCH')"),
     (b"PUT /demo/a HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n" + LOCAL, 413, b"most")],
)  # fmt: skip
def test_what_is_no_request_is_answered_on_one_line_of_text(
    request_: bytes, status: int, said: bytes, shared: Served
) -> None:
    before = shared.process.stderr
    head, _, body = answered(shared.port, request_ + b"\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 %d " % status)
    assert b"Content-Type: text/plain" in head
    assert b"X-Content-Type-Options: nosniff" in head
    assert said in body
    assert body.count(b"\n") == 1
    assert shared.process.stderr == before


def test_clients_that_trickle_keep_nobody_out(shared: Served) -> None:
    slow = [
        Thread(target=answered, args=(shared.port, b"GET /demo/a HTTP/1.1\r\n", 0.9))
        for _ in range(2)
    ]
    for client in slow:
        client.start()
    time.sleep(0.5)  # both have their threads
    begun = time.monotonic()
    assert b" 200 OK" in answered(shared.port, b"GET /demo/a HTTP/1.1\r\n" + LOCAL + b"\r\n")
    assert time.monotonic() - begun < 8
    for client in slow:
        client.join()


def test_rest_is_off_unless_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(
        """{ plugins: { durable_cache: { storages: { a: { key_expr: "a/**" } } } } }"""
    )
    for flags, listen in (
        ((), ""), (("--rest-http-port", "8000"), "127.0.0.1:8000"),
        (("--rest-http-port", "[::]:8000"), "[::]:8000"), (("--rest-http-port", "none"), ""),
    ):  # fmt: skip
        shown = json.loads(run("check-config", "cache.json5", *flags).stdout)
        assert shown["plugins"]["durable_cache"]["rest"]["listen"] == listen
    wrong = run("check-config", "cache.json5", "--rest-http-port", "x:y")
    assert wrong.returncode == 2
    assert "plugins.durable_cache.rest.listen: expected host:port" in wrong.stderr

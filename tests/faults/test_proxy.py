"""Does the proxy do to a link what its switches say, and nothing else?"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from durable_cache.testing.network import wait_until
from tests.kit.proxy import TcpProxy


class Echo:
    """A server that sends back what it receives and counts it."""

    def __init__(self) -> None:
        self.received = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.02)
        self.port: int = self._listener.getsockname()[1]
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while not self._end.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=self._echo, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _echo(self, connection: socket.socket) -> None:
        connection.settimeout(0.02)
        with connection:
            while not self._end.is_set():
                try:
                    chunk = connection.recv(65536)
                    self.received += chunk
                    if not chunk:
                        return
                    connection.sendall(chunk)
                except TimeoutError:
                    continue
                except OSError:
                    return


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(echo.port) as proxy:
        yield proxy


def _connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def _exactly(connection: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        chunk = connection.recv(count - len(got))
        if not chunk:
            break
        got += chunk
    return bytes(got)


def test_bytes_pass_unchanged_and_are_counted(proxy: TcpProxy) -> None:
    sent = bytes(range(256)) * 4000
    with _connect(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        assert _exactly(client, len(sent)) == sent
        sender.join()
        assert proxy.connections == 1
    wait_until(lambda: proxy.connections == 0, 30, "the connection's end")
    ways = (proxy.to_server, proxy.to_client)  # counted behind the bytes themselves
    wait_until(lambda: {way.bytes_passed for way in ways} == {len(sent)}, 30, "both ways' counts")


def test_the_end_of_one_direction_leaves_the_other_open(proxy: TcpProxy) -> None:
    proxy.to_client.paused = True
    with _connect(proxy) as client:
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: proxy.to_server.bytes_passed == 8, 30, "the question's way")
        proxy.heal()
        assert _exactly(client, 100) == b"question"


def test_latency_holds_bytes_back_in_order(proxy: TcpProxy) -> None:
    proxy.to_server.latency_seconds = 0.2
    with _connect(proxy) as client:
        began = time.monotonic()
        client.sendall(b"first ")
        client.sendall(b"second")
        assert _exactly(client, 12) == b"first second"
        assert time.monotonic() - began >= 0.2


def test_bandwidth_and_slices_pass_everything(proxy: TcpProxy) -> None:
    proxy.to_server.slice_bytes = 7
    proxy.to_client.bytes_per_second = 2000.0
    with _connect(proxy) as client:
        began = time.monotonic()
        client.sendall(b"x" * 400)
        assert _exactly(client, 400) == b"x" * 400
        assert time.monotonic() - began >= 0.19


def test_a_black_hole_swallows_one_way_only(proxy: TcpProxy, echo: Echo) -> None:
    proxy.to_client.black_hole = True
    with _connect(proxy) as client:
        client.sendall(b"lost reply")
        wait_until(lambda: bytes(echo.received) == b"lost reply", 30, "the server's receipt")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.heal()
        client.settimeout(10)
        client.sendall(b"again")
        assert _exactly(client, 5) == b"again"


def test_reset_after_so_many_bytes_tears_the_stream_right_there(proxy: TcpProxy) -> None:
    proxy.to_client.reset_after_bytes = 3
    with _connect(proxy) as client:
        client.sendall(b"abcdef")
        with pytest.raises(ConnectionResetError):
            _exactly(client, 6)
    assert proxy.to_client.bytes_passed == 3
    with _connect(proxy) as client:
        client.sendall(b"abcdef")
        assert _exactly(client, 6) == b"abcdef"


def test_cut_resets_what_is_open_and_refuses_what_comes_until_healed(proxy: TcpProxy) -> None:
    with _connect(proxy) as client:
        client.sendall(b"x")
        assert _exactly(client, 1) == b"x"
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(OSError, match="reset"), _connect(proxy) as refused:
        refused.recv(1)
    proxy.heal()
    with _connect(proxy) as client:
        client.sendall(b"y")
        assert _exactly(client, 1) == b"y"


def test_a_proxy_without_a_server_behind_it_resets(echo: Echo) -> None:
    nobody = socket.create_server(("127.0.0.1", 0))
    port = nobody.getsockname()[1]
    nobody.close()
    with (
        TcpProxy(port) as proxy,
        pytest.raises(OSError, match="reset"),
        _connect(proxy) as client,
    ):
        client.recv(1)

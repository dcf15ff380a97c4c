"""Does a running service start, say what it does, answer its verbs, and stop without a loss?"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
import zenoh

from durable_cache import (
    Receipt,
    ReliablePublisher,
    declare_reliable_publisher,
    declare_reliable_subscriber,
    open_session,
)
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.service.metrics import METRICS
from durable_cache.testing.network import wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Any]
READY = "try from another terminal"
DELAYS = r'^durable_cache_ack_delay_seconds_count\{cache="lab"\} (\d+)$'


class Served(NamedTuple):
    """A running service and where it is reached."""

    process: Any
    endpoint: str
    http_port: int


@contextmanager
def publisher(endpoint: str, key_expr: str, **named: Any) -> Iterator[ReliablePublisher[Receipt]]:
    session = open_session(
        {
            "mode": "client",
            "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )
    try:
        with declare_reliable_publisher(
            session, key_expr, acknowledgements=1, level="memory", **named
        ) as it:
            yield it
    finally:
        session.close()  # type: ignore[no-untyped-call]


def publish(endpoint: str, key: str, payloads: list[bytes]) -> None:
    """Publish and wait until the cache has acknowledged every sample."""
    with publisher(endpoint, key) as out:
        receipts = [out.put(payload, encoding="text/plain") for payload in payloads]
        for receipt in receipts:
            assert receipt is not None
            assert receipt.wait(20), "not acknowledged"


@pytest.fixture
def served(start: Start, free_port: Callable[[], int], tmp_path: Path) -> Served:
    port, http_port = free_port(), free_port()
    endpoint = f"tcp/127.0.0.1:{port}"
    (tmp_path / "served.json5").write_text(
        json.dumps(
            {
                "listen": {"endpoints": [endpoint]},
                "scouting": {"multicast": {"enabled": False}},
                "adminspace": {"permissions": {"write": True}},
                "plugins": {
                    "durable_cache": {
                        "http": {"listen": f"127.0.0.1:{http_port}"},
                        "volumes": {"quick": {"backend": "memory"}},
                        "storages": {
                            "lab": {
                                "key_expr": "lab/**",
                                "acknowledge": "memory",
                                "limits": {"query_samples_max": 40},
                            }
                        },
                    }
                },
            }
        )
    )
    process = start("serve", "--config", "served.json5")
    process.wait_for(READY)
    return Served(process, endpoint, http_port)


def test_what_was_published_can_be_queried_in_every_format(served: Served, run: Run) -> None:
    publish(served.endpoint, "lab/a", [b"one", b"two", b"\xff\x00", b'q"uo,te\n'])
    table = run("query", "lab/**", "--connect", served.endpoint)
    assert table.returncode == 0, table.stderr
    heading, *lines = table.stdout.splitlines()
    assert heading.split() == [
        "key",
        "source",
        "epoch",
        "sn",
        "time",
        "kind",
        "encoding",
        "payload",
    ]
    assert [line.split()[3] for line in lines] == ["0", "1", "2", "3"]
    assert lines[0].endswith("one")
    assert lines[3].endswith("te\\x0a"), "control characters do not reach the terminal"
    as_json = run("query", "lab/**", "--connect", served.endpoint, "--format", "json")
    rows = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert [row["payload"] for row in rows] == ["one", "two", "hex:ff00", 'q"uo,te\n']
    assert {row["encoding"] for row in rows} == {"text/plain"}
    as_csv = run("query", "lab/**", "--connect", served.endpoint, "--format", "csv")
    assert as_csv.stdout.startswith("key,source,epoch,sn,time,kind,encoding,payload,attachment\n")
    assert 'text/plain,"q""uo,te\n",' in as_csv.stdout


def test_parameters_limit_what_is_returned(served: Served, run: Run) -> None:
    publish(served.endpoint, "lab/a", [b"%d" % number for number in range(10)])

    def payloads(selector: str, *more: str) -> list[str]:
        result = run("query", selector, "--connect", served.endpoint, "--format", "json", *more)
        assert result.returncode == 0, result.stderr
        return [json.loads(line)["payload"] for line in result.stdout.splitlines()]

    assert payloads("lab/**?_sn=3..5") == ["3", "4", "5"]
    assert payloads("lab/**?_sn=8..") == ["8", "9"]
    assert payloads("lab/**?_sn=..1") == ["0", "1"]
    assert payloads("lab/a?_sn=7") == ["7"]
    assert payloads("lab/**?_max=2") == ["8", "9"]
    assert payloads("lab/**?_time=[now(-1h)..];_max=1") == ["9"]
    assert payloads("lab/**?_time=[..now(-1h)]") == []
    assert payloads("lab/**", "--latest") == ["9"]
    assert payloads("lab/**", "--limit", "4") == ["0", "1", "2", "3"]
    assert payloads("other/**") == []


def test_a_long_answer_comes_whole_in_pages(served: Served, run: Run) -> None:
    for key in ("lab/a", "lab/b"):
        publish(served.endpoint, key, [b"%d" % number for number in range(130)])
    result = run(
        "query", "lab/**", "--connect", served.endpoint, "--format", "json", "--limit", "0"
    )
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["key"], row["sn"]) for row in rows] == [
        (key, number) for key in ("lab/a", "lab/b") for number in range(130)
    ]


def test_a_deleted_key_has_a_history_and_no_latest_value(served: Served, run: Run) -> None:
    with publisher(served.endpoint, "lab/gone") as out:
        for receipt in (out.put(b"here"), out.delete()):
            assert receipt is not None
            assert receipt.wait(20)
    history = run("query", "lab/gone", "--connect", served.endpoint, "--format", "json")
    kinds = [json.loads(line)["kind"] for line in history.stdout.splitlines()]
    latest = run("query", "lab/gone", "--connect", served.endpoint, "--latest")
    assert kinds == ["put", "delete"]
    assert latest.returncode == 0
    assert latest.stdout.splitlines()[1:] == []
    assert "nothing found" in latest.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("query", "lab/**?_sn=x"), "_sn='x': write _sn=a..b"),
        (("query", "lab/**?_sn=5..3"), "the range ends before it begins"),
        (("query", "lab/**?_time=yesterday"), "_time='yesterday': write _time=[start..end]"),
        (("query", "lab/**?_max=0"), "_max='0': write a whole number above 0"),
        (("query", "lab/**?_maks=1"), "unknown parameter '_maks'; known: _max, _sn, _time"),
        (("query", "lab//x"), "empty chunk"),
        (("query", "lab/**", "--source", "xyz"), "'xyz' is no source_id"),
        (("query", "lab/**?_max=1", "--latest"), "--latest: takes no parameters"),
        (("query", "lab/**", "--limit=-1"), "--limit: expected 0, for all, or above, got -1"),
        (("query", "lab/**", "--timeout", "0"), "--timeout: expected seconds above 0, got 0"),
        (("put", "lab/x", "1", "--rate=-3"), "--rate: expected 0, for no limit, or above"),
        (("put", "lab/x", "1", "--timeout", "0"), "--timeout: expected seconds above 0, got 0"),
        (("put", "lab/x", "1", "--domain", "a/b"), "--domain: expected 1 to 64 of"),
        (("put", "", "1"), "key '': a key expression may not be empty"),
        (("put", "@durable/v1/default/x", "1"), "below @durable/ are durable-cache's own messages"),
        (("put", "@durable/v1/default/consumers/x/y", "1"), "durable-cache's own messages; choose"),
        (("purge", "", "--key-expr", "**"), "'' is no name of a storage"),
        (("purge", "lab", "--key-expr", "**", "--below", "", "--yes"), "--below: an empty text"),
        (("consumers", "--reset", "", "--to", "3"), "--reset: an empty text says nothing"),
        (("consumers", "--reset", "billing", "--to", ""), "--to: an empty text says nothing"),
        (("loss", "--storage", ""), "--storage: an empty text says nothing"),
        (("replay", "lab/**", "--same-keys", "--pace", "0"), "--pace: expected a number above 0"),
        (("purge", "lab", "--key-expr", "a//b"), "--key-expr: 'a//b': empty chunk"),
        (("streams", "--source", "x/y"), "--source: 'x/y' is no source_id"),
        (("purge", "l/b", "--key-expr", "**"), "'l/b' is no name of a storage"),
        (("top", "--interval", "0"), "--interval: expected seconds above 0"),
        (("replay", "lab/**", "--remap", "lab"), "write old/keys=new/keys"),
        (("status", "--url", "ftp://x"), "expected http://host:port"),
        (("demo", "--seconds", "1"), "--seconds: expected at least 4"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(
    arguments: tuple[str, ...], said: str, run: Run
) -> None:
    result = run(*arguments)
    assert result.returncode == 2, result.stderr
    assert said in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1


def test_a_service_that_is_not_there_is_named(run: Run, free_port: Callable[[], int]) -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    for verb in (("query", "**"), ("status",), ("streams",), ("loss",)):
        result = run(*verb, "--connect", endpoint)
        assert result.returncode == 1
        assert endpoint in result.stderr
        assert "is the service running" in result.stderr
        assert "Traceback" not in result.stderr


def test_status_streams_loss_and_top_say_what_is_stored(served: Served, run: Run) -> None:
    publish(served.endpoint, "lab/a", [b"x"] * 5)
    status = run("status", "--connect", served.endpoint, "--format", "json")
    (report,) = json.loads(status.stdout)
    (storage,) = report["storages"]
    assert status.returncode == 0
    assert (storage["name"], storage["level"], storage["appended"]) == ("lab", "memory", 5)
    over_http = run("status", "--url", f"http://127.0.0.1:{served.http_port}")
    assert over_http.returncode == 0, over_http.stderr
    assert over_http.stdout.splitlines()[1].split()[1] == "lab"
    streams = run("streams", "--connect", served.endpoint, "--format", "json")
    (stream,) = json.loads(streams.stdout)
    assert (stream["key"], stream["samples"], stream["runs"]) == ("lab/a", 5, "0..4")
    elsewhere = run("streams", "--connect", served.endpoint, "--key-expr", "x/**")
    assert len(elsewhere.stdout.splitlines()) == 1
    loss = run("loss", "--connect", served.endpoint, "--format", "json")
    assert [row for row in json.loads(loss.stdout) if row["msg_loss"]] == []  # resends may repeat
    for verb in (("loss",), ("loss", "--skips"), ("streams",)):
        nowhere = run(*verb, "--storage", "nope", "--connect", served.endpoint)
        assert (nowhere.returncode, nowhere.stdout) == (1, "")
        assert "no service answers for a storage called 'nope'" in nowhere.stderr
    rounds = run("loss", "--watch", "--rounds", "-1", "--connect", served.endpoint)
    assert (rounds.returncode, rounds.stderr) == (
        2,
        "durable-cache: --rounds: expected 0 or above, got -1\n",
    )
    top = run("top", "--rounds", "1", "--interval", "0.2", "--connect", served.endpoint)
    assert top.returncode == 0, top.stderr
    assert "received/s" in top.stdout


def test_loss_shows_what_each_subscriber_and_cache_counted(served: Served, run: Run) -> None:
    options = DeliveryOptions(recovery=False)
    to_it = ("--connect", served.endpoint)
    with (
        publisher(served.endpoint, "lab/a", name="B.1") as out,
        declare_reliable_subscriber(
            out._session, "lab/**", lambda _: None, options=options
        ) as subscriber,
    ):
        assert out.put(b"x").wait(20)
        wait_until(lambda: subscriber.delivered == 1)
        for sn in (5, 5):
            info = zenoh.SourceInfo(out._publisher.id, sn)
            out._session.put("lab/a", b"x", source_info=info)
        wait_until(lambda: subscriber.duplicates == 1)
        wait_until(lambda: [row.user for row in subscriber.losses] == ["B.1"])
        table = run("loss", *to_it)
        assert table.returncode == 0, table.stderr
        heading, *lines = table.stdout.splitlines()
        of_the_text = (
            "user repeat rep time not sub not time msg loss loss time ibx loss ibx time R UR mode"
        )
        assert heading.split()[1:] == of_the_text.split()
        mine = next(line.split() for line in lines if line.startswith(str(subscriber.source)))
        assert (mine[1], mine[2], mine[4], mine[5]) == ("B.1", "1", "0", "4")
        assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", mine[6])
        found = json.loads(run("loss", *to_it, "--format", "json").stdout)
        cached = next(row for row in found if row["at"].startswith("lab@"))
        assert (cached["user"], cached["source"]) == ("B.1", str(out.source))
        assert cached["repeat"] >= 1, "the number put twice, and what may be sent once more"
        first = found[0]
        assert (first["at"], first["msg_loss"]) == (str(subscriber.source), 4)
        assert first["loss_time"].endswith("+00:00")
        assert (first["reliability"], first["uniqueness"]) == (2 / 6, 2 / 3)
        assert mine[-3:] == ["0.3333", "0.6666", "at-most-once"]
        assert (first["mode"], cached["mode"]) == ("at-most-once", None)
        assert cached["reliability"] is None
        watched = run("loss", *to_it, "--watch", "--rounds", "2", "--interval", "0.1", "--json")
        rounds = [json.loads(line) for line in watched.stdout.splitlines()]
        assert [row["msg_loss"] for row in rounds if row["at"] == first["at"]] == [4, 4]
        assert watched.stderr == ""
        http = f"http://127.0.0.1:{served.http_port}/metrics"
        wait_until(lambda: b"samples_lost_total 4\n" in urlopen(http).read())
        for measured in (b'subscribers{mode="at-most-once"} 1', b"uniqueness{", b"reliability{"):
            wait_until(lambda text=measured: text in urlopen(http).read())
        assert b'reliability{mode="at-most-once"} 0.333' in urlopen(http).read()
    skips = run("loss", *to_it, "--skips", "--format", "json")
    assert (skips.returncode, json.loads(skips.stdout)) == (0, [])
    assert "no sample was given up" in skips.stderr
    subjects = run("loss", *to_it, "--subjects", "--format", "json")
    assert (subjects.returncode, json.loads(subjects.stdout)) == (0, [])
    assert "no subscriber saw a subject sequence" in subjects.stderr
    for wrong in (("--limit", "0"), ("--interval", "0"), ("--watch", "--skips")):
        assert run("loss", *to_it, *wrong).returncode == 2


def test_a_subscriber_that_is_stopped_costs_the_others_tables_nothing(
    start: Start, served: Served, run: Run
) -> None:
    to_it = ("--connect", served.endpoint)
    with publisher(served.endpoint, "lab/a") as out:
        running = start("query", "lab/**", "--follow", *to_it)
        stopped = start("query", "lab/**", "--follow", *to_it)
        assert out.put(b"x").wait(20)
        running.wait_for("lab/a")
        stopped.wait_for("lab/a")
        stopped.send(signal.SIGSTOP)
        shown = run("loss", *to_it, "--json")
        stopped.send(signal.SIGCONT)
    assert shown.returncode == 1
    assert "not every table is shown: a subscriber: no answer within 5 s; it is" in shown.stderr
    assert {row["mode"] for row in json.loads(shown.stdout)} >= {"exactly-once"}
    assert "no sample was lost" not in shown.stderr
    for process in (running, stopped):
        process.send(signal.SIGINT)
        assert process.end() == 130


def test_purging_shows_first_and_removes_for_good(served: Served, run: Run) -> None:
    publish(served.endpoint, "lab/a", [b"x"] * 6)
    common = ("purge", "lab", "--key-expr", "lab/**", "--below", "4", "--connect", served.endpoint)
    shown = run(*common)
    assert (shown.returncode, "would remove 4 samples of 1 stream" in shown.stdout) == (0, True)
    done = run(*common, "--yes")
    assert (done.returncode, "removed 4 samples of 1 stream" in done.stdout) == (0, True)
    left = run("query", "lab/**", "--connect", served.endpoint, "--format", "json")
    assert [json.loads(line)["sn"] for line in left.stdout.splitlines()] == [4, 5]


def test_purging_needs_the_permission(
    start: Start, run: Run, free_port: Callable[[], int], tmp_path: Path, served: Served
) -> None:
    port = free_port()
    text = (tmp_path / "served.json5").read_text()
    settings = json.loads(text)
    settings["listen"]["endpoints"] = [f"tcp/127.0.0.1:{port}"]
    ours = settings["plugins"]["durable_cache"]
    ours["http"]["listen"] = f"127.0.0.1:{free_port()}"
    ours["state_dir"] = "other"
    del settings["adminspace"]
    (tmp_path / "other.json5").write_text(json.dumps(settings))
    start("serve", "--config", "other.json5").wait_for(READY)
    endpoint = f"tcp/127.0.0.1:{port}"
    publish(endpoint, "lab/a", [b"x"])
    result = run("purge", "lab", "--key-expr", "**", "--yes", "--connect", endpoint)
    assert result.returncode == 1
    assert "set adminspace: {permissions: {write: true}}" in result.stderr
    left = run("query", "lab/**", "--connect", endpoint, "--format", "json")
    assert len(left.stdout.splitlines()) == 1


def fetch(port: int, path: str, method: str = "GET") -> tuple[int, str, dict[str, str]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(), dict(reply.getheaders())
    finally:
        connection.close()


def test_health_metrics_and_status_page_are_served(served: Served) -> None:
    port = served.http_port
    published = 0
    with publisher(served.endpoint, "lab/a") as out:

        def three_were_heard() -> bool:
            """Publish one more: the first ones the cache may fetch before it hears them."""
            nonlocal published
            out.put(b"x")
            published += 1
            assert out.wait_for_all_acked(20)
            counted = re.search(DELAYS, fetch(port, "/metrics")[1], re.MULTILINE)
            return counted is not None and int(counted[1]) >= 3

        wait_until(three_were_heard, what="three delays")
    assert fetch(port, "/healthz")[:2] == (200, "alive\n")
    assert fetch(port, "/readyz")[:2] == (200, "ready\n")
    status, text, headers = fetch(port, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind}" in text
    assert f'durable_cache_samples_appended_total{{cache="lab"}} {published}' in text
    assert "lab/a" not in text, "no label names a key or a source"
    status, page, headers = fetch(port, "/")
    assert (status, "<script src=" in page) == (200, True)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    for name in ("/page.js", "/page.css"):
        status, text, _ = fetch(port, name)
        assert (status, "http" in text.replace("http://www.w3.org/2000/svg", "")) == (200, False)
    assert fetch(port, "/nowhere")[0] == 404
    assert fetch(port, "/metrics", "HEAD")[:2] == (200, "")
    assert fetch(port, "/", "POST")[0] == 501
    assert json.loads(fetch(port, "/status.json")[1])["ready"] is True


def test_the_page_asks_what_is_inside_a_storage(served: Served) -> None:
    publish(served.endpoint, "lab/a=b;c", [b"one", b"two"])
    port = served.http_port
    (key,) = json.loads(fetch(port, "/keys.json?storage=lab")[1])["rows"]
    assert (key["key"], key["value"], key["samples"]) == ("lab/a=b;c", "two", 2)
    path = "/samples.json?storage=lab&key=lab/a%3Db%3Bc"
    rows = json.loads(fetch(port, path)[1])["rows"]
    assert [row["value"] for row in rows] == ["two", "one"]
    (source,) = json.loads(fetch(port, "/sources.json?storage=lab")[1])["rows"]
    assert (source["missing"], source["given_up"]) == (0, 0)
    assert json.loads(fetch(port, "/losses.json?storage=lab")[1]) == []
    assert json.loads(fetch(port, "/peers.json?storage=lab")[1]) == []
    for wrong, said in (
        ("/keys.json?storage=none", "there is none"),
        ("/keys.json?storage=lab&key_expr=a//b", "empty chunk"),
        ("/samples.json?storage=lab", "may not be empty"),
    ):
        status, text, _ = fetch(port, wrong)
        assert (status, said in json.loads(text)["error"]) == (400, True), text
    assert json.loads(fetch(port, "/status.json?events=0")[1])["events"] == []


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"Host": "localhost:1"}, 200),
        ("/", {"Host": "evil.example"}, 421),
        ("/status.json", {"Host": "evil.example:80"}, 421),
        ("/keys.json?storage=lab", {"Host": ""}, 400),
        ("/metrics", {"Host": "cache-sqlite:8080"}, 200),
        ("/healthz", {"Host": "cache-sqlite:8080"}, 200),
        ("/status.json", {"Origin": "http://evil.example"}, 403),
        ("/status.json", {"Origin": "http://["}, 403),
        ("/status.json", {"Host": "["}, 421),
        ("/status.json", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/status.json", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
    ],
)
def test_pages_of_others_read_nothing(
    served: Served, path: str, headers: dict[str, str], status: int
) -> None:
    connection = HTTPConnection("127.0.0.1", served.http_port, timeout=10)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    assert reply.status == status, text
    assert reply.getheader("Access-Control-Allow-Origin") is None
    if status == 421:
        assert "add it to http.hosts" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_gracefully(number: signal.Signals, served: Served) -> None:
    began = time.monotonic()
    served.process.send(number)
    assert served.process.end() == 0
    assert time.monotonic() - began < 15
    said = served.process.stderr
    assert "stopping: what was received is being stored" in said
    assert said.rstrip().endswith("stopped")
    assert "Traceback" not in said


def test_ctrl_c_ends_a_client_without_a_traceback(start: Start, served: Served) -> None:
    process = start("top", "--connect", served.endpoint, "--interval", "0.1")
    process.wait_for("received/s")
    process.send(signal.SIGINT)
    assert process.end() == 130
    assert "Traceback" not in process.stderr


def test_a_port_in_use_is_named_with_the_remedy(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(
        """{ plugins: { durable_cache: { volumes: { m: { backend: "memory" } },
             storages: { lab: { key_expr: "lab/**", acknowledge: "memory" } } } } }"""
    )
    serve = ("serve", "--config", "cache.json5", "--listen")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        zenoh = run(*serve, f"tcp/127.0.0.1:{port}")
        http = run(*serve, "tcp/127.0.0.1:0", "--http", f"127.0.0.1:{port}")
    assert zenoh.returncode == 1
    assert f"127.0.0.1:{port}" in zenoh.stderr
    assert "choose other endpoints with --listen" in zenoh.stderr
    assert http.returncode == 1
    assert f"HTTP cannot listen on 127.0.0.1:{port}" in http.stderr
    assert "Traceback" not in zenoh.stderr + http.stderr


def test_replayed_history_arrives_under_the_new_keys(served: Served, run: Run) -> None:
    publish(served.endpoint, "lab/a", [b"1", b"2", b"3"])
    session = open_session(
        {
            "mode": "client",
            "connect": {"endpoints": [served.endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )
    try:
        heard: list[tuple[str, bytes]] = []
        subscriber = session.declare_subscriber(
            "again/**", lambda s: heard.append((str(s.key_expr), s.payload.to_bytes()))
        )
        result = run(
            "replay",
            "lab/**",
            "--remap",
            "lab=again/lab",
            "--rate",
            "50",
            "--connect",
            served.endpoint,
        )
        assert result.returncode == 0, result.stderr
        deadline = time.monotonic() + 10
        while len(heard) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        subscriber.undeclare()  # type: ignore[no-untyped-call]
    finally:
        session.close()  # type: ignore[no-untyped-call]
    assert heard == [("again/lab/a", b"1"), ("again/lab/a", b"2"), ("again/lab/a", b"3")]

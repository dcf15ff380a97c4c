"""`durable-cache pipe` between two networks: what it says, and what SIGKILL at any moment costs."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from durable_cache import (
    ReliabilityCache,
    ReliablePublisher,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.testing.network import LocalNetwork, free_port, wait_until
from tests.acceptance.conftest import Process
from tests.kit.faults import ModuleProcess

Run = Callable[..., subprocess.CompletedProcess[str]]
KEPT = "@durable/v1/default/consumers/*/**"
KILLS, KILLS_NIGHTLY = 10, 60
SOURCES = 2


@pytest.fixture
def near() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        yield network


@pytest.fixture
def far() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        yield network


def cache_on(network: LocalNetwork, directory: Path) -> ReliabilityCache:
    directory.mkdir(exist_ok=True)
    return declare_reliability_cache(
        network.router,
        ["fleet/**", KEPT],
        backend="sql",
        backend_options={"url": f"sqlite:///{directory}/samples.db"},
        state_dir=directory,
    )


def publisher_on(network: LocalNetwork, key: str) -> ReliablePublisher[Any]:
    return declare_reliable_publisher(network.client(), key, acknowledgements=1)


def test_a_pipe_says_what_it_carried(
    near: LocalNetwork, far: LocalNetwork, tmp_path: Path, run: Run
) -> None:
    given = ("pipe", "--from", near.endpoint, "--to", far.endpoint, "--key", "fleet/**")
    with (
        cache_on(near, tmp_path / "near"),
        cache_on(far, tmp_path / "far") as there,
        publisher_on(near, "fleet/7") as publisher,
    ):
        for _ in range(25):
            publisher.put(b"trip")
        publisher.flush(10)
        done = run(*given, "--idle", "0.5", "--json")
        assert done.returncode == 0, done.stderr
        assert "pipe pipe: carrying fleet/**" in done.stderr
        counts = json.loads(done.stdout)
        assert (counts["taken"], counts["confirmed"], counts["under_way"]) == (25, 25, 0)
        assert counts["rates"] == counts["route"] == {"reliability": 1.0, "uniqueness": 1.0}
        assert len(there.find("fleet/**")) == 25
        again = run(*given, "--idle", "0.5")
        assert again.stdout == "0 samples carried and confirmed\n"
        once_more = run(*given, "--idle", "0.5", "--mode", "at-least-once", "--json")
        counts = json.loads(once_more.stdout)
        assert (counts["mode"], counts["confirmed"], counts["lost"]) == ("at-least-once", 25, 0)
        assert len(there.find("fleet/**")) == 25


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (("--to", "{near}"), 2, "--from: name an endpoint"),
        (("--from", "{near}", "--to", "{near}"), 2, "both ends are in one network"),
        (("--from", "{near}", "--to", "{nobody}"), 1, "--to {nobody}: zenoh cannot open"),
        (("--from", "here", "--to", "{near}"), 2, "--from: "),
        (("--from", "{near}", "--to", "{far}", "--name", "a b"), 2, "--name: "),
        (("--from", "{near}", "--to", "{far}", "--idle", "-1"), 2, "--idle: "),
        (
            ("--from", "{near}", "--to", "{far}", "--interval", "0"),
            *(2, "--interval: expected seconds above 0, got 0"),
        ),
        (
            (*("--from", "{near}", "--to", "{far}"), "--mode", "unreliable", "--processed-by", "b"),
            *(2, "--processed-by: the mode unreliable confirms nothing: leave it out, or"),
        ),
        (
            ("--from", "{near}", "--to", "{far}", "--acknowledgements", "0"),
            2,
            "--acknowledgements: ",
        ),
        (("--from", "{near}", "--to", "{far}", "--processed-by", "a/b"), 2, "--processed-by: "),
        (("--from", "{near}", "--to", "{far}", "--from-domain", "a/b"), 2, "--from-domain: "),
        (("--from", "{near}", "--to", "{far}", "--to-domain", "a/b"), 2, "--to-domain: "),
    ],
)
def test_what_cannot_be_a_pipe_is_said_in_one_line(
    near: LocalNetwork,
    far: LocalNetwork,
    run: Run,
    given: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    names = {"near": near.endpoint, "far": far.endpoint, "nobody": f"tcp/127.0.0.1:{free_port()}"}
    done = run("pipe", "--key", "fleet/**", *(part.format(**names) for part in given))
    (line,) = done.stderr.splitlines()
    assert told.format(**names) in line
    assert (done.returncode, done.stdout) == (code, "")


def test_a_file_of_a_service_that_runs_is_not_listened_for_twice(
    near: LocalNetwork, run: Run, tmp_path: Path
) -> None:
    """Whoever names the configuration of the service itself is told what to leave out."""
    (tmp_path / "near.json5").write_text(json.dumps({"listen": {"endpoints": [near.endpoint]}}))
    far = f"tcp/127.0.0.1:{free_port()}"
    done = run("pipe", "--key", "a/**", "--from-config", "near.json5", "--to", far)
    (line,) = done.stderr.splitlines()
    assert "--from near.json5: zenoh cannot open a session: cannot listen on" in line
    assert line.endswith("; a pipe need not listen, leave `listen` out of near.json5")


@pytest.mark.parametrize(
    ("given", "caches", "told"),
    [
        (
            ("--processed-by", "nobody"),
            1,
            "5 under way, 5 of them not confirmed by 'nobody', 0/s; 'nobody' has confirmed nothing",
        ),
        (("--acknowledgements", "2"), 1, "5 under way, 0/s; too few caches of the target network"),
        ((), 0, "5 under way, 0/s; too few caches of the target network are in reach: is one runn"),
    ],
)
def test_a_pipe_that_waits_says_what_for(
    near: LocalNetwork,
    far: LocalNetwork,
    tmp_path: Path,
    start: Callable[..., Process],
    given: tuple[str, ...],
    caches: int,
    told: str,
) -> None:
    ends = ("--from", near.endpoint, "--to", far.endpoint, "--key", "fleet/**")
    with (
        cache_on(near, tmp_path / "near"),
        cache_on(far, tmp_path / "far") if caches else nullcontext(),
        publisher_on(near, "fleet/7") as publisher,
    ):
        for _ in range(5):
            publisher.put(b"trip")
        publisher.flush(10)
        pipe = start("pipe", *ends, *given, "--interval", "0.3")
        pipe.wait_for(told)
        pipe.send(signal.SIGINT)
        assert pipe.end() == 0, pipe.stderr
    assert pipe.stdout.startswith("0 samples carried and confirmed, 5 not ")
    assert told.rpartition("; ")[2] in pipe.stdout


class Publishing:
    """Sources that put all the time, until they are told to end."""

    def __init__(self, network: LocalNetwork) -> None:
        self._publishers = [publisher_on(network, f"fleet/{at}") for at in range(SOURCES)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            for publisher in self._publishers:
                publisher.put(b"%d" % publisher.next_sn, attachment=b"with")

    def finish(self) -> dict[str, int]:
        """Return how many samples each source put, once a cache holds them."""
        self._ended.set()
        self._thread.join()
        for publisher in self._publishers:
            publisher.flush(60)
        return {str(publisher.key_expr): publisher.next_sn for publisher in self._publishers}

    def close(self) -> None:
        self._ended.set()
        for publisher in self._publishers:
            publisher.close()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [KILLS, pytest.param(KILLS_NIGHTLY, marks=pytest.mark.nightly)])
def test_a_pipe_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    near: LocalNetwork, far: LocalNetwork, tmp_path: Path, kills: int
) -> None:
    """Every fourth time the far cache is started anew, too."""
    chance = random.Random(14)
    here, there = cache_on(near, tmp_path / "near"), cache_on(far, tmp_path / "far")
    given = ["pipe", "--from", near.endpoint, "--to", far.endpoint, "--key", "fleet/**"]
    got: list[Sample] = []
    subscriber = declare_reliable_subscriber(far.client(), "fleet/*", got.append, history=True)
    publishing = Publishing(near)
    process = ModuleProcess("durable_cache.service", given, ready="carrying fleet/**")
    try:
        with process:
            for kill in range(kills):
                time.sleep(chance.random())
                process.kill()
                if kill % 4 == 3:
                    there.close()
                    there = cache_on(far, tmp_path / "far")
                process.start()
            put = publishing.finish()

            def arrived() -> dict[str, int]:
                keys = [sample.key for sample in [*got]]
                return {key: keys.count(key) for key in put}

            wait_until(lambda: arrived() == put, 60, f"{put}, as published")
    finally:
        publishing.close()
        subscriber.close()
        there.close()
        here.close()
    for key, count in put.items():
        samples = [sample for sample in got if sample.key == key]
        assert [sample.sn for sample in samples] == [*range(count)]
        assert [sample.payload for sample in samples] == [b"%d" % at for at in range(count)]
        assert len({(sample.source, sample.epoch) for sample in samples}) == 1
    assert subscriber.missed == 0

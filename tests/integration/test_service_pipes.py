"""Pipes of a running service: between real networks, of which one is away for a while."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from durable_cache import declare_reliability_cache, declare_reliable_publisher
from durable_cache.errors import ConfigError
from durable_cache.service.cli import main
from durable_cache.service.config import read_settings
from durable_cache.service.service import Service
from durable_cache.testing.network import LocalNetwork, free_port, wait_until

POSITIONS = "@durable/v1/default/consumers/**"
SAMPLES = 20


@pytest.fixture
def far() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        yield network


class Serving:
    """A service at an endpoint, whose configuration is written as a file has it."""

    def __init__(self, directory: Path, pipes: dict[str, object]) -> None:
        self.endpoint = f"tcp/127.0.0.1:{free_port()}"
        self.http = f"127.0.0.1:{free_port()}"
        self.document: dict[str, Any] = {
            "mode": "router",
            "scouting": {"multicast": {"enabled": False}},
            "listen": {"endpoints": [self.endpoint]},
            "plugins": {
                "durable_cache": {
                    "state_dir": str(directory / "state"),
                    "http": {"listen": self.http},
                    "storages": {"fleet": {"key_expr": ["fleet/**", POSITIONS]}},
                    "pipes": pipes,
                }
            },
        }

    def start(self) -> Service:
        return Service(read_settings(self.document))


def pipe_of(service: Service) -> dict[str, Any]:
    (pipe,) = service.report().pipes
    return dict(pipe.values())


def told(caplog: pytest.LogCaptureFixture, sentence: str) -> list[dict[str, Any]]:
    return [record.__dict__ for record in caplog.records if record.message == sentence]


def test_a_service_carries_what_its_configuration_names(
    far: LocalNetwork,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)
    serving = Serving(tmp_path, {"to-hub": {"key_expr": "fleet/**", "to": far.endpoint}})
    with (
        declare_reliability_cache(
            far.client(),
            "fleet/**",
            backend="sql",
            backend_options={"url": f"sqlite:///{tmp_path}/far.db"},
            state_dir=tmp_path / "far",
        ) as there,
        serving.start() as service,
    ):
        with declare_reliable_publisher(
            service.session, "fleet/7", acknowledgements=1
        ) as publisher:
            for at in range(SAMPLES):
                publisher.put(b"%d" % at)
            wait_until(lambda: pipe_of(service).get("confirmed") == SAMPLES, 30, "the pipe")
            found = sorted(there.find("fleet/**"), key=lambda sample: sample.sn)
            assert [sample.payload for sample in found] == [b"%d" % at for at in range(SAMPLES)]
            assert {sample.source for sample in found} == {publisher.source}
        service.look()
        (line,) = told(caplog, "a pipe carries")
        assert (line["pipe"], line["between"]) == ("to-hub", f"here -> {far.endpoint}")
        with urlopen(f"http://{serving.http}/metrics") as reply:
            measured = reply.read().decode()
        assert f'pipe_confirmed_total{{pipe="to-hub"}} {SAMPLES}\n' in measured
        assert 'pipe_running{pipe="to-hub"} 1\n' in measured
        assert main(["status", "--url", f"http://{serving.http}", "--json"]) == 0
        (report,) = json.loads(capsys.readouterr().out)
        (pipe,) = report["pipes"]
        assert (pipe["is_running"], pipe["confirmed"], pipe["under_way"]) == (True, SAMPLES, 0)
        assert pipe["rates"] == {"reliability": 1.0, "uniqueness": 1.0}
        assert (pipe["mode"], pipe["lost"]) == ("exactly-once", 0)
        assert main(["status", "--url", f"http://{serving.http}"]) == 0
        assert "to-hub" in capsys.readouterr().out


def test_a_service_runs_a_pipe_in_the_mode_that_is_named(far: LocalNetwork, tmp_path: Path) -> None:
    """No storage of the service covers positions: this pipe has none."""
    live = {"key_expr": "fleet/**", "to": far.endpoint, "mode": "at-most-once"}
    serving = Serving(tmp_path, {"live": live})
    serving.document["plugins"]["durable_cache"]["storages"]["fleet"]["key_expr"] = ["fleet/**"]
    with (
        declare_reliability_cache(far.client(), "fleet/**") as there,
        serving.start() as service,
    ):
        wait_until(lambda: pipe_of(service).get("caches") == 1, 30, "the pipe")
        with declare_reliable_publisher(service.session, "fleet/7") as publisher:
            publisher.put(b"x")
            wait_until(lambda: pipe_of(service)["taken"] == 1, 30, "a sample that arrived")
            wait_until(lambda: pipe_of(service)["under_way"] == 0, 30, "what becomes of it")
        pipe = pipe_of(service)
        assert (pipe["mode"], pipe["confirmed"] + pipe["lost"]) == ("at-most-once", 1)
        assert len(there.find("fleet/**")) >= pipe["confirmed"]
        with urlopen(f"http://{serving.http}/metrics") as reply:
            assert b'pipe_lost{pipe="live"} ' in reply.read()


def test_a_network_that_is_away_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples go from the far network to the service, which was up before."""
    caplog.set_level(logging.INFO)
    port = free_port()
    endpoint = f"tcp/127.0.0.1:{port}"
    serving = Serving(tmp_path / "near", {"from-site": {"key_expr": "fleet/**", "from": endpoint}})
    site = Serving(tmp_path / "far", {})
    site.document["listen"] = {"endpoints": [endpoint]}
    with serving.start() as service:
        assert not pipe_of(service)["is_running"]
        assert endpoint in pipe_of(service)["between"]
        service.look()
        service.look()
        (line,) = told(caplog, "a pipe carries nothing; it is tried again")
        assert line["levelname"] == "WARNING"
        assert line["reason"]
        with (
            site.start() as there,
            declare_reliable_publisher(there.session, "fleet/7", acknowledgements=1) as publisher,
        ):
            for _ in range(SAMPLES):
                publisher.put(b"")
            wait_until(lambda: pipe_of(service).get("confirmed") == SAMPLES, 60, "the pipe")
            service.look()
            assert told(caplog, "a pipe carries")
        assert len(service.caches["fleet"].find("fleet/**")) == SAMPLES


def test_a_service_goes_on_where_its_pipe_stood(far: LocalNetwork, tmp_path: Path) -> None:
    pipe = {"key_expr": "fleet/**", "to": far.endpoint, "level": "memory"}
    serving = Serving(tmp_path, {"to-hub": pipe})
    with declare_reliability_cache(far.client(), "fleet/**") as there:
        for count in (3, 4):
            with (
                serving.start() as service,
                declare_reliable_publisher(
                    service.session, "fleet/7", acknowledgements=1
                ) as publisher,
            ):
                for _ in range(count):
                    publisher.put(b"")
                wait_until(lambda: pipe_of(service).get("confirmed") == count, 30, "the pipe")  # noqa: B023
                assert pipe_of(service)["taken"] == count
        assert len(there.find("fleet/**")) == 7


def test_two_pipes_of_one_service_there_and_back_carry_each_sample_once(
    far: LocalNetwork, tmp_path: Path
) -> None:
    """What comes back is known: it is confirmed, stored no second time, and goes round no more."""
    pipes = {"there": {"key_expr": "fleet/**", "to": far.endpoint}}
    pipes["back"] = {"key_expr": "fleet/**", "from": far.endpoint}
    serving = Serving(tmp_path, dict(pipes))

    def counts(service: Service) -> list[tuple[int, int, int]]:
        found = [dict(pipe.values()) for pipe in service.report().pipes]
        return [(p.get("taken", 0), p.get("confirmed", 0), p.get("given_up", 0)) for p in found]

    with (
        declare_reliability_cache(
            far.client(),
            ["fleet/**", POSITIONS],
            backend="sql",
            backend_options={"url": f"sqlite:///{tmp_path}/far.db"},
            state_dir=tmp_path / "far",
        ) as there,
        serving.start() as service,
        declare_reliable_publisher(service.session, "fleet/7", acknowledgements=1) as ours,
        declare_reliable_publisher(far.client(), "fleet/8", acknowledgements=1) as theirs,
    ):
        for at in range(SAMPLES):
            ours.put(b"%d" % at)
            theirs.put(b"%d" % at)
        all_over = [(2 * SAMPLES, 2 * SAMPLES, 0)] * 2
        wait_until(lambda: counts(service) == all_over, 30, "both directions")
        here = service.caches["fleet"]
        for cache in (here, there):
            found = sorted(cache.find("fleet/**"), key=lambda sample: (sample.key, sample.sn))
            assert [(s.key, s.sn) for s in found] == [
                (key, sn) for key in ("fleet/7", "fleet/8") for sn in range(SAMPLES)
            ]
            assert {s.source for s in found} == {ours.source, theirs.source}
        time.sleep(2)  # a circle would go on
        assert counts(service) == all_over


@pytest.mark.parametrize("end", ["to", "from"])
def test_a_pipe_onto_itself_is_refused(
    tmp_path: Path, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is written so, before anything is opened; else when both networks are in reach."""
    serving = Serving(tmp_path, {})
    port = serving.endpoint.rpartition(":")[2]
    serving.document["listen"] = {"endpoints": [f"tcp/0.0.0.0:{port}"]}
    ours = serving.document["plugins"]["durable_cache"]
    ours["pipes"] = {"round": {"key_expr": "fleet/**", end: serving.endpoint}}
    file = tmp_path / "round.json5"
    file.write_text(json.dumps(serving.document))
    assert main(["check-config", str(file)]) == 2
    assert "pipes.round: both ends are in one network, that of" in capsys.readouterr().err
    ours["pipes"] = {"round": {"key_expr": "fleet/**", end: f"tcp/127.0.0.2:{port}"}}
    with pytest.raises(ConfigError, match=r"'round': both ends are in one network.*name an endp"):
        serving.start()
    ours["pipes"] = {}
    serving.start().stop()


def test_check_config_tells_of_pipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serving = Serving(tmp_path, {"to-hub": {"key_expr": "fleet/**", "to": "tcp/hub:7447"}})
    file = tmp_path / "fleet.json5"
    file.write_text(json.dumps(serving.document))
    assert main(["check-config", str(file)]) == 0
    said = capsys.readouterr()
    assert "pipe to-hub: fleet/**, here -> tcp/hub:7447" in said.err
    shown = json.loads(said.out)["plugins"]["durable_cache"]["pipes"]["to-hub"]
    assert (shown["to"], shown["level"]) == ("tcp/hub:7447", "disk")

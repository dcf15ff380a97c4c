"""Is the compose file sound, and does each thing that is missing get its one line?"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from durable_cache.service.document import read_document
from durable_cache.testing.services import require
from tests.tree import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CACHES = sorted(name for name in SERVICES if name.startswith("cache-"))
PROFILES = ("core", "influxdb", "lake", "observability")
DATABASES = ("postgres", "influxdb")


def has_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and (
        subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode
        == 0
    )


@pytest.fixture
def compose() -> str:
    if not has_compose():
        require("compose", "there is no docker with the compose plugin")
    return str(shutil.which("docker"))


@pytest.mark.parametrize("profile", [*PROFILES, "*"])
def test_docker_compose_accepts_the_file(compose: str, profile: str) -> None:
    done = subprocess.run(
        [compose, "compose", "--profile", profile, "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_brings_what_its_services_wait_for(profile: str) -> None:
    here = {name for name, service in SERVICES.items() if profile in service["profiles"]}
    assert here
    for name in here:
        waited_for = SERVICES[name].get("depends_on", {})
        assert set(waited_for) <= here
        assert all(rule["condition"] == "service_healthy" for rule in waited_for.values())


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_health_limits_and_a_pinned_image(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"]
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory"}
    version = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["image"]).partition(":")[2]
    assert version
    assert version != "latest"


@pytest.mark.parametrize("name", CACHES)
def test_every_cache_writes_only_to_its_volume(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert sum(volume.endswith(":/data") for volume in service["volumes"]) == 1


@pytest.mark.parametrize("name", CACHES)
def test_the_configuration_of_every_cache_is_good(name: str, tmp_path: Path) -> None:
    from durable_cache.service.config import read_settings

    (file,) = [part for part in SERVICES[name]["volumes"] if part.startswith("./deploy/caches/")]
    settings = read_settings(read_document(ROOT / file.split(":")[0]))
    assert settings.cache.http.listen == "0.0.0.0:8080"
    assert settings.cache.state_dir == "/data"
    assert all(storage.alignment.enabled for storage in settings.cache.storages.values())


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_volume_without_a_name_is_left_behind(name: str) -> None:
    service = SERVICES[name]
    declared = {"durable-cache": "/data", "influxdb": "/etc/influxdb2"}.get(
        service["image"].partition(":")[0]
    )
    targets = [part.split(":")[1] for part in service.get("volumes", [])]
    targets += [part.split(":")[0] for part in service.get("tmpfs", [])]
    assert declared is None or declared in targets


def test_databases_are_on_the_internal_network_only() -> None:
    assert COMPOSE["networks"]["databases"] == {"internal": True}
    for name in DATABASES:
        assert SERVICES[name]["networks"] == ["databases"]
        assert "ports" not in SERVICES[name]


def test_ports_are_published_on_loopback_and_can_be_chosen() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+_PORT:-\d+\}:\d+", port)


def strings(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from strings(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner, path)
    elif isinstance(value, str):
        yield path, value


def test_every_secret_is_a_file() -> None:
    for path, value in strings(SERVICES):
        name = path.rsplit(".", 1)[1].upper()
        if re.search(r"PASSWORD|TOKEN|SECRET", name) and name != "SECRETS":
            assert name.endswith("_FILE"), path
            assert value.startswith("/run/secrets/"), path
    for name, secret in COMPOSE["secrets"].items():
        assert secret == {"file": f"./deploy/secrets/{name}"}


def test_what_a_provisioned_grafana_reads_is_there() -> None:
    grafana = ROOT / "deploy" / "grafana"
    (provider,) = yaml.safe_load((grafana / "provisioning/dashboards/dashboards.yml").read_text())[
        "providers"
    ]
    mounted = {part.split(":")[1]: part.split(":")[0] for part in SERVICES["grafana"]["volumes"]}
    assert (ROOT / mounted[provider["options"]["path"]]).samefile(grafana / "dashboards")
    assert list((grafana / "dashboards").glob("*.json"))


def test_the_dashboard_of_the_service_asks_for_what_it_exports() -> None:
    from durable_cache.service.metrics import METRICS

    text = (ROOT / "deploy/grafana/dashboards/durable-cache-service.json").read_text()
    names = {one.name for one in METRICS}
    asked = {
        re.sub("_(sum|count|bucket)$", "", name)
        for panel in json.loads(text)["panels"]
        for target in panel["targets"]
        for name in re.findall(r"durable_cache_\w+", target["expr"])
    }
    assert asked
    assert asked <= names


def run_script(path: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "tools/compose.sh"), *arguments],
        env={"PATH": path, "HOME": os.environ.get("HOME", ""), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with the system's commands but no docker."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "env", "dirname", "tr", "tail", "sed", "grep", "od", "cat"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def test_no_engine_is_one_line(bare_path: Path) -> None:
    done = run_script(str(bare_path), "check")
    assert done.returncode == 1
    assert done.stderr == "compose: no docker command; install Docker Engine 24 or newer\n"


def test_no_compose_plugin_is_one_line(bare_path: Path) -> None:
    (bare_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    (bare_path / "docker").chmod(0o755)
    done = run_script(str(bare_path), "check")
    assert done.returncode == 1
    assert done.stderr == "compose: no compose plugin; install docker-compose-plugin\n"


def test_an_engine_that_is_stopped_is_one_line(bare_path: Path) -> None:
    (bare_path / "docker").write_text(
        '#!/bin/sh\n[ "$1" = compose ] || { echo "Client:"; echo "Cannot connect to x"; exit 1; }\n'
    )
    (bare_path / "docker").chmod(0o755)
    done = run_script(str(bare_path), "check")
    assert done.returncode == 1
    assert done.stderr == "compose: no engine answers: Cannot connect to x\n"


def test_the_compose_test_tells_a_machine_without_an_engine_from_a_failure(bare_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/compose_test.py")],
        env={"PATH": str(bare_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.endswith(
        "cannot be tried here: no docker command; install Docker Engine 24 or newer\n"
    )


STARTING_FOR_EVER = """#!/bin/sh
case "$*" in
  *"config --profiles"*) echo core ;;
  "volume inspect"*) exit 1 ;;
  *" up "*) echo >>{calls} up; exec sleep 60 ;;
  *" down "*) echo >>{calls} down ;;
esac
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_start_at_once_and_takes_it_down(
    bare_path: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    calls = tmp_path / "calls"
    for name in ("mktemp", "rm", "mv", "rmdir", "awk", "sleep"):
        (bare_path / name).symlink_to(str(shutil.which(name)))
    (bare_path / "docker").write_text(STARTING_FOR_EVER.format(calls=calls))
    (bare_path / "docker").chmod(0o755)
    copy = tmp_path / "tree"
    (copy / "deploy/secrets").mkdir(parents=True)
    (copy / "tools").mkdir()
    shutil.copy(ROOT / "docker-compose.yml", copy)
    shutil.copy(ROOT / "tools/compose.sh", copy / "tools")
    with subprocess.Popen(
        [str(copy / "tools/compose.sh"), "up"],
        env={"PATH": str(bare_path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as start:
        while start.poll() is None and not (calls.exists() and calls.read_text()):
            time.sleep(0.02)
        start.send_signal(number)
        said = start.communicate(timeout=30)[1]
    assert start.returncode == code, said
    assert said == "compose: interrupted, taking down what came up\n"
    assert calls.read_text().split() == ["up", "down"]


def test_an_unknown_verb_is_one_line(bare_path: Path) -> None:
    done = run_script(str(bare_path), "upwards")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def engine_answers() -> bool:
    return (
        has_compose()
        and not subprocess.run(
            ["docker", "version"], capture_output=True, check=False, timeout=30
        ).returncode
    )


@pytest.mark.slow
def test_a_port_in_use_and_an_unknown_profile_are_one_line_and_start_nothing() -> None:
    if not engine_answers():
        require("containers", "no container engine answers")
    environment = {
        name: value for name, value in os.environ.items() if name.startswith("DOCKER")
    } | {"COMPOSE_PROJECT_NAME": f"durable-cache-ports-{os.getpid()}"}
    path = os.environ["PATH"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_script(path, "up", ZENOH_PORT=port, **environment)
    assert done.returncode == 1
    assert done.stderr == f"compose: port {port} is in use; choose another: ZENOH_PORT=...\n"
    done = run_script(path, "up", PROFILES="coer", **environment)
    assert done.returncode == 1
    assert done.stderr.startswith("compose: no profile is called 'coer'; there are: core")
    left = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"name={environment['COMPOSE_PROJECT_NAME']}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert left.stdout == ""

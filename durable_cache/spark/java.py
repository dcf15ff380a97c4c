"""Which Java will run Spark, and is it one that can."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from durable_cache.errors import ConfigError

JAVA_MAJOR_MIN = 17
_REMEDY = (
    "install a JDK or JRE of version 17 or later (Debian: apt-get install openjdk-17-jre-headless)"
    " and point JAVA_HOME at it"
)


def check_java() -> int:
    """Return the major version of the Java that Spark would start; ConfigError with a remedy.

    Looks where Spark looks: ``$JAVA_HOME/bin/java``, else ``java`` on the PATH.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise ConfigError(f"Spark needs Java, and there is no java on the PATH; {_REMEDY}")
    if not os.access(java, os.X_OK):
        raise ConfigError(f"JAVA_HOME is {home!r}, but {java} is no program; {_REMEDY}")
    said = subprocess.run(  # noqa: S603 - the program Spark itself would start
        [java, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if match is None:
        raise ConfigError(f"{java} -version does not name a version; {_REMEDY}")
    major = int(match[1])
    if major < JAVA_MAJOR_MIN:
        raise ConfigError(f"{java} is Java {major}, Spark needs {JAVA_MAJOR_MIN}; {_REMEDY}")
    return major

"""U12, in part: the package tells its version and runs as a module."""

from __future__ import annotations

import os
import subprocess
import sys

import durable_cache


def test_the_package_has_a_version_and_runs_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "durable_cache", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == durable_cache.__version__

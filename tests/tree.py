"""Which files are part of the project, as the checks of the tree read them?"""

from __future__ import annotations

import ast
import os
import subprocess
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("durable_cache", "durable_cache_sql", "durable_cache_influxdb", "durable_cache_delta")
_LEFT_OUT = {"__pycache__", "build", "dist", "node_modules", "durable-cache-data"}


@lru_cache(maxsize=1)
def files() -> tuple[Path, ...]:
    """Return every file that git tracks or would track; without git, what is not hidden."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.returncode == 0:
            found = {ROOT / name for name in listed.stdout.split("\0") if name}
            return tuple(sorted(path for path in found if path.is_file()))
    found = set()
    for folder, names, leaves in os.walk(ROOT):
        names[:] = [name for name in names if name not in _LEFT_OUT and not name.startswith(".")]
        found |= {Path(folder) / leaf for leaf in leaves}
    return tuple(sorted(found))


def python_files(*folders: str) -> tuple[Path, ...]:
    """Return the Python files under the folders, or all of them."""
    under = [ROOT / folder for folder in folders] or [ROOT]
    return tuple(
        path
        for path in files()
        if path.suffix == ".py" and any(path.is_relative_to(folder) for folder in under)
    )


def source_files() -> tuple[Path, ...]:
    """Return the files that are shipped."""
    return python_files("durable_cache", "backends", "migrations")


@lru_cache(maxsize=4096)
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def named(path: Path) -> str:
    """Return the path as a reader of the repository writes it."""
    return path.relative_to(ROOT).as_posix()

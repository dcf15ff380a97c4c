"""How does a test install a plug-in of its own without an installer?"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def write_distribution(
    directory: Path,
    name: str,
    backends: Mapping[str, str],
    modules: Mapping[str, str],
    requires: tuple[str, ...] = (),
) -> Path:
    """Write a distribution as an installer would leave it; returns `directory`.

    `backends` maps the names it claims to ``module:attribute``, `modules` module names to source.
    """
    info = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}"
    )
    lines = "".join(f"{backend} = {value}\n" for backend, value in backends.items())
    info.joinpath("entry_points.txt").write_text(f"[durable_cache.backends]\n{lines}")
    for module, source in modules.items():
        directory.joinpath(f"{module}.py").write_text(source)
    return directory


@contextmanager
def installed(*directories: Path) -> Iterator[None]:
    """Put the distributions in `directories` on the import path, and take them off again."""
    before, known = sys.path.copy(), set(sys.modules)
    sys.path[:0] = map(str, directories)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
        for module in set(sys.modules) - known:
            if any(Path(d, f"{module}.py").exists() for d in directories):
                del sys.modules[module]
        importlib.invalidate_caches()

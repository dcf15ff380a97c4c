"""Do all imports go shell -> I/O -> seam -> pure, and do the pure rooms know no clock or driver?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tree import ROOT, named, parsed, source_files

PURE = ("durable_cache.model", "durable_cache.protocol", "durable_cache.errors")
SEAM = ("durable_cache.storage",)
RUNTIME = ("durable_cache.runtime",)
ENDPOINTS = ("durable_cache.endpoints",)
SHELLS = (
    "durable_cache.service",
    "durable_cache.spark",
    "durable_cache.frame",
    "durable_cache.testing",
)
BACKENDS = ("durable_cache_sql", "durable_cache_influxdb", "durable_cache_delta")

ALLOWED: dict[str, tuple[str, ...]] = {
    "durable_cache.errors": (),
    "durable_cache.model": ("durable_cache.errors",),
    "durable_cache.protocol": ("durable_cache.errors", "durable_cache.model"),
    "durable_cache.storage": PURE,
    "durable_cache.runtime": (*PURE, *SEAM),
    "durable_cache.endpoints": (*PURE, *SEAM, *RUNTIME),
    "durable_cache.profiles": ("durable_cache.protocol",),
    "durable_cache.consumers": ENDPOINTS,
    "durable_cache.pipes": ENDPOINTS,
    "durable_cache.modes": ("durable_cache.model", "durable_cache.protocol", *ENDPOINTS),
    "durable_cache.ext": ENDPOINTS,
    "durable_cache.__main__": ("durable_cache.service",),
    "durable_cache.service": (*PURE, *SEAM, *RUNTIME, *ENDPOINTS),
    "durable_cache.frame": (*PURE, *SEAM, *ENDPOINTS, "durable_cache.service"),
    "durable_cache.spark": (*PURE, *SEAM, *ENDPOINTS, "durable_cache_delta"),
    "durable_cache.testing": (*PURE, *SEAM, *RUNTIME, *ENDPOINTS, "durable_cache.service"),
    **dict.fromkeys(BACKENDS, (*PURE, *SEAM)),
}
"""Which rooms of the project a room may import, besides itself."""

EXCEPTIONS: dict[str, tuple[str, ...]] = {
    # It is the door through which all public names are seen.
    "durable_cache/__init__.py": (*PURE, *SEAM, *ENDPOINTS, "durable_cache.frame"),
    # It reads the files that `durable-cache copy` writes, whose format is the service's.
    "durable_cache/spark/importing.py": (*ALLOWED["durable_cache.spark"], "durable_cache.service"),
}
"""Files that may import more than their room."""

NOT_IN_PURE_ROOMS = {
    *("time", "threading", "logging", "asyncio", "concurrent", "multiprocessing"),
    *("socket", "select", "ssl", "http", "urllib", "os", "pathlib", "io", "shutil", "tempfile"),
    *("subprocess", "signal", "secrets", "uuid", "zenoh", "sqlite3", "sqlalchemy"),
    *("psycopg", "influxdb_client", "deltalake", "pyarrow", "pyspark", "queue", "sched"),
}
DRIVERS = {
    "zenoh": ("durable_cache/endpoints/session/",),
    "psycopg": ("backends/durable_cache_sql/",),
    "sqlalchemy": ("backends/durable_cache_sql/", "migrations/"),
    "alembic": ("backends/durable_cache_sql/", "migrations/"),
    "influxdb_client": ("backends/durable_cache_influxdb/",),
    "deltalake": ("backends/durable_cache_delta/", "durable_cache/spark/"),
    "pyspark": ("durable_cache/spark/",),
    "polars": ("durable_cache/frame/",),
    "pandas": ("durable_cache/frame/",),
    "duckdb": ("durable_cache/frame/",),
    "delta": ("durable_cache/spark/",),
    "mcap": ("durable_cache/service/recording.py",),
    "testcontainers": ("durable_cache/testing/",),
    "pytest": ("durable_cache/testing/",),
    "hypothesis": ("durable_cache/testing/",),
}
"""Where a driver may be imported, so that its errors and types stay behind one door."""


class Import(NamedTuple):
    path: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{named(self.path)}:{self.line}: imports {self.module}"


def module_of(path: Path) -> str:
    """Return the dotted name under which a source file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "backends" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """Return the room of the project that a module belongs to; None for others' modules."""
    parts = module.split(".")
    if parts[0] == "durable_cache":
        return ".".join(parts[:2])
    return parts[0] if parts[0] in BACKENDS else None


def imports_of(path: Path, tree: ast.Module | None = None) -> Iterator[Import]:
    """Return every import of a file, also those within functions and under TYPE_CHECKING."""
    module = module_of(path).split(".")
    package = module if path.name == "__init__.py" else module[:-1]
    for node in ast.walk(tree or parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) - node.level + 1] if node.level else []
            yield Import(path, node.lineno, ".".join([*origin, *filter(None, [node.module])]))


def arrows_wrong(imports: Iterator[Import]) -> list[str]:
    """Return what is wrong with the direction of some imports."""
    wrong = []
    for item in imports:
        origin, target = room_of(module_of(item.path)), room_of(item.module)
        if origin is None or target is None or origin == target:
            continue
        allowed = EXCEPTIONS.get(named(item.path), ALLOWED.get(origin, ()))
        if target not in allowed:
            rule = ", ".join(allowed) or "nothing of the project"
            wrong.append(f"{item}; rule: {origin} imports only {rule}")
    return wrong


def impure(imports: Iterator[Import]) -> list[str]:
    """Return the imports of a pure room that bring in a clock, a thread, a logger or a driver."""
    return [
        f"{item}; rule: {room_of(module_of(item.path))} is pure, no clock, thread, logger or driver"
        for item in imports
        if room_of(module_of(item.path)) in (*PURE, *RUNTIME)
        and item.module.split(".")[0] in NOT_IN_PURE_ROOMS
    ]


def clocks_and_dice(path: Path, tree: ast.Module | None = None) -> list[str]:
    """Return where a pure file asks a clock or throws dice of its own.

    The types `datetime` and `Random(seed)` are values; ``now()`` and the module's dice are not.
    """
    if room_of(module_of(path)) not in (*PURE, *RUNTIME):
        return []
    wrong = []
    for node in ast.walk(tree or parsed(path)):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        used = f"{node.value.id}.{node.attr}"
        clock = node.value.id in {"datetime", "date"} and node.attr in {"now", "utcnow", "today"}
        if clock or (node.value.id == "random" and node.attr != "Random"):
            wrong.append(f"{named(path)}:{node.lineno}: {used}; rule: time and seeds are arguments")
    return wrong


def out_of_door(imports: Iterator[Import]) -> list[str]:
    """Return the imports of drivers outside the folders that own them."""
    wrong = []
    for item in imports:
        doors = DRIVERS.get(item.module.split(".")[0])
        if doors is not None and not named(item.path).startswith(doors):
            wrong.append(f"{item}; rule: only {', '.join(doors)} may")
    return wrong


def everything() -> Iterator[Import]:
    for path in source_files():
        yield from imports_of(path)


def test_imports_go_from_the_shell_inwards() -> None:
    wrong = arrows_wrong(everything())
    assert not wrong, "\n".join(wrong)


def test_the_pure_rooms_know_no_clock_thread_logger_or_driver() -> None:
    wrong = impure(everything())
    assert not wrong, "\n".join(wrong)


def test_the_pure_rooms_ask_no_clock_and_throw_no_dice() -> None:
    wrong = [line for path in source_files() for line in clocks_and_dice(path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("source", ["x = datetime.now()", "x = random.random()", "date.today()"])
def test_a_clock_in_a_pure_room_is_named(source: str) -> None:
    path = ROOT / "durable_cache/model/x.py"
    assert clocks_and_dice(path, ast.parse(source))[0].startswith("durable_cache/model/x.py:1")


def test_every_driver_has_one_door() -> None:
    wrong = out_of_door(everything())
    assert not wrong, "\n".join(wrong)


def test_every_room_has_its_rule() -> None:
    rooms = {room_of(module_of(path)) for path in source_files()} - {None, "durable_cache"}
    assert rooms <= set(ALLOWED)


@pytest.mark.parametrize(
    ("file", "source", "check", "rule"),
    [
        ("durable_cache/model/x.py", "import time", impure, "is pure"),
        ("durable_cache/protocol/x.py", "def f():\n from os import path", impure, "is pure"),
        ("durable_cache/model/x.py", "import durable_cache.protocol.wire", arrows_wrong, "errors"),
        ("durable_cache/protocol/x.py", "from ..storage import contract", arrows_wrong, "model"),
        ("durable_cache/endpoints/x.py", "import durable_cache.service", arrows_wrong, "storage"),
        ("backends/durable_cache_sql/x.py", "import durable_cache_delta", arrows_wrong, "storage"),
        ("durable_cache/storage/x.py", "import sqlalchemy", out_of_door, "durable_cache_sql"),
        ("durable_cache/service/x.py", "import zenoh.ext", out_of_door, "session/"),
    ],
)
def test_an_arrow_the_wrong_way_is_named(file: str, source: str, check, rule: str) -> None:
    path = ROOT / file
    (message,) = check(imports_of(path, ast.parse(source)))
    assert message.startswith(f"{file}:")
    assert rule in message

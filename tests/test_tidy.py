"""Is the tree as the style says: small modules, honest names, nothing left lying about?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.planted import planted_faults
from tests.tree import ROOT, named, parsed, python_files, source_files
from tests.tree import files as tree_files

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 8
PUBLIC_NAMES_MAX = 24
"""Twenty, and the options type of every declaration that takes one."""

LONGER: dict[str, int] = {}
"""Modules that are longer than they may be, with their length: it may only shrink."""

BACKEND_MODULES = ("backend", "options", "storage", "append", "read", "skips", "trim", "errors")
"""What every backend calls its parts; whatever else it has is its own."""

BANNED_IN_NAMES = re.compile(r"(Manager|Helper|Utils?|Base)(?=[A-Z0-9_]|$)")
NAMES_OF_OTHERS = {"BaseHTTPRequestHandler", "BaseException"}

_LEFT_TO_DO = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
_BANNER = re.compile(r"^\s*#\s*([-=*#~_])\1{3,}")
_MACHINE = re.compile(
    r"(?<![\w.>])/(?:home/(?!nonroot)\w|root/|work/|Users/\w)|[A-Za-z]:\\Users\\|/tmp/w/"
)
_REGISTRY = re.compile(
    r"--(?:extra-)?index-url|--find-links|--trusted-host"
    r"|https?://[\w.-]*(?:pypi|pythonhosted|artifactory|nexus|mirror|proxy|registry)[\w.-]*"
)
_BINARY = {".png", ".jpg", ".gif", ".ico", ".parquet", ".db", ".gz", ".zst", ".bin", ".jar"}


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def texts() -> Iterator[Path]:
    for path in tree_files():
        if path.suffix not in _BINARY and path != Path(__file__):
            yield path


def found(pattern: re.Pattern[str], paths: Iterator[Path] | tuple[Path, ...]) -> list[str]:
    return [
        f"{named(path)}:{number}: {line.strip()[:100]}"
        for path in paths
        for number, line in enumerate(lines_of(path), 1)
        if pattern.search(line)
    ]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_modules_are_short() -> None:
    long = [
        f"{named(path)}: {length} lines, at most {limit}"
        for path in python_files("durable_cache", "backends", "tools", "tests", "benchmarks")
        if (length := len(lines_of(path))) > (limit := LONGER.get(named(path), MODULE_LINES_MAX))
    ]
    assert not long, "split them by what they answer:\n" + "\n".join(long)


def test_no_exception_is_larger_than_it_needs_to_be() -> None:
    by_name = {named(path): path for path in python_files()}
    stale = [
        f"{name}: {limit}"
        for name, limit in LONGER.items()
        if name not in by_name or len(lines_of(by_name[name])) < limit
    ]
    assert not stale, "lower these numbers in LONGER:\n" + "\n".join(stale)


def test_functions_are_short_and_take_few_parameters() -> None:
    wrong = []
    for path in source_files():
        for function in functions(path):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > FUNCTION_LINES_MAX:
                wrong.append(f"{named(path)}:{function.lineno}: {function.name} has {length} lines")
            taken = function.args
            count = len(taken.posonlyargs + taken.args)
            count -= bool(taken.args) and taken.args[0].arg in {"self", "cls"}
            if count > PARAMETERS_MAX:
                wrong.append(f"{named(path)}:{function.lineno}: {function.name} takes {count}")
    assert not wrong, "\n".join(wrong)


def test_the_public_names_are_few() -> None:
    import durable_cache

    assert len(durable_cache.__all__) <= PUBLIC_NAMES_MAX
    assert [name for name in durable_cache.__all__ if not hasattr(durable_cache, name)] == []


def test_every_module_begins_with_a_sentence() -> None:
    silent = [
        named(path)
        for path in python_files("durable_cache", "backends", "tests", "tools", "benchmarks")
        if path.read_text(encoding="utf-8").strip() and not ast.get_docstring(parsed(path))
    ]
    assert not silent, "say which question they answer:\n" + "\n".join(silent)


def test_every_backend_has_the_same_modules_for_the_same_things() -> None:
    folders = sorted(path for path in (ROOT / "backends").glob("durable_cache_*") if path.is_dir())
    assert folders
    lacking = [
        f"{named(folder)}/{name}.py"
        for folder in folders
        for name in BACKEND_MODULES
        if not (folder / f"{name}.py").is_file()
    ]
    assert not lacking, "who knows one backend should know them all:\n" + "\n".join(lacking)


def test_no_name_says_nothing() -> None:
    vague = [
        f"{named(path)}:{node.lineno}: {node.name}"
        for path in python_files()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        and BANNED_IN_NAMES.search(node.name)
        and node.name not in NAMES_OF_OTHERS
    ]
    assert not vague, "name what they do:\n" + "\n".join(vague)


def test_nothing_is_left_to_do() -> None:
    assert found(_LEFT_TO_DO, tuple(texts())) == []


def test_no_banner_comments() -> None:
    assert found(_BANNER, python_files()) == []


def test_no_path_of_a_machine_is_named() -> None:
    assert found(_MACHINE, tuple(texts())) == []


def test_no_address_to_download_packages_from_is_named() -> None:
    assert found(_REGISTRY, tuple(texts())) == []


@pytest.mark.parametrize(
    "name",
    ["build", "dev", "run", "postgres", "influxdb", "delta", "spark", "frame", "mcap", "top"],
)
def test_the_locks_pin_everything_by_hash_and_name_no_address(name: str) -> None:
    lock = next(path for path in tree_files() if named(path) == f"requirements/{name}.txt")
    text = lock.read_text().replace("\\\n", " ")
    assert "://" not in text
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert pins
    for pin in pins:
        assert re.match(r"[a-z0-9][a-z0-9.-]*(\[[a-z,-]+\])?==\S+", pin), pin
        assert "--hash=sha256:" in pin, pin


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (_MACHINE, "see /ro" + "ot/notes"),
        (_MACHINE, "'/ho" + "me/someone/x'"),
        (_REGISTRY, "pip install --index" + "-url x"),
        (_REGISTRY, "https://py" + "pi.example.org/simple"),
        (_BANNER, "# ===" + "== part"),
        (_LEFT_TO_DO, "# TO" + "DO later"),
        (BANNED_IN_NAMES, "CacheManager"),
        (BANNED_IN_NAMES, "BaseStorage"),
    ],
)
def test_the_checks_can_fail(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


@pytest.mark.parametrize("name", ["Database", "Baseline", "Utility"])
def test_honest_names_pass(name: str) -> None:
    assert not BANNED_IN_NAMES.search(name)


def test_every_fault_of_the_list_can_still_be_planted() -> None:
    """`tests/test_mutations.py` plants them: what is renamed or rewritten is renamed there too."""
    faults = planted_faults()
    troubles = [f"{fault.name}: {trouble}" for fault in faults if (trouble := fault.trouble())]
    assert not troubles, "in tests/mutations.toml:\n" + "\n".join(troubles)
    assert len({fault.name for fault in faults}) == len(faults)

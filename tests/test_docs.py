"""Does the documentation name what the code has, and do its links lead somewhere?"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.tree import ROOT, files, named, parsed, python_files, source_files

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
_CODE = re.compile(r"`[^`]*`")
_METRIC = re.compile(r"durable_cache_[a-z0-9_]+")
_MAKE = re.compile(r"\bmake ([a-z][a-z-]*)")
_VERB = re.compile(r"(?<![\w./-])durable-cache (?!is serving|service answers|sevre )([a-z][a-z-]*)")
ADR_PARTS = ("context", "decision", "consequences")


def markdown_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".md"]


def anchor(heading: str) -> str:
    """Return the anchor that a heading gets where Markdown is shown."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda match: match.group(1) or "", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@lru_cache(maxsize=256)
def anchors(path: Path) -> frozenset[str]:
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return frozenset(anchor(heading) for heading in _HEADING.findall(text))


def broken_links(path: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    broken = []
    for target in _LINK.findall(_CODE.sub("", _FENCE.sub("", text))):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        place, _, fragment = target.partition("#")
        to = (path.parent / unquote(place)).resolve() if place else path
        if not to.exists():
            broken.append(f"{named(path)}: {target}: no such file")
        elif fragment and to.suffix == ".md" and fragment not in anchors(to):
            broken.append(f"{named(path)}: {target}: no such heading")
    return broken


def test_every_relative_link_leads_somewhere() -> None:
    broken = [
        line
        for path in markdown_files()
        for line in broken_links(path, path.read_text(encoding="utf-8"))
    ]
    assert not broken, "\n".join(broken)


def test_a_broken_link_is_named() -> None:
    page = ROOT / "README.md"
    assert broken_links(page, "see [there](docs/never-written.md)")
    assert broken_links(page, "see [there](#never-written)")
    assert not broken_links(page, "see [that](https://zenoh.io), `[no](link.md)`, [here](LICENSE)")


def decisions() -> list[Path]:
    return [path for path in markdown_files() if path.parent == ROOT / "docs" / "adr"]


def test_every_decision_has_context_decision_and_consequences() -> None:
    wrong = []
    for path in decisions():
        if path.name == "README.md":
            continue
        if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name):
            wrong.append(f"{named(path)}: not called NNNN-title.md")
        headings = " ".join(_HEADING.findall(path.read_text(encoding="utf-8"))).lower()
        wrong += [f"{named(path)}: no part on {part}" for part in ADR_PARTS if part not in headings]
    assert not wrong, "\n".join(wrong)


def test_no_two_decisions_share_a_number() -> None:
    numbers = [path.name[:4] for path in decisions() if path.name != "README.md"]
    assert sorted(numbers) == sorted(set(numbers))


def metric_names() -> set[str]:
    """Return the names of all metrics, as the service itself lists them."""
    metrics = pytest.importorskip("durable_cache.service.metrics")
    return {metric.name for metric in metrics.METRICS}


def page(name: str) -> str:
    path = ROOT / "docs" / name
    if not path.exists():
        pytest.skip(f"docs/{name} is not written yet")
    return path.read_text(encoding="utf-8")


def test_every_metric_is_explained() -> None:
    explained = set(_METRIC.findall(page("operations.md")))
    missing = metric_names() - explained
    assert not missing, f"explain in docs/operations.md: {', '.join(sorted(missing))}"


def configuration_fields() -> set[str]:
    """Return the names of all settings: the fields of the models that read the file."""
    fields = set()
    rooms = ("config", "sections", "pipe_settings")
    trees = [parsed(ROOT / f"durable_cache/service/{room}.py") for room in rooms]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
            fields |= {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    written = {"target": "to", "source": "from"}
    return {written.get(name, name) for name in fields} - {"cache", "zenoh", "options", "kept"}


def test_every_setting_is_documented() -> None:
    text = page("configuration.md")
    assert len(configuration_fields()) > 10
    missing = sorted(name for name in configuration_fields() if f"`{name}`" not in text)
    assert not missing, f"document in docs/configuration.md: {', '.join(missing)}"


def code_in(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return [*_FENCE.findall(text), *_CODE.findall(_FENCE.sub("", text))]


def commands(pattern: re.Pattern[str]) -> set[tuple[str, str]]:
    """Return (page, command) for what the pages tell a reader to type."""
    return {
        (named(path), word)
        for path in markdown_files()
        for shown in code_in(path)
        for word in pattern.findall(shown)
    }


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    missing = {f"{where}: make {word}" for where, word in commands(_MAKE) if word not in targets}
    assert not missing, "\n".join(sorted(missing))


def verbs() -> set[str]:
    """Return the verbs of the command line."""
    from durable_cache.service.verbs import VERBS

    return set(VERBS)


def test_every_verb_that_is_named_exists() -> None:
    known = verbs()
    missing = {
        f"{where}: durable-cache {word}" for where, word in commands(_VERB) if word not in known
    }
    assert not missing, "\n".join(sorted(missing))


def test_every_environment_variable_of_the_code_is_documented() -> None:
    used = {
        name
        for path in source_files()
        if "testing" not in path.parts
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in re.findall(r"^DURABLE_CACHE_[A-Z0-9_]*[A-Z0-9]$", node.value)
    }
    text = "\n".join(path.read_text(encoding="utf-8") for path in markdown_files())
    missing = sorted(name for name in used if name not in text)
    assert not missing, f"explain in a page under docs/: {', '.join(missing)}"


def test_every_test_folder_is_known_to_a_reader() -> None:
    folders = {path.relative_to(ROOT).parts[1] for path in python_files("tests")}
    text = page("architecture.md")
    missing = sorted(name for name in folders if not name.endswith(".py") and name not in text)
    assert not missing, f"name in docs/architecture.md what these tests are for: {missing}"

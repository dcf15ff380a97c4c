"""How a configuration file's text becomes one plain mapping, whichever notation it is in.

A name written twice is an error: the second would silently win.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable
from pathlib import Path
from typing import cast

import json5
import yaml

from durable_cache.errors import ConfigError

DOCUMENT_BYTES_MAX = 1 << 20
_YAML_SUFFIXES = frozenset({".yaml", ".yml"})
_JSON_SUFFIXES = frozenset({".json5", ".json"})


def _nearest_file(path: Path) -> str:
    """Return which file beside `path` may be meant where there is no such file."""
    try:
        names = [] if path.exists() else [each.name for each in path.parent.iterdir()]
    except OSError:
        return ""
    found = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(found[0])}?" if found else ""


def read_document(path: Path) -> dict[str, object]:
    """Read a configuration file, JSON5 or YAML by its suffix.

    Raises `ConfigError`, never to be retried as is, naming the file and the line.
    """
    suffix = path.suffix.lower()
    if suffix not in _YAML_SUFFIXES | _JSON_SUFFIXES:
        raise ConfigError(f"{path}: name a configuration .json5, .json, .yaml or .yml")
    try:
        with path.open("rb") as file:
            raw = file.read(DOCUMENT_BYTES_MAX + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}{_nearest_file(path)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: no UTF-8 at byte {error.start}") from error
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise ConfigError(f"{path}: a configuration may not exceed {DOCUMENT_BYTES_MAX} bytes")
    try:
        document = parse_yaml(text) if suffix in _YAML_SUFFIXES else parse_json5(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{path}: the whole file must be one table of named settings")
    return cast("dict[str, object]", document)


def parse_json5(text: str) -> object:
    """Parse JSON5; ConfigError with the line on a mistake or a name written twice."""
    try:
        return cast("object", json5.loads(text, allow_duplicate_keys=False))
    except ValueError as error:
        raise ConfigError(str(error).replace("<string>:", "line ")) from error
    except RecursionError as error:
        raise ConfigError("nested too deeply") from error


def parse_yaml(text: str) -> object:
    """Parse YAML; ConfigError with the line on a mistake or a name written twice."""
    try:
        document = yaml.load(text, Loader=_UniqueLoader)  # noqa: S506 - a SafeLoader
        _check_aliases(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{place}{error.problem or error.context or 'no YAML'}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"no YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError("nested too deeply") from error
    return cast("object", document)


def _check_aliases(document: object) -> None:
    """Raise ConfigError where aliases repeat so much, or themselves, that nobody can read it all.

    Without them a file holds fewer values than bytes.
    """
    waiting = [document]
    for _ in range(DOCUMENT_BYTES_MAX):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    raise ConfigError("aliases (*name) repeat too much, or themselves; write the values out")


class _UniqueLoader(yaml.SafeLoader):
    """SafeLoader that refuses a name written twice in one table."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = getattr(key, "value", None)
            if isinstance(name, str) and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f'Duplicate key "{name}" found', key.start_mark
                )
            seen.add(name if isinstance(name, str) else id(key))
        return super().construct_mapping(node, deep)

"""The pages of the site that are read from the code: mkdocs calls `on_files` (see mkdocs.yml).

The first page is README.md; verbs, Python names, errors and metrics are listed as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_TO_DOCS = re.compile(r"\]\(docs/")
_TO_LICENSE = re.compile(r"\[([^\]]+)\]\(LICENSE\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file holds."""
    pages = {
        "index.md": home(),
        "reference/verbs.md": verbs(),
        "reference/api.md": names(),
        "reference/errors.md": errors(),
        "reference/metrics.md": metrics(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def home() -> str:
    """Return README.md with its links as they are seen from the site's first page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return _TO_LICENSE.sub(r"\1", _TO_DOCS.sub("](", text))


def verbs() -> str:
    """Return what `--help` says of every verb."""
    from durable_cache.service.verbs import VERBS

    parts = ["# Verbs", "What `durable-cache VERB --help` prints, for each."]
    for name, verb in VERBS.items():
        parts += [f"## {name}", f"{verb.summary[0].upper()}{verb.summary[1:]}."]
        for title, usage in helps(name):
            if title != name:
                parts.append(f"### {title}")
            parts.append(f"```text\n{usage.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def helps(verb: str) -> Iterator[tuple[str, str]]:
    """Yield a verb and the verbs below it with their help."""
    import argparse

    from durable_cache.service.cli import build_parser

    def below(name: str, parser: Any) -> Iterator[tuple[str, str]]:
        yield name, parser.format_help()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, each in action.choices.items():
                    yield from below(f"{name} {word}", each)

    for action in build_parser(verb)._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from below(verb, action.choices[verb])


def names() -> str:
    """Return the page of everything that `durable_cache` exports."""
    import durable_cache

    parts = [
        "# Python",
        "Everything that `durable_cache` exports. Names of `zenoh.ext`: [Porting](../porting.md).",
    ]
    names = sorted(durable_cache.__all__, key=lambda name: (name[0].isupper(), name.lower()))
    parts += [f"::: {place_of(name)}" for name in names]
    return "\n\n".join(parts) + "\n"


def place_of(name: str) -> str:
    """Return the module that a name of the package is defined in, with the name."""
    import durable_cache

    thing: Any = getattr(durable_cache, name)
    return f"{thing.__module__}.{name}"


def errors() -> str:
    """Return the page of the errors that are raised."""
    return "# Errors\n\n::: durable_cache.errors\n"


def metrics() -> str:
    """Return the table of the metrics."""
    from durable_cache.service.metrics import METRICS

    rows = [f"| `{each.name}` | {each.kind} | {each.meaning} |" for each in METRICS]
    head = [
        "# Metrics",
        "What `/metrics` tells, one label `cache` each; see [Operations](../operations.md).",
        "\n".join(["| name | kind | meaning |", "|---|---|---|", *rows]),
    ]
    return "\n\n".join(head) + "\n"

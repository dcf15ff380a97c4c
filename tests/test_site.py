"""Does the documentation build strictly into a site that needs nothing from elsewhere?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from durable_cache.service.metrics import METRICS
from durable_cache.service.verbs import VERBS
from tests.tree import ROOT

pytestmark = pytest.mark.slow

_LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//")
"""What a browser fetches by itself; a link that somebody follows may lead anywhere."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return target


def test_every_page_stands_alone(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80, "pages and decisions"
    from_elsewhere = [page.name for page in pages if _LOADED.search(page.read_text("utf-8"))]
    assert from_elsewhere == []


def test_the_reference_names_what_there_is(site: Path) -> None:
    import durable_cache

    def page(name: str) -> str:
        return (site / "reference" / name).read_text("utf-8")

    assert [verb for verb in VERBS if f'id="{verb}"' not in page("verbs.html")] == []
    assert [each.name for each in METRICS if each.name not in page("metrics.html")] == []
    names = page("api.html")
    lacking = [name for name in durable_cache.__all__ if f'.{name}"' not in names]
    assert lacking == []
    assert "StorageUnavailable" in page("errors.html")

"""The status page: files of its own that ask for JSON, so that nothing is ever written as markup.

``page.js`` puts every name and payload into the page as text. Nothing comes from elsewhere.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

__all__ = ["FILES", "File", "read_file"]


class File(NamedTuple):
    """One file of the page."""

    name: str
    content_type: str


FILES = {
    "/": File("index.html", "text/html; charset=utf-8"),
    "/page.js": File("page.js", "text/javascript; charset=utf-8"),
    "/page.css": File("page.css", "text/css; charset=utf-8"),
}
"""What is served under which path."""


def read_file(file: File) -> str:
    """Return a file of the page."""
    return files(__name__).joinpath(file.name).read_text("utf-8")

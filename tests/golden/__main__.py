"""Writes below every event what the engines do now: ``python -m tests.golden``, `make golden`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.golden.engines import retell
from tests.golden.stories import stories


def main() -> int:
    """Rewrite the stories that are told differently now, and name them."""
    folder = Path(__file__).parent
    for path in stories(folder):
        before, now = path.read_text(encoding="utf-8"), retell(path)
        if now != before:
            path.write_text(now, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(folder)} is told differently now\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

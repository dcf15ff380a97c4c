"""How ``python -m durable_cache`` runs the command line."""

from __future__ import annotations

import sys

from durable_cache.service.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())

"""How ``python -m durable_cache.service`` runs the command line."""

from __future__ import annotations

import sys

from durable_cache.service.cli import main

__all__: list[str] = []

sys.exit(main())

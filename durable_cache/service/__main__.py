"""How ``python -m durable_cache.service`` runs the command line."""

from __future__ import annotations

from durable_cache.service.start import main

__all__: list[str] = []

main()

"""How ``python -m durable_cache`` runs the command line."""

from __future__ import annotations

from durable_cache.service.start import main

__all__: list[str] = []

if __name__ == "__main__":
    main()

"""SQL backend."""

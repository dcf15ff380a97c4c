"""Delta Lake backend."""

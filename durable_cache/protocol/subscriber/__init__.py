"""A reliable subscriber's decisions: one pure machine, driven by events."""

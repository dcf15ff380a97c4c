"""Durable history for Eclipse Zenoh."""

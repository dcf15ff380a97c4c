"""The I/O room: cache, publisher and subscriber on real Zenoh sessions."""

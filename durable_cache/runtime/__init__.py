"""A cache put together without threads, clock or Zenoh: a shell drives it, a simulator plays it."""

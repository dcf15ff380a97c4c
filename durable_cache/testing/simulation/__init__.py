"""Publishers, caches and subscribers in virtual time: one seed is one history, replayed at will.

    python -m durable_cache.testing.simulation --seed N [--readers]

plays one with its trace. `docs/adr/0100-one-history-is-one-seed.md` says why it is built so.
"""

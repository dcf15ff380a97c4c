"""Whether two caches can be aligned at all, and whether they keep the same."""

from __future__ import annotations

from hashlib import blake2b

from durable_cache.protocol.alignment.events import AlignerOptions, CacheProfile
from durable_cache.protocol.alignment.wire import PROTOCOL, Hello, Parameters


def own_hello(options: AlignerOptions, profile: CacheProfile) -> Hello:
    """Return what a cache says of itself."""
    check = blake2b(b"durable-cache alignment", digest_size=4, key=options.secret).digest()
    return Hello(
        profile.cache_id,
        profile.incarnation,
        Parameters(PROTOCOL, options.slot_seconds, options.block, int.from_bytes(check, "little")),
        tuple(sorted(set(profile.include))),
        tuple(sorted(set(profile.exclude))),
        profile.age_seconds_max,
        profile.samples_max,
        profile.bytes_max,
    )


def mismatch(theirs: Parameters, mine: Parameters) -> str:
    """Return why two caches cannot be compared; empty when they can."""
    if theirs.protocol != mine.protocol:
        return f"alignment versions {theirs.protocol} and {mine.protocol}; upgrade the older cache"
    if theirs.slot_seconds != mine.slot_seconds:
        return f"slot_seconds {theirs.slot_seconds} and {mine.slot_seconds}; make them the same"
    if theirs.block != mine.block:
        return f"content blocks of {theirs.block} and {mine.block}; make them the same"
    if theirs.seed_check != mine.seed_check:
        return "the alignment secrets differ; give all caches of the domain the same"
    return ""


def same_class(one: Hello, two: Hello) -> bool:
    """Tell whether two caches keep the same of the same keys."""
    return (
        one.include == two.include
        and one.exclude == two.exclude
        and one.age_seconds_max == two.age_seconds_max
        and one.samples_max == two.samples_max
        and one.bytes_max == two.bytes_max
    )

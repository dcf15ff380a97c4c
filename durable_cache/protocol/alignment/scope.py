"""Which keys two caches have in common, and under which name they compare them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from durable_cache.model.key_expression import KeyExpression


@dataclass(frozen=True, slots=True)
class Scope:
    """Keys that every part names: some expression of its `include`, none of its `exclude`."""

    parts: tuple[tuple[tuple[KeyExpression, ...], tuple[KeyExpression, ...]], ...]

    @classmethod
    def of(cls, include: tuple[str, ...], exclude: tuple[str, ...] = ()) -> Scope:
        """Return one cache's scope; raises ValueError, not to be retried, on a bad expression."""
        return cls(
            (
                (
                    tuple(KeyExpression(text) for text in sorted(set(include))),
                    tuple(KeyExpression(text) for text in sorted(set(exclude))),
                ),
            )
        )

    def holds(self, key: str) -> bool:
        """Tell whether samples on `key`, a key or a wildcard update's expression, are compared."""
        return all(
            any(expression.concerns(key) for expression in include)
            and not any(expression.covers(key) for expression in exclude)
            for include, exclude in self.parts
        )

    @property
    def name(self) -> int:
        """64 bits that name the scope, the same at every cache."""
        text = "\x00".join(
            sorted(
                "\x01".join((*map(str, include), "\x02", *map(str, exclude)))
                for include, exclude in self.parts
            )
        )
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def covers(self, other: Scope) -> bool:
        """Tell whether every key of `other` is in this one; False when that is not plain."""
        (wide, wide_not), (narrow, narrow_not) = self.parts[0], other.parts[0]
        return all(any(big.includes(small) for big in wide) for small in narrow) and all(
            any(excluded.includes(hole) for excluded in narrow_not)
            or not any(hole.intersects(small) for small in narrow)
            for hole in wide_not
        )

    def meets(self, other: Scope) -> bool:
        """Tell whether the two may have a key in common."""
        return any(one.intersects(two) for one in self.parts[0][0] for two in other.parts[0][0])


def common_scope(one: Scope, two: Scope) -> Scope | None:
    """Return what both caches keep, named alike by both; None when that is nothing."""
    if not one.meets(two):
        return None
    wide, narrow = one.covers(two), two.covers(one)
    if wide and narrow:
        return min(one, two, key=lambda scope: scope.name)
    if wide or narrow:
        return two if wide else one
    return Scope(one.parts + two.parts)

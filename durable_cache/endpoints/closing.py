"""How what was declared is closed at the end of a `with` block, an asynchronous one too."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self


class Closing:
    """Something with a `close`, as a context manager of both kinds."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Undeclare everything; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Close on a thread of the loop's own pool: what is awaited there holds up nobody here."""
        import asyncio

        closing = asyncio.ensure_future(asyncio.to_thread(self.close))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])  # who is cancelled here leaves with everything closed
            raise

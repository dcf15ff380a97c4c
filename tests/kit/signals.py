"""Something happens in the middle of a call, wherever the interpreter looks for signals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def at_call(number: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Act where the interpreter looks for signals: as a function begins, behind one in C."""
    calls = [0]

    def looked(frame: FrameType, event: str, _: object) -> None:
        ours = "durable_cache" in frame.f_code.co_filename
        if ours and event in ("call", "c_return"):
            calls[0] += 1
            if calls[0] == number:
                act()

    before = sys.getprofile()
    sys.setprofile(looked)
    try:
        yield calls
    finally:
        sys.setprofile(before)

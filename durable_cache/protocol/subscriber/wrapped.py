"""The run before a wrap, whose token comes after something of the run behind it (ADR 0383).

A publisher of ours whose numbers wrap goes on under a name that follows from the one before. So
whoever learns of the two in the wrong order sees which was first, whatever epochs they declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_cache.protocol.subscriber.events import Declared
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.wire import incarnation_after

if TYPE_CHECKING:
    from durable_cache.protocol.subscriber.followed import Followed


def goes_before(followed: Followed, token: Declared) -> bool:
    """Let the run of a token go before the one that it wrapped into; False where none is known.

    Where something of that was passed on, what comes of the one before comes too late.
    """
    runs, after = followed.numberings, incarnation_after(token.incarnation)
    at = next((at for at, run in enumerate(runs) if run.incarnation == after), None)
    if at is None:
        return False
    before = Numbering(token.source, token.epoch, token.incarnation, token.epoch)
    followed.remember(token.incarnation, token.epoch)
    if at or runs[at].is_at_its_first:
        runs.insert(at, before)
    else:
        followed.ended = before
    return True

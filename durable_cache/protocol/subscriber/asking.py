"""Which numbers a subscriber asks for of a run that lacks some."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from durable_cache.protocol.subscriber.following import Numbering


def asked_from(numbering: Numbering) -> int:
    """Return where to begin: at the first hole, or at one of those passed on last before it.

    These show, where others may call the run otherwise, which one they speak of.
    """
    behind = numbering.behind_passed_on
    shown_by = min(numbering.shown_by, behind - (numbering.first_sn or 0))
    return behind - shown_by if shown_by else numbering.next_sn or 0


def asked_to(numbering: Numbering, span: int, ended: Numbering | None) -> int:
    """Return where to end: at the last hole within a span; `ended`: the run that it follows.

    What caches said to be gone is asked for again while it waits for its turn: one of them may have
    found it since. What is held of a run that follows another may be of that: an answer names it.
    Of a run that begins all of it is asked for, later what comes next behind the hole. That shows,
    where others may call the run otherwise, which one they speak of.
    """
    first, follows = numbering.next_sn or 0, ended is not None
    reach = first + span - 1
    last = min(numbering.top, reach)
    if ended is not None and first == numbering.first_sn:
        doubtful = _in_doubt(ended, numbering)
        return max(last, doubtful) if doubtful <= reach else last
    while last > first:
        settled = numbering.passed.run_at(last)
        if settled is None and last not in numbering.pending:
            break
        last = last - 1 if settled is None else settled.first - 1
    shows = (follows and bool(numbering.incarnation)) or numbering.shown_by > 0
    shows = shows and last + 1 in numbering.pending
    return max(first, last + 1 if shows else last)


def _in_doubt(ended: Numbering, begun: Numbering) -> int:
    """Return the number that shows whether what only times ended is of the run that has a token.

    It is the first that was passed on: an answer gives it by the name of its run (ADR 0204). -1
    where there is no such doubt.
    """
    doubtful = bool(begun.incarnation) and not ended.is_named
    return ended.began[0] if doubtful and ended.began is not None else -1

"""What waits while history is read is of the run whose token was there when it came (ADR 0250).

History may bring a later run first: the caches in reach have nothing of the earlier one, or gave
it before its last samples came. What waits of that comes too late then. By number and time alone
it may look like the next of the run that was brought, where a publisher's clock was set back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from durable_cache.model.run_name import run_of
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.subscriber.events import Declared, TokenGone
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.places import Sources
from durable_cache.protocol.subscriber.reading import Reading

Waiting = Sample | Declared | TokenGone
Left = Mapping[tuple[SourceId, str], Sequence[Sample]]
"""What is of runs before those that history brought, by the names of these runs."""


def shown_after(run: str, token: Declared | TokenGone, *, begun: bool = False) -> str:
    """Return of which run that is what comes after a token came or went, `run` what came before it.

    `begun`: the token's run began while we looked; else the token may be left over of an earlier.
    """
    if isinstance(token, TokenGone):
        return "" if token.incarnation == run else run
    return token.incarnation if begun or not run else run


def part(
    waiting: Sequence[Waiting],
    before: Mapping[SourceId, str],
    begun: Callable[[SourceId, str], bool],
    sources: Sources,
) -> tuple[list[Waiting], Left]:
    """Part what waits from what is of a run before one that history brought.

    `before`: whose token was there before the first that waits, by source; `begun` tells whether a
    run began while we looked. A run that did so, and was brought, comes after all whose tokens came
    before its own.
    """
    for gone, stays in [*_gone_beside_the_next(waiting)]:
        known = sources.known(gone.source)
        if known is None or not {gone.incarnation, stays.incarnation} & known.seen.keys():
            waiting = sorted(waiting, key=lambda one: not _is_of(one, gone))
        elif gone.incarnation not in known.seen:
            known.remember(gone.incarnation, gone.epoch)  # what is of it comes too late
    behind: dict[SourceId, int] = {}
    """Where the last token of each waits whose run began, and was brought."""
    for at, one in enumerate(waiting):
        if isinstance(one, Declared) and begun(one.source, one.incarnation):
            known = sources.known(one.source)
            if known is not None and one.incarnation in known.seen:
                behind[one.source] = at
    shown = dict(before)
    kept: list[Waiting] = []
    left: dict[tuple[SourceId, str], list[Sample]] = {}
    for at, one in enumerate(waiting):
        source = one.source
        run = shown.get(source, "")
        own = run_of(one) if isinstance(one, Sample) else None
        if not isinstance(one, Sample):
            shown[source] = run = shown_after(run, one, begun=begun(source, one.incarnation))
        elif own is not None:
            run = own.incarnation
        known = sources.known(source) if own or at < behind.get(source, -1) else None
        over = known is not None and run and not known.goes_on(run)
        over = over and (own is None or (known is not None and run in known.seen))
        if known is None or not over or isinstance(one, TokenGone):
            kept.append(one)
        elif isinstance(one, Sample):
            left.setdefault((source, run), []).append(one)
        elif one.incarnation in known.seen:
            kept.append(one)
        else:  # nothing came of it that is not over: it does not begin behind its successor
            known.remember(one.incarnation, one.epoch)
    return kept, left


def _gone_beside_the_next(waiting: Sequence[Waiting]) -> Iterator[tuple[Declared, Declared]]:
    """Yield tokens that went while that of the next run stayed, each with that.

    We came as one began behind the other, as at a wrap: whether it did so in our sight its epoch
    does not say, but which one stayed does (ADR 0377).
    """
    shown: dict[SourceId, dict[str, Declared]] = {}
    for one in waiting:
        tokens = shown.setdefault(one.source, {})
        if isinstance(one, Declared):
            tokens[one.incarnation] = one
        elif isinstance(one, TokenGone) and one.incarnation in tokens:
            over = tokens.pop(one.incarnation)
            yield from ((over, stays) for stays in tokens.values() if over.epoch < stays.epoch)


def _is_of(one: Waiting, token: Declared) -> bool:
    """Tell whether something says that it is of the run of a token."""
    if one.source != token.source or isinstance(one, TokenGone):
        return False
    own = run_of(one) if isinstance(one, Sample) else one
    return own is not None and own.incarnation == token.incarnation


def leave(
    left: Left,
    sources: Sources,
    too_late: Callable[[Numbering, Sample], None],
    read: Callable[[SourceId, str], Reading | None],
) -> None:
    """Let what is of earlier runs come `too_late`, unless it was given.

    `read` returns how far a named run was read.
    """
    for (source, run), samples in left.items():
        known = sources.known(source)
        if known is None:
            continue
        ended, reading = known.ended, read(source, run)
        in_order = sorted(samples, key=lambda one: one.sn)
        if ended is None or ended.incarnation != run:
            ended = Numbering(source, known.seen.get(run, EPOCH_UNKNOWN), run)
            ended.begin(in_order[0].sn if reading is None else reading.next_sn)
            known.ended = known.ended or ended
        for one in in_order:
            too_late(ended, one)
        if reading is not None:
            reading.next_sn = max(reading.next_sn, ended.next_sn or 0)

"""What shows of which run held samples are, and where they go then.

Nothing on the wire says of which run a sample is whose time its program gave: it is filed beside
the tokens that are there. An answer may name its run, a later sample show that it is of another, or
the gap of the run before expire that it would fill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.events import AnswerPart, DeliveryOptions
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering, is_one
from durable_cache.protocol.subscriber.naming import (
    NamedCopy,
    came_with_token,
    given_by_name,
    is_left_over,
    repeats_behind_token,
)
from durable_cache.protocol.subscriber.outputs import Outputs


def put_right(
    followed: Followed,
    part: AnswerPart,
    parts: Sequence[AnswerPart],
    samples_max: int,
    outputs: Outputs,
) -> None:
    """Move what is held to the run that an answerer says it is of, unless another denies it.

    A number that comes soon after a token may be the last of the run before, one that comes before
    a token may be the first of the next: nothing on the wire says which. `parts` is what all
    answered.
    """
    named = {epoch: name for source, epoch, name in part.incarnations if source == followed.source}
    doubtful = [n for n in followed.numberings if n.incarnation and (n.pending or n.parked)]
    if not followed.early and not any(n.incarnation != x for n in doubtful for x in named.values()):
        return
    given: set[NamedCopy] = set()
    for sample in part.samples:
        name = named.get(sample.epoch, "") if sample.source == followed.source else ""
        if not name:
            continue
        others = [n for n in doubtful if n.incarnation != name and n.holds(sample)]
        if others and not given:
            given = given_by_name(parts)
        copy = sample.key, sample.sn, sample.ntp64
        held = [n.let_go(sample) for n in others if (n.incarnation, *copy) not in given]
        if name in followed.seen:
            held += [one for _, one in followed.early if is_one(one, sample)]
            followed.early = [early for early in followed.early if not is_one(early[1], sample)]
        right = next((n for n in followed.numberings if n.incarnation == name), None)
        for one in filter(None, held):
            if right is not None:
                right.hold(one, samples_max)
            elif name not in followed.seen:
                followed.keep_named(one)
            elif followed.ended is not None and followed.ended.incarnation == name:
                followed.ended.report_late(one, outputs)


def note_named(
    followed: Followed, samples: Iterable[Sample], names: Mapping[tuple[SourceId, int], str]
) -> None:
    """Note of what is held that an answerer says that it is of the run it waits in.

    So it is none that came before a token, whatever hole of another run it would fill. What has no
    name says nothing of its run.
    """
    if len(followed.numberings) < 2:
        return
    runs = {run.incarnation: run for run in followed.numberings if run.pending and run.incarnation}
    for sample in samples if runs else ():
        run = runs.get(names.get((sample.source, sample.epoch), ""))
        held = None if run is None or sample.source != run.source else run.pending.get(sample.sn)
        if run is not None and held is not None and not held.epoch and is_one(held, sample):
            run.pending[sample.sn] = sample


def give_back(followed: Followed, numbering: Numbering, sample: Sample, samples_max: int) -> bool:
    """Take what is held under a sample's number for one of the run before, if that is not over.

    `sample` is later. While a program takes its time a token overtakes the samples before it:
    they came when the token was not there, and are looked at when it is (ADR 0325).
    """
    at, held = followed.numberings.index(numbering), numbering.pending.get(sample.sn)
    if at == 0 or held is None or held.epoch or held.sn <= (numbering.next_sn or 0):
        return False  # or, as the next number, it is what came before its token
    if not followed.numberings[at - 1].ending:
        return False
    if numbering.let_go(held) is None:
        return False
    followed.numberings[at - 1].hold(held, samples_max)
    return True


def let_go_unnamed(
    followed: Followed,
    begun: Numbering,
    given: Sample,
    names: Mapping[tuple[SourceId, int], str],
    options: DeliveryOptions,
    outputs: Outputs,
) -> None:
    """Let go of what waits under a number of which an answer gives another, as of this run."""
    name, held = names.get((followed.source, given.epoch)), begun.pending.get(given.sn)
    if held is None or not name or name != begun.incarnation:
        return
    before = followed.before(begun)
    if before is not None and not (held.epoch or held.stamped or is_one(held, given)):
        _put_back(followed, held, begun, before, options, outputs)


def let_go_left_over(
    followed: Followed, begun: Numbering, sample: Sample, options: DeliveryOptions, outputs: Outputs
) -> None:
    """Let go of what waits under the token of a run, for a live sample shows it is of another.

    Numbers come in order, but for what overtakes within the time that a token is waited for. What
    came so much before one at or below it, and goes on where the run before ended, is of that
    (ADR 0289).
    """
    if not begun.pending or not begun.incarnation or sample.sn > begun.top:
        return
    before, wait_seconds = _given_before(followed, begun), options.token_wait_seconds
    if before is None:
        return
    until_ns = begun.declared_ns + round(wait_seconds * 1e9)
    early_ns = sample.received_ns - round(wait_seconds * 1e9)
    first = takewhile(lambda held: held.received_ns <= until_ns, begun.pending.values())
    for held in sorted(first, key=lambda held: held.sn):
        overtook = held.sn >= sample.sn and held.received_ns < early_ns
        may_be = overtook and came_with_token(held, begun, wait_seconds)
        left_over = may_be and is_left_over(held, before, begun, options.window_size_samples)
        if left_over or repeats_behind_token(held, sample, before, begun, wait_seconds):
            _put_back(followed, held, begun, before, options, outputs)


def put_left_over_right(followed: Followed, options: DeliveryOptions, outputs: Outputs) -> None:
    """The gap of the run that is delivered expires: what waits may be of another (ADR 0220).

    What came behind a token was taken for its run's, and nobody names its run. Where it fills a
    hole of the run before, it is of that, and is delivered with it.
    """
    head, wait_seconds = followed.head, options.token_wait_seconds
    if head is None:
        return
    for later in followed.numberings[1:]:
        for sample in [*filter(None, (*later.pending.values(), later.parked))]:
            if came_with_token(sample, later, wait_seconds) and head.has_hole_for(sample):
                later.let_go(sample)
                head.hold(sample, options.pending_samples_max)
    _report_left_over(followed, options, outputs)


def _report_left_over(followed: Followed, options: DeliveryOptions, outputs: Outputs) -> None:
    """Report with the run that ended what was published together with the last of that.

    It comes too late, and the gap before it goes with it.
    """
    head = followed.head
    if head is None or (ended := _given_before(followed, head)) is None:
        return
    window, since_ntp64 = options.window_size_samples, 0
    for sn in sorted(head.pending):
        sample = head.pending[sn]
        may_be = came_with_token(sample, head, options.token_wait_seconds)
        if may_be and is_left_over(sample, ended, head, window, since_ntp64):
            head.let_go(sample)
            ended.report_late(sample, outputs)
        elif not sample.stamped:
            since_ntp64 = max(since_ntp64, sample.ntp64)


def _given_before(followed: Followed, numbering: Numbering) -> Numbering | None:
    """Return the run before, or the one before that where nothing came of it."""
    before = followed.before(numbering)
    nothing_came = before is followed.ended and before is not None and before.is_at_its_first
    return followed.given or before if nothing_came else before


def _put_back(
    followed: Followed,
    one: Sample,
    begun: Numbering,
    before: Numbering,
    options: DeliveryOptions,
    outputs: Outputs,
) -> None:
    """Give what waits in a run to the one before; where that is over, it comes too late."""
    begun.let_go(one)
    if before is followed.ended or before is followed.given:
        before.report_late(one, outputs)
    else:
        before.hold(one, options.pending_samples_max)

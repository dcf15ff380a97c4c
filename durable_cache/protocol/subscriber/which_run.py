"""Which run of its source a live sample is of, as far as its number and its time tell."""

from __future__ import annotations

from durable_cache.model.sample import Sample
from durable_cache.protocol.restarts import RESTART_NTP64
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering


def numbering_of(followed: Followed, sample: Sample, options: DeliveryOptions) -> Numbering:
    """Return the numbering a live sample is taken to be of: the newest, but near a restart.

    Nothing on the wire says whose a number is that comes soon after a token. One that is the last
    of the run before waits with the newest until an answer names its run (`put_right`). Where no
    token names either, times tell them apart: what was published before the newest began is of the
    run before, which may have ended (ADR 0344).
    """
    newest = followed.numberings[-1]
    given = followed.before(newest)
    if given is not None:
        if newest.after_ntp64 and _is_of_before(sample, given, newest, options):
            return given
        if newest.declared and _repeats_before(sample, given, newest):
            return given
    before = followed.numberings[-2] if len(followed.numberings) > 1 else None
    if before is None or before.next_sn is None:
        return newest
    window = options.window_size_samples
    far = sample.sn - max(newest.top, newest.next_sn or 0) > window
    if far and abs(sample.sn - before.reached) <= window:
        return before  # as after a wrap: near the one, far from the other
    return newest


def _is_of_before(
    sample: Sample, before: Numbering, newest: Numbering, options: DeliveryOptions
) -> bool:
    """Tell whether a sample is of a foreign run that another one followed.

    Numbers below the first that came of the newest may have been overtaken by that.
    """
    if newest.is_named or before.is_named or sample.stamped:
        return False
    ahead = sample.sn - before.reached
    if sample.ntp64 <= newest.after_ntp64:
        return ahead <= 0 and before.began_before(sample)
    first, began_ntp64 = newest.began or newest.restarted_at or (sample.sn, 0)
    older = sample.sn > first and sample.ntp64 + RESTART_NTP64 < began_ntp64
    return older and 0 < ahead <= options.window_size_samples


def _repeats_before(sample: Sample, before: Numbering, newest: Numbering) -> bool:
    """Tell whether a sample came before a token and was passed on as of the run before.

    A slow program looks at it behind the token. Were it of the run that the token names, whose
    clock was set back, it would be asked for as what that lacks.
    """
    return sample.received_ns < newest.declared_ns and before.has_passed_on(sample)

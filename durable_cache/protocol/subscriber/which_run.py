"""Which run of its source a live sample is of: the one that it names (ADR 0366).

A sample without a name is of a foreign publisher, of one of ours whose program chose its time, or
was stamped anew on its way. Then its number and its time tell, as far as they do.
"""

from __future__ import annotations

from collections.abc import Callable

from durable_cache.model.clock import Moment
from durable_cache.model.run_name import RunName, run_of
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.restarts import RESTART_NTP64, epoch_of_restart, precedes_wrap
from durable_cache.protocol.subscriber.awaiting_tokens import AwaitingTokens, overlooked
from durable_cache.protocol.subscriber.events import Declared, DeliveryOptions
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.putting_right import give_back, let_go_left_over
from durable_cache.protocol.subscriber.tails import Tails
from durable_cache.protocol.subscriber.too_large import TooLarge
from durable_cache.protocol.subscriber.wrapped import goes_before


class WhichRun:
    """Tells of which run a live sample is, and begins that where it is its first.

    `declare` takes what a sample says of a run that is not known; `ended` returns how far a run was
    given that ended, as far as it is remembered.
    """

    def __init__(
        self,
        options: DeliveryOptions,
        awaiting: AwaitingTokens,
        tails: Tails,
        outputs: Outputs,
        losses: Losses,
        declare: Callable[[Declared], None],
        ended: Callable[[SourceId, str], Numbering | None],
    ) -> None:
        self._options, self._awaiting, self._tails = options, awaiting, tails
        self._outputs, self._losses, self._declare = outputs, losses, declare
        self._ended = ended
        self.duplicates = 0
        """Repeats, which are passed on no more."""
        self.dropped = 0
        """Samples that found no room to wait for a token; they are asked for."""

    def of(
        self, followed: Followed, sample: Sample, now: Moment, *, late: bool
    ) -> Numbering | None:
        """Return the run of a sample, to be held there; None: it waits, repeats or is too late.

        `late`: it waited for a token in vain.
        """
        run = run_of(sample)
        if run is None:
            return self._unnamed(followed, sample, now, late=late)
        return self._named(followed, run, sample, now)

    def _unnamed(
        self, followed: Followed, sample: Sample, now: Moment, *, late: bool
    ) -> Numbering | None:
        """Return the run that a sample is taken to be of, which does not say."""
        if not late and self._awaiting.keeps(followed, sample, now.monotonic_ns):
            return None
        if not followed.numberings:
            followed.numberings.append(Numbering(sample.source, EPOCH_UNKNOWN))
        self._look_over(followed, now)
        numbering = numbering_of(followed, sample, self._options)
        if numbering is followed.ended:
            self.too_late(numbering, sample)
            return None
        numbering.used = True
        if isinstance(sample, TooLarge) and numbering.declared and numbering.is_at_its_first:
            return None  # of this run, the one before or the next: an answer names it
        let_go_left_over(followed, numbering, sample, self._options, self._outputs)
        if self._begins(numbering, sample):
            return numbering
        if precedes_wrap(sample.sn, numbering.reached, self._options.window_size_samples):
            self._repeats(sample)  # it came before all that is ours
            return None
        if numbering.doubts(sample):
            return self._restarted(followed, numbering, sample, now)
        return numbering

    def _named(
        self, followed: Followed, run: RunName, sample: Sample, now: Moment
    ) -> Numbering | None:
        """Return the run that a sample says it is of, which it may begin."""
        self._look_over(followed, now)
        numbering = followed.named(run.incarnation)
        if numbering is None and run.incarnation in followed.seen:
            numbering = self._gone_on(followed, run, now)
            if numbering is None:
                self._of_long_ago(sample, run.incarnation)
                return None
        if numbering is None:
            if followed.numberings and run.epoch <= followed.highest_epoch:
                # It came and went before, or its publisher's clock was set back: a token tells.
                self.dropped += not followed.keep_early(sample, self._options, now.monotonic_ns)
                return None
            # Perhaps it was there before us.
            token = Declared(sample.source, *run, now, listed=True, by_sample=True)
            self._declare(token)
            numbering = followed.numberings[-1]
        if numbering is followed.ended:
            self.too_late(numbering, sample)
            return None
        numbering.used, numbering.bears = True, sample.timestamp_id
        if not self._begins(numbering, sample) and numbering.has_come(sample.sn):
            self._repeats(sample)
            return None
        return numbering

    def _gone_on(self, followed: Followed, run: RunName, now: Moment) -> Numbering | None:
        """Return a run that was taken to be over, where its token is there and none is behind it.

        Its publisher's clock was set back, and the token beside its own was left over (ADR 0386).
        """
        source, runs = followed.source, followed.numberings
        shown = self._awaiting.shown_by(source)
        if run.incarnation not in shown:
            return None
        token = Declared(source, *run, now, by_sample=True)
        nothing_came = all(one.is_at_its_first and not one.pending for one in runs)
        if followed.ended is None and nothing_came:
            runs.insert(0, Numbering(source, run.epoch, run.incarnation, run.epoch))
        elif all(one.declared_ns and one.incarnation not in shown for one in runs):
            del followed.seen[run.incarnation]
            self._declare(token)
        else:
            goes_before(followed, token)
        return followed.named(run.incarnation)

    def _begins(self, numbering: Numbering, sample: Sample) -> bool:
        """Tell whether a sample begins its run, or an answer does, which is asked for."""
        if numbering.next_sn is None and self._tails.asks_before(numbering, sample):
            return True
        begins = numbering.begins_with(sample, self._options)
        if begins:
            numbering.begin(sample.sn)
        return begins

    def _look_over(self, followed: Followed, now: Moment) -> None:
        if (token := overlooked(followed, now)) is not None:
            self._declare(token)

    def _of_long_ago(self, sample: Sample, incarnation: str) -> None:
        """Report what is of a run before the one that ended last, unless it is a repeat."""
        ended = self._ended(sample.source, incarnation)
        if ended is None:
            self._repeats(sample)
        else:
            self.too_late(ended, sample)

    def too_late(self, ended: Numbering, sample: Sample) -> None:
        """Count a repeat of what is at its end; report what was not known to belong to it."""
        if not ended.report_late(sample, self._outputs):
            self._repeats(sample)

    def _repeats(self, sample: Sample) -> None:
        self.duplicates += 1
        self._losses.repeated(sample.source)

    def _restarted(
        self, followed: Followed, numbering: Numbering, sample: Sample, now: Moment
    ) -> Numbering | None:
        """Return the numbering that a number below the next one begins; None for a repeat."""
        wraps = numbering.wraps_at(sample.sn, self._options.window_size_samples)
        held = numbering.pending.get(sample.sn)
        newest = numbering.newest_ntp64 if held is None else held.ntp64
        if held is None and sample.sn >= numbering.behind_passed_on:
            # It was given up. What came above it was, too, or waits.
            waits = [one.ntp64 for one in numbering.pending.values() if not one.stamped]
            newest = max([newest, numbering.dropped_ntp64, *waits])
        later = not sample.stamped and sample.ntp64 > newest + RESTART_NTP64
        if not (wraps or later):
            self._repeats(sample)
            return None
        if numbering.declared:
            if give_back(followed, numbering, sample, self._options.pending_samples_max):
                return numbering
            self.dropped += not followed.keep_early(sample, self._options, now.monotonic_ns)
            return None
        if numbering is not followed.numberings[-1]:
            return followed.numberings[-1]
        epoch = epoch_of_restart(sample, now.unix_ns, numbering.epoch)
        after = newest - RESTART_NTP64 if wraps else newest  # the times of its threads overlap
        begun = Numbering(sample.source, epoch, "", None, 0, 0, newest, after)
        followed.begin_anew(begun, sample, self._options, wraps=wraps)
        return begun


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

"""What waits while history is read: live samples of sources that are not followed yet, and tokens.

A token waits behind the samples that came before it. What it says counts at once: of a run that
began while we looked, history is ours from its first number on.
"""

from __future__ import annotations

from collections.abc import Callable

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.subscriber.events import Declared, TokenGone
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.places import Crowd, Sources
from durable_cache.protocol.subscriber.reading import Reading

__all__ = ["Held"]


class Held:
    """Samples and tokens as they came; bounded by its owner."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._waiting: list[Sample | Declared | TokenGone] = []
        self._begun: dict[SourceId, dict[str, bool]] = {}
        """The sources that wait, with the incarnations that their tokens name, and whether each
        began while we looked."""
        self.repeats = 0
        """How many samples history delivered as well."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, source: SourceId) -> bool:
        return source in self._begun

    def add(self, sample: Sample) -> None:
        """Keep a sample."""
        self._waiting.append(sample)
        self._begun.setdefault(sample.source, {})

    def follows_crowd(self, source: SourceId, crowd: Crowd) -> bool:
        """Keep what the crowd has of a source before a token does; tells whether anything waits.

        That is beyond the bound by three samples for each token.
        """
        for sample in crowd.leave(source):
            self.add(sample)
        return source in self._begun

    def declare(
        self, token: Declared, followed: Followed | None, *, fresh: bool, stale: bool
    ) -> None:
        """Keep a token of a source that waits, as it is `followed`.

        `fresh`: its run began in our sight; `stale`: it may be left over from a run that ended.
        """
        seen = {} if followed is None else followed.seen
        before = self.has_tokens(token.source) or (bool(seen) and token.incarnation not in seen)
        self._waiting.append(token)
        begun = fresh or (before and not stale)
        self._begun[token.source].setdefault(token.incarnation, begun)

    def gone(self, token: TokenGone) -> None:
        """Keep that a token of a source that waits went."""
        self._waiting.append(token)

    def has_tokens(self, source: SourceId) -> bool:
        """Tell whether a token of a source waits."""
        return bool(self._begun.get(source))

    def has_begun(self, source: SourceId, incarnation: str) -> bool:
        """Tell whether the token of a run waits that began while we looked."""
        return bool(incarnation) and self._begun.get(source, {}).get(incarnation, False)

    def reading_of(
        self, sources: Sources, source: SourceId, epoch: int, incarnation: str
    ) -> Reading | None:
        """Return from where on history of a numbering is ours that is followed, or began here."""
        followed = sources.known(source)
        for numbering in () if followed is None else followed.numberings:
            if numbering.next_sn is not None and numbering.is_called(epoch, incarnation):
                live = numbering if followed is not None and followed.live else None
                return Reading(
                    numbering.first_sn or 0,
                    numbering.next_sn,
                    numbering=live,
                    resumed=numbering.resumed,
                )
        if self.has_begun(source, incarnation):
            return Reading(0, 0)
        if followed is None or not followed.is_past(epoch):
            return None
        ended = followed.ended
        known = ended is not None and ended.is_called(epoch, incarnation)
        # What was delivered of a run that has ended since is not missed.
        following = (ended.next_sn or 0) if ended is not None and known else 0
        return Reading(0, following, late=True)

    def take(
        self, sources: Sources, too_late: Callable[[Numbering, Sample], None]
    ) -> list[Sample | Declared | TokenGone]:
        """Return what waited, once, but for what is of a run that has ended since.

        Such samples came before the token of a run that history brought, or are older than that
        run where no token names it. What history delivered of them is left out, what follows it
        comes `too_late`. Of a publisher whose times go back one may be of the run that began: then
        its number is missing there, and is asked for.
        """
        waiting, self._waiting, self._begun = self._waiting, [], {}
        tokens = {
            one.source: (at, one) for at, one in enumerate(waiting) if isinstance(one, Declared)
        }
        kept: list[Sample | Declared | TokenGone] = []
        for at, one in enumerate(waiting):
            behind, token = tokens.get(one.source, (0, None))
            known = sources.known(one.source) if isinstance(one, Sample) else None
            ended = None if known is None else known.ended
            if not isinstance(one, Sample) or known is None or ended is None:
                kept.append(one)
                continue
            if token is None:
                comes_before = _is_foreign(known)
            else:
                comes_before = at < behind and token.incarnation in known.seen
            if not comes_before:
                kept.append(one)
            elif _goes_on(ended, known.head, one):
                too_late(ended, one)
            elif _repeats(ended, one):
                self.repeats += 1
                self._losses.repeated(one.source)
            else:
                kept.append(one)
        return kept


def _is_foreign(followed: Followed) -> bool:
    """Tell whether no token names the run that is followed, or the one before."""
    runs = (followed.ended, followed.head)
    return not any(run is None or run.incarnation or run.declared for run in runs)


def _repeats(ended: Numbering, sample: Sample) -> bool:
    """Tell whether a sample repeats a run that ended before one whose token is known."""
    known = sample.sn < (ended.next_sn or 0)
    return known and not sample.stamped and sample.ntp64 <= ended.newest_ntp64


def _goes_on(ended: Numbering, head: Numbering | None, sample: Sample) -> bool:
    """Tell whether it goes on with the run that ended, whose successor is delivered further."""
    return (
        head is not None
        and sample.sn > max(head.reached, ended.reached)
        and ended.newest_ntp64 < sample.ntp64 < head.newest_ntp64
        and not sample.stamped
    )

"""What subscribers are told of sources that show no token (ADR 0347).

A subscriber asks for the last numbers of a source when its token has gone, once. What a cache
stores after that, nothing shows: no later number comes. So the cache says when it is durable.

A token goes as well where a link was cut between publisher and subscriber, while both of them hear
the cache: the publisher goes on. So the cache says what it has when that ends, too (ADR 0350).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import takewhile

from durable_cache.model.run_name import names, runs_of
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.cache.events import Origin, SendAck, TokenGone
from durable_cache.protocol.cache.numbering import KnownSource
from durable_cache.runtime.effects import Announce

_LAST_SN = SOURCE_SN_MODULUS - 1
"""Others may give higher numbers, which no heartbeat can tell."""
_KEYS_MAX = 16
"""Of so many keys each is told by itself; what covers more of them is told at once."""
_NOTHING = SampleBatch()


class Announcing:
    """The last number of each key of what is not durable yet of such sources.

    That is what came behind its token, of a run that another follows, or is resent, and what was on
    its way to the journal as the token went. At most `keys_max` keys, and as many sources, are
    kept; the oldest source is dropped where there is no room.
    """

    def __init__(
        self,
        keys_max: int,
        claims: Callable[[SourceId], Collection[str]],
        doubted: Callable[[], Collection[SourceId]],
    ) -> None:
        """`claims(source)` are the incarnations that live tokens name.

        `doubted()` are the sources whose samples wait for a look-up.
        """
        self._keys_max, self._claims, self._doubted = keys_max, claims, doubted
        self._last: dict[SourceId, dict[str, int]] = {}
        self._held = 0
        self._appending = _NOTHING
        self._gone: dict[SourceId, None] = {}
        """Sources whose token went since the last append began, or while samples of theirs wait for
        a look-up."""
        self._went: dict[SourceId, None] = {}
        """Sources of which a token went: others have no run before."""

    def note(self, batch: SampleBatch, origin: Origin) -> None:
        """See samples come in; of live ones those count that name a run whose token is not there.

        So they are of the run before, whose end subscribers have asked for already (ADR 0390).
        """
        if origin in (Origin.LATE, Origin.RESENT):
            self._note(batch)
        elif (
            self._went and origin is Origin.LIVE and not self._went.keys().isdisjoint(batch.sources)
        ):
            for source, run in runs_of(batch):
                claims = self._claims(source)
                if claims and run.incarnation not in claims:
                    of_it = batch.by_source()[source]
                    self._note(one for one in of_it if names(one, run.incarnation))

    def gone(self, event: TokenGone, known: KnownSource) -> Iterator[Announce]:
        """See a token go; yield the last number that came of its run."""
        source = event.source
        for those in (self._gone, self._went):
            those[source] = None
            if len(those) > self._keys_max:
                del those[next(iter(those))]
        self._note(one for one in self._appending if one.source == source)
        if not event.key_expr:
            return
        for epoch, numbering in known.numberings.items():
            if numbering.incarnation == event.incarnation:
                held = [*numbering.window.held.clip(0, _LAST_SN)]
                if held:
                    yield Announce(event.key_expr, source, epoch, held[-1].last)

    def appends(self, batch: SampleBatch) -> None:
        """See that the storage is asked to keep samples, which it answers with `SendAck`s."""
        self._appending = batch
        if self._gone:
            self._note(one for one in batch if one.source in self._gone)
            doubted = self._doubted()
            self._gone = {source: None for source in self._gone if source in doubted}

    def answered(self) -> None:
        """See that it was answered, by `Appended` or `AppendFailed`: nothing is on its way."""
        self._appending = _NOTHING

    def durable(self, ack: SendAck) -> Iterator[Announce]:
        """Yield what to say now that some numbers of a source are durable."""
        last = self._last.get(ack.source)
        if last is None:
            return
        there = {
            key: sn
            for key, sn in last.items()
            if any(run.first <= sn <= run.last for run in ack.runs)
        }
        for key in there:
            del last[key]
        self._held -= len(there)
        if not last:
            del self._last[ack.source]
        claims = self._claims(ack.source)
        if ack.incarnation in claims if ack.incarnation else claims:
            return  # what its publisher puts next shows it
        if len(there) > _KEYS_MAX:
            there = {_covering(there): max(there.values())}
        for key_expr, sn in there.items():
            yield Announce(key_expr, ack.source, ack.epoch, sn)

    def _note(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            if sample.sn > _LAST_SN:
                continue
            last = self._last.setdefault(sample.source, {})
            self._held += sample.key not in last
            last[sample.key] = max(sample.sn, last.get(sample.key, 0))
            while self._held > self._keys_max:
                self._held -= len(self._last.pop(next(iter(self._last))))


def _covering(keys: Iterable[str]) -> str:
    """Return a key expression that includes keys: the chunks with which all begin, and any more."""
    columns = zip(*(key.split("/") for key in keys), strict=False)
    shared = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    return "/".join(shared if shared[-1:] == ["**"] else [*shared, "**"])

"""How a pipe explains numbers to the target network: those of keys that it does not carry.

A publisher numbers what it puts under all its keys in one row. Who follows it behind a pipe meets
numbers that never come, and asks. The publisher's own cache, which would tell, is not there: the
pipe asks the source network and passes on which numbers belong to other keys, and nothing else.
Samples come the one way that is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable

from durable_cache.endpoints.alignment.asked import Asked
from durable_cache.endpoints.asking import Asking, Gathered
from durable_cache.endpoints.session import Query, Session, query_parts, zid_of
from durable_cache.errors import Closed
from durable_cache.model.sample import SampleBatch, SourceId
from durable_cache.model.selection import SnBounds, parse_sn
from durable_cache.protocol.pipe.tokens import name_of_unnamed
from durable_cache.protocol.wire import (
    ABSENCES_MAX,
    Absence,
    AbsenceReason,
    Incarnation,
    encode_packed,
)

_HOPS = "hops"
_HOPS_MAX = 8
"""Pipes in a row that a question goes through; in a ring it would go round."""
_QUERIES_MAX = 256
"""Questions that wait; beyond it the oldest is refused, and asked again."""
_TIMEOUT_SECONDS = 2.0
"""How long the source network may take; who asks gives up later."""


class Explaining:
    """Answers questions for numbers of sources that are carried.

    `take` is called on Zenoh's thread and never waits; the rest is done where jobs given to `later`
    run, one at a time. `has_carried(source, first, last)` tells there whether all these numbers are
    on their way or over.
    """

    def __init__(
        self,
        source: Session,
        has_carried: Callable[[SourceId, int, int], bool],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._asked = Asked(_QUERIES_MAX)
        self._asking = Asking(source, zid_of(source), timeout_seconds=_TIMEOUT_SECONDS)
        self._has_carried = has_carried
        self._later = later

    def take(self, query: Query) -> None:
        """Keep a question that is for numbers of one source; the others are for caches."""
        parts = query_parts(query)
        owner, _, key_expr = parts.key_expr.partition("/")
        parameters = dict(parts.parameters)
        hops = parameters.get(_HOPS, "0")
        by_numbers = "_sn" in parameters and parameters.get("_pack") == "1"
        # Caches pass over what is said of other keys; in a ring a question would go round.
        if not by_numbers or "_store" in parameters or not hops.isdigit() or int(hops) >= _HOPS_MAX:
            return
        try:
            source, sns = SourceId.parse(owner), parse_sn(parameters["_sn"])
        except ValueError:
            return
        number = self._asked.put(query)
        selector = f"{source}/{key_expr}?_sn={parameters['_sn']};_pack=1;{_HOPS}={int(hops) + 1}"
        self._later(lambda: self._look(number, source, sns, selector))

    def _look(self, number: int, source: SourceId, sns: SnBounds, selector: str) -> None:
        """Ask the source network, unless every number asked for is one that is carried."""
        first, last = sns.first or 0, sns.last
        if last is not None and self._has_carried(source, first, last):
            self._asked.reply(number, encode_packed(SampleBatch()))
            return

        def ended(gather: Callable[[], Gathered]) -> None:
            self._later(lambda: self._answer(number, source, gather))

        try:
            self._asking.later(selector, ended, ours=True)
        except Closed:
            self._asked.refuse(number, "the source network is out of reach")

    def _answer(self, number: int, source: SourceId, gather: Callable[[], Gathered]) -> None:
        gathered = gather()
        if not gathered.whole:
            reason = gathered.errors[0] if gathered.errors else "nobody answered"
            self._asked.refuse(number, f"behind the pipe: {reason}")
            return
        absent, names = _of_other_keys(source, gathered)
        self._asked.reply(number, encode_packed(SampleBatch(), False, absent, names))

    def close(self) -> None:
        """Tell all who wait that there is no answer."""
        self._asked.refuse_all("the pipe is closing")


def _of_other_keys(source: SourceId, gathered: Gathered) -> tuple[list[Absence], list[Incarnation]]:
    """Return which numbers belong to other keys, each under its run's name in the target network.

    Where two answerers call two runs by one epoch, what the second says of it is left out.
    """
    absent: dict[Absence, None] = {}
    called: dict[int, str] = {}
    for part in gathered.parts.values():
        names = {
            name.epoch: name.incarnation for name in part.incarnations if name.source == source
        }
        for run in part.absent:
            if run.source != source or run.reason is not AbsenceReason.OTHER_KEY:
                continue
            name = names.get(run.epoch) or name_of_unnamed(source, run.epoch)
            if called.setdefault(run.epoch, name) == name:
                absent[run] = None
    runs = list(absent)[:ABSENCES_MAX]
    epochs = {run.epoch for run in runs}
    return runs, [Incarnation(source, epoch, called[epoch]) for epoch in sorted(epochs)]

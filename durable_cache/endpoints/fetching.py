"""How a cache gets what it misses: from every other cache, and from the publisher's own.

A fetch is a row of questions to the network, each asked when the one before is answered; no thread
waits meanwhile. What comes goes in before the fetch is said to be over; where an answer was an
error, or was cut, the fetch has failed, whatever else it brought.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial

from durable_cache.endpoints.asking import Asking, Gathered
from durable_cache.endpoints.session import ZError
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import DurableCacheError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.cache.events import Origin
from durable_cache.protocol.wire import Incarnation, encode_place

_log = logging.getLogger(__name__)
_PAGES_MAX = 10_000
"""An answerer that never ends is left after so many pages: 20 million samples of ours."""


Offer = Callable[[list[Sample], Origin, tuple[Incarnation, ...]], None]
"""Takes what others gave, and which runs its epochs are."""


@dataclass(frozen=True, slots=True)
class _Question:
    selector: str
    payload: bytes | None = None
    native: bool = False
    """For a publisher's own cache, zenoh-ext's AdvancedCache."""


_Steps = Generator[_Question, Gathered, bool]
"""Yields questions, is sent what was gathered, returns whether all were answered."""


class Fetching:
    """Carries out the fetches of one cache; what it finds goes to `offer`. Any thread."""

    def __init__(
        self,
        asking: Asking,
        key_exprs: Sequence[KeyExpression],
        excluded: Callable[[str], bool],
        offer: Offer,
        lane: Lane,
    ) -> None:
        self._asking = asking
        self._key_exprs = tuple(key_exprs)
        self._excluded = excluded
        self._offer = offer
        self._lane = lane
        self.error = ""
        """Why the last fetch that failed did; empty after one that did not."""

    def start(
        self,
        source: SourceId,
        first: int,
        last: int | None,
        ended: Callable[[bool], None],
        native_first: int | None = None,
    ) -> None:
        """Ask for `first..last` of a source; `ended(failed)` is called once, in a pool thread.

        The publisher's own cache is asked from `native_first` on, if that is given.
        """
        native_first = first if native_first is None else native_first
        self._go_on(self._numbers(source, first, last, native_first), None, ended)

    def catch_up(self) -> None:
        """Ask every foreign publisher's own cache for what was published while we were away."""
        self._go_on(self._everything_native(), None, lambda _: None)

    def _go_on(
        self, steps: _Steps, gathered: Gathered | None, ended: Callable[[bool], None]
    ) -> None:
        try:
            question = next(steps) if gathered is None else steps.send(gathered)
        except StopIteration as end:
            if end.value:
                self.error = ""
            ended(not end.value)
            return

        def answered(gather: Callable[[], Gathered]) -> None:
            read = partial(self._read, steps, gather, ended)
            self._lane.submit(read, within_bound=False)

        native = question.native
        try:
            self._asking.later(
                question.selector,
                answered,
                payload=question.payload,
                ours=not native,
                any_key=native,
            )
        except (DurableCacheError, ZError) as error:
            self.error = str(error)
            ended(True)

    def _read(
        self,
        steps: _Steps,
        gather: Callable[[], Gathered],
        ended: Callable[[bool], None],
    ) -> None:
        try:
            self._go_on(steps, gather(), ended)
        except Exception:
            ended(True)  # whoever waits for the fetch asks again; the lane logs what is ours
            raise

    def _numbers(self, source: SourceId, first: int, last: int | None, native_first: int) -> _Steps:
        end = "" if last is None else last
        numbers, natives = f"_sn={first}..{end}", f"_sn={native_first}..{end}"
        whole = True
        for key_expr in self._key_exprs:
            after: Sample | None = None
            for _ in range(_PAGES_MAX):
                payload = None if after is None else encode_place(after)
                selector = f"{source}/{key_expr}?{numbers};_pack=1"
                gathered = yield _Question(selector, payload)
                after = gathered.following(after)
                whole &= self._is_whole(gathered, selector)
                for samples, names in gathered.by_names():
                    page = [sample for sample in samples if sample.source == source]
                    self._take(_within(page, first, last), Origin.RECOVERED, names)
                if after is None:
                    break
            native = f"{key_expr}/@adv/*/{source.zid}/{source.eid}/**?{natives}"
            gathered = yield _Question(native, native=True)
            whole &= self._is_whole(gathered, native)
            own = [sample for sample in gathered.native if sample.source == source]
            self._take(_within(own, native_first, last), Origin.NATIVE)
        return whole

    def _everything_native(self) -> _Steps:
        for key_expr in self._key_exprs:
            native = f"{key_expr}/@adv/**?"
            gathered = yield _Question(native, native=True)
            self._is_whole(gathered, native)
            self._take(gathered.native, Origin.NATIVE)
        return True

    def _is_whole(self, gathered: Gathered, selector: str) -> bool:
        """Tell whether nobody failed to answer; else note why."""
        if gathered.errors:
            self.error = f"fetch {selector[:80]!r}: {gathered.errors[0]}"
            _log.info("a fetch was not answered whole", extra={"reason": self.error})
        return not gathered.errors

    def _take(
        self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        wanted = [
            sample
            for sample in samples
            if not self._excluded(sample.key)
            and any(key_expr.concerns(sample.key) for key_expr in self._key_exprs)
        ]
        self._offer(wanted, origin, names)


def _within(samples: list[Sample], first: int, last: int | None) -> list[Sample]:
    """Leave out numbers that were not asked for: an answer is compared with its question."""
    return [s for s in samples if first <= s.sn and (last is None or s.sn <= last)]

"""How a subscriber's questions are asked: several at a time, answered one after the other."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from queue import Empty, SimpleQueue

from durable_cache.endpoints.asking import Asking, Gathered, beginning_of
from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.session import ZError
from durable_cache.errors import DurableCacheError
from durable_cache.model.timestamp import format_ntp64, ntp64_from_ns
from durable_cache.protocol.standings import FROM_THE_BEGINNING, encode_standings
from durable_cache.protocol.subscriber.events import (
    Answer,
    AnswerPart,
    AskBeginning,
    AskHistory,
    BeginningTold,
    Event,
    Fetch,
    Fetched,
    FetchFailed,
    HistoryFailed,
    HistoryPage,
)

_log = logging.getLogger(__name__)
_UNDER_WAY_MAX = 8
"""Questions that caches work on at once: one that is slow holds up few, and memory is bounded."""
_NEWEST = re.compile(r"(?:^|;)_max=([0-9]+)")
_NO_NUMBER = 1 << 32
"""More samples than any key has: what is asked for is bounded otherwise, as by time."""

Question = Fetch | AskHistory | AskBeginning


def newest_asked(history: str | None) -> int:
    """Return how many samples of each key the parameters of a historical query ask for; 0: all."""
    if not history:
        return 0
    found = _NEWEST.search(history)
    return _NO_NUMBER if found is None else int(found[1])


class Questions:
    """Asks what the engine wants to know; `ask` may be called in any thread, `run` in one.

    Each question is answered with one event, whatever happens.
    """

    def __init__(
        self, asking: Asking, key_expr: str, history: str, answered: Callable[[Event], None]
    ) -> None:
        self._asking = asking
        self._key_expr = key_expr
        self._history = history
        self._answered = answered
        self._waiting: SimpleQueue[Question | None] = SimpleQueue()
        self.history_error = ""
        """Why history was not had whole the last time it was asked for."""

    def ask(self, question: Question) -> None:
        """Ask soon."""
        self._waiting.put(question)

    def stop(self) -> None:
        """End `run` after the questions that are under way."""
        self._waiting.put(None)

    def run(self) -> None:
        """Ask until `stop`."""
        while (question := self._waiting.get()) is not None:
            batch: list[Question] = [question]
            ended = False
            while len(batch) < _UNDER_WAY_MAX and not ended:
                try:
                    following = self._waiting.get_nowait()
                except Empty:
                    break
                if following is None:
                    ended = True
                else:
                    batch.append(following)
            for asked, gather in [(asked, self._begin(asked)) for asked in batch]:
                self._answered(self._answer(asked, gather))
            if ended:
                return

    def _begin(self, question: Question) -> Callable[[], Gathered] | DurableCacheError | ZError:
        try:
            match question:
                case Fetch(_, source, _, first, last, after):
                    parameters = f"_sn={_range(first, last)}"
                    return self._asking.begin(self._key_expr, str(source), parameters, after)
                case AskHistory(_, after, samples_max):
                    paging = f"_order=time;_limit={samples_max}"
                    parameters = ";".join(filter(None, (self._wanted(question), paging)))
                    return self._asking.begin(self._key_expr, "*", parameters, after)
                case AskBeginning(_, standings):
                    return self._asking.begin_behind(self._key_expr, encode_standings(standings))
        except (DurableCacheError, ZError) as error:
            return error

    def _wanted(self, question: AskHistory) -> str:
        """Return which history is asked for: what was missed, however little is wanted, or that."""
        wanted, since_ns = self._history, question.since_ns
        if since_ns is None or (question.as_wanted and "_time=" in wanted):
            return wanted
        since = f"_time=[{format_ntp64(ntp64_from_ns(since_ns))}..]"
        return f"{wanted};{since}" if wanted and question.as_wanted else since

    def _answer(
        self,
        question: Question,
        gather: Callable[[], Gathered] | DurableCacheError | ZError,
    ) -> Event:
        try:
            if isinstance(gather, Exception):
                raise gather
            gathered = gather()
            if isinstance(question, AskBeginning):
                return BeginningTold(question.question_id, beginning_of(gathered)[0], moment_now())
            answer = self._gather(question, gathered)
        except Exception as error:  # whatever a peer sends, the engine is told
            _log.debug("a question failed", exc_info=True)
            if isinstance(question, AskBeginning):
                return BeginningTold(question.question_id, FROM_THE_BEGINNING, moment_now())
            if isinstance(question, Fetch):
                return FetchFailed(question.fetch_id, moment_now())
            self.history_error = str(error)
            return HistoryFailed(question.question_id, str(error), moment_now())
        if isinstance(question, Fetch):
            return Fetched(question.fetch_id, answer, moment_now())
        return HistoryPage(question.question_id, answer, moment_now())

    def _gather(self, question: Fetch | AskHistory, gathered: Gathered) -> Answer:
        alone = [(gathered.single, gathered.oversized)]
        if isinstance(question, Fetch):
            if _lacks(question, gathered):
                parameters = f"_sn={_range(question.first, question.last)}"
                own = self._asking.publisher(self._key_expr, question.source, parameters)
                alone.append((own.native, own.oversized))
        elif gathered.errors:
            self.history_error = gathered.errors[0]
        elif not gathered.parts and not gathered.single:
            self.history_error = "nobody answered"
        parts = [
            AnswerPart(part.samples, tuple(part.absent), tuple(part.incarnations), part.oversized)
            for part in gathered.parts.values()
        ]
        parts += [AnswerPart(kept, oversized=left) for kept, left in alone if kept or left]
        return Answer(tuple(parts), len(parts), not gathered.errors, gathered.cut_after)


def _lacks(fetch: Fetch, gathered: Gathered) -> bool:
    """Tell whether caches left anything to ask the publisher's own cache for."""
    if gathered.cut_after is not None:
        return False
    if fetch.last is None:
        return True
    found = sum(len(part.samples) for part in gathered.parts.values()) + len(gathered.single)
    absent = sum(
        min(run.last, fetch.last) - max(run.first, fetch.first) + 1
        for part in gathered.parts.values()
        for run in part.absent
    )
    return found + absent < fetch.last - fetch.first + 1


def _range(first: int, last: int | None) -> str:
    return f"{first}.." if last is None else f"{first}..{last}"

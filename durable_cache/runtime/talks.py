"""The conversations of a core that are under way: each waits for an answer, or for its time."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from functools import partial
from itertools import count
from operator import itemgetter

from durable_cache.protocol.cache.questions import (
    Answer,
    Conversation,
    Done,
    Floors,
    Keep,
    LoadSources,
    Pause,
    Question,
    Standings,
    Unanswered,
)
from durable_cache.runtime.effects import Ask

_DUE = itemgetter(0)


class _Talk:
    """A conversation under way: where it goes on, and what its failure means."""

    __slots__ = ("failed", "talk", "urgent")

    def __init__(
        self, talk: Conversation[None], failed: Callable[[], None], *, urgent: bool
    ) -> None:
        self.talk = talk
        self.failed = failed
        self.urgent = urgent


class Talks:
    """Conversations, at most as many as their owner begins.

    `ask` puts a question out; `goes_on` is called before each step of one.
    """

    def __init__(self, ask: Callable[[Ask], None], goes_on: Callable[[], None]) -> None:
        self._ask, self._goes_on = ask, goes_on
        self._ids = count(1)
        self._asked: dict[int, _Talk] = {}
        self._paused: list[tuple[int, _Talk]] = []
        """By the time at which each goes on."""
        self.now_ns = 0
        """The monotonic time, as its owner sets it."""

    def wake_ns(self) -> int | None:
        """Return the monotonic time at which the next pause is over, or None."""
        return self._paused[0][0] if self._paused else None

    def go_on(self) -> None:
        """Let go on what has waited for its time."""
        if self._paused and self._paused[0][0] <= self.now_ns:
            _, talk = self._paused.pop(0)
            self._advance(talk, partial(talk.talk.send, Done()))

    def begin(
        self, talk: Conversation[None], failed: Callable[[], None], *, urgent: bool = False
    ) -> None:
        """Begin a conversation; `failed` is called where one of its questions has no answer."""
        self._advance(_Talk(talk, failed, urgent=urgent), talk.__next__)

    def resume(self, ask_id: int, answer: Answer | None) -> None:
        """Go on with an answer; None: there is none to be had."""
        talk = self._asked.pop(ask_id, None)
        if talk is None:
            return
        if answer is None:
            self._advance(talk, partial(talk.talk.throw, Unanswered()))
        else:
            self._advance(talk, partial(talk.talk.send, answer))

    def _advance(self, talk: _Talk, step: Callable[[], Question | Pause]) -> None:
        """Let a conversation go on to its next question or its end."""
        self._goes_on()
        try:
            question = step()
        except StopIteration:
            return
        except Unanswered:
            talk.failed()
            return
        if isinstance(question, Pause):
            due_ns = self.now_ns + round(question.seconds * 1e9)
            insort(self._paused, (due_ns, talk), key=_DUE)
            return
        ask_id = next(self._ids)
        self._asked[ask_id] = talk
        self._ask(Ask(ask_id, question, talk.urgent or _is_quick(question)))


def _is_quick(question: Question) -> bool:
    """Tell whether the stream index alone answers a question."""
    return isinstance(question, LoadSources | Floors | Standings | Keep)

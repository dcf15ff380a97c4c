"""What once broke the promise, put back: each takes one small decision out of the product again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from durable_cache.model.sample import Sample
from durable_cache.protocol.alignment.comparison import Comparison
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.events import Origin
from durable_cache.protocol.subscriber import history as reading
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.following import Followed, Numbering
from durable_cache.protocol.subscriber.history import History
from durable_cache.protocol.subscriber.places import Sources
from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.journal import Entry
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.testing.simulation.composition import Composition


def k1_an_append_while_one_is_outstanding(patch: pytest.MonkeyPatch) -> None:
    outgoing = CacheEngine._outgoing

    def whatever_is_outstanding(self: Any) -> Any:
        before, self._appending = self._appending, None
        outputs = outgoing(self)
        self._appending = self._appending or before
        return outputs

    patch.setattr(CacheEngine, "_outgoing", whatever_is_outstanding)


def k3_a_subscriber_restarts_no_declared_numbering(patch: pytest.MonkeyPatch) -> None:
    declare = Followed.declare

    def later_epochs_only(self: Followed, epoch: int, incarnation: str, **about: bool) -> bool:
        newest = self.numberings[-1] if self.numberings else None
        if newest is not None and newest.declared and epoch <= self.highest_epoch:
            return False
        return declare(self, epoch, incarnation, **about)

    patch.setattr(Followed, "declare", later_epochs_only)


def k4_tail_before_a_restart_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    def at_its_end(_: Any, __: Any, head: Numbering, ___: int) -> None:
        head.ending = head.end_known = True

    patch.setattr(SubscriberEngine, "_look_for_end", at_its_end)


def k5_history_is_over_whatever_was_answered(patch: pytest.MonkeyPatch) -> None:
    take_page = History.take_page

    def is_whole(self: History, event: Any) -> None:
        answer = replace(event.answer, whole=True, answerers=max(1, event.answer.answerers))
        take_page(self, replace(event, answer=answer))

    patch.setattr(History, "take_page", is_whole)


def k6_the_oldest_source_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def make_room(self: Any) -> bool:
        if len(self.followed) >= self._sources_max:
            source = next(iter(self.followed))
            for known in (self.followed, self.steady, self.waiting):
                known.pop(source, None)
        return True

    patch.setattr(Sources, "make_room", make_room)


def k8_a_refused_page_is_awaited_like_live_numbers(patch: pytest.MonkeyPatch) -> None:
    received = Composition.received

    def awaits(self: Any, samples: Sequence[Sample], origin: Origin) -> None:
        bound = self._cache.plan.given_samples_max
        if origin is not Origin.LIVE and self.core.given_waiting + len(samples) > bound:
            self.refused(samples)
        received(self, samples, origin)

    patch.setattr(Composition, "received", awaits)


def k12_what_is_spilled_is_not_read(patch: pytest.MonkeyPatch) -> None:
    def entries(_: Backlog, chosen: Sequence[Any]) -> Iterator[Entry]:
        return (waiting.entry for waiting in chosen if waiting.entry is not None)

    patch.setattr(Backlog, "_entries", entries)


def k14_the_first_samples_are_not_awaited(patch: pytest.MonkeyPatch) -> None:
    declare = Followed.declare

    def not_fresh(self: Any, epoch: int, incarnation: str, **about: bool) -> bool:
        return declare(self, epoch, incarnation, **{**about, "fresh": False})

    patch.setattr(Followed, "declare", not_fresh)


def k20_absences_are_not_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Numbering, "learn_absent", lambda *_, **__: None)


def k27_history_comes_source_by_source(patch: pytest.MonkeyPatch) -> None:
    merged = reading._merged

    def by_source(answer: Any) -> list[Sample]:
        return sorted(merged(answer), key=lambda sample: (sample.source, sample.epoch, sample.sn))

    patch.setattr(reading, "_merged", by_source)


def k31_a_pull_without_effect_is_the_last(patch: pytest.MonkeyPatch) -> None:
    """What the door did not let in at once is left alone for an hour."""
    patch.setattr(Comparison, "_pause_seconds", lambda *_: 3600.0)
    patch.setattr("durable_cache.protocol.alignment.comparison._PULLS_AT_ONCE", 1)


def an_acknowledgement_before_the_journal_has_it(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Any, batch: Any, skips: Any = ()) -> None:
        self.backlog.push(Entry(self.journal.span()[1] + 1, batch, skips))

    patch.setattr(JournaledStorage, "commit", commit)

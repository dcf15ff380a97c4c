"""What once broke the promise, put back: each takes one small decision out of the product again.

What is not here lives outside the core, or no history shows it; `tests/regressions` has its test:

- K3 in the cache: a publisher asks which epochs are known before it declares one, so that a cache
  is told of a lower or a taken one only where nobody answers (`test_k03_pinned_publisher`).
- K18 has two of its four faults in the list: acknowledgements that count for whatever run need an
  older run's that come late while the same numbers are open (`test_k18_receipts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample
from durable_cache.protocol.alignment.comparison import Comparison
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.events import Learned, Origin, Verified, Verify, VerifyFailed
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import Finished, Output, Sent
from durable_cache.protocol.subscriber import history as reading
from durable_cache.protocol.subscriber import pages
from durable_cache.protocol.subscriber.events import Answer, DeliveryOptions
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.history import History
from durable_cache.protocol.subscriber.places import Sources
from durable_cache.protocol.wire import Ack, Incarnation
from durable_cache.runtime.core import CacheCore
from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.journal import Entry, Journal
from durable_cache.storage.journaled.purges import Purges
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


def k2_the_index_counts_the_entries_of_any_journal(patch: pytest.MonkeyPatch) -> None:
    def nothing_wrong(journal: Journal, index: StreamIndex) -> str:
        index.adopt(journal.identity, index.drained(), doubted=False)
        return ""

    patch.setattr("durable_cache.storage.journaled.storage.journal_finding", nothing_wrong)


def k3_a_subscriber_restarts_no_declared_numbering(patch: pytest.MonkeyPatch) -> None:
    declare = Followed.declare

    def later_epochs_only(
        self: Followed, epoch: int, incarnation: str, options: DeliveryOptions, **about: bool
    ) -> bool:
        newest = self.numberings[-1] if self.numberings else None
        if newest is not None and newest.declared and epoch <= self.highest_epoch:
            return False
        return declare(self, epoch, incarnation, options, **about)

    patch.setattr(Followed, "declare", later_epochs_only)


def k4_tail_before_a_restart_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    def at_its_end(_: Followed, head: Numbering, *__: object) -> None:
        head.ending = head.end_known = True

    patch.setattr(Followed, "look_for_end", at_its_end)


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


def k7_a_look_up_that_fails_found_nothing(patch: pytest.MonkeyPatch) -> None:
    verify = Composition._verify

    def found_nothing(self: Composition, question: Verify) -> Verified | VerifyFailed:
        answer = verify(self, question)
        return (
            Verified(question.verify_id, (), self.now)
            if isinstance(answer, VerifyFailed)
            else answer
        )

    patch.setattr(Composition, "_verify", found_nothing)


def k8_a_refused_page_is_awaited_like_live_numbers(patch: pytest.MonkeyPatch) -> None:
    received = Composition.received

    def awaits(
        self: Any, samples: Sequence[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        room = max(0, self._cache.plan.given_samples_max - self.core.given_waiting)
        if origin is not Origin.LIVE and len(samples) > room:
            self.refused(samples[room:])
        received(self, samples, origin, names)

    patch.setattr(Composition, "received", awaits)


def k9_the_index_is_believed_whatever_the_backend_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("durable_cache.storage.journaled.storage.backend_finding", lambda *_: "")


def k12_what_is_spilled_is_not_read(patch: pytest.MonkeyPatch) -> None:
    def entries(_: Backlog, chosen: Sequence[Any]) -> Iterator[Entry]:
        return (waiting.entry for waiting in chosen if waiting.entry is not None)

    patch.setattr(Backlog, "_entries", entries)


def k14_the_first_samples_are_not_awaited(patch: pytest.MonkeyPatch) -> None:
    declare = Followed.declare

    def not_fresh(self: Any, *told: Any, **about: bool) -> bool:
        return declare(self, *told, **{**about, "fresh": False})

    patch.setattr(Followed, "declare", not_fresh)


def k17_what_is_on_its_way_is_drained_below_a_purge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Purges, "without", lambda _, entry: entry)


def k18_acknowledgements_are_of_whatever_run(patch: pytest.MonkeyPatch) -> None:
    def of_this_run(self: Any, ack: Ack) -> list[Output]:
        finished = self._take(self._numbering, ack) if ack.source == self._source else []
        return [Finished(tuple(finished))] if finished else []

    patch.setattr(PublisherEngine, "_acknowledged", of_this_run)


def k18_a_put_that_raises_leaves_its_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PublisherEngine, "_send_failed", lambda engine: engine.handle(Sent()))


def k18_receipts_open_at_a_wrap_never_end(patch: pytest.MonkeyPatch) -> None:
    wrap = PublisherEngine._wrap

    def forgets(self: Any, now: Moment) -> None:
        wrap(self, now)
        self._former.clear()

    patch.setattr(PublisherEngine, "_wrap", forgets)


def k20_absences_are_not_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Numbering, "learn_absent", lambda *_, **__: None)


def k22_what_is_too_large_is_asked_for_again(patch: pytest.MonkeyPatch) -> None:
    def without(answer: Answer) -> Answer:
        return replace(answer, parts=tuple(replace(part, oversized=()) for part in answer.parts))

    patch.setattr("durable_cache.protocol.subscriber.engine.whole_answer", without)


def k27_history_comes_source_by_source(patch: pytest.MonkeyPatch) -> None:
    merged = pages.merged

    def by_source(*asked: Any) -> list[Sample]:
        return sorted(merged(*asked), key=lambda sample: (sample.source, sample.epoch, sample.sn))

    patch.setattr(reading, "merged", by_source)


def k30_what_came_before_its_token_stays_where_it_is(patch: pytest.MonkeyPatch) -> None:
    put_out = CacheCore._put_out

    def learns_only(self: CacheCore, output: Any) -> None:
        if not isinstance(output, Learned):
            put_out(self, output)

    patch.setattr(CacheCore, "_put_out", learns_only)


def k31_a_pull_without_effect_is_the_last(patch: pytest.MonkeyPatch) -> None:
    """What the door did not let in at once is left alone for an hour."""
    patch.setattr(Comparison, "_pause_seconds", lambda *_: 3600.0)
    patch.setattr("durable_cache.protocol.alignment.comparison._PULLS_AT_ONCE", 1)


def an_acknowledgement_before_the_journal_has_it(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Any, batch: Any, skips: Any = ()) -> None:
        self.backlog.push(Entry(self.journal.span()[1] + 1, batch, skips))

    patch.setattr(JournaledStorage, "commit", commit)

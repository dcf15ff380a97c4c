"""How a publisher answers from the samples it keeps itself (RFC: its own ReliabilityCache)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from threading import Condition

from durable_cache.endpoints.replies import (
    AnswerBounds,
    Form,
    Refused,
    answer,
    answer_beginning,
    form_of,
    parse_query,
)
from durable_cache.endpoints.session import Query, ZError, query_parts, reply_error
from durable_cache.model.sample import SampleBatch, SourceId
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.standings import Standings
from durable_cache.protocol.wire import Absence, Incarnation
from durable_cache.storage.contract import Page

_log = logging.getLogger(__name__)
_BOUNDS = AnswerBounds(
    samples_max=100_000, bytes_max=64 << 20, seconds_max=8.0, packed_bytes_max=1 << 20
)
_UNDER_WAY_SECONDS_MAX = 1.0
"""How long an answer waits for the put that is under way: a congested link holds it up."""
_WAITED_SECONDS_MAX = 10.0
"""Zenoh's own timeout; ours are shorter. Whoever asked before that is gone, or asks again: a cache
that was killed and started again and again would have the thread work for each of its lives, while
what is to be sent once more waits."""


def _knows_no_zid(_: str) -> bool:
    return False  # whoever asks here names the publisher whole, or all of them


class OwnCache:
    """Answers queries on the publisher's thread; `changed` guards the engine."""

    def __init__(self, engine: PublisherEngine, changed: Condition, key_expr: str) -> None:
        self._engine, self._changed, self._key_expr = engine, changed, key_expr
        self.reading = 0
        """Answers that wait for the put that is under way."""
        self.errors = 0
        """Queries that could not be answered."""

    def answer(self, query: Query, came: float) -> None:
        """Answer one query that came at a monotonic time, whatever comes of it."""
        with query:
            try:
                if time.monotonic() - came > _WAITED_SECONDS_MAX:
                    raise Refused("the publisher is busy with others; ask again")
                parts = query_parts(query)
                if form_of(parts.key_expr, _knows_no_zid) is not Form.SOURCED:
                    return  # `**`, which comes here too, asks for values, as of a storage
                asked = parse_query(parts, Form.SOURCED, time.time_ns())
                if asked.behind is not None:
                    answer_beginning(query, self._beginning(asked.behind))
                    return
                answer(query, asked, self._read, _BOUNDS, self._absences, self._incarnations)
            except Refused as error:
                reply_error(query, str(error))
            except ZError:
                return  # the asker is gone
            except Exception:
                # One question that cannot be answered must not end recovery for all others.
                self.errors += 1
                _log.exception("a query to the publisher on %s failed", self._key_expr)

    def _read(self, selection: Selection, limit: int, cursor: Cursor | None) -> Page:
        with self._changed:
            # Who asks after a sample left must find it: wait for the put that is under way.
            if (sending := self._engine.under_way) is not None:
                self.reading += 1
                self._changed.wait_for(
                    lambda: self._engine.under_way is not sending, _UNDER_WAY_SECONDS_MAX
                )
                self.reading -= 1
            samples, after = self._engine.read(selection, limit, cursor)
        return Page(SampleBatch(samples), after)

    def _beginning(self, standings: Standings) -> int:
        samples = self._read(Selection(), _BOUNDS.samples_max, None).samples
        names = {(source, epoch): name for source, epoch, name in self._incarnations(())}
        return standings.beginning(
            (sample, names.get((sample.source, sample.epoch), "")) for sample in samples
        )

    def _incarnations(self, _: Iterable[SourceId]) -> tuple[Incarnation, ...]:
        with self._changed:
            return self._engine.incarnations()

    def _absences(self, selection: Selection, _: SampleBatch) -> tuple[Absence, ...]:
        with self._changed:
            return self._engine.absences(selection)

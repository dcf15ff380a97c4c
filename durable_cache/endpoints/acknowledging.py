"""Tells publishers which of their numbers are durable, and subscribers what came behind a token."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from durable_cache.endpoints.session import Listening, Session, ZError, beat, put_own
from durable_cache.model.sample import SourceId
from durable_cache.protocol.cache.events import SendAck
from durable_cache.protocol.wire import Ack, ack_key, encode_ack, own_key
from durable_cache.runtime.effects import Announce
from durable_cache.storage.journaled.storage import JournaledStorage

_RUNS_PER_ACK_MAX = 512
"""The newest runs; the wire allows 1,024. Older ones were acknowledged before."""


class Acknowledging:
    """Sends acknowledgements of one cache; those nobody listens for yet wait for a listener.

    At most `unheard_max` numberings wait. Any thread.
    """

    def __init__(
        self, session: Session, store: JournaledStorage, domain: str, *, unheard_max: int
    ) -> None:
        self._session = session
        self._store = store
        self._domain = domain
        self._unheard_max = unheard_max
        self._unheard: OrderedDict[tuple[SourceId, int], SendAck] = OrderedDict()
        self._lock = Lock()
        self.sent = 0
        with self._lock:  # somebody who listens already is told of before this returns
            self._acks = Listening(session, own_key(domain, "ack", "*"), self._send_unheard)

    def send(self, ack: SendAck) -> None:
        """Acknowledge runs; unknown to the publisher where the network is away."""
        if not ack.runs:
            return
        if not self._acks.now():
            # A publisher whose wish to listen is still on its way hears it a little later.
            with self._lock:
                self._unheard[ack.source, ack.epoch] = ack
                if len(self._unheard) > self._unheard_max:
                    self._unheard.popitem(last=False)
            if self._acks.now():
                self._send_unheard()
            return
        runs = tuple((run.first, run.last) for run in ack.runs[-_RUNS_PER_ACK_MAX:])
        level, cache_id = int(self._store.level), self._store.index.cache_id
        message = Ack(cache_id, level, ack.source, ack.epoch, runs, ack.incarnation)
        try:
            put_own(self._session, ack_key(self._domain, ack.source), encode_ack(message))
        except ZError:
            return  # unknown to the publisher, as the protocol allows
        self.sent += 1

    def announce(self, told: Announce) -> None:
        """Tell subscribers that a number is here whose source shows no token."""
        beat(self._session, told.key_expr, told.source, told.sn, stored_as=told.epoch)

    def _send_unheard(self) -> None:
        while True:
            with self._lock:
                if not self._unheard or not self._acks.now():
                    return
                _, ack = self._unheard.popitem()
            self.send(ack)

    def close(self) -> None:
        """Undeclare; idempotent as the session's own are."""
        self._acks.close()

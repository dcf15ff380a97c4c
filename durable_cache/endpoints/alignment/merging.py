"""Merge policies on a session: notes what comes of the other side and corrects what the union says.

What is decided is `protocol.alignment.SplitBrain`'s. Here are its inputs (liveliness tokens of
caches with a policy, batches about to be stored, how the cache stands with its peers), the place
where its notes are kept durably, and the corrections: samples of a reliable publisher of the
cache's own, acknowledged by the cache itself before the notes are forgotten. A crash in between
makes the same corrections again.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Event, Lock

from durable_cache.endpoints.alignment.corrected import Corrected
from durable_cache.endpoints.alignment.correcting import Correcting, Theirs
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.publisher import ReliablePublisher, declare_reliable_publisher
from durable_cache.endpoints.publisher.receipts import Receipt
from durable_cache.endpoints.session import (
    Session,
    ZError,
    build_timestamp,
    declare_token,
    is_sendable,
    undeclare,
    unsendable,
    watch_tokens,
    zid_of,
)
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import DurableCacheError, StorageError
from durable_cache.model.key_expression import KeyExpression, is_too_long
from durable_cache.model.sample import Kind, SampleBatch
from durable_cache.model.timestamp import ntp64_at
from durable_cache.protocol.alignment import (
    Correction,
    Facts,
    Healing,
    PeerStatus,
    SplitBrain,
    SplitBrainToken,
    parse_split_brain_token,
    split_brain_token,
)
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.wire import own_key
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.storage import JournaledStorage

_log = logging.getLogger(__name__)
_KIND = "split_brain"
_STORED_SECONDS_MAX = 30.0
_RETRY_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_HEARTBEAT_SECONDS = 1.0
"""The last correction may be lost on its way, and nothing comes behind it for long."""
_SECOND_NS = 1_000_000_000


class Merging:
    """The split-brain policy of one cache; made, started and closed by its `Aligning`.

    `purge(floors)` removes history durably, lets peers know, and returns how many samples it were.
    """

    def __init__(
        self,
        session: Session,
        store: JournaledStorage,
        options: CacheOptions,
        lane: Lane,
        key_exprs: Sequence[str],
        epochs: Callable[[], Epochs],
        purge: Callable[[Sequence[Floor]], int],
    ) -> None:
        self._session, self._store, self._options = session, store, options
        self._lane, self._epochs, self._purge = lane, epochs, purge
        self._key_exprs = tuple(map(KeyExpression, key_exprs))
        self._policy = options.split_brain.policy
        self._lock = Lock()
        """Guards `_state` and `_unkept`; facts are kept under it, in order."""
        self._unkept = Facts({})
        """What the journal did not take."""
        kept = {} if store.journal is None else store.journal.kept(_KIND)
        self._own = store.index.cache_id
        peers_max = options.aligner.peers_max
        self._state = SplitBrain(options.split_brain, self._own, kept, peers_max)
        aligner = options.aligner
        self._quiet_ns = round((2 * aligner.slot_seconds + aligner.settle_seconds + 1) * _SECOND_NS)
        """What both sides had when they met is in their announced roots by then."""
        self._due = 0.0
        self._publishers: dict[str, ReliablePublisher[Receipt]] = {}
        self._declared: list[object] = []
        self._closed = Event()
        self.corrected = Corrected()

    def start(self) -> None:
        """Let other caches see that this one has a policy, and see theirs."""
        session, domain = self._session, self._options.domain
        priority = self._options.split_brain.master_priority
        token = SplitBrainToken(self._own, secrets.token_hex(4), priority)
        self._declared = [
            declare_token(session, split_brain_token(domain, token)),
            watch_tokens(session, own_key(domain, "split_brain", "**"), self._token_changed),
        ]

    def close(self) -> None:
        """Stop; idempotent. What was not corrected yet is corrected after the next start."""
        self._closed.set()
        declared, self._declared = self._declared, []
        undeclare(*declared)
        publishers, self._publishers = [*self._publishers.values()], {}
        for publisher in publishers:
            publisher.close()

    def _token_changed(self, key: str, alive: bool) -> None:
        token = parse_split_brain_token(key, self._options.domain)
        if token is None or token.cache_id == self._own:
            return
        now_ns = time.time_ns()
        with self._lock:
            before = self._state.healing, {*self._state.ignored.items()}
            facts = self._state.seen(token, now_ns) if alive else self._state.gone(token, now_ns)
            after = self._state.healing, {*self._state.ignored.items()}
            try:
                self._keep(facts)
            except StorageError as error:  # kept with what is kept next
                _log.warning("a partition is not noted yet", extra={"reason": str(error)})
        if after != before:
            about = {"peer": token.cache_id, "policy": self._policy.value}
            _log.warning("both sides of a partition went on", extra=about)

    @property
    def ignored(self) -> tuple[tuple[str, int], ...]:
        """Before when what each peer first received is left with it; only with `ignore`."""
        with self._lock:
            return tuple(self._state.ignored.items())

    def storing(self, batch: SampleBatch) -> None:
        """Note what of a batch is the other side's, before it is stored; StorageError as of a
        commit.
        """
        with self._lock:
            self._keep(self._state.storing(batch))

    def _keep(self, facts: Facts) -> None:
        """Keep facts durably, with those that could not be kept before."""
        unkept = self._unkept
        gone = {*unkept.gone, *facts.gone} - {*facts.kept}
        kept = {name: value for name, value in unkept.kept.items() if name not in facts.gone}
        self._unkept = Facts(kept | facts.kept, tuple(sorted(gone)))
        if self._unkept and self._store.journal is not None:
            self._store.journal.keep(_KIND, self._unkept.kept, self._unkept.gone)
        self._unkept = Facts({})

    def _about(self, healing: Healing) -> dict[str, object]:
        return {"peers": ", ".join(healing.peers), "policy": self._policy.value}

    def tick(self, now: float, peers: Iterable[PeerStatus]) -> None:
        """Correct, once the sides hold the same; `now` of a monotonic clock."""
        healing = self._state.healing
        if healing is None or now < self._due:
            return
        with self._lock:
            is_master = self._state.decides(peers, time.time_ns(), self._quiet_ns)
        if is_master is None:
            return
        self._due = now + _RETRY_SECONDS
        self._lane.submit(partial(self._heal, healing, is_master=is_master))

    def _heal(self, healing: Healing, *, is_master: bool) -> None:
        with self._lock:
            theirs = {stream: runs.copy() for stream, runs in self._state.theirs.items()}
        if is_master and theirs:
            try:
                changed = self._correct(healing, theirs)
            except (DurableCacheError, ZError) as error:
                _log.warning("a split brain is corrected later", extra={"reason": str(error)})
                return
            self.corrected = self.corrected.plus(changed)
            about = self._about(healing) | changed.as_about()
            about["streams_left_out"] = self._state.left_out
            _log.warning("a split brain was healed", extra=about)
        else:
            reason = "another cache is the master" if theirs else "the other side had nothing new"
            _log.info("nothing to correct", extra=self._about(healing) | {"reason": reason})
        with self._lock:
            if self._state.healing is healing and self._state.theirs == theirs:
                self._keep(self._state.ended())

    def _correct(self, healing: Healing, theirs: Theirs) -> Corrected:
        """Make the newest sample of each key what the policy says; durable on return."""
        with self._lock:
            made = dict(self._state.made)
        correcting = Correcting(self._policy, self._store, self._epochs, healing, theirs, made)
        disposed = restored = 0
        for key, wanted in correcting.corrections():
            reason = cannot_be_sent(key, wanted)
            if reason:  # one of an earlier version; what the union says of it stays
                _log.warning("an instance is not corrected", extra={"reason": reason})
                continue
            for correction in wanted:
                self._publish(key, correction)
            restored += any(one.kind is Kind.PUT for one in wanted)
            disposed += wanted[-1].kind is Kind.DELETE
        for publisher in self._publishers.values():
            self._await_stored(publisher)
        removes = self._options.split_brain.remove_history
        removed = self._purge(correcting.overruled()) if removes else 0
        return Corrected(1, disposed, restored, removed)

    def _await_stored(self, publisher: ReliablePublisher[Receipt]) -> None:
        """Wait until this cache has all corrections; another's acknowledgement may come first."""
        deadline = time.monotonic() + _STORED_SECONDS_MAX
        last = publisher.next_sn - 1
        while not any(self._store.range_of(publisher.source, publisher.epoch, last, last)):
            if time.monotonic() > deadline or self._closed.wait(_LOOK_SECONDS):
                raise DurableCacheError("corrections are not stored yet")

    def _publish(self, key: str, correction: Correction) -> None:
        publisher = self._publisher_of(key)
        with self._lock:
            first = self._state.correcting(publisher.source, publisher.epoch, publisher.next_sn)
            self._keep(first)
        stamp = build_timestamp(ntp64_at(correction.unix_ns), zid_of(self._session))
        if correction.kind is Kind.DELETE:
            publisher.publish(Kind.DELETE, b"", "zenoh/bytes", None, key, stamp)
            return
        value = correction.value
        publisher.publish(Kind.PUT, value.payload, value.encoding, value.attachment, key, stamp)

    def _publisher_of(self, key: str) -> ReliablePublisher[Receipt]:
        written = KeyExpression(key)
        name = str(next(one for one in self._key_exprs if one.includes(written)))
        found = self._publishers.get(name)
        if found is None:
            found = self._publishers[name] = declare_reliable_publisher(
                self._session,
                name,
                acknowledgements=1,
                level=self._store.level.name.lower(),
                domain=self._options.domain,
                heartbeat_seconds=_HEARTBEAT_SECONDS,
                heartbeat_sporadic=True,
            )
        return found


def cannot_be_sent(key: str, wanted: Iterable[Correction]) -> str:
    """Say why corrections cannot be published, as their session would not outlive it; else ""."""
    if is_too_long(key):
        return f"{key[:80]!r}…: the key is too long to be published"
    values = (one.value for one in wanted if one.kind is Kind.PUT)
    return next((unsendable(value) for value in values if not is_sendable(value.encoding)), "")

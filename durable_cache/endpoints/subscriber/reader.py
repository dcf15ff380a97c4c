"""A reliable subscriber that keeps what it gets by instance, to be read and taken, as DDS has it.

The shell around `ReaderCache`. `_changed` guards it: the thread that delivers inserts and
says which writers come and go, any thread reads and takes. Listeners are told outside the lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import Condition
from typing import TypeVar

from durable_cache.endpoints.ahead import TimestampsAhead
from durable_cache.endpoints.session import (
    Session,
    ZError,
    take_token_changes,
    tokens_now,
    tokens_watched,
    undeclare,
    watch_tokens_polled,
)
from durable_cache.endpoints.subscriber.channels import (
    Callback,
    Delivery,
    Listener,
    Sink,
    sink_of,
)
from durable_cache.endpoints.subscriber.subscriber import (
    Miss,
    ReliableSubscriber,
    SubscriberOptions,
)
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_kind, read_timeout
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.reader.cache import ReaderCache
from durable_cache.protocol.reader.instances import (
    InstanceSample,
    InstanceState,
    InstanceStatus,
    SampleState,
    ViewState,
)
from durable_cache.protocol.reader.profile import DestinationOrder, DurabilityKind, Profile
from durable_cache.protocol.reader.statuses import (
    LivelinessChanged,
    SampleLost,
    SubscriptionMatched,
)
from durable_cache.protocol.reader.tokens import (
    parse_auto_dispose_token,
    parse_native_token,
    parse_unregistered_token,
)
from durable_cache.protocol.subscriber.events import Event, Fetched, HistoryPage
from durable_cache.protocol.wire import own_key, parse_publisher_token, tokens_about

_TOKENS_SECONDS_MAX = 1.0
"""How long routers are waited for that say which writers there are."""
_CACHE_PAUSE_SECONDS = 0.05
_ANY_SAMPLE = SampleState.READ | SampleState.NOT_READ
_ANY_VIEW = ViewState.NEW | ViewState.NOT_NEW
_ANY_INSTANCE = (
    InstanceState.ALIVE | InstanceState.NOT_ALIVE_DISPOSED | InstanceState.NOT_ALIVE_NO_WRITERS
)
_ResultT = TypeVar("_ResultT")


class ReliableReader(ReliableSubscriber):
    """A running subscriber with a profile: samples are kept by instance until they are taken.

    Any thread may read and take.
    """

    def __init__(
        self,
        session: Session,
        key_expr: KeyExpression,
        profile: Profile,
        options: SubscriberOptions,
    ) -> None:
        self.profile = profile
        domain = options.domain
        if profile.durability is DurabilityKind.PERSISTENT:
            _await_cache(session, key_expr, options)
        self._kept = _Kept(profile)
        self._writers = _WriterTokens(session, key_expr, profile, domain, self._kept)
        super().__init__(session, key_expr, None, options)

    def _open(self, handler: object) -> tuple[Delivery[Sample], object]:
        return self._kept, handler

    def read(
        self,
        sample_states: SampleState = _ANY_SAMPLE,
        view_states: ViewState = _ANY_VIEW,
        instance_states: InstanceState = _ANY_INSTANCE,
    ) -> list[InstanceSample]:
        """Return what is in all of these states, at once: by instance, oldest first; it stays."""
        _check_states(sample_states, view_states, instance_states)
        return self._kept.collect(
            lambda cache: cache.read(sample_states, view_states, instance_states)
        )

    def take(
        self,
        sample_states: SampleState = _ANY_SAMPLE,
        view_states: ViewState = _ANY_VIEW,
        instance_states: InstanceState = _ANY_INSTANCE,
    ) -> list[InstanceSample]:
        """The same, and remove it.

        By source timestamp nothing of an instance that is older than what was taken comes after it.
        """
        _check_states(sample_states, view_states, instance_states)
        return self._kept.collect(
            lambda cache: cache.take(sample_states, view_states, instance_states)
        )

    def instances(self) -> list[InstanceStatus]:
        """Return what each instance is now, by key, also those whose samples were taken."""
        return self._kept.ask(ReaderCache.statuses)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until something came, or a state changed, after the last read or take.

        False when the time is over, and where the reader is closed before.
        """
        return self._kept.wait(read_timeout(timeout_seconds))

    def sample_lost_status(self) -> SampleLost:
        """Return how many samples were dropped; `change` is since this was last asked."""
        return self._kept.ask(ReaderCache.take_sample_lost)

    def liveliness_changed_status(self) -> LivelinessChanged:
        """Return how many writers are there; changes are since this was last asked."""
        return self._kept.ask(ReaderCache.take_liveliness_changed)

    def subscription_matched_status(self) -> SubscriptionMatched:
        """Return how many writers match; changes are since this was last asked."""
        return self._kept.ask(ReaderCache.take_subscription_matched)

    @property
    def timestamps_ahead(self) -> int:
        """How many samples were more than half a second ahead of this clock, by source timestamp.

        What is written under their keys before then counts as older; the log names the publishers.
        """
        return self._kept.ahead.total

    def sample_lost_listener(self, handler: object = None) -> Listener[SampleLost]:
        """Tell `handler` of every sample that is dropped, with the reason.

        Takes what a subscriber takes, as `sample_miss_listener` does; raises ConfigError at once
        for what cannot be told.
        """
        sink, given = sink_of(handler, SampleLost, self._session)
        self._kept.listeners.append(sink)
        return Listener(sink, given, self._kept.listeners.remove)

    @property
    def callback_errors(self) -> int:
        """How often a listener raised; delivery went on each time."""
        told = (sink for sink in self._kept.listeners if isinstance(sink, Callback))
        return super().callback_errors + sum(sink.errors for sink in told)

    def _run(self) -> None:
        with suppress(ZError):  # the session is closing
            self._writers.learn()
        super()._run()

    def _turn(self) -> None:
        """Know what writers say before the samples that came behind it."""
        self._writers.look()

    def _note_publisher(self, key: str, *, alive: bool) -> None:
        self._writers.note_publisher(key, alive=alive)

    def _handle(self, event: Event) -> None:
        if isinstance(event, (Fetched, HistoryPage)):
            for part in event.answer.parts:
                self._writers.note_named(named.source for named in part.incarnations)
        super()._handle(event)

    def _report(self, miss: Miss) -> None:
        super()._report(miss)
        self._kept.change(lambda cache: cache.missed(*miss))

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Undeclare; what is kept can still be read and taken. Idempotent.

        Raises the error of a thread that failed.
        """
        self._writers.close()
        super().close(timeout_seconds)
        for sink in self._kept.listeners:
            sink.close()

    undeclare = close


def _check_states(sample: object, view: object, instance: object) -> None:
    check_kind("sample_states", sample, SampleState, "SampleStates")
    check_kind("view_states", view, ViewState, "ViewStates")
    check_kind("instance_states", instance, InstanceState, "InstanceStates")


class _Kept:
    """A reader's cache between the thread that delivers and those that read."""

    def __init__(self, profile: Profile) -> None:
        self._cache = ReaderCache(profile)
        self._changed = Condition()
        self._closed = False
        self._seen = 0
        """How far the cache had changed at the last read or take."""
        self.listeners: list[Sink[SampleLost]] = []
        self._by_source = profile.destination_order is DestinationOrder.BY_SOURCE_TIMESTAMP
        self.ahead = TimestampsAhead(
            "by source timestamp, what is written there before then counts as older"
        )

    def deliver(self, items: Sequence[Sample]) -> None:
        """Insert samples in this order; waits where KEEP_ALL has no room."""
        if self._by_source:
            self.ahead.note(items)
        begin = 0
        while begin < len(items):
            rest = items[begin:] if begin else items
            with self._changed:
                taken = self._cache.insert(rest)
                drops = self._note_change()
            self._tell(drops)
            begin += taken
            if begin < len(items) and not taken and not self._await_room():
                return

    def _await_room(self) -> bool:
        """Wait until something is taken; False when the reader is closed."""
        with self._changed:
            held = len(self._cache)
            self._changed.wait_for(lambda: len(self._cache) < held or self._closed)
            return not self._closed

    def change(self, change: Callable[[ReaderCache], object]) -> None:
        """Let the cache know something."""
        with self._changed:
            change(self._cache)
            drops = self._note_change()
        self._tell(drops)

    def collect(
        self, collect: Callable[[ReaderCache], list[InstanceSample]]
    ) -> list[InstanceSample]:
        """Read or take."""
        with self._changed:
            self._seen = self._cache.changes
            found = collect(self._cache)
            self._changed.notify_all()
        return found

    def ask(self, question: Callable[[ReaderCache], _ResultT]) -> _ResultT:
        with self._changed:
            return question(self._cache)

    def wait(self, timeout_seconds: float | None) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_fresh() or self._closed, timeout_seconds)
            return self._is_fresh()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _is_fresh(self) -> bool:
        return self._cache.changes != self._seen

    def _note_change(self) -> list[SampleLost]:
        """Wake who waits; returns what listeners are to be told."""
        self._changed.notify_all()
        drops, self._cache.drops = self._cache.drops, []
        return drops

    def _tell(self, drops: list[SampleLost]) -> None:
        if drops:
            for sink in tuple(self.listeners):
                sink.deliver(drops)


class _WriterTokens:
    """Reads from tokens which writers come and go, and tells the reader's cache.

    Owned by the thread that delivers.
    """

    def __init__(
        self,
        session: Session,
        key_expr: KeyExpression,
        profile: Profile,
        domain: str,
        kept: _Kept,
    ) -> None:
        self._session, self._key_expr, self._domain = session, key_expr, domain
        self._auto_dispose = profile.auto_dispose_unregistered_instances
        self._kept = kept
        self._tokens: dict[SourceId, set[str]] = {}
        self._disposing: set[SourceId] = set()
        patterns = {
            self._note_disposing: own_key(domain, "auto_dispose", "**"),
            self._note_native: f"{key_expr}/@adv/pub/**",
            self._note_unregistered: tokens_about(domain, "unregistered", key_expr),
        }
        self._watches = [
            (note, pattern, watch_tokens_polled(session, pattern))
            for note, pattern in patterns.items()
        ]

    def learn(self) -> None:
        """See what there is before anything is delivered; `note_publisher` is told before, too."""
        for note, pattern, watch in self._watches:
            there = tokens_watched(self._session, watch, pattern, _TOKENS_SECONDS_MAX)
            for key in sorted(there):
                note(key, alive=True)

    def look(self) -> None:
        """See what changed since the last time."""
        for note, _, watch in self._watches:
            for key, alive in take_token_changes(watch):
                note(key, alive=alive)

    def note_publisher(self, key: str, *, alive: bool) -> None:
        """See the token of a publisher of ours."""
        token = parse_publisher_token(key, self._domain)
        if token is not None and token.key_expr.intersects(self._key_expr):
            self._note(token.source, key, auto_dispose=False, alive=alive)

    def note_named(self, sources: Iterable[SourceId]) -> None:
        """See whose numberings caches know from tokens: who has none now is gone."""
        for source in sources:
            if source not in self._tokens:
                self._kept.change(lambda cache, source=source: cache.absent(source))  # type: ignore[misc]

    def _note_native(self, key: str, *, alive: bool) -> None:
        source = parse_native_token(key)
        if source is not None:
            self._note(source, key, auto_dispose=self._auto_dispose, alive=alive)

    def _note_disposing(self, key: str, *, alive: bool) -> None:
        source = parse_auto_dispose_token(key, self._domain)
        if source is None:
            return
        if not alive:
            # The publisher's own token goes too, now or in a moment: until then it holds.
            self._disposing.discard(source)
            return
        self._disposing.add(source)
        if source in self._tokens:
            self._kept.change(lambda cache: cache.disposes(source))

    def _note_unregistered(self, key: str, *, alive: bool) -> None:
        said = parse_unregistered_token(key, self._domain)
        if said is None or not self._key_expr.includes(KeyExpression(said.key)):
            return
        if alive:
            self._kept.change(lambda cache: cache.unregistered(said.source, said.key, said.ntp64))
        else:
            self._kept.change(lambda cache: cache.registered(said.source, said.key))

    def _note(self, source: SourceId, key: str, *, auto_dispose: bool, alive: bool) -> None:
        tokens = self._tokens.setdefault(source, set())
        if alive:
            tokens.add(key)
            disposes = auto_dispose or source in self._disposing
            self._kept.change(lambda cache: cache.appeared(source, auto_dispose=disposes))
            return
        tokens.discard(key)
        if not tokens:
            del self._tokens[source]
            left = ntp64_from_ns(time.time_ns())
            self._kept.change(lambda cache: cache.disappeared(source, left))

    def close(self) -> None:
        for _, _, watch in self._watches:
            undeclare(watch)


def _await_cache(session: Session, key_expr: KeyExpression, options: SubscriberOptions) -> None:
    """Wait until a cache that stores what is read shows its token; ConfigError when none does."""
    prefix = own_key(options.domain, "history", "")
    pattern = tokens_about(options.domain, "history", key_expr)
    deadline = time.monotonic() + options.delivery.history_timeout_seconds
    while True:
        for token in tokens_now(session, pattern, _TOKENS_SECONDS_MAX):
            stored = token.removeprefix(prefix).split("/", 2)[-1]
            with suppress(ValueError):
                if KeyExpression(stored).includes(key_expr):
                    return
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"a PERSISTENT profile on {key_expr}: no cache in reach stores all of it, so "
                "nothing would outlive its publishers; start one, or choose TRANSIENT_LOCAL"
            )
        time.sleep(_CACHE_PAUSE_SECONDS)

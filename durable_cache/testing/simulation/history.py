"""How a seed becomes a history, and what must hold at its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from durable_cache.errors import StorageUnavailable
from durable_cache.model.key_expression import EVERY_KEY, KeyExpression
from durable_cache.model.selection import Selection
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.cache.events import EngineOptions
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.storage.contract import Floor, Retention
from durable_cache.storage.journaled.storage import JournalOptions
from durable_cache.testing.simulation.cache_promises import CachePromise
from durable_cache.testing.simulation.caches import CachePlan, SimCache, answerers_of
from durable_cache.testing.simulation.media import FAULTS, Medium
from durable_cache.testing.simulation.network import Conditions, Network
from durable_cache.testing.simulation.promises import SubscriberPromise
from durable_cache.testing.simulation.publisher_promises import PublisherPromise
from durable_cache.testing.simulation.publishers import (
    BACK_SECONDS_UNNAMED,
    ForeignPublisher,
    OwnPublisher,
    PublisherPlan,
    SimPublisher,
)
from durable_cache.testing.simulation.rot import lose_one
from durable_cache.testing.simulation.subscribers import SimSubscriber, SubscriberPlan
from durable_cache.testing.simulation.truth import Truth
from durable_cache.testing.simulation.world import SECOND_NS, Crash, World

_SETTLE_SECONDS = 45.0
_REVEAL_SECONDS = 30.0
_SKEWED_SECONDS = 65.0
"""Caches judge what a peer or a publisher whose clock is ahead announced once their own clocks are
there: up to twelve slots of time."""
_SMALL_INBOX_BYTES = 2000
_SMALL_INBOX_SECONDS = 130.0
"""Where it overflows, alignment begins anew and waits for the clocks again: each time it has pulled
some thirty samples."""
_LITTLE_ROOM = 5
_LITTLE_ROOM_SECONDS = 350.0
"""A cache with little room takes that many samples of each comparison, which come 35 s apart: what
it lacks must be there after ten of them."""
_QUIET_SECONDS = 20.0
_AGAIN_SECONDS = 240.0
"""Longer than caches wait before they ask for the last time for what nobody had (ADR 0364)."""
_SPILL = 0.3
_ROT = 0.012
_BACK_SECONDS = 60.0
_ENGINE = EngineOptions(
    window_size_samples=2000, recovery_delay_seconds=0.02, gap_timeout_seconds=15.0
)
_DELIVERY = DeliveryOptions(gap_timeout_seconds=10.0, window_size_samples=2000)
_THEMES: Sequence[dict[str, int]] = (
    {},
    {},
    {"medium": 6, "spill": 1},
    {"medium": 5, "power cut": 2},
    {"crash": 5},
    {"wipe": 5, "put back": 6, "power cut": 2},
    {"purge": 8, "retention": 1, "wildcards": 1},
    {"join": 5, "medium": 4, "part": 2},
    {"small queue": 1, "little room": 1, "small journal": 1},
    {"slow consumer": 1, "burst": 4},
    {"pinned": 1, "restart": 4, "clock": 3},
    {"pinned": 1, "part": 3, "clock": 4, "restart": 2},
)
"""What one history is about, that rare things meet: these troubles come so many times as often, or
certainly where they are drawn once."""
_OFTEN = 5
"""So many times as often comes what a history is always to have."""


_RETENTIONS = (
    Retention(samples_max=5),
    Retention(age_seconds_max=20.0),
    Retention(bytes_max=1500),
)


class History:
    """One seeded history; `run` plays it and returns what went wrong."""

    def __init__(
        self,
        seed: int,
        *,
        tracing: bool = False,
        without: Collection[str] = (),
        always: Collection[str] = (),
    ) -> None:
        self.world = world = World(seed, tracing=tracing)
        self.without = frozenset(without)
        """Kinds of trouble that this history is to be spared, to find out what it takes."""
        self.always = frozenset(always)
        """Kinds of trouble that everybody in this history has who may have them, or that come often
        in it."""
        self.network = Network(world)
        self.truth = Truth()
        self.random: Random = world.random
        self.caches: list[SimCache] = []
        self._cache_promises: list[CachePromise] = []
        self._publisher_promises: list[PublisherPromise] = []
        self.publishers: list[SimPublisher] = []
        self.subscribers: list[SimSubscriber] = []
        self._aside = Random(f"beside history {seed}")  # noqa: S311  a history is to be repeated
        """Draws what may or may not happen besides, so that the rest of a history stays."""
        self._rot = Random(f"rot in history {seed}")  # noqa: S311
        self._theme = self.random.choice(_THEMES)
        self.network.conditions = self._draw_conditions()
        if "network" in self.without:
            self.network.conditions = Conditions()
        for at in range(self.random.choice((1, 2, 2))):
            self._add_cache(at)
        for at in range(self.random.randint(1, 3)):
            self._add_publisher(at)
        for at in range(self.random.randint(1, 2)):
            self._add_subscriber(at, late=False)

    def _draw_conditions(self) -> Conditions:
        random = self.random
        bad = random.random() < 0.8
        return Conditions(
            loss=random.choice((0.0, 0.02, 0.1)) if bad else 0.0,
            duplication=random.choice((0.0, 0.05, 0.2)) if bad else 0.0,
            delay_seconds=random.choice((0.002, 0.02, 0.1)),
            reordering=random.choice((0.0, 0.02, 0.2)) if bad else 0.0,
            query_loss=random.choice((0.0, 0.02, 0.1)) if bad else 0.0,
            query_detour=random.choice((0.0, 0.02, 0.1)) if bad else 0.0,
        )

    def _maybe(self, kind: str, probability: float) -> bool:
        """Draw whether something is so, unless this history is to be spared it or to have it."""
        drawn = self.random.random() < probability or kind in self._theme or kind in self.always
        return drawn and kind not in self.without

    def _add_cache(self, at: int) -> None:
        random = self.random
        engine = _ENGINE
        if self._maybe("few sources", 0.2):
            engine = replace(engine, sources_max=random.choice((1, 2)))
        journal = JournalOptions(drain_samples_max=random.choice((8, 64)))
        if self._maybe("spill", _SPILL):
            journal = replace(journal, tail_bytes_max=2000)
        plan = CachePlan(
            f"cache{at}",
            engine=engine,
            journal=journal,
            queue_samples_max=random.choice((8, 64))
            if self._maybe("small queue", 0.25)
            else 1 << 30,
            given_samples_max=_LITTLE_ROOM if self._maybe("little room", 0.1) else 10_000,
            journal_entries_max=6 if self._maybe("small journal", 0.1) else 1 << 30,
            retention=random.choice(_RETENTIONS) if self._maybe("retention", 0.25) else Retention(),
            align="align" not in self.without,
            align_bytes_max=_SMALL_INBOX_BYTES if self._maybe("small inbox", 0.1) else 1 << 20,
            answer_samples_max=4 if self._maybe("short answers", 0.2) else 1000,
            commit_seconds=0.1 if self._maybe("slow commits", 0.2) else 0.0,
        )
        cache = SimCache(self.world, self.network, self.truth, plan)
        self.caches.append(cache)
        self._cache_promises.append(CachePromise(cache, self.caches))
        cache.start()

    def _add_publisher(self, at: int) -> None:
        random = self.random
        keys = random.choice((("a/1",), ("a/2",), ("b/1",), ("a/1", "a/2", "a/3")))
        foreign = self._maybe("foreign", 0.25)
        pinned = self._maybe("pinned", 0.6)
        if foreign and "pinned foreign" in self.without:
            pinned = False  # what its restart loses or reorders first hides that it restarted
        at_once = self._aside.random() < 0.3 and "at once" not in self.without
        back_seconds = BACK_SECONDS_UNNAMED if foreign else _BACK_SECONDS
        plan = PublisherPlan(
            f"pub{at}",
            f"{at + 1:x}f",
            keys,
            pinned=pinned,
            history=random.choice((4, 1000)),
            first_sn=self._maybe("wrap", 0.15) * (SOURCE_SN_MODULUS - 20),
            times_back_seconds=self._maybe("times back", 0.15) * back_seconds,
            wildcards=self._maybe("wildcards", 0.3) and len(keys) > 1,
            acknowledgements=random.choice((0, 1, len(self.caches))),
            unacknowledged_max=10 if self._maybe("few receipts", 0.2) else 1 << 30,
            heartbeat_seconds=random.choice((None, 0.5, 3.0)),
            puts_at_once=3 * at_once,
        )
        parts = self.world, self.network, self.truth
        publisher: SimPublisher
        if foreign:
            publisher = ForeignPublisher(*parts, plan)
        else:
            own = OwnPublisher(*parts, plan, lambda asked: answerers_of(self.network, asked))
            self._publisher_promises.append(PublisherPromise(own, self.caches))
            publisher = own
        self.publishers.append(publisher)
        self.world.at(random.random() * 3, lambda: self._start(publisher))

    def _add_subscriber(self, at: int, *, late: bool) -> None:
        random = self.random
        delivery = _DELIVERY
        if self._maybe("small pending", 0.2):
            delivery = replace(delivery, pending_samples_max=16)
        if self._maybe("few sources", 0.15):
            delivery = replace(delivery, sources_max=1 if "few sources" in self.always else 2)
        slow = self._maybe("slow consumer", 0.4)
        plan = SubscriberPlan(
            f"sub{at}",
            KeyExpression(random.choice(("**", "a/*", "a/1", "b/**"))),
            delivery,
            history=random.choice((None, 0, 0, 3)) if late else None,
            consumer_seconds=random.choice((0.3, 1.0)) if slow else 0.0,
            payload_bytes_max=100 if self._maybe("large payloads", 0.1) else 1 << 30,
            waiting_max=random.choice((1, 3)) if slow else 1 << 30,
        )
        promise = SubscriberPromise(self.world, self.truth, self.caches)
        subscriber = SimSubscriber(self.world, self.network, plan, promise)
        self.subscribers.append(subscriber)
        subscriber.start()

    def run(self) -> list[str]:
        """Play the history, heal, and return what broke the promise."""
        every: list[tuple[float, str, Callable[[], None]]] = [
            (30, "publish", self._publish),
            (10, "burst", self._burst),
            (4, "part", self._part),
            (4, "crash", self._crash),
            (3, "power cut", self._power_cut),
            (4, "medium", self._break_medium),
            (3, "restart", self._restart_publisher),
            (2, "clock", self._jump_clock),
            (2, "join", self._join),
            (1, "leave", self._leave),
            (1, "purge", self._purge),
            (1, "wipe", self._wipe),
            (2, "put back", self._put_back),
        ]
        steps = [(weight, name, do) for weight, name, do in every if name not in self.without]
        often = self._theme | dict.fromkeys(self.always, _OFTEN)
        weights = [weight * often.get(name, 1) for weight, name, _ in steps]
        for _ in range(self.random.randint(20, 45)):
            self.random.choices(steps, weights)[0][2]()
            if self._rot.random() < _ROT and "rot" not in self.without:
                lose_one(self._rot.choice(self.caches), self.publishers, self._rot)
            self.world.run(self.random.choice((0.01, 0.1, 0.5, 2.0, 6.0)))
        self._heal()
        self.world.run(_SETTLE_SECONDS)
        for publisher in self.publishers:
            publisher.reveal()
        self.world.run(_REVEAL_SECONDS)
        if len({node.skew_ns for node in (*self.caches, *self.publishers)}) > 1:
            self.world.run(_SKEWED_SECONDS)
            if any(cache.plan.align_bytes_max == _SMALL_INBOX_BYTES for cache in self.caches):
                self.world.run(_SMALL_INBOX_SECONDS)
        if any(cache.plan.given_samples_max == _LITTLE_ROOM for cache in self.caches):
            self.world.run(_LITTLE_ROOM_SECONDS)
        questions = self._questions_while_quiet()
        if questions:  # what nobody had is asked for again after one minute, and after three
            self.world.run(_AGAIN_SECONDS)
            questions = self._questions_while_quiet()
        self._check(questions)
        return self.world.wrong

    def _questions_while_quiet(self) -> int:
        before = self.network.questions
        self.world.run(_QUIET_SECONDS)
        return self.network.questions - before

    def _publish(self) -> None:
        self.random.choice(self.publishers).put(self.random.randint(1, 3))

    def _burst(self) -> None:
        self.world.occur("burst")
        for publisher in self.random.sample(self.publishers, min(2, len(self.publishers))):
            publisher.put(self.random.randint(4, 12))

    def _part(self) -> None:
        one, two = self.random.sample(sorted(self.network.nodes), 2)
        self.network.block(one, two)
        if self.random.random() < 0.6:
            self.network.block(two, one)

        def mend() -> None:
            self.network.unblock(one, two)
            self.network.unblock(two, one)

        self.world.at(self.random.choice((0.3, 3.0, 20.0)), mend)

    def _crash(self) -> None:
        cache = self.random.choice(self.caches)
        if self.random.random() < 0.6:
            medium = self.random.choice(cache.media)
            medium.crash_in = self.random.randint(1, 4)
        elif cache.running:
            self.world.occur("cache killed")
            cache.died("killed")
        self.world.at(self.random.choice((0.5, 3.0, 12.0)), self._start_all)

    def _start_all(self) -> None:
        for cache in self.caches:
            cache.start()
        for publisher in self.publishers:
            self._start(publisher)

    def _start(self, publisher: SimPublisher) -> None:
        if not publisher.running:
            publisher.start()

    def _power_cut(self) -> None:
        cache = self.random.choice(self.caches)
        if self.random.random() < 0.5:
            self.world.occur("medium lies")
            self.random.choice(cache.media).lying = True
            return
        self.world.occur("power cut")
        cache.power_cut()
        for medium in cache.media:
            medium.lying = False
        self.world.at(self.random.choice((0.5, 3.0)), self._start_all)

    def _break_medium(self) -> None:
        medium = self.random.choice(self.random.choice(self.caches).media)
        medium.fault = self.random.choice(FAULTS)
        if self.random.random() < 0.3:
            self.world.occur("medium slow")
            medium.seconds = 0.5

        def mend() -> None:
            medium.fault, medium.seconds = "", 0.0

        self.world.at(self.random.choice((0.2, 2.0, 10.0)), mend)

    def _break_reads(self) -> None:
        """Let no cache read its backend for a while, as when they share a server."""
        self.world.occur("no backend can be read")
        media = [cache.backend for cache in self.caches]
        for medium in media:
            medium.fault = "unreadable"

        def mend() -> None:
            for medium in media:
                medium.fault = ""

        self.world.at(self.random.choice((0.5, 5.0)), mend)

    def _restart_publisher(self) -> None:
        publisher = self.random.choice(self.publishers)
        if publisher.running:
            pinned = "pinned" if publisher.plan.pinned else "new"
            self.world.occur(f"publisher restarts, {pinned} zid")
            publisher.died("restart")
        self.world.at(self.random.choice((0.1, 1.0, 12.0)), self._start_all)

    def _jump_clock(self) -> None:
        self.world.occur("clock jumps")
        node = self.random.choice([*self.publishers, *self.caches])
        node.skew_ns += round(self.random.uniform(-100, 100) * SECOND_NS)

    def _join(self) -> None:
        self.world.occur("subscriber joins")
        if self._maybe("medium", 0.3):
            self._break_reads()
        self._add_subscriber(len(self.subscribers), late=True)

    def _purge(self) -> None:
        """Let an operator remove the older part of a stream for good."""
        cache = self.random.choice(self.caches)
        if cache.process is None:
            return
        if self._aside.random() < 0.3:
            self._purge_on_its_way(cache)
            return
        infos = [info for info in cache.process.index.all_infos() if info.held]
        if infos:
            info = self.random.choice(infos)
            first, last = self.random.choice([*info.held])
            self.world.occur("operator purges")
            cache.purge([Floor(info.stream, self.random.randint(first, last) + 1)])

    def _purge_on_its_way(self, cache: SimCache) -> None:
        """Let an operator remove what no backend has yet.

        Nothing that is still to come is below the floor: a purge is of what is there.
        """
        self._burst()
        self.world.run(0.15)
        try:
            backlog = None if cache.process is None else cache.process.store.backlog
            runs = {} if backlog is None else backlog.runs(Selection(EVERY_KEY))
        except StorageUnavailable:  # its journal cannot be read: the operator is told so
            return
        except Crash as crash:
            cache.died(str(crash))
            return
        for stream, held in runs.items():
            numbering = cache.numbering_of(stream.source, stream.epoch)
            every = () if numbering is None else numbering.published.values()
            to_come = [
                one.sample.sn
                for one in every
                if one.sample.key == stream.key
                and one not in cache.held_ns
                and one not in cache.removed
            ]
            floor = min([*to_come, (held.last or 0) + 1])
            if floor > (held.first or 0):
                self.world.occur("what is on its way is purged")
                cache.purge([Floor(stream, floor)])
                return

    def _wipe(self) -> None:
        cache = self.random.choice(self.caches)
        medium = self.random.choice(cache.media)
        self.world.occur(f"{medium.kind} wiped")
        cache.died("a medium is lost")
        medium.wipe()
        again_seconds = self.random.choice((0.1, 3.0))
        self.world.at(again_seconds, self._start_all)
        if medium is cache.journal:
            self._kill_before_it_drains(cache, again_seconds)

    def _put_back(self) -> None:
        """Keep a copy of a medium of a cache that is stopped, or put that in place."""
        cache = self.random.choice(self.caches)
        kept = [medium for medium in cache.media if medium.backed_up]
        if kept and self.random.random() < 0.7:
            medium: Medium[Any] | None = self.random.choice(kept)
            assert medium is not None
            self.world.occur(f"{medium.kind} put back")
            cache.died("a medium comes back older")
            medium.put_back()
        else:
            medium = None
            cache.died("stopped for a copy")
            for one in cache.media:
                one.back_up()
        again_seconds = self.random.choice((0.1, 3.0))
        self.world.at(again_seconds, self._start_all)
        if medium is cache.journal:
            self._kill_before_it_drains(cache, again_seconds)

    def _kill_before_it_drains(self, cache: SimCache, again_seconds: float) -> None:
        """End a cache whose journal is another one now while all that it took since is in there."""
        if "crash" in self.without:
            return
        world, backend = self.world, cache.backend

        def take_away() -> None:
            if not world.healed:
                backend.fault = "unavailable"
                self._burst()

        def kill() -> None:
            if not world.healed:
                world.occur("killed before it drained")
                cache.died("killed before it drained")
                backend.fault = ""
                world.at(0.1, self._start_all)

        world.at(again_seconds + 0.01, take_away)
        world.at(again_seconds + 1.0, kill)

    def _leave(self) -> None:
        subscriber = self.random.choice(self.subscribers)
        if subscriber.running:
            self.world.occur("subscriber leaves")
            subscriber.died("left")

    def _heal(self) -> None:
        self.network.heal()
        for cache in self.caches:
            for medium in cache.media:
                medium.mend()
        self._start_all()

    def _check(self, questions: int) -> None:
        for subscriber in self.subscribers:
            subscriber.promise.check()
        own = [one for one in self.publishers if isinstance(one, OwnPublisher)]
        for cache_promise in self._cache_promises:
            cache_promise.check(own)
            for other in self._cache_promises:
                if other is not cache_promise:
                    cache_promise.check_aligned(other)
        for publisher_promise in self._publisher_promises:
            publisher_promise.check()
        if questions:
            self.world.fail(f"{questions} questions after everything had settled")


def run_history(seed: int, *, without: Collection[str] = ()) -> list[str]:
    """Play one history; returns what went wrong, empty when everything held."""
    return History(seed, without=without).run()

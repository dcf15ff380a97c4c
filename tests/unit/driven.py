"""A cache core with a real storage, driven without threads: a shell in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from durable_cache.errors import StorageError
from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.selection import Selection
from durable_cache.protocol.cache.events import (
    Append,
    Appended,
    AppendFailed,
    Fetch,
    Origin,
    ReportConflict,
    ReportMiss,
    SendAck,
    Tick,
    Verified,
    Verify,
    VerifyFailed,
)
from durable_cache.runtime.answering import answer, look_up
from durable_cache.runtime.core import CacheCore, CoreOptions
from durable_cache.runtime.effects import (
    Answered,
    Arrived,
    Ask,
    AskFailed,
    CoreEvent,
    Effect,
    Inquire,
    Started,
)
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage

BEGAN_NS = 1_700_000_000 * 10**9


class DrivenCache:
    """`reads` False: what reads the backend waits; `appends` False: commits wait as well; until
    `answer_one` or `answer_all`. `disk_up` False: all of it fails.
    """

    def __init__(
        self, store: JournaledStorage | None = None, options: CoreOptions | None = None
    ) -> None:
        self.store = store or JournaledStorage(MemoryStorage(), None)
        self.options = options
        self.seconds = 0.0
        self.reads = True
        self.appends = True
        self.disk_up = True
        self.effects: list[Effect] = []
        self.unanswered: deque[Append | Ask | Verify] = deque()
        self.start()

    @property
    def now(self) -> Moment:
        passed_ns = round(self.seconds * 1e9)
        return Moment(passed_ns, BEGAN_NS + passed_ns)

    def start(self) -> None:
        """Begin with what is stored, as a new process does."""
        index = self.store.index
        self.core = CacheCore(self.options, aliases=index.aliases(), agreements=index.agreements())
        self.unanswered.clear()
        self.give(Started(tuple(index.sources_with_holes(1000)), self.now))

    def give(self, *events: CoreEvent) -> list[Effect]:
        """Hand in events and carry out what they lead to, depth first; returns all of it."""
        seen: list[Effect] = []
        todo = deque([*map(self.core.handle, events)])
        effects = deque(effect for effects in todo for effect in effects)
        while effects:
            effect = effects.popleft()
            seen.append(effect)
            if self._waits(effect):
                assert isinstance(effect, Append | Ask | Verify)
                self.unanswered.append(effect)
                continue
            answered = self._answer(effect)
            if answered is not None:
                effects.extendleft(reversed(self.core.handle(answered)))
        self.effects += seen
        return seen

    def answer_all(self) -> list[Effect]:
        """Answer what waited, in the order it was asked."""
        self.reads = self.appends = True
        seen: list[Effect] = []
        while self.unanswered:
            seen += self.answer_one()
        return seen

    def answer_one(self, at: int = 0, *, fails: bool = False) -> list[Effect]:
        """Answer one of what waits, whichever; or let it fail."""
        effect = self.unanswered[at]
        del self.unanswered[at]
        disk_up, self.disk_up = self.disk_up, self.disk_up and not fails
        answered = self._answer(effect)
        self.disk_up = disk_up
        assert answered is not None
        return self.give(answered)

    def _waits(self, effect: Effect) -> bool:
        if isinstance(effect, Append):
            return not self.appends
        return isinstance(effect, Ask | Verify) and not self.reads and not _urgent(effect)

    def _answer(self, effect: Effect) -> CoreEvent | None:
        now = self.now
        match effect:
            case Append(batch, skips):
                try:
                    self._check_disk()
                    self.store.commit(batch, skips)
                except StorageError:
                    return AppendFailed(now)
                return Appended(now)
            case Verify(verify_id, samples):
                try:
                    self._check_disk()
                    return Verified(verify_id, look_up(self.store, samples), now)
                except StorageError:
                    return VerifyFailed(verify_id, now)
            case Ask(ask_id, question):
                try:
                    self._check_disk()
                    return Answered(ask_id, answer(self.store, question), now)
                except StorageError:
                    return AskFailed(ask_id, now)
            case _:
                return None

    def _check_disk(self) -> None:
        if not self.disk_up:
            raise StorageError("the disk is away")

    def take(self, samples: Iterable[Sample], origin: Origin = Origin.LIVE) -> list[Effect]:
        """Let samples arrive together."""
        return self.give(Arrived(SampleBatch(samples), origin, self.now))

    def wait(self, seconds: float, step_seconds: float = 0.05) -> list[Effect]:
        """Let time pass."""
        seen: list[Effect] = []
        until = self.seconds + seconds
        while self.seconds < until:
            self.seconds = min(until, self.seconds + step_seconds)
            wake = self.core.wake_ns()
            if wake is not None and wake <= self.now.monotonic_ns:
                seen += self.give(Tick(self.now))
        return seen

    def all(self) -> list[Sample]:
        """Return everything stored."""
        return list(self.store.read(Selection(), 1_000_000).samples)

    def of(self, kind: type[Effect] | Callable[[Effect], bool]) -> list[Effect]:
        """Return the effects of one kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]  # type: ignore[arg-type]

    @property
    def acks(self) -> list[SendAck]:
        return [effect for effect in self.effects if isinstance(effect, SendAck)]

    @property
    def misses(self) -> list[ReportMiss]:
        return [effect for effect in self.effects if isinstance(effect, ReportMiss)]

    @property
    def conflicts(self) -> list[ReportConflict]:
        return [effect for effect in self.effects if isinstance(effect, ReportConflict)]

    @property
    def fetches(self) -> list[Fetch]:
        return [effect for effect in self.effects if isinstance(effect, Fetch)]

    def inquiries(self) -> list[Inquire]:
        """Take the inquiries that others are to be asked."""
        found = [effect for effect in self.effects if isinstance(effect, Inquire)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, Inquire)]
        return found


def _urgent(effect: Ask | Verify) -> bool:
    return isinstance(effect, Ask) and effect.urgent

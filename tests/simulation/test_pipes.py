"""Does a pipe carry each sample once and in order, whatever its middle does? Seeded histories.

One seed is one history, in one of the four modes. Nothing is confirmed before enough caches hold it
and its consumer has processed it; runs go over one after the other; what is not there at the end
was reported. In a mode that sends each sample once, nothing goes twice, and R and UR say what
really came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import cast

import msgspec
import pytest

from durable_cache.protocol.consumers import Position
from durable_cache.protocol.modes import Arrivals
from durable_cache.protocol.pipe.engine import PipeEngine
from durable_cache.protocol.pipe.events import Event, Output
from durable_cache.protocol.pipe.runs import Run
from durable_cache.protocol.publisher.events import AckReceived, Resend, Resent
from durable_cache.protocol.subscriber import positions
from durable_cache.protocol.subscriber.positions import Point
from durable_cache.protocol.wire import Ack
from durable_cache.testing.simulation import pipe_ends, pipes
from durable_cache.testing.simulation.pipe_ends import SimTarget
from durable_cache.testing.simulation.pipe_history import PIPE_KINDS, PipeHistory
from tests.simulation.playing import nightly_seeds, play_each

IN_CI = 2_000
"""A history takes 15 ms of a core."""
FOUND_BY = 200
SHARE_MIN = 2.0
"""In percent of the histories."""
play = partial(play_each, PipeHistory, "--pipes")


def test_a_pipe_carries_each_sample_once_or_reports_it() -> None:
    occurred: Counter[str] = Counter()
    assert play(range(IN_CI), occurred) == {}
    rare = {kind for kind in PIPE_KINDS if 100 * occurred[kind] / IN_CI < SHARE_MIN}
    assert not rare, "nothing is known of what hardly any history shows"


@pytest.mark.nightly
def test_nightly_histories_of_pipes_keep_the_promise() -> None:
    assert play(nightly_seeds(IN_CI, 20_000)) == {}


def test_a_seed_is_one_history_of_a_pipe() -> None:
    one, two = PipeHistory(3), PipeHistory(3)
    assert one.run() == two.run()
    assert one.world.events == two.world.events > 0
    assert one.world.occurred == two.world.occurred


class Believing(PipeEngine):
    """A pipe that takes an answer for an acknowledgement, as a middle would have it."""

    def handle(self, event: Event) -> list[Output]:
        if isinstance(event, Resent) and not event.refused:
            for cache in self._caches.values():
                lane = cache.under_way.get(event.resend_id)
                if lane is not None:
                    run, frame = lane.run, lane.frame
                    named = run.source, run.epoch, ((frame[0], frame[-1]),), run.incarnation
                    ack = AckReceived(Ack(cache.cache_id, 2, *named))
                    return [*super().handle(event), *super().handle(ack)]
        return super().handle(event)


class Trusting(PipeEngine):
    """A pipe to which an acknowledgement of any level will do."""

    def handle(self, event: Event) -> list[Output]:
        if isinstance(event, AckReceived):
            ack = event.ack
            named = ack.source, ack.epoch, ack.runs, ack.incarnation
            event = AckReceived(Ack(ack.cache_id, 2, *named))
        return super().handle(event)


class Forgetting(PipeEngine):
    """A pipe that sends nothing a second time."""

    def handle(self, event: Event) -> list[Output]:
        outputs = super().handle(event)
        sent = cast("set[tuple[object, int]]", self.__dict__.setdefault("sent", set()))
        kept: list[Output] = []
        for output in outputs:
            if isinstance(output, Resend):
                named = {(output.cache_id, *one.identity) for one in output.samples}
                if named <= sent:
                    continue
                sent |= named
            kept.append(output)
        return kept


@pytest.mark.parametrize("engine", [Believing, Trusting, Forgetting])
def test_a_pipe_that_is_wrong_is_found(
    engine: type[PipeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "PipeEngine", engine)
    assert any(PipeHistory(seed).run() for seed in range(FOUND_BY))


def counts_no_repeats(patch: pytest.MonkeyPatch) -> None:
    """What goes again to a cache that came back is no repeat."""

    class Uncounting(PipeEngine):
        def _gone(self, cache_id: str) -> None:
            super()._gone(cache_id)
            for run in self._runs.values():
                run.sent_to.pop(cache_id, None)

    patch.setattr(pipes, "PipeEngine", Uncounting)


def forgets_what_it_sent(patch: pytest.MonkeyPatch) -> None:
    """A cache that comes back gets once more what is sent once."""
    patch.setattr(PipeEngine, "_gone", lambda engine, cache: engine._caches.pop(cache, None))


def asks_of_what_is_held(patch: pytest.MonkeyPatch) -> None:
    """What comes late is sent, whoever holds it."""
    patch.setattr(PipeEngine, "_held_already", lambda *_: [])


def takes_repeats(patch: pytest.MonkeyPatch) -> None:
    """At-most-once takes what comes again."""
    patch.setattr(Arrivals, "_passes", lambda *_, **__: True)


def loses_at_once(patch: pytest.MonkeyPatch) -> None:
    """What is sent once is lost when it is sent."""
    lose = Run.lose
    patch.setattr(Run, "lose", lambda run, before_ns: lose(run, before_ns + 400_000_000))


def finds_nothing(patch: pytest.MonkeyPatch) -> None:
    """What is lost stays so, whoever acknowledges it."""
    patch.setattr(Run, "find", lambda *_: 0)


def buries_without_a_letter(patch: pytest.MonkeyPatch) -> None:
    """The position passes over a sample whose letter no cache holds yet."""

    def keep(_: SimTarget, key: str, letter: bytes, acknowledge: Callable[[], None]) -> None:
        acknowledge()

    patch.setattr(SimTarget, "keep", keep)


def writes_letters_under_other_keys(patch: pytest.MonkeyPatch) -> None:
    """A second letter does not take the first one's place."""
    serial = count()
    patch.setattr(pipe_ends, "dead_letter_key", lambda *_: f"dead/{next(serial)}")


def rewinds_too_little(patch: pytest.MonkeyPatch) -> None:
    """A rewind leaves out the number it is to."""
    later = lambda points: {of: Point(to.epoch, to.sn + 1) for of, to in (points or {}).items()}  # noqa: E731
    rewound = positions.rewound
    patch.setattr(positions, "rewound", lambda stands, points: rewound(stands, later(points)))


def rewinds_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """A rewind does not outweigh what was confirmed before it."""
    patch.setattr(pipe_ends, "join_positions", ignoring_rewinds)


def ignoring_rewinds(stands: Iterable[Position]) -> list[Position]:
    return positions.join_positions(msgspec.structs.replace(one, rewinds=0) for one in stands)


@pytest.mark.parametrize(
    "plant",
    [
        asks_of_what_is_held,
        buries_without_a_letter,
        counts_no_repeats,
        finds_nothing,
        forgets_what_it_sent,
        loses_at_once,
        rewinds_for_nothing,
        rewinds_too_little,
        takes_repeats,
        writes_letters_under_other_keys,
    ],
)
def test_a_mode_a_rewind_or_a_dead_letter_that_is_wrong_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(PipeHistory(seed).run() for seed in range(FOUND_BY))

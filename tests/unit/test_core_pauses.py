"""What the core does when the index cannot be read: it waits, and forgets nothing."""

from __future__ import annotations

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.cache.events import Append, Origin, Tick
from durable_cache.protocol.cache.questions import LoadSources, SourcesFound
from durable_cache.runtime.core import CacheCore, CoreOptions
from durable_cache.runtime.effects import Answered, Arrived, Ask, AskFailed, Effect

SOURCE = SourceId("ab12", 7)
SECOND = 1_000_000_000


def at(seconds: float) -> Moment:
    return Moment(round(seconds * SECOND), (1_700_000_000 * SECOND) + round(seconds * SECOND))


def question(effects: list[Effect]) -> Ask:
    (ask,) = effects
    assert isinstance(ask, Ask)
    assert ask.question == LoadSources((SOURCE,))
    return ask


def test_a_question_that_failed_is_asked_again_after_its_pause() -> None:
    core = CacheCore(CoreOptions(ask_retry_seconds=2.0))
    batch = SampleBatch([Sample("k", SOURCE, 0, 0, b"x", ntp64=1 << 40)])
    first = question(core.handle(Arrived(batch, Origin.LIVE, at(1))))
    assert not core.ready
    assert core.handle(AskFailed(first.ask_id, at(1))) == []
    assert not core.ready, "the sample waits still"
    assert core.wake_ns() == 3 * SECOND
    assert core.handle(Tick(at(2.9))) == []
    again = question(core.handle(Tick(at(3))))
    effects = core.handle(Answered(again.ask_id, SourcesFound({}), at(3)))
    assert [effect.batch.samples for effect in effects if isinstance(effect, Append)] == [
        batch.samples
    ]
    assert core.ready

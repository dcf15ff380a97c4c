"""What is nothing but the next of one source has a shorter way, and comes to the same."""

from __future__ import annotations

import random

import msgspec
import pytest

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.events import Deliver, Fetch, Missed, Received, TokenGone
from tests.unit.subscriber_reader import EPOCH, SOURCE, Reader, sample


def received(*samples: Sample, oversized: tuple[Sample, ...] = ()) -> Received:
    return Received(samples, Moment(5_000, 1_700_000_000_000_000_000), oversized)


def begun() -> Reader:
    """Return a reader that passed on the first two of a run that has a name."""
    reader = Reader()
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0), sample(1))
    return reader


def test_the_next_samples_of_a_source_are_passed_on_under_its_epoch() -> None:
    engine = begun().engine
    assert [one.identity for one in engine.take_next(received(sample(2))) or ()] == [
        sample(2, EPOCH).identity
    ]
    ready = engine.take_next(received(sample(3), sample(4), sample(5)))
    assert ready is not None
    assert [(one.epoch, one.sn) for one in ready] == [(EPOCH, 3), (EPOCH, 4), (EPOCH, 5)]
    assert engine.delivered == 6
    assert engine.wake_ns() is None


@pytest.mark.parametrize(
    "other",
    [
        received(),
        received(sample(1)),
        received(sample(3)),
        received(sample(2), sample(4)),
        received(sample(3), sample(2)),
        received(sample(2), sample(2)),
        received(sample(2), msgspec.structs.replace(sample(3), source=SOURCE._replace(eid=99))),
        received(msgspec.structs.replace(sample(2), source=SOURCE._replace(eid=99))),
        received(msgspec.structs.replace(sample(2), attachment=b"read first")),
        received(sample(2), msgspec.structs.replace(sample(3), attachment=b"read first")),
        received(sample(2), oversized=(sample(3),)),
    ],
)
def test_anything_else_changes_nothing(other: Received) -> None:
    engine = begun().engine
    assert engine.take_next(other) is None
    assert (engine.delivered, engine.duplicates, engine.gaps_open) == (2, 0, 0)
    assert engine.take_next(received(sample(2))) is not None


def test_behind_a_token_that_went_every_sample_is_looked_at() -> None:
    reader = begun()
    reader.engine.handle(TokenGone(SOURCE, "aaaaaaaa", Moment(4_000, 1_700_000_000_000_000_000)))
    assert reader.engine.take_next(received(sample(2))) is None


def told(engine: SubscriberEngine, batches: list[list[Sample]]) -> list[object]:
    """Return what an engine has done about samples, however they come in batches."""
    done: list[object] = []
    for at, batch in enumerate(batches):
        now = Moment(at + 1, 1_700_000_000_000_000_000)
        for output in engine.handle(Received(tuple(batch), now)):
            match output:
                case Deliver(samples):
                    done += samples
                case Fetch():
                    pass  # when a hole is asked for depends on when it is seen
                case Missed():
                    done.append(output)
    return done


def test_it_does_not_matter_how_samples_come_together() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        others = [SOURCE, SOURCE._replace(eid=98), SOURCE._replace(eid=99)]
        published = [
            msgspec.structs.replace(sample(sn), source=source)
            for source in others[: chance.randint(1, 3)]
            for sn in range(chance.randint(1, 12))
        ]
        if chance.random() < 0.5:
            published.sort(key=lambda one: one.sn)
        for _ in range(chance.randint(0, 3)):
            at = chance.randrange(len(published))
            published.insert(chance.randrange(len(published) + 1), published[at])
        batches, rest = list[list[Sample]](), list(published)
        while rest:
            many = chance.randint(1, 6)
            batches.append(rest[:many])
            rest = rest[many:]
        one, many_at_once = SubscriberEngine(), SubscriberEngine()
        one.start(Moment(0, 0))
        many_at_once.start(Moment(0, 0))
        assert told(one, [[each] for each in published]) == told(many_at_once, batches), seed
        for name in ("delivered", "missed", "duplicates", "gaps_open"):
            assert getattr(one, name) == getattr(many_at_once, name), (seed, name)

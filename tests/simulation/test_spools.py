"""Does everything that a spool was given reach the caches, whatever kills its publisher? Histories.

One seed is one history: kills between any two steps of a put, other Zenoh ids, a full disk, caches
that die, refuse and are cut off. What was put keeps its number, and nobody is told too early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

import pytest

from durable_cache.model.sample import SourceId
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    AckReceived,
    EngineOptions,
    Event,
    Kept,
    Output,
    Resend,
    Resent,
    Spooled,
    Standing,
)
from durable_cache.protocol.wire import Ack
from durable_cache.testing.simulation import spools
from durable_cache.testing.simulation.spool_history import SPOOL_KINDS, SpoolHistory
from durable_cache.testing.simulation.spools import SimSpool
from durable_cache.testing.simulation.world import World
from tests.simulation.playing import nightly_seeds, play_each

IN_CI = 2_000
"""A history takes 5 ms of a core."""
FOUND_BY = 100
SHARE_MIN = 5.0
"""In percent of the histories."""
play = partial(play_each, SpoolHistory, "--spools")


def test_what_a_spool_was_given_reaches_the_caches() -> None:
    occurred: Counter[str] = Counter()
    assert play(range(IN_CI), occurred) == {}
    rare = {kind for kind in SPOOL_KINDS if 100 * occurred[kind] / IN_CI < SHARE_MIN}
    assert not rare, "nothing is known of what hardly any history shows"


@pytest.mark.nightly
def test_nightly_histories_of_spools_keep_the_promise() -> None:
    assert play(nightly_seeds(IN_CI, 100_000)) == {}


def test_what_a_process_asks_for_again_has_time_to_come() -> None:
    """All was told before the last kill, and what was let go on the disk waits once more."""
    assert SpoolHistory(9788).run() == []


def test_a_seed_is_one_history_of_a_spool() -> None:
    one, two = SpoolHistory(3), SpoolHistory(3)
    assert one.run() == two.run()
    assert one.world.events == two.world.events > 0
    assert one.world.occurred == two.world.occurred


class Believing(PublisherEngine):
    """It takes an answer for an acknowledgement."""

    def handle(self, event: Event) -> list[Output]:
        outputs = super().handle(event)
        resends = self.__dict__.setdefault("resends", {})
        resends.update({one.resend_id: one for one in outputs if isinstance(one, Resend)})
        resend = resends.get(event.resend_id) if isinstance(event, Resent) else None
        if resend is not None and isinstance(event, Resent) and not event.refused:
            runs = ((resend.samples[0].sn, resend.samples[-1].sn),)
            ack = Ack(resend.cache_id, 2, resend.source, resend.epoch, runs, resend.incarnation)
            return [*outputs, *super().handle(AckReceived(ack))]
        return outputs


class Freeing(PublisherEngine):
    """It takes a number back that the disk has already, where the sample does not leave."""

    def handle(self, event: Event) -> list[Output]:
        return [] if isinstance(event, Kept) else super().handle(event)


class Forgetting(PublisherEngine):
    """It begins anew whatever the process before left."""

    def __init__(
        self,
        source: SourceId,
        incarnation: str,
        options: EngineOptions | None = None,
        *,
        next_sn: int = 0,
        spooled: Sequence[Spooled] | None = None,
    ) -> None:
        super().__init__(source, incarnation, options, next_sn=next_sn, spooled=spooled and ())


class Silent(PublisherEngine):
    """It sends nothing a second time."""

    def handle(self, event: Event) -> list[Output]:
        return [one for one in super().handle(event) if not isinstance(one, Resend)]


class LettingGo(SimSpool):
    """It lets the newest row go, too, and with it the number that is next."""

    def settle(self, standings: Iterable[Standing]) -> None:
        settled = {(one.incarnation, one.sn) for one in standings}
        self.rows = [row for row in self.rows if (row[1], row[0].sn) not in settled]


class Losing(SimSpool):
    """A disk that loses the last row with the process."""

    def opened(self, world: World) -> tuple[Spooled, ...]:
        del self.rows[-1:]
        return super().opened(world)


@pytest.mark.parametrize("engine", [Believing, Freeing, Forgetting, Silent])
def test_a_publisher_that_is_wrong_is_found(
    engine: type[PublisherEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spools, "PublisherEngine", engine)
    assert any(SpoolHistory(seed).run() for seed in range(FOUND_BY))


@pytest.mark.parametrize("spool", [LettingGo, Losing])
def test_a_spool_that_is_wrong_is_found(
    spool: type[SimSpool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spools, "SimSpool", spool)
    assert any(SpoolHistory(seed).run() for seed in range(FOUND_BY))

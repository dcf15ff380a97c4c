"""A relay between two networks that drops, doubles and reorders whole samples, and counts them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import zenoh

from durable_cache.testing.network import LocalNetwork
from tests.servers.zenoh_sources import Numbered, connected

__all__ = ["DOUBLED", "DROPPED", "Relay", "Relayed", "SINGLE", "choice", "rising"]

DROPPED, SINGLE, DOUBLED = 0.1, 0.75, 0.15


def choice(seed: int) -> Callable[[], tuple[int, int]]:
    """Return how often, and how much later, a relay sends each sample, by these shares."""
    chance = random.Random(seed)

    def choose() -> tuple[int, int]:
        times = chance.choices([0, 1, 2], [DROPPED, SINGLE, DOUBLED])[0]
        return times, chance.choice([0, 0, 0, 1, 4])

    return choose


def rising(sent: Iterable[int]) -> list[int]:
    """Return what deduplication by index leaves of what a relay sent."""
    kept: list[int] = []
    for sn in sent:
        if not kept or sn > kept[-1]:
            kept.append(sn)
    return kept


class Relay:
    """Carries samples from one network into another, and does to them what its `choose` says.

    `choose()` is how often the next sample is sent, and how many samples later. The first and the
    last are sent once, in their turn.
    """

    def __init__(
        self,
        taken_from: zenoh.Session,
        sent_to: zenoh.Session,
        key: str,
        choose: Callable[[], tuple[int, int]],
        *,
        stored: bool = False,
    ) -> None:
        """`stored`: a cache of `sent_to` itself gets each sample once, others what is chosen."""
        self.sent: list[int] = []
        self._stored = stored
        self._choose = choose
        self._late: list[tuple[int, zenoh.Sample]] = []
        self._numbered = Numbered(sent_to, key)
        self._at = 0
        self._subscriber = taken_from.declare_subscriber(key, self._take)

    @property
    def session(self) -> zenoh.Session:
        return self._numbered.session

    @property
    def taken(self) -> int:
        """How many samples it has done with."""
        return self._at

    @property
    def publisher(self) -> zenoh.Publisher:
        return self._numbered.publisher

    def _take(self, sample: zenoh.Sample) -> None:
        if self._stored:
            self._send(sample, zenoh.Locality.SESSION_LOCAL)
        is_end = self._at == 0 or sample.attachment is not None
        times, later = (1, 0) if is_end else self._choose()
        self._late += [(self._at + later, sample)] * times
        due = [one for at, one in self._late if at <= self._at]
        self._late = [one for one in self._late if one[0] > self._at]
        for one in due if not is_end else [*(late for _, late in self._late), *due]:
            self._send(one, zenoh.Locality.REMOTE)
        self._late = [] if is_end else self._late
        self._at += 1

    def _send(self, sample: zenoh.Sample, to: zenoh.Locality) -> None:
        info = sample.source_info
        assert info is not None
        if to == zenoh.Locality.REMOTE:
            self.sent.append(info.source_sn)
        end = sample.attachment
        self._numbered.session.put(
            self._numbered.key,
            sample.payload,
            source_info=zenoh.SourceInfo(self.publisher.id, info.source_sn),
            timestamp=sample.timestamp,
            attachment=end,
            congestion_control=zenoh.CongestionControl.BLOCK,
            allowed_destination=to,
        )


class Relayed:
    """A source in the first of some networks, and a relay between each two of them."""

    def __init__(
        self,
        networks: Iterable[LocalNetwork],
        *choices: Callable[[], tuple[int, int]],
        stored: bool = False,
    ) -> None:
        first, *others = networks
        self.source = Numbered(first.client(), "a/b")
        self.relays: list[Relay] = []
        before = first
        for network, choose in zip(others, choices, strict=True):
            relay = Relay(before.client(), network.client(), "a/b", choose, stored=stored)
            self.relays.append(relay)
            before = network

    def publish(self, count: int) -> None:
        """Publish so many, and one more, which every relay sends."""
        session, publisher = self.source.session, self.source.publisher
        connected(publisher)
        for sn in range(count + 1):
            session.put(
                self.source.key,
                b"x",
                source_info=zenoh.SourceInfo(publisher.id, sn),
                timestamp=session.new_timestamp(),
                attachment=b"end" if sn == count else None,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )

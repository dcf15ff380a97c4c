"""How far puts run ahead of acknowledgements: a publisher and its cache, played with a clock.

The publisher puts as fast as it may, a sample each 20 us; the cache commits what waits together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

import pytest

from durable_cache.protocol.publisher.pacing import SILENCE_NS, Pacing

_MS = 1_000_000
_S = 1_000 * _MS
_PUT_NS = 20_000
_COMMIT_MAX = 5_000


@dataclass
class Played:
    """A publisher on a way to a cache that takes `rate` a second, each way `away_ns` long."""

    pacing: Pacing
    bound: int = 10_000
    rate: int = 30_000
    away_ns: int = _MS
    put_ns: int = _PUT_NS
    now_ns: int = _S
    put_at: list[int] = field(default_factory=list)
    delays_ns: list[int] = field(default_factory=list)
    held_up_ns: int = 0
    """Time for which puts waited that had room."""
    idle_ns: int = 0
    """Time for which the cache had nothing to do."""
    _acks: deque[tuple[int, int]] = field(default_factory=deque)
    _busy_until: int = 0
    _committed: int = 0
    _acknowledged: int = 0

    def play(self, seconds: float, *, cache: bool = True) -> int:
        """Go on for so long; returns how many were acknowledged meanwhile."""
        end, before = self.now_ns + round(seconds * _S), self._acknowledged
        while self.now_ns < end:
            self._hear()
            if cache:
                self._commit()
            waits = len(self.put_at) >= self.pacing.limit and self.pacing.silent_ns(self.now_ns)
            if len(self.put_at) - self._acknowledged < self.bound:
                if waits:
                    self.held_up_ns += self.put_ns
                else:
                    self.put_at.append(self.now_ns)
            self.now_ns += self.put_ns
        return self._acknowledged - before

    def _commit(self) -> None:
        if self.now_ns < self._busy_until:
            return
        arrived = self._committed
        while arrived < len(self.put_at) and arrived - self._committed < _COMMIT_MAX:
            if self.put_at[arrived] + self.away_ns > self.now_ns:
                break
            arrived += 1
        if arrived == self._committed:
            self.idle_ns += self.put_ns
            return
        spent = 300_000 + (arrived - self._committed) * _S // self.rate
        self._busy_until = self.now_ns + spent
        self._committed = arrived
        self._acks.append((self._busy_until + self.away_ns, arrived - 1))

    def _hear(self) -> None:
        while self._acks and self._acks[0][0] <= self.now_ns:
            _, sn = self._acks.popleft()
            self.delays_ns += [self.now_ns - at for at in self.put_at[self._acknowledged : sn + 1]]
            self._acknowledged = sn + 1
            self.pacing.acknowledged(sn, len(self.put_at), self.put_at[sn], self.now_ns)

    def late_ms(self, part: float) -> float:
        """Return the delay that such a part of the acknowledgements did not exceed."""
        return sorted(self.delays_ns)[int(part * len(self.delays_ns))] / _MS


def test_a_publisher_that_is_faster_keeps_no_more_waiting_than_the_delay_allows() -> None:
    freely = Played(Pacing(None))
    paced = Played(Pacing(0.1))
    free, kept = freely.play(4), paced.play(4)
    assert freely.late_ms(0.99) > 300
    assert paced.late_ms(0.99) < 250
    assert paced.late_ms(0.5) < 150 < freely.late_ms(0.5)
    assert kept > 0.98 * free


@pytest.mark.parametrize("rate", [3_000, 12_000, 45_000])
def test_whatever_the_rate_of_the_cache_it_has_always_something_to_do(rate: int) -> None:
    paced = Played(Pacing(0.1), rate=rate)
    paced.play(4)
    assert paced.idle_ns < 0.03 * 4 * _S


def test_a_long_way_to_the_cache_is_no_queue() -> None:
    freely = Played(Pacing(None), away_ns=150 * _MS, rate=25_000)
    paced = Played(Pacing(0.1), away_ns=150 * _MS, rate=25_000)
    free, kept = freely.play(6), paced.play(6)
    assert kept > 0.9 * free
    assert paced.late_ms(0.99) < freely.late_ms(0.99) + 60


def test_who_is_slower_than_its_cache_never_waits() -> None:
    steady = Played(Pacing(0.1), put_ns=100_000)
    steady.play(3)
    assert steady.held_up_ns == 0


def test_a_cache_that_becomes_slower_is_followed() -> None:
    played = Played(Pacing(0.1), rate=45_000)
    played.play(2)
    played.rate = 15_000
    played.play(1)
    played.delays_ns.clear()
    played.play(2)
    assert played.late_ms(0.99) < 250


def test_where_nothing_is_acknowledged_the_bound_alone_counts() -> None:
    played = Played(Pacing(0.1))
    played.play(2)
    held_up_ns, put = played.held_up_ns, len(played.put_at)
    played.play(1, cache=False)
    assert played.held_up_ns - held_up_ns <= SILENCE_NS
    assert len(played.put_at) - put > 5_000
    assert played.pacing.limit == inf


def test_before_the_first_acknowledgement_nothing_waits() -> None:
    assert Pacing(0.1).limit == inf
    assert Pacing(0.1).silent_ns(5 * _S) == 0


def test_what_is_sent_once_more_says_nothing_of_the_way() -> None:
    pacing = Pacing(0.1)
    pacing.acknowledged(100_000, 100_001, 10 * _S, 10 * _S + _MS)
    limit = pacing.limit
    for sn in range(0, 90_000, 1_000):
        now_ns = 10 * _S + sn * 1_000
        pacing.acknowledged(sn, 100_001, _S, now_ns)
    assert pacing.limit == limit > 100_001


def test_another_numbering_is_paced_anew() -> None:
    pacing = Pacing(0.1)
    pacing.acknowledged(4_000_000_000, 4_000_000_001, _S, _S + _MS)
    pacing.begin()
    assert pacing.limit == inf
    pacing.acknowledged(0, 1, 2 * _S, 2 * _S + _MS)
    assert 1_000 <= pacing.limit <= 10_000

"""Are epochs and packed sequences unique for ever, as far as 64 bits go?"""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model import sequence
from durable_cache.model.sequence import (
    SOURCE_SN_MODULUS,
    frame,
    frame_start_ns,
    next_epoch,
    pack_sequence,
    sn_distance,
    unpack_sequence,
)

SN_MAX = (1 << 35) - 2
EPOCH_MAX = (1 << 29) - 1
epochs, sns = st.integers(0, EPOCH_MAX), st.integers(0, SN_MAX)
wire_sns = st.integers(0, SOURCE_SN_MODULUS - 1)
times = st.integers(0, 4_600_000_000 * 10**9)


def test_the_documented_example() -> None:
    assert doctest.testmod(sequence).failed == 0
    assert doctest.testmod(sequence).attempted > 0


@given(epochs, sns)
def test_packing_is_exact(epoch: int, sn: int) -> None:
    packed = pack_sequence(epoch, sn)
    assert 0 < packed < 1 << 64
    assert unpack_sequence(packed) == (epoch, sn)
    assert packed == epoch << 35 | (sn + 1)


@given(st.tuples(epochs, sns), st.tuples(epochs, sns))
def test_packed_sequences_order_as_epoch_then_sn(
    one: tuple[int, int], two: tuple[int, int]
) -> None:
    assert (pack_sequence(*one) < pack_sequence(*two)) == (one < two)


@pytest.mark.parametrize(
    ("epoch", "sn"),
    [(0, -1), (0, SN_MAX + 1), (-1, 0), (-1, SN_MAX), (EPOCH_MAX + 1, 0), (1 << 40, 5)],
)
def test_what_does_not_fit_is_refused(epoch: int, sn: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        pack_sequence(epoch, sn)


@pytest.mark.parametrize("packed", [0, -1, 1 << 35, 7 << 35, 1 << 64, (1 << 64) + 1])
def test_what_is_no_sequence_is_refused(packed: int) -> None:
    with pytest.raises(ValueError, match="no packed sequence"):
        unpack_sequence(packed)


def test_the_ends_of_the_form() -> None:
    assert pack_sequence(0, 0) == 1
    assert pack_sequence(EPOCH_MAX, SN_MAX) == (1 << 64) - 1
    assert unpack_sequence((1 << 64) - 1) == (EPOCH_MAX, SN_MAX)


@given(times)
def test_a_time_is_within_its_frame(now_ns: int) -> None:
    assert frame_start_ns(frame(now_ns)) <= now_ns < frame_start_ns(frame(now_ns) + 1)


def test_a_frame_is_about_nine_seconds_and_fits_until_2115() -> None:
    assert frame_start_ns(1) == 8_589_934_592
    assert frame(4_575_657_600 * 10**9) <= EPOCH_MAX  # 2115-01-01


@given(times, st.lists(st.integers(-(10**11), 10**11), max_size=20))
def test_every_restart_gets_a_new_epoch_whatever_the_clock_does(
    now_ns: int, steps: list[int]
) -> None:
    known = next_epoch(now_ns, 0)
    assert known >= frame(now_ns)
    for step in steps:
        now_ns = max(0, now_ns + step)
        begun = next_epoch(now_ns, known)
        assert begun > known
        assert begun == max(frame(now_ns), known + 1)
        known = begun


@given(wire_sns, st.integers(-(1 << 31), (1 << 31) - 1))
def test_distance_survives_the_wrap(earlier: int, distance: int) -> None:
    later = (earlier + distance) % SOURCE_SN_MODULUS
    assert sn_distance(later, earlier) == distance


@pytest.mark.parametrize(
    ("later", "earlier", "distance"),
    [(0, (1 << 32) - 1, 1), ((1 << 32) - 1, 0, -1), (5, 5, 0), (1 << 31, 0, -(1 << 31))],
)
def test_distance_at_the_wrap(later: int, earlier: int, distance: int) -> None:
    assert sn_distance(later, earlier) == distance

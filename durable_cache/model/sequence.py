"""How a number on the wire becomes a number that is unique for ever.

A publisher's `source_sn` is a u32 that wraps and that restarts when the publisher does. An epoch is
the RaiMS time frame in which one run of the numbering began (about 8.6 s a unit), so that
(source, epoch, sn) never repeats. Time is always an argument here.
"""

from __future__ import annotations

EPOCH_UNKNOWN = 0
FRAME_SHIFT = 33
SEQUENCE_SHIFT = 35
SOURCE_SN_MODULUS = 1 << 32
WRAP_GAP = SOURCE_SN_MODULUS // 2
"""Numbers so far apart lie on either side of a wrap (ADR 0110)."""
SEQUENCE_MAX = (1 << 64) - 1
SN_MAX = (1 << SEQUENCE_SHIFT) - 2
"""The largest number a source can reach."""
FAR_SHIFT = 63
FAR_EPOCH = 1 << FAR_SHIFT - SEQUENCE_SHIFT
"""The epoch of unnumbered samples of 2038 and later: columns of 64 bits with a sign hold their
numbers, and ``epoch << 35 | sn + 1`` stays their timestamp and one."""
UNNUMBERED_SN_MAX = (1 << FAR_SHIFT) - 2
"""The largest number that stands for a timestamp (`model.unnumbered`)."""


def frame(now_ns: int) -> int:
    """Return the time frame of a Unix time in nanoseconds (RaiMS, "Multicast sequence numbers")."""
    return now_ns >> FRAME_SHIFT


def frame_start_ns(epoch: int) -> int:
    """Return the Unix time in nanoseconds at which a time frame begins."""
    return epoch << FRAME_SHIFT


def next_epoch(now_ns: int, known: int) -> int:
    """Return the epoch of a numbering that begins now, above every epoch known of its source.

    Holds within one frame and with a clock set back, where the frame alone would repeat.
    """
    return max(frame(now_ns), known + 1)


def pack_sequence(epoch: int, sn: int) -> int:
    """Pack (epoch, sn) into the 64-bit RaiMS form, good until 2115.

    >>> hex(pack_sequence(frame(1659131646 * 10**9), 0))
    '0x5c19adc000000001'
    """
    if not 0 <= sn <= SN_MAX:
        raise ValueError(f"sn {sn} does not fit the 35 bits of a packed sequence")
    packed = (epoch << SEQUENCE_SHIFT) + sn + 1
    if not 0 <= packed <= SEQUENCE_MAX:
        raise ValueError(f"epoch {epoch} does not fit the 29 bits of a packed sequence")
    return packed


def unpack_sequence(packed: int) -> tuple[int, int]:
    """Return (epoch, sn) of a packed sequence; a low part of 0 is no sequence."""
    epoch, low = packed >> SEQUENCE_SHIFT, packed & ((1 << SEQUENCE_SHIFT) - 1)
    if not 0 < packed <= SEQUENCE_MAX or low == 0:
        raise ValueError(f"{packed} is no packed sequence")
    return epoch, low - 1


def sn_distance(later: int, earlier: int) -> int:
    """Return `later - earlier` of two wrapping u32 numbers, in -2^31 to 2^31 - 1."""
    half = SOURCE_SN_MODULUS >> 1
    return (later - earlier + half) % SOURCE_SN_MODULUS - half

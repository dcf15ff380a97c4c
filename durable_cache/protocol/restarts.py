"""How a numbering that began anew is told from a repeat: one rule for caches and subscribers.

A source's number wraps at 2^32, and begins at 0 again when its publisher restarts under the same
identity. A publisher of ours says so in its token. For the others three signs are known: the number
follows 2^32 - 1; the sample's own timestamp is later than everything that came although its number
is not; or a number near 0 comes with another content (ADR 0046).
"""

from __future__ import annotations

from durable_cache.model.sample import Sample, sample_digest
from durable_cache.model.sequence import SOURCE_SN_MODULUS, WRAP_GAP, next_epoch, sn_distance
from durable_cache.model.timestamp import ntp64_to_ns

RESTART_NTP64 = (1 << 32) // 10
"""A tenth of a second: threads of one publisher invert timestamps by less, no restart is faster."""
SOON_NTP64 = 10 << 32
"""So long behind a restart, by its publisher's clock, repeats of the run before may come."""
_CLOCKS_APART_NS_MAX = 3600 * 10**9
"""A timestamp further from our clock than this comes from a clock that was never set."""
_RESTART_SN_MAX = 16
"""A number below this with another content is a restart even where time did not advance."""


def has_wrapped(sn: int, top: int, span: int) -> bool:
    """Tell whether `sn` is the u32 counter beginning again at 0 behind `top`."""
    ahead = sn_distance(sn, top % SOURCE_SN_MODULUS)
    return sn <= top and top >= SOURCE_SN_MODULUS // 2 and 0 < ahead <= span


def precedes_wrap(sn: int, top: int, span: int) -> bool:
    """Tell whether `sn`, far above `top`, is of before the u32 counter began again at 0.

    `top` is -1 where nothing came since: the last number is of before then, too.
    """
    return sn - top > WRAP_GAP and -span <= sn_distance(sn, max(top, 0)) < 0


def is_later(sample: Sample, newest_ntp64: int) -> bool:
    """Tell whether a publisher stamped a sample later than everything that came before it."""
    return not sample.stamped and newest_ntp64 > 0 and sample.ntp64 > newest_ntp64 + RESTART_NTP64


def is_restart(sample: Sample, stored: Sample | None, newest_ntp64: int, top: int) -> bool:
    """Tell whether a number that came before begins a new numbering, given what is stored for it.

    `stored` is None where nothing is stored under the number.
    """
    if stored is not None and not sample.stamped and sample.ntp64 == stored.ntp64:
        return False
    if is_later(sample, newest_ntp64):
        return True
    return (
        stored is not None
        and sample.sn < _RESTART_SN_MAX < top
        and sample_digest(stored) != sample_digest(sample)
    )


def epoch_of_restart(sample: Sample, unix_ns: int, highest: int) -> int:
    """Return the epoch of a numbering that a sample shows to have begun, above `highest`.

    It is that of the sample's own timestamp, which everybody sees alike, whatever his clock and
    however late he notices; one that is far from our clock is not believed.
    """
    stamped_ns = ntp64_to_ns(sample.ntp64)
    believed = not sample.stamped and abs(stamped_ns - unix_ns) <= _CLOCKS_APART_NS_MAX
    return next_epoch(stamped_ns if believed else unix_ns, highest)

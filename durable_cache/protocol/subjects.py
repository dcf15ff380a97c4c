"""How a sample bears the sequence of its subject, which is its key (RaiMS; ADR 0167).

A publisher that counts each key by itself puts a trailer of 16 bytes behind the attachment, and of
24 on the first sample of a frame:

    own attachment | since, 8 bytes, of a start | packed sequence, 8 | check, 4 | mark, 4

*Since* says from which number of the publisher on nothing else was published under the key. The
check is over all of it, the sample's number and its key: an attachment that a program copied onto
another sample is no trailer there, and neither is what looks like one by accident.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from operator import add
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from durable_cache.model.sample import Sample
from durable_cache.model.sequence import SOURCE_SN_MODULUS, unpack_sequence

_TRAILER, _SINCE = Struct(">QI4s"), Struct(">Q")
TRAILER_BYTES = _TRAILER.size
_COVERED = Struct(">QQQ")
_ALONE, _BEHIND = b"\xd7SQ\x00", b"\xd7SQ\x01"
"""The mark says whether there was an attachment: an empty one is not the same as none."""
_COUNT_MASK = (1 << 35) - 1


@dataclass(frozen=True, slots=True)
class SubjectCounts:
    """What a subscriber saw of its publishers' subject sequences."""

    subjects: int = 0
    """Those in the window now."""
    bytes: int = 0
    """Memory that the window takes."""
    starts: int = 0
    """Frames whose first sample was passed on."""
    joined: int = 0
    """Subjects whose first sample that came was not the first of its frame."""
    perhaps_incomplete: int = 0
    """Those in the window now that were joined before the network had converged."""
    repeats: int = 0
    """Samples dropped: they had come before, and the source's numbers did not show it."""
    skips: int = 0
    """How often a sequence skipped ahead."""
    lost: int = 0
    """Samples that were skipped so."""
    unsubscribed: int = 0
    """Samples that came when the subscriber was undeclared."""
    rotated: int = 0
    """Subjects that left the window; the next sample of one is a first again."""

    @classmethod
    def summed(cls, counts: Iterable[SubjectCounts]) -> SubjectCounts:
        """Return what several subscribers counted together."""
        total = cls()
        for one in counts:
            total = cls(*map(add, astuple(total), astuple(one)))
        return total


class Subject(NamedTuple):
    """What stood behind an attachment."""

    sequence: int
    """Packed: frame and count, as `model.sequence` has them."""
    since: int | None
    """Of a start: no number from this one on, up to its own, is of its key."""
    attachment: bytes | None
    """The program's own."""


def attach(attachment: bytes | None, sequence: int, key: str, sn: int, since: int = 0) -> bytes:
    """Return an attachment that bears a packed sequence, for the sample `sn` of a key.

    `since` is borne where the sequence is the first of its frame.
    """
    mark = _ALONE if attachment is None else _BEHIND
    head = _SINCE.pack(since) if is_start(sequence) else b""
    check = _check(sequence, key, sn, since if head else 0)
    return (attachment or b"") + head + _TRAILER.pack(sequence, check, mark)


def detach(sample: Sample) -> Subject | None:
    """Return what a sample bears; None where it bears no sequence, or one that is not its own."""
    attached = sample.attachment
    if attached is None or not attached.endswith((_ALONE, _BEHIND)):
        return None
    if len(attached) < TRAILER_BYTES:
        return None
    sequence, check, mark = _TRAILER.unpack_from(attached, len(attached) - TRAILER_BYTES)
    end, since = len(attached) - TRAILER_BYTES, 0
    if start := is_start(sequence):
        end -= _SINCE.size
        if end < 0:
            return None
        (since,) = _SINCE.unpack_from(attached, end)
    if check != _check(sequence, sample.key, sample.sn, since) or (end and mark == _ALONE):
        return None
    try:
        unpack_sequence(sequence)
    except ValueError:
        return None
    if since >= SOURCE_SN_MODULUS:
        return None
    own = None if mark == _ALONE else attached[:end]
    return Subject(sequence, since if start else None, own)


def is_start(sequence: int) -> bool:
    """Tell whether a packed sequence is the first of its frame."""
    return sequence & _COUNT_MASK == 1


def _check(sequence: int, key: str, sn: int, since: int) -> int:
    return crc32(key.encode("utf-8", "surrogatepass"), crc32(_COVERED.pack(sequence, sn, since)))

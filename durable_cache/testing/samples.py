"""Which samples do tests use: plain ones, ones with every field set, and awkward keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from durable_cache.model.sample import Kind, Qos, Sample, SampleBatch, SourceId
from durable_cache.model.timestamp import ntp64_from_ns

SOURCE = SourceId("4f2a", 7)
START_NS = 1_790_000_000_000_000_000
"""The Unix time in nanoseconds at which the tests' histories begin."""
STEP_NS = 1_000_000

HOSTILE_KEYS: Sequence[str] = (
    "plain",
    "a/'single'/\"double\"/`back`",
    "a/'; DROP TABLE samples; --",
    "a/%/b",
    "a/_/b",
    "a/x/b",
    "a/%41%00%2F",
    "a/back\\slash/\\n/\\",
    "a/new\nline/return\r/tab\t",
    "a/nul\x00/b",
    "a/nul/b",
    "..",
    "../../etc/passwd",
    "a/../b",
    "a/.",
    "a/ /b",
    "a/ leading and trailing ",
    "a/comma,equals=space \\,escaped",
    'a/{"json": [1]}/b',
    "a/|> filter(fn: (r) => true)",
    "a/{HOME}",
    "a/=cmd",
    "A/upper",
    "a/upper",
    "e\u0301/combining",
    "\u00e9/composed",
    "\u00df/sharp",
    "\u0130/dotted",
    "\uff5e/last of the first plane",
    "\U0001f980/beyond it",
    "\u202e/right to left",
    "\ufeff/mark",
    "\x7f/\x01\x1f",
    "a/@verbatim/b",
    "@durable/v1/x",
    "a-b",
    "a/b",
    "a0b",
    "long/" + "k" * 60_000,
)
"""Keys that Zenoh admits and that break whoever pastes them into something."""


def stamp(sn: int) -> int:
    """Return the NTP64 timestamp of the `sn`-th sample of a test's history."""
    return ntp64_from_ns(START_NS + sn * STEP_NS)


def sample(
    sn: int = 0,
    key: str = "suite/a",
    source: SourceId = SOURCE,
    epoch: int = 1,
    payload: bytes | None = None,
    ntp64: int | None = None,
    received_ns: int | None = None,
) -> Sample:
    """Return a sample; its payload and times follow from `sn` unless given."""
    return Sample(
        key,
        source,
        epoch,
        sn,
        b"payload %d" % sn if payload is None else payload,
        ntp64=stamp(sn) if ntp64 is None else ntp64,
        timestamp_id=source.zid,
        received_ns=START_NS + sn * STEP_NS if received_ns is None else received_ns,
    )


def filled(sn: int = 0, key: str = "suite/a") -> Sample:
    """Return a sample no field of which has its default."""
    return msgspec.structs.replace(
        sample(sn, key),
        kind=Kind.DELETE,
        encoding="application/json;schema=\u00e9;v=1",
        attachment=b"\x00\xffattached",
        timestamp_id="ffeeddccbbaa99887766554433221100",
        stamped=True,
        qos=Qos(1, 2, True).pack(),
    )


def run(first: int, last: int, key: str = "suite/a", source: SourceId = SOURCE) -> list[Sample]:
    """Return the samples `first..last`, both ends included."""
    return [sample(sn, key, source) for sn in range(first, last + 1)]


def batch(*samples: Sample | Iterable[Sample]) -> SampleBatch:
    """Return one batch of samples and of lists of them."""
    flat: list[Sample] = []
    for one in samples:
        if isinstance(one, Sample):
            flat.append(one)
        else:
            flat.extend(one)
    return SampleBatch(flat)

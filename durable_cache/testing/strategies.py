"""Which values does hypothesis try: keys, sources, ranges, samples, selections."""

from __future__ import annotations

from hypothesis import strategies as st

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import SnRange
from durable_cache.model.sample import Kind, Qos, Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds, TimeBounds
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache.testing.samples import HOSTILE_KEYS

SN_MAX = (1 << 35) - 2
EPOCH_MAX = (1 << 29) - 1
_ALPHABET = "ab@%_'\"\\.- \n\t\x00~é\uff5e\U0001f980"
_CHUNKS = st.text(_ALPHABET, min_size=1, max_size=4)

keys = st.lists(_CHUNKS, min_size=1, max_size=4).map("/".join) | st.sampled_from(HOSTILE_KEYS)
"""Keys that Zenoh admits, many of them hostile."""

sns = st.integers(0, 20) | st.integers(0, SN_MAX)
"""Numbers of a source, most of them small so that they meet."""

ntp64s = st.integers(0, NTP64_MAX) | st.sampled_from([0, 1, 1 << 63, NTP64_MAX])
"""Timestamps, both ends of time included."""

zids = st.integers(1, (1 << 128) - 1).map(lambda number: f"{number:x}")
sources = st.builds(SourceId, zids, st.integers(1, (1 << 32) - 1))
"""Sources with ids of every length; no publisher is the entity 0."""

qualities = st.builds(Qos, st.integers(1, 7), st.integers(0, 2), st.booleans()).map(Qos.pack)
"""Every quality of service, packed."""

samples = st.builds(
    Sample,
    keys,
    sources,
    st.integers(0, 2) | st.integers(0, EPOCH_MAX),
    sns,
    st.binary(max_size=40),
    kind=st.sampled_from(Kind),
    encoding=st.sampled_from(["zenoh/bytes", "text/plain;utf-8", ""]) | st.text(max_size=10),
    attachment=st.none() | st.binary(max_size=20),
    ntp64=ntp64s,
    timestamp_id=st.just("") | zids,
    stamped=st.booleans(),
    qos=qualities,
    received_ns=st.integers(0, (1 << 63) - 1),
)
"""Samples with every field of every kind."""

batches = st.lists(samples, max_size=8).map(SampleBatch)
"""Batches of samples that seldom have anything in common."""


def ranges(sn_max: int = 60) -> st.SearchStrategy[SnRange]:
    """Ranges within ``0..sn_max``, some of them empty."""
    ends = st.integers(0, sn_max)
    return st.builds(SnRange, ends, ends)


def skips(sn_max: int = 60) -> st.SearchStrategy[Skip]:
    """Skips of at least one number within ``0..sn_max``."""
    ends = st.tuples(st.integers(0, sn_max), st.integers(0, sn_max)).map(sorted)
    return st.builds(lambda source, ab: Skip(source, 1, ab[0], ab[1]), sources, ends)


def _canonical(text: str) -> bool:
    try:
        KeyExpression(text)
    except ValueError:
        return False
    return True


_WILD = st.lists(_CHUNKS | st.just("$*"), min_size=1, max_size=4).map("".join)
key_expressions = (
    st.lists(_CHUNKS | _WILD | st.sampled_from(["*", "**"]), min_size=1, max_size=5)
    .map("/".join)
    .filter(_canonical)
    .map(KeyExpression)
)
"""Canonical key expressions with every wildcard."""

selections = st.builds(
    Selection,
    key_expressions,
    sns=st.builds(SnBounds, st.none() | sns, st.none() | sns),
    times=st.builds(TimeBounds, ntp64s, ntp64s),
    newest=st.none() | st.integers(1, 5),
    order=st.sampled_from(Order),
)
"""Selections over every source."""

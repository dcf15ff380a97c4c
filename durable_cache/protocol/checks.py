"""What a sample that a peer sends must be to be taken at all.

Nothing here compares a sample with what is stored: that is the engines'. What no sample can be, a
number out of range, a key that is none, an encoding that Zenoh could not send again, is refused
where a frame is read, and costs none of its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.key_expression import KEY_BYTES_MAX, KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId, is_zid
from durable_cache.model.unnumbered import identity_of, is_unnumbered

NOT_IN_KEYS = frozenset("*$?#")


class Identified(Protocol):
    """A sample, or the envelope of one."""

    @property
    def source(self) -> SourceId: ...
    @property
    def epoch(self) -> int: ...
    @property
    def sn(self) -> int: ...
    @property
    def ntp64(self) -> int: ...
    @property
    def timestamp_id(self) -> str: ...


def check_samples(
    samples: tuple[Sample, ...], samples_max: int, refused: list[str] | None
) -> SampleBatch:
    """Return the samples that can be taken; the reasons for the others go to `refused`.

    Without `refused` one bad sample is an error of the whole.
    """
    if len(samples) > samples_max:
        raise RemoteProtocolError(f"{len(samples)} samples in a frame; {samples_max} are allowed")
    try:
        _check(samples)
    except RemoteProtocolError:
        if refused is None:
            raise
        return SampleBatch(_sound(samples, refused))
    return SampleBatch(samples)


def _sound(samples: tuple[Sample, ...], refused: list[str]) -> Iterator[Sample]:
    for sample in samples:
        try:
            check_sample(sample)
        except RemoteProtocolError as error:
            refused.append(str(error))
        else:
            yield sample


def check_sample(sample: Sample) -> None:
    """Raise RemoteProtocolError where a sample is none that can be taken."""
    _check((sample,))


def _check(samples: tuple[Sample, ...]) -> None:
    if not samples:
        return
    sources = {sample.source for sample in samples}
    for source in sources:
        _check_source(source)
    numbered: Sequence[Sample] = samples
    if any(map(is_unnumbered, sources)):
        numbered = [sample for sample in samples if not is_unnumbered(sample.source)]
        for sample in samples:
            if is_unnumbered(sample.source):
                _check_unnumbered(sample)
    for bound in (min, max):  # the ends stand for all between them: this runs in every replay
        if numbered:
            _check_numbers(
                bound([sample.epoch for sample in numbered]),
                bound([sample.sn for sample in numbered]),
                bound([sample.ntp64 for sample in numbered]),
            )
        check_arrival(
            bound([sample.qos for sample in samples]),
            bound([sample.received_ns for sample in samples]),
        )
    for key in {sample.key for sample in samples}:
        _check_key(key)
    for timestamp_id in {sample.timestamp_id for sample in samples}:
        check_timestamp_id(timestamp_id)


def check_arrival(qos: int, received_ns: int) -> None:
    """Raise RemoteProtocolError where a sample cannot have come so."""
    if not (0 <= qos < 64 and 0 <= received_ns < 1 << 63):
        raise RemoteProtocolError(f"qos {qos} or arrival {received_ns} out of range")


def check_timestamp_id(text: str) -> None:
    """Raise RemoteProtocolError unless `text` is empty or the id of a clock."""
    if text and not is_zid(text):
        raise RemoteProtocolError(f"{text[:40]!r} is no timestamp id")


def _check_key(key: str) -> None:
    """Take a key, or the key expression of a wildcard update (`model.wildcard`)."""
    chunks_missing = not key or key[0] == "/" or key[-1] == "/" or "//" in key
    if chunks_missing or not NOT_IN_KEYS.isdisjoint(key) or len(key.encode()) > KEY_BYTES_MAX:
        try:
            KeyExpression(key)
        except ValueError as error:
            raise RemoteProtocolError(f"{key[:40]!r} is no key") from error


def check_identity(source: SourceId, epoch: int, sn: int, ntp64: int) -> None:
    """Raise RemoteProtocolError when a peer's numbers are outside what a source can have."""
    _check_source(source)
    _check_numbers(epoch, sn, ntp64)


def check_sample_identity(sample: Identified) -> None:
    """Raise RemoteProtocolError when a sample's identity is none that a sample can have."""
    if is_unnumbered(sample.source):
        _check_source(sample.source)
        _check_unnumbered(sample)
    else:
        check_identity(sample.source, sample.epoch, sample.sn, sample.ntp64)


def _check_unnumbered(sample: Identified) -> None:
    """Take nothing but the identity that the timestamp gives (`model.unnumbered`)."""
    source, epoch, sn, ntp64 = sample.source, sample.epoch, sample.sn, sample.ntp64
    given = 0 <= ntp64 < 1 << 64 and identity_of(ntp64, sample.timestamp_id)
    if given != (source, epoch, sn):
        raise RemoteProtocolError(
            f"the unnumbered sample {source} {epoch} {sn} is not of its timestamp {ntp64}"
        )


def _check_source(source: SourceId) -> None:
    if not (is_zid(source.zid) and 0 <= source.eid < 1 << 32):
        raise RemoteProtocolError(f"{source.zid[:40]!r}:{source.eid} is no source_id")


def _check_numbers(epoch: int, sn: int, ntp64: int) -> None:
    if not (0 <= epoch < 1 << 29 and 0 <= sn < (1 << 35) - 1 and 0 <= ntp64 < 1 << 64):
        raise RemoteProtocolError(f"epoch {epoch}, sn {sn} or timestamp {ntp64} out of range")

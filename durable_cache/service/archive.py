"""How history is written to a file and read back: one line of JSON a sample, nothing left out.

The first line names the format; a sample is the array of `Sample`'s fields, bytes in base64; a
skip is an object. Reading checks every line and names the one that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import msgspec

from durable_cache.errors import ProtocolError, StorageCorrupt
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, Skip
from durable_cache.model.selection import Selection
from durable_cache.model.sequence import SN_MAX
from durable_cache.protocol.checks import check_identity, check_sample_identity
from durable_cache.storage.contract import Refusal, Storage
from durable_cache.storage.sized_pages import sized_pages

HEADER = b'{"format":"durable-cache history","version":1}\n'
LINE_BYTES_MAX = 1 << 30
_PAGE_SAMPLES = 5_000


class _SkipLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    skip: Skip


_encoder = msgspec.json.Encoder()
_sample_line = msgspec.json.Decoder(Sample)
_skip_line = msgspec.json.Decoder(_SkipLine)


def export_history(
    storage: Storage, key_expr: KeyExpression, file: BinaryIO, progress: Callable[[int], None]
) -> int:
    """Write every sample of `key_expr` and every skip; returns the number of samples."""
    file.write(HEADER)
    written = 0
    for samples in sized_pages(storage.read, Selection(key_expr=key_expr)):
        file.writelines(_encoder.encode(sample) + b"\n" for sample in samples)
        written += len(samples)
        progress(len(samples))
    for skip in storage.skips():
        file.write(_encoder.encode(_SkipLine(skip)) + b"\n")
    return written


def import_history(
    storage: Storage, file: BinaryIO, progress: Callable[[int], None]
) -> tuple[int, list[Refusal]]:
    """Append what a file holds; returns how many samples were new and which were refused.

    A sample that no storage can hold is refused with its line and costs none of the others.
    Idempotent: after an error, import the whole file again. Raises `StorageCorrupt` naming the
    line that cannot be read, and what the storage raises.
    """
    if file.readline(len(HEADER) + 1) != HEADER:
        raise StorageCorrupt("line 1: this is no export of durable-cache history, version 1")
    new = 0
    refused: list[Refusal] = []
    for samples, skips in _pages(_lines(file, refused)):
        result = storage.append(SampleBatch(samples), skips)
        new += result.new
        refused += result.refused
        progress(len(samples))
    return new, refused


def _lines(file: BinaryIO, refused: list[Refusal]) -> Iterator[Sample | Skip]:
    number = 1
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        try:
            if line.startswith(b"{"):
                yield _skip(line)
                continue
            sample = _sample_line.decode(line)
        except (msgspec.DecodeError, ProtocolError, ValueError) as error:
            raise StorageCorrupt(f"line {number}: {error}") from error
        try:
            _check(sample)
        except (ProtocolError, ValueError) as error:
            refused.append(Refusal(sample, f"line {number}: {error}"))
        else:
            yield sample


def _skip(line: bytes) -> Skip:
    skip = _skip_line.decode(line).skip
    check_identity(skip.source, skip.epoch, skip.first, 0)
    if not skip.first <= skip.last <= SN_MAX:
        raise ProtocolError(f"the skip {skip.first}..{skip.last} is no range")
    return skip


def _check(sample: Sample) -> None:
    """Raise unless a storage can hold the sample: on a key, or a wildcard update's expression."""
    check_sample_identity(sample)
    KeyExpression(sample.key)


def _pages(items: Iterable[Sample | Skip]) -> Iterator[tuple[list[Sample], list[Skip]]]:
    samples: list[Sample] = []
    skips: list[Skip] = []
    for item in items:
        if isinstance(item, Sample):
            samples.append(item)
        else:
            skips.append(item)
        if len(samples) + len(skips) >= _PAGE_SAMPLES:
            yield samples, skips
            samples, skips = [], []
    if samples or skips:
        yield samples, skips

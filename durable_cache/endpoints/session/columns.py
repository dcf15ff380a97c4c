"""How many samples of zenoh's are read at once: one field of all of them, then the next (ADR 0225).

What repeats is most of a stream: its source, its key, its encoding, its quality of service. To
compare a field with the same field of the first sample costs less than to write it out, and less
still where one call compares a whole column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, cast

import msgspec
import zenoh

from durable_cache.model.key_expression import is_too_long
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.unnumbered import UNNUMBERED_EID

_DELETE = zenoh.SampleKind.DELETE
number_of = cast("Callable[[object], int]", int)
"""Zenoh's enums are numbers at run time, which their type stubs do not say."""
_attachment, _encoding, _express = map(attrgetter, ("attachment", "encoding", "express"))
_congestion, _priority = map(attrgetter, ("congestion_control", "priority"))
_key_expr, _kind, _payload = map(attrgetter, ("key_expr", "kind", "payload"))
_source_id, _source_sn = map(attrgetter, ("source_id", "source_sn"))
_source_info, _timestamp = map(attrgetter, ("source_info", "timestamp"))
_eid, _zid = map(attrgetter, ("eid", "zid"))
_NO_STAMP = str(None)
_numbers = msgspec.json.Decoder(list[int])


def decode_ordinary(
    samples: Sequence[zenoh.Sample],
    received_ns: int,
    payload_bytes_max: int,
    source_of: Callable[[zenoh.EntityGlobalId], SourceId],
    meet: Callable[[Sequence[str]], None],
) -> list[Sample] | None:
    """Decode samples, at least one; None where one of them is out of the ordinary.

    `meet` is told their keys. Ordinary is a sample with a number, a timestamp, and a key and a
    payload within their bounds.
    """
    infos = _column(samples, _source_info)
    if None in infos:
        return None
    stamps = list(map(str, map(_timestamp, samples)))
    payloads: list[zenoh.ZBytes] = _column(samples, _payload)
    sizes = list(map(len, payloads))
    if _NO_STAMP in stamps or max(sizes) > payload_bytes_max:
        return None
    ids = _column(infos, _source_id)
    eids: list[int] = _column(ids, _eid)
    if UNNUMBERED_EID in eids:
        return None
    keys = _texts(_column(samples, _key_expr))
    if any(map(is_too_long, keys)):
        return None
    meet(keys)
    are_of_one = _is_alike(eids) and _is_alike(_column(ids, _zid))
    ntp64, stamp_ids = _read_stamps(stamps)
    return list(
        map(
            Sample,
            _spread(keys),
            repeat(source_of(ids[0])) if are_of_one else map(source_of, ids),
            repeat(EPOCH_UNKNOWN),
            map(_source_sn, infos),
            [payload.to_bytes() for payload in payloads],
            repeat(Kind.PUT) if all(sizes) else _kinds(_column(samples, _kind)),
            _spread(_texts(_column(samples, _encoding))),
            [None if one is None else one.to_bytes() for one in map(_attachment, samples)],
            ntp64,
            stamp_ids,
            repeat(False),
            _qualities(samples),
            repeat(received_ns),
        )
    )


def _column(items: Iterable[object], field: attrgetter[Any]) -> list[Any]:
    return list(map(field, items))


def _is_alike(column: Sequence[object]) -> bool:
    """Tell whether all of a column equal its first; one that differs early is soon found."""
    first = column[0]
    return column[-1] == first and column[1] == first and column.count(first) == len(column)


def _read_stamps(stamps: Sequence[str]) -> tuple[Iterable[int], Iterable[str]]:
    """Return the NTP64 and the id of each; ``<NTP64>/<id>`` is how zenoh writes them.

    Where all have one id the numbers are read as one text: each alone costs seven times as much.
    """
    stamp_id = stamps[0].partition("/")[2]
    joined = ",".join(stamps)
    if joined.count(f"/{stamp_id},") == len(stamps) - 1 and joined.endswith(f"/{stamp_id}"):
        return _numbers.decode(f"[{joined.replace(f'/{stamp_id}', '')}]"), repeat(stamp_id)
    parts = [stamp.partition("/") for stamp in stamps]
    return [int(raw) for raw, _, _ in parts], [each for _, _, each in parts]


def _texts(column: Sequence[object]) -> Sequence[str]:
    """Return what a column says; one text where all of it says the same."""
    return [str(column[0])] if _is_alike(column) else [*map(str, column)]


def _spread(texts: Sequence[str]) -> Iterable[str]:
    return repeat(texts[0]) if len(texts) == 1 else texts


def _kinds(column: Sequence[object]) -> Iterable[Kind]:
    """Return the kind of each; where all have a payload all are puts, as deletes have none."""
    return [Kind.DELETE if kind == _DELETE else Kind.PUT for kind in column]


def _qualities(samples: Sequence[zenoh.Sample]) -> Iterable[int]:
    """Return `Qos.pack` of each."""
    priorities, congestions = _column(samples, _priority), _column(samples, _congestion)
    express: list[bool] = _column(samples, _express)
    if _is_alike(priorities) and _is_alike(congestions) and _is_alike(express):
        first = number_of(priorities[0]) | number_of(congestions[0]) << 3 | express[0] << 5
        return repeat(first)
    return [
        number_of(priority) | number_of(congestion) << 3 | hurries << 5
        for priority, congestion, hurries in zip(priorities, congestions, express, strict=True)
    ]

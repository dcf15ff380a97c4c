"""What a query asks of a storage, and how the answer goes back.

First chunk a source or exactly ``*``: the specification's answer, envelopes on ``<source>/<key>``
(RFC, "The ReliabilityCache"). Anything else: the plain answer of a Zenoh storage, the latest value
of each key, or its history with ``_time``, ``_sn`` or ``_max``. One storage answers a query once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from durable_cache.endpoints.session import (
    Query,
    QueryParts,
    is_sendable,
    reply_bytes,
    reply_error,
    reply_sample,
)
from durable_cache.errors import RemoteProtocolError
from durable_cache.model.key_expression import KeyExpression, is_too_long
from durable_cache.model.newest import is_update
from durable_cache.model.sample import Kind, Sample, SampleBatch, SourceId
from durable_cache.model.selection import (
    Cursor,
    Order,
    Selection,
    SnBounds,
    TimeBounds,
    parse_max,
    parse_sn,
    parse_source,
    parse_time,
)
from durable_cache.protocol.standings import Standings, decode_standings, encode_beginning
from durable_cache.protocol.wire import (
    Absence,
    Incarnation,
    decode_place,
    encode_envelope,
    encode_packed,
)
from durable_cache.storage.contract import Page

_OURS = frozenset(
    {"_sn", "_time", "_max", "_pack", "_order", "_limit", "_store", "_anyke", "_behind"}
)
_PAGE_SAMPLES = 2_000
_PAGE_SAMPLES_PACKED = 10_000
"""Read at once: backends without an index look through all they hold for each page."""


class Form(Enum):
    """Which of the two answers a query gets."""

    SOURCED = "sourced"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Asked:
    """A parsed query."""

    form: Form
    selection: Selection
    prefix: str
    """The first chunk of a SOURCED query, as it was written."""
    latest: bool
    """Only what each key holds now: a deleted key holds nothing."""
    packed: bool
    any_key: bool
    asker: str
    """The ``_store`` marker: a cache's own queries carry its id."""
    cursor: Cursor | None = None
    """A packed query's payload says after which sample to go on."""
    samples_max: int | None = None
    """``_limit``: the asker takes no more in one answer."""
    behind: Standings | None = None
    """``_behind``: from when on something lies behind these is asked for, and no sample."""

    @property
    def by_value(self) -> bool:
        """Whether the newest values of keys are asked for, to which wildcard updates apply."""
        return self.form is Form.PLAIN and self.selection.newest is not None


class Refused(ValueError):
    """A query that cannot be answered; the text goes back to the asker."""


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """How much one answer may hold."""

    samples_max: int
    bytes_max: int
    seconds_max: float
    packed_bytes_max: int


def form_of(key_expr: str, knows_zid: Callable[[str], bool]) -> Form:
    """Tell which answer a query's key expression asks for."""
    first, _, rest = key_expr.partition("/")
    return Form.SOURCED if rest and _is_prefix(first, knows_zid) else Form.PLAIN


@dataclass(frozen=True, slots=True)
class AnsweringPlace:
    """A key expression on which a cache takes queries, and which of them it answers there."""

    key_expr: str
    form: Form
    namespace_chunks: int = 0
    """Chunks in front of the source, as of a session with a namespace."""
    deepest: bool = True
    """Longer namespaces come here too."""

    def answers(self, form: Form, namespace: str) -> bool:
        """Tell whether a query is answered here, so that it is answered once."""
        chunks = len(namespace.split("/")) if namespace else 0
        deep = chunks == self.namespace_chunks or (self.deepest and chunks > self.namespace_chunks)
        return form is self.form and (deep or form is Form.PLAIN)


def places_of(key_expr: str, prefix: str = "*") -> list[AnsweringPlace]:
    """Return where questions that name a source come: the source before the key expression, and
    behind each of its leading chunks, which may be the namespace of the asker's session.
    """
    chunks = key_expr.split("/")
    literal = next((at for at, chunk in enumerate(chunks) if "*" in chunk), len(chunks) - 1)
    return [
        AnsweringPlace(
            "/".join((*chunks[:at], prefix, *chunks[at:])), Form.SOURCED, at, at == literal
        )
        for at in range(literal + 1)
    ]


def as_meant(parts: QueryParts) -> tuple[QueryParts, str]:
    """Return a question as its asker meant it, and the namespace that its session put in front.

    A Zenoh session with a namespace sends ``*/<key expr>`` as ``<namespace>/*/<key expr>``; the
    parameter ``ke`` repeats the key expression, which shows where the namespace ends.
    """
    key_expr = dict(parts.parameters).get("ke", "")
    head = parts.key_expr.removesuffix(f"/{key_expr}")
    namespace, _, prefix = head.rpartition("/")
    if not key_expr or head == parts.key_expr or not namespace:
        return parts, ""
    return parts._replace(key_expr=f"{prefix}/{namespace}/{key_expr}"), namespace


def without_namespace(
    read: Callable[[Selection, int, Cursor | None], Page], namespace: str
) -> Callable[[Selection, int, Cursor | None], Page]:
    """Return `read` with the keys as a session with a namespace knows them."""
    if not namespace:
        return read
    begin = f"{namespace}/"

    def shortened(selection: Selection, limit: int, cursor: Cursor | None) -> Page:
        page = read(selection, limit, cursor)
        samples = (
            msgspec.structs.replace(sample, key=sample.key.removeprefix(begin))
            for sample in page.samples
        )
        return Page(SampleBatch(samples), page.cursor)

    return shortened


def parse_query(parts: QueryParts, form: Form, now_ns: int, namespace: str = "") -> Asked:
    """Read a query of a known form; raises `Refused` with what to write instead."""
    sourced = form is Form.SOURCED
    values: dict[str, str] = {}
    for name, value in parts.parameters:
        if name.startswith("_") and name not in _OURS:
            known = ", ".join(sorted(_OURS))
            raise Refused(f"unknown parameter {name[:40]!r}; known: {known}")
        if name in values:
            raise Refused(f"parameter {name[:40]!r} is given twice")
        values[name] = value
    try:
        first, _, rest = parts.key_expr.partition("/")
        zid, eid = parse_source(first) if sourced else (None, None)
        sns = parse_sn(values["_sn"]) if "_sn" in values else SnBounds()
        times = parse_time(values["_time"], now_ns) if "_time" in values else TimeBounds()
        newest = parse_max(values["_max"]) if "_max" in values else None
        samples_max = parse_max(values["_limit"], "_limit") if "_limit" in values else None
        key_expr = KeyExpression(rest if sourced else parts.key_expr)
    except ValueError as error:
        raise Refused(str(error)) from error
    latest = not sourced and not values.keys() & {"_sn", "_time", "_max"}
    packed = values.get("_pack", "0")
    if packed not in ("0", "1"):
        raise Refused(f"_pack={packed[:40]!r}: write _pack=1, or leave it out")
    order = values.get("_order", "identity" if sourced or latest or newest else "time")
    if order not in ("identity", "time"):
        raise Refused(f"_order={order[:40]!r}: write _order=time or _order=identity")
    selection = Selection(
        key_expr=key_expr,
        zid=zid,
        eid=eid,
        sns=sns,
        times=times,
        newest=1 if latest else newest,
        order=Order(order),
    )
    return Asked(
        form,
        selection,
        first if sourced else "",
        latest,
        packed == "1",
        parts.any_key,
        values.get("_store", ""),
        _cursor(parts.payload, selection, namespace) if packed == "1" and parts.payload else None,
        samples_max,
        _standings(parts.payload) if sourced and "_behind" in values else None,
    )


def _standings(payload: bytes) -> Standings:
    try:
        return Standings(decode_standings(payload))
    except RemoteProtocolError as error:
        raise Refused(f"_behind: the payload says not where the asker stands: {error}") from error


def answer_beginning(query: Query, ntp64: int) -> None:
    """Say from when on there is something behind what `_behind` names."""
    reply_bytes(query, str(query.key_expr), encode_beginning(ntp64))


def _cursor(payload: bytes, selection: Selection, namespace: str) -> Cursor:
    try:
        place = decode_place(payload)
    except RemoteProtocolError as error:
        raise Refused(
            f"the payload of a packed query is no place to go on from: {error}"
        ) from error
    if namespace:
        place = msgspec.structs.replace(place, key=f"{namespace}/{place.key}")
    return selection.place(place)


def _is_prefix(chunk: str, knows_zid: Callable[[str], bool]) -> bool:
    """Tell whether a first chunk names a source; a short hex word may also be a plain key's."""
    if chunk == "*":
        return True
    try:
        zid, eid = parse_source(chunk)
    except ValueError:
        return False
    return eid is not None or (zid is not None and (len(zid) >= 16 or knows_zid(zid)))


def _nothing_known(*_: object) -> tuple[()]:
    return ()


def answer(
    query: Query,
    asked: Asked,
    read: Callable[[Selection, int, Cursor | None], Page],
    bounds: AnswerBounds,
    absences: Callable[[Selection, SampleBatch], Sequence[Absence]] = _nothing_known,
    incarnations: Callable[[Iterable[SourceId]], Sequence[Incarnation]] = _nothing_known,
) -> int:
    """Send the answer and return how many samples it held; the caller finalises the query.

    When a bound is reached the asker is told: packed replies say `more`, single ones end with an
    error reply that names the bound. The last packed reply, which may be without samples, says
    what is known of the numbers that are not given: no packed reply at all means no answer.
    """
    deadline = time.monotonic() + bounds.seconds_max
    samples_max = min(bounds.samples_max, asked.samples_max or bounds.samples_max)
    page_samples = _PAGE_SAMPLES_PACKED if asked.packed else _PAGE_SAMPLES
    sent = size = replies = 0
    cursor = asked.cursor
    waiting = SampleBatch()
    sources: set[SourceId] = set()
    while True:
        limit = min(page_samples, samples_max - sent)
        page = read(asked.selection, limit, cursor)
        cursor = page.cursor
        batch = page.samples
        if asked.latest:
            batch = SampleBatch(sample for sample in batch if sample.kind is not Kind.DELETE)
        sent += len(batch)
        size += batch.size
        if asked.packed:
            sources.update(stream.source for stream in batch.places)
            for part in _parts(batch, bounds.packed_bytes_max):
                if len(waiting):
                    replies += 1
                    _reply_packed(query, encode_packed(waiting, last=False, place=replies))
                waiting = part
        else:
            for sample in batch:
                if not is_update(sample.key):  # no answer shows an update's expression as a key
                    _reply_one(query, asked, sample)
        over = sent >= samples_max or size >= bounds.bytes_max
        if cursor is None or over or time.monotonic() > deadline:
            break
    more = cursor is not None
    if asked.packed:
        if asked.selection.zid is not None and asked.selection.eid is not None:
            sources.add(SourceId(asked.selection.zid, asked.selection.eid))
        whole = waiting if len(waiting) == sent and asked.cursor is None else SampleBatch()
        known = absences(asked.selection, whole), incarnations(sources)
        place = replies + 1 if replies else 0
        _reply_packed(query, encode_packed(waiting, more, *known, place=place))
    elif more:
        reply_error(
            query,
            f"cut after {sent} samples; ask for less with _sn, _time or _max, or for pages "
            "with _pack=1",
        )
    return sent


def _reply_one(query: Query, asked: Asked, sample: Sample) -> None:
    # As a frame of ours may bring it, or an earlier version stored it; Zenoh would not survive it.
    if is_too_long(sample.key) or not is_sendable(sample.encoding):
        reply_error(query, f"a sample with a key or an encoding too long: {sample.key[:40]!r}…")
        return
    match asked.form:
        case Form.SOURCED:
            prefix = str(sample.source) if asked.prefix == "*" else asked.prefix
            key = sample.key if asked.any_key else f"{prefix}/{sample.key}"
            reply_sample(query, key, sample, encode_envelope(sample))
        case Form.PLAIN:
            reply_sample(query, sample.key, sample, None)


def _parts(batch: SampleBatch, bytes_max: int) -> Iterator[SampleBatch]:
    """Cut a page into replies of bounded size; a sample above the bound has one of its own."""
    if len(batch) and batch.size <= bytes_max:
        yield batch
        return
    part: list[Sample] = []
    part_bytes = 0
    for sample in batch:
        if part and part_bytes + sample.size > bytes_max:
            yield SampleBatch(part)
            part, part_bytes = [], 0
        part.append(sample)
        part_bytes += sample.size
    if part:
        yield SampleBatch(part)


def _reply_packed(query: Query, frame: bytes) -> None:
    reply_bytes(query, str(query.key_expr), frame)

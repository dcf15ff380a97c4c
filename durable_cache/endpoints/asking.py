"""How caches, and a publisher's own cache, are asked for samples: all of them, and united."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import attrgetter

import msgspec

from durable_cache.endpoints.session import NO_SOURCE, Answer, Decoder, Session, ask
from durable_cache.errors import RemoteProtocolError
from durable_cache.model.sample import Identity, Sample, SampleBatch, SourceId
from durable_cache.protocol.wire import (
    FRAME_VERSION,
    Content,
    decode_envelope,
    decode_packed,
    encode_place,
)

__all__ = ["Asking", "Gathered"]

_log = logging.getLogger(__name__)
_SN = attrgetter("sn")


@dataclass(slots=True)
class Gathered:
    """What the answers to one query hold together."""

    packed: list[SampleBatch] = field(default_factory=list)
    """From caches, as they came, each sorted by identity: their epochs are known."""
    single: list[Sample] = field(default_factory=list)
    """The same from caches that do not pack."""
    native: list[Sample] = field(default_factory=list)
    """From a foreign publisher's own cache, epoch 0: the source's current one is meant."""
    plain: list[Sample] = field(default_factory=list)
    """Without a source: a plain storage's answer."""
    cut_after: Sample | None = None
    """Some answer was cut here, the earliest: ask again from here on."""
    answers: int = 0
    errors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why samples were left out that no storage of ours could hold, one reason each."""

    @property
    def whole(self) -> bool:
        """Whether somebody answered, and nobody failed to."""
        return self.answers > 0 and not self.errors

    @property
    def samples(self) -> dict[Identity, Sample]:
        """One of each identity, from caches."""
        found: dict[Identity, Sample] = {}
        for sample in chain(*self.packed, self.single):
            found.setdefault(sample.identity, sample)
        return found

    def ordered(self) -> list[Sample]:
        """Return what caches sent by identity, one of each."""
        edges = [(batch.samples[0], batch.samples[-1]) for batch in self.packed if len(batch)]
        if not self.single and all(
            before.order < after.order for (_, before), (after, _) in pairwise(edges)
        ):
            return list(chain(*self.packed))  # one cache's answer: sorted, nothing twice
        groups = SampleBatch(self.samples.values()).by_stream
        ordered: list[Sample] = []
        for stream in sorted(groups, key=lambda stream: stream.order):
            ordered += sorted(groups[stream], key=_SN)
        return ordered


class Asking:
    """Asks over one session; any thread."""

    def __init__(
        self,
        session: Session,
        own_zid: str,
        *,
        timeout_seconds: float,
        payload_bytes_max: int = 64 << 20,
        asker: str = "",
    ) -> None:
        self._session = session
        self._own_zid = own_zid
        self._timeout_seconds = timeout_seconds
        self._payload_bytes_max = payload_bytes_max
        self._marker = f";_store={asker}" if asker else ""

    def caches(
        self, key_expr: str, prefix: str, parameters: str = "", after: Sample | None = None
    ) -> Gathered:
        """Ask every cache with the specification's query, packed; one page of each.

        `parameters` as in ``_sn=3..7``; `after` goes on behind that sample.
        """
        head = f"{parameters};" if parameters else ""
        selector = f"{prefix}/{key_expr}?{head}_pack=1{self._marker}"
        payload = None if after is None else encode_place(after)
        return self._gather(selector, payload, any_key=False)

    def publisher(self, key_expr: str, source: SourceId | None, parameters: str = "") -> Gathered:
        """Ask native publishers' own caches (zenoh-ext's AdvancedCache), one source or all."""
        who = f"*/{source.zid}/{source.eid}/**" if source else "**"
        parameters = (parameters + self._marker).lstrip(";")
        query = f"?{parameters}" if parameters else ""
        return self._gather(f"{key_expr}/@adv/{who}{query}", None, any_key=True)

    def select(self, selector: str) -> Gathered:
        """Ask with a selector as it stands."""
        return self._gather(selector, None, any_key=False)

    def history(self, key_expr: str, prefix: str, parameters: str = "") -> Iterator[list[Sample]]:
        """Yield all that caches hold, page by page, each page sorted by identity.

        A sample may come in two pages when answers are cut at different places.
        """
        after: Sample | None = None
        while True:
            gathered = self.caches(key_expr, prefix, parameters, after)
            yield gathered.ordered()
            if gathered.cut_after is None or gathered.cut_after == after:
                return
            after = gathered.cut_after

    def _gather(self, selector: str, payload: bytes | None, *, any_key: bool) -> Gathered:
        gathered = Gathered()
        for answer in ask(
            self._session,
            selector,
            timeout_seconds=self._timeout_seconds,
            decoder=Decoder(self._own_zid, self._payload_bytes_max),
            payload=payload,
            any_key=any_key,
        ):
            gathered.answers += 1
            try:
                _take(gathered, answer, framed=not any_key)
            except RemoteProtocolError as error:
                gathered.errors.append(str(error)[:200])
        if gathered.refused:
            _log.warning(
                "samples of an answer were left out",
                extra={"samples": len(gathered.refused), "reason": gathered.refused[0]},
            )
        return gathered


def _take(gathered: Gathered, answer: Answer, *, framed: bool) -> None:
    sample = answer.sample
    if sample is None:
        gathered.errors.append(answer.error[:200])
    elif sample.attachment is not None and _is_frame(sample.attachment, Content.ENVELOPE):
        envelope = decode_envelope(sample.attachment)
        opened = envelope.open(
            _plain_key(sample.key, envelope.source), sample.payload, sample.encoding
        )
        gathered.single.append(opened)
    elif framed and _is_frame(sample.payload, Content.PACKED):
        batch, more, _, _ = decode_packed(sample.payload, refused=gathered.refused)
        gathered.packed.append(batch)
        if more and not batch.samples:
            gathered.errors.append("an answer was cut before its first sample")
        elif more:
            last = msgspec.structs.replace(batch.samples[-1], payload=b"", attachment=None)
            before = gathered.cut_after
            if before is None or last.order < before.order:
                gathered.cut_after = last
    elif sample.source == NO_SOURCE:
        gathered.plain.append(sample)
    else:
        gathered.native.append(sample)


def _is_frame(data: bytes, content: Content) -> bool:
    return len(data) > 5 and data[0] == FRAME_VERSION and data[1] == content


def _plain_key(key: str, source: SourceId) -> str:
    """Return a reply's key without the source in front of it."""
    head, _, rest = key.partition("/")
    return rest if rest and head in (str(source), source.zid) else key

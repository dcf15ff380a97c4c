"""How caches, and a publisher's own cache, are asked for samples: all of them, and united."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from operator import attrgetter

import msgspec

from durable_cache.endpoints.session import (
    NO_SOURCE,
    Answer,
    Decoder,
    Replies,
    Session,
    ask,
    ask_later,
    is_sendable,
    unsendable,
)
from durable_cache.errors import RemoteProtocolError, StorageUnavailable
from durable_cache.model.key_expression import is_too_long
from durable_cache.model.sample import Identity, Sample, SampleBatch, SourceId
from durable_cache.model.selection import Cursor, parse_source
from durable_cache.protocol.standings import FROM_THE_BEGINNING, decode_beginning
from durable_cache.protocol.wire import (
    FRAME_VERSION,
    Absence,
    Content,
    Incarnation,
    PackedAnswer,
    decode_envelope,
    decode_packed,
    encode_place,
)

_log = logging.getLogger(__name__)
_SN = attrgetter("sn")
_ORDER: Callable[[Sample], Cursor] = attrgetter("order")
_TIME_ORDER: Callable[[Sample], Cursor] = attrgetter("time_order")
_NOT_IN_PARAMETERS = frozenset(";=")
_PAGE_QUESTIONS_MAX = 3
_REPLY_BYTES_MAX = 1 << 30
"""What Zenoh itself allows in one message."""


@dataclass(slots=True)
class Part:
    """What one session answered, its caches together."""

    samples: list[Sample] = field(default_factory=list)
    absent: list[Absence] = field(default_factory=list)
    incarnations: list[Incarnation] = field(default_factory=list)
    oversized: list[Sample] = field(default_factory=list)
    """What was above the bound or cannot be sent on, without its payload."""
    ended: bool = False
    """Some answer of it came to its end."""
    lacking: int = 0
    """How many replies went before those ends, less those that came (ADR 0282)."""


@dataclass(slots=True)
class Gathered:
    """What the answers to one query hold together."""

    place: Callable[[Sample], Cursor] = _ORDER
    """The order that was asked for."""
    packed: list[SampleBatch] = field(default_factory=list)
    """From caches, as they came, each in the order that was asked for: their epochs are known."""
    single: list[Sample] = field(default_factory=list)
    """The same from caches that do not pack."""
    native: list[Sample] = field(default_factory=list)
    """From a foreign publisher's own cache, epoch 0: the source's current one is meant."""
    plain: list[Sample] = field(default_factory=list)
    """Without a source: a plain storage's answer."""
    parts: dict[str, Part] = field(default_factory=dict)
    """What `packed` holds, by the session that answered."""
    oversized: list[Sample] = field(default_factory=list)
    """The same of `single` and `native`."""
    cut_after: Sample | None = None
    """Some answer was cut here, the earliest: ask again from here on."""
    answers: int = 0
    repliers: set[str] = field(default_factory=set)
    """The sessions that answered, with samples or with none."""
    errors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why samples were left out that no storage of ours could hold or give, one reason each."""

    @property
    def whole(self) -> bool:
        """Whether somebody answered, and nobody failed to."""
        return self.answers > 0 and not self.errors

    def following(self, after: Sample | None) -> Sample | None:
        """Return where to ask on; `after` is where this page began, None: it was the last.

        A page begins where somebody cut the one before. So that nobody answers behind it, or no
        further than it, is no end: it becomes an error.
        """
        if after is not None and not self.answers:
            self.errors.append("no cache answered the question for the rest")
            return None
        cut = self.cut_after
        if after is not None and cut is not None and self.place(cut) <= self.place(after):
            self.errors.append("an answer came no further than the one before")
            return None
        return cut

    @property
    def samples(self) -> dict[Identity, Sample]:
        """One of each identity, from caches."""
        found: dict[Identity, Sample] = {}
        for sample in chain(*self.packed, self.single):
            found.setdefault(sample.identity, sample)
        return found

    def by_names(self) -> list[tuple[list[Sample], tuple[Incarnation, ...]]]:
        """Return what caches sent and how they name its epochs: together, unless that differs."""
        names = {name for part in self.parts.values() for name in part.incarnations}
        if len({(source, epoch) for source, epoch, _ in names}) == len(names):
            return [(self.ordered(), tuple(names))]
        apart = [(part.samples, tuple(part.incarnations)) for part in self.parts.values()]
        return [*apart, (self.single, ())]

    def ordered(self) -> list[Sample]:
        """Return what caches sent by identity, one of each."""
        whole = list(chain(*self.packed))
        if not self.single and _is_sorted(whole):
            return whole  # one cache's answer: nothing twice
        groups = SampleBatch(self.samples.values()).by_stream
        ordered: list[Sample] = []
        for stream in sorted(groups, key=lambda stream: stream.order):
            ordered += sorted(groups[stream], key=_SN)
        return ordered


def beginning_of(gathered: Gathered) -> tuple[int, int]:
    """Return from when on somebody holds something, and how many said so.

    FROM_THE_BEGINNING where somebody does not say, as caches of earlier versions.
    """
    if not gathered.whole:
        return FROM_THE_BEGINNING, 0
    try:
        told = [decode_beginning(answer.payload) for answer in gathered.plain]
    except RemoteProtocolError:
        return FROM_THE_BEGINNING, 0
    return min(told, default=FROM_THE_BEGINNING), len(gathered.repliers)


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
        return self.begin(key_expr, prefix, parameters, after)()

    def begin(
        self, key_expr: str, prefix: str, parameters: str = "", after: Sample | None = None
    ) -> Callable[[], Gathered]:
        """Ask as `caches` does, at once; the answers are gathered when the result is called."""
        head = f"{parameters};" if parameters else ""
        # A session with a namespace puts it in front of the selector: what is meant stands here.
        meant = "" if set(key_expr) & _NOT_IN_PARAMETERS else f";ke={key_expr}"
        selector = f"{prefix}/{key_expr}?{head}_pack=1{self._marker}{meant}"
        payload = None if after is None else encode_place(after)
        return self._begin(selector, payload, ours=True)

    def behind(self, key_expr: str, standings: bytes) -> tuple[int, int]:
        """Ask from when on somebody holds something behind standings, and how many said so.

        FROM_THE_BEGINNING where somebody does not say, as caches of earlier versions.
        """
        return beginning_of(self.begin_behind(key_expr, standings)())

    def begin_behind(self, key_expr: str, standings: bytes) -> Callable[[], Gathered]:
        """Ask as `behind` does, at once; `beginning_of` reads what is gathered."""
        meant = "" if set(key_expr) & _NOT_IN_PARAMETERS else f";ke={key_expr}"
        return self._begin(f"*/{key_expr}?_behind=1{self._marker}{meant}", standings)

    def page(self, key_expr: str, prefix: str, parameters: str, after: Sample | None) -> Gathered:
        """Ask every cache for a page of history; `after` is where the page before was cut.

        Somebody cut it: where nobody answers, the question is asked again.
        """
        for _ in range(_PAGE_QUESTIONS_MAX):
            gathered = self.caches(key_expr, prefix, parameters, after)
            if after is None or gathered.answers:
                break
        return gathered

    def publisher(self, key_expr: str, source: SourceId | None, parameters: str = "") -> Gathered:
        """Ask native publishers' own caches (zenoh-ext's AdvancedCache), one source or all."""
        who = f"*/{source.zid}/{source.eid}/**" if source else "**"
        parameters = (parameters + self._marker).lstrip(";")
        query = f"?{parameters}" if parameters else ""
        return self._begin(f"{key_expr}/@adv/{who}{query}", None, any_key=True)()

    def select(self, selector: str) -> Gathered:
        """Ask with a selector as it stands."""
        return self._begin(selector, None, ours=_names_source(selector))()

    def history(self, key_expr: str, prefix: str, parameters: str = "") -> Iterator[list[Sample]]:
        """Yield all that caches hold, page by page, each page sorted by identity.

        A sample may come in two pages when answers are cut at different places. Raises
        StorageUnavailable where somebody could not answer; what was yielded before is right.
        """
        after: Sample | None = None
        while True:
            gathered = self.page(key_expr, prefix, parameters, after)
            after = gathered.following(after)
            if gathered.errors:
                raise StorageUnavailable(f"history of {key_expr}: {gathered.errors[0]}; ask again")
            yield gathered.ordered()
            if after is None:
                return

    def later(
        self,
        selector: str,
        ended: Callable[[Callable[[], Gathered]], None],
        *,
        payload: bytes | None = None,
        ours: bool = False,
        any_key: bool = False,
    ) -> None:
        """Ask without holding up a thread; `ended(gather)` is called once all have answered.

        That may be on Zenoh's thread: call `gather` on another. Raises Closed.
        """

        def over(replies: Replies) -> None:
            answers = replies.answers(Decoder(self._own_zid, _REPLY_BYTES_MAX))
            ended(partial(self._gather, answers, _ORDER, ours=ours))

        ask_later(
            self._session,
            (selector + self._marker).replace("?;", "?"),
            over,
            timeout_seconds=self._timeout_seconds,
            payload=payload,
            any_key=any_key,
        )

    def _begin(
        self, selector: str, payload: bytes | None, *, ours: bool = False, any_key: bool = False
    ) -> Callable[[], Gathered]:
        answers = ask(
            self._session,
            selector,
            timeout_seconds=self._timeout_seconds,
            # A frame holds many samples, each of which is compared with the bound.
            decoder=Decoder(self._own_zid, _REPLY_BYTES_MAX),
            payload=payload,
            any_key=any_key,
        )
        place = _TIME_ORDER if "_order=time" in selector else _ORDER
        return partial(self._gather, answers, place, ours=ours)

    def _gather(
        self, answers: Iterator[Answer], place: Callable[[Sample], Cursor], *, ours: bool
    ) -> Gathered:
        gathered = Gathered(place)
        for answer in answers:
            gathered.answers += 1
            gathered.repliers.add(answer.replier)
            try:
                self._take(gathered, answer, ours=ours)
            except RemoteProtocolError as error:
                gathered.errors.append(str(error)[:200])
        if gathered.refused:
            _log.warning(
                "samples of an answer were left out",
                extra={"samples": len(gathered.refused), "reason": gathered.refused[0]},
            )
        if not all(part.ended for part in gathered.parts.values()):
            gathered.errors.append("an answer was cut off before its end")
        elif any(part.lacking for part in gathered.parts.values()):
            gathered.errors.append("a reply of an answer was lost on its way")
        return gathered

    def _take(
        self,
        gathered: Gathered,
        answer: Answer,
        *,
        ours: bool,
    ) -> None:
        sample = answer.sample
        if sample is None:
            gathered.errors.append(answer.error[:200])
            return
        attachment = sample.attachment
        if ours and attachment is not None and _is_frame(attachment, Content.ENVELOPE):
            envelope = decode_envelope(attachment)
            opened = envelope.open(
                _plain_key(sample.key, envelope.source), sample.payload, sample.encoding
            )
            gathered.single += self._within_bound([opened], gathered.oversized, gathered.refused)
        elif ours and _is_frame(sample.payload, Content.PACKED):
            packed = decode_packed(sample.payload, refused=gathered.refused)
            self._take_packed(gathered, answer.replier, packed)
        elif sample.source == NO_SOURCE:
            gathered.plain.append(sample)
        else:
            gathered.native += self._within_bound([sample], gathered.oversized, gathered.refused)

    def _take_packed(
        self,
        gathered: Gathered,
        replier: str,
        packed: PackedAnswer,
    ) -> None:
        samples = packed.samples.samples
        if packed.more and not samples:
            gathered.errors.append("an answer was cut before its first sample")
        elif packed.more:
            last = msgspec.structs.replace(samples[-1], payload=b"", attachment=None)
            before = gathered.cut_after
            if before is None or gathered.place(last) < gathered.place(before):
                gathered.cut_after = last
        part = gathered.parts.setdefault(replier, Part())
        kept = self._within_bound(samples, part.oversized, gathered.refused)
        gathered.packed.append(packed.samples if kept is samples else SampleBatch(kept))
        part.samples += kept
        part.absent += packed.absent
        part.incarnations += packed.incarnations
        part.ended |= packed.last
        if packed.place:
            part.lacking += packed.place - 1 if packed.last else -1

    def _within_bound(
        self, samples: Sequence[Sample], oversized: list[Sample], refused: list[str]
    ) -> Sequence[Sample]:
        """Return what can be sent on and is small enough; note the rest, and why where it cannot be
        sent.
        """
        bytes_max = self._payload_bytes_max
        if _all_fit(samples, bytes_max):
            return samples
        refused += (unsendable(one) for one in samples if not is_sendable(one.encoding))
        oversized += (
            msgspec.structs.replace(sample, payload=b"", attachment=None)
            for sample in samples
            if not _fits(sample, bytes_max)
        )
        return [sample for sample in samples if _fits(sample, bytes_max)]


def _is_sorted(samples: list[Sample]) -> bool:
    """Tell whether samples stand by identity, none twice; quick where runs are long."""
    for one, two in pairwise(samples):
        is_next = one.sn < two.sn and one.epoch == two.epoch and one.key == two.key
        if not (is_next and one.source == two.source) and not one.order < two.order:
            return False
    return True


def _all_fit(samples: Sequence[Sample], bytes_max: int) -> bool:
    """Tell whether every sample fits; few of them differ in key or encoding."""
    return (
        all(len(sample.payload) <= bytes_max for sample in samples)
        and not any(map(is_too_long, {sample.key for sample in samples}))
        and all(map(is_sendable, {sample.encoding for sample in samples}))
    )


def _fits(sample: Sample, bytes_max: int) -> bool:
    return (
        len(sample.payload) <= bytes_max
        and not is_too_long(sample.key)
        and is_sendable(sample.encoding)
    )


def _names_source(selector: str) -> bool:
    """Tell whether a selector asks for the specification's answer, which has our envelopes."""
    first, _, rest = selector.partition("?")[0].partition("/")
    try:
        parse_source(first)
    except ValueError:
        return False
    return bool(rest)


def _is_frame(data: bytes, content: Content) -> bool:
    return len(data) > 5 and data[0] == FRAME_VERSION and data[1] == content


def _plain_key(key: str, source: SourceId) -> str:
    """Return a reply's key without the source in front of it."""
    head, _, rest = key.partition("/")
    return rest if rest and head in (str(source), source.zid) else key

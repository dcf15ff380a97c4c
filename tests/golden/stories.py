"""How a story is written and read: events as a person says them, and below each what came of it.

A story is a text file. A line at the margin is an event, the indented lines below it are what the
engine does about it, `#` begins a comment. Samples are written as their source, the epoch if one is
known, and their numbers: ``a 0..2``, ``a@1000 3,5..7 key=k/2``; several of them with ``+``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, frame_start_ns
from durable_cache.model.timestamp import ntp64_from_ns

INDENT = "    "
START_EPOCH = 1000
"""The time frame in which every story begins."""
SECOND_NS = 1_000_000_000
_SOON_NS = 1_000_000


class Clock:
    """The time of one story: seconds since it began."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.unix_offset_ns = 0
        """How far somebody put the clock on or back."""

    @property
    def moment(self) -> Moment:
        return Moment(self.now_ns, frame_start_ns(START_EPOCH) + self.now_ns + self.unix_offset_ns)

    def __str__(self) -> str:
        return f"{self.now_ns / SECOND_NS:.3f} s"

    def wait(
        self, seconds: float, wake_ns: Callable[[], int | None], wake: Callable[[], list[str]]
    ) -> list[str]:
        """Let time pass, waking whoever wants to be woken; returns what was done when."""
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        told: list[str] = []
        next_ns = self.now_ns
        while next_ns <= end_ns and (due_ns := wake_ns()) is not None and due_ns <= end_ns:
            self.now_ns = max(due_ns, next_ns)
            told += [f"{self}: {line}" for line in wake()]
            # What is due and not possible yet is looked at again soon, as a thread would.
            next_ns = self.now_ns + _SOON_NS
        self.now_ns = end_ns
        return told


@dataclass(frozen=True, slots=True)
class Words:
    """One event as it is written: its verb, the words behind it, and what is set with ``=``."""

    text: str
    verb: str
    words: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, line: str) -> Words:
        parts = line.split()
        settings = dict(part.split("=", 1) for part in parts[1:] if "=" in part)
        words = tuple(part for part in parts[1:] if "=" not in part)
        return cls(line, parts[0], words, settings)

    @property
    def tail(self) -> str:
        """Everything behind the verb."""
        return self.text.partition(" ")[2].strip()


def number(text: str) -> int:
    """Read a number; ``2^32-1`` is one."""
    power, _, less = text.partition("-")
    return SOURCE_SN_MODULUS - int(less or 0) if power == "2^32" else int(text)


def numbers(text: str) -> list[int]:
    """Read ``0..2,5``, in its order and with its repeats."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        found += range(number(first), number(last or first) + 1)
    return found


def source_of(text: str) -> tuple[SourceId, int]:
    """Read ``a`` or ``a@1000``."""
    zid, _, epoch = text.partition("@")
    return SourceId(zid, 1), int(epoch or EPOCH_UNKNOWN)


def samples(text: str, clock: Clock) -> tuple[Sample, ...]:
    """Read samples; ``saying=`` is their payload, ``time=`` how many seconds off their clock is."""
    return tuple(sample for part in text.split(" + ") for sample in _samples(part, clock))


def _samples(text: str, clock: Clock) -> Iterable[Sample]:
    line = Words.of(f"samples {text}")
    (source, epoch), sns = source_of(line.words[0]), numbers(line.words[1])
    now = clock.moment
    seconds = float(line.settings.get("time", "0"))
    for sn in sns:
        yield Sample(
            line.settings.get("key", "k/1"),
            source,
            epoch,
            sn,
            line.settings.get("saying", named(sn)).encode(),
            ntp64=ntp64_from_ns(now.unix_ns + round(seconds * SECOND_NS)),
            timestamp_id="1",
            received_ns=now.unix_ns,
        )


def named(sn: int) -> str:
    """Write a number, one near the wrap by its distance."""
    below = SOURCE_SN_MODULUS - sn
    return f"2^32-{below}" if 0 < below < 1000 else "2^32" if below == 0 else str(sn)


def run(first: int, last: int | None) -> str:
    """Write a run of numbers; an open one reads ``5..``."""
    if last is None:
        return f"{named(first)}.."
    return named(first) if first == last else f"{named(first)}..{named(last)}"


def runs(held: Iterable[tuple[int, int]]) -> str:
    """Write runs of numbers."""
    return ",".join(run(first, last) for first, last in held) or "nothing"


def numbering(source: SourceId, epoch: int) -> str:
    """Write a source and the epoch, if one is known."""
    return source.zid if epoch == EPOCH_UNKNOWN else f"{source.zid}@{epoch}"


def told(found: Iterable[Sample]) -> str:
    """Write samples in their order, those together that follow each other."""
    texts: list[str] = []
    group: list[Sample] = []
    for sample in found:
        if group and sample.stream != group[-1].stream:
            texts.append(_group(group))
            group = []
        group.append(sample)
    if group:
        texts.append(_group(group))
    return " + ".join(texts) or "nothing"


def _group(group: list[Sample]) -> str:
    first = group[0]
    found: list[tuple[int, int]] = []
    for sample in group:
        if found and sample.sn == found[-1][1] + 1:
            found[-1] = found[-1][0], sample.sn
        else:
            found.append((sample.sn, sample.sn))
    text = runs(found)
    key = "" if first.key == "k/1" else f" key={first.key}"
    return f"{numbering(first.source, first.epoch)} {text}{key}"


class Teller:
    """Plays one engine's part in a story; each kind of engine has its own."""

    def __init__(self) -> None:
        self.clock = Clock()

    def tell(self, line: Words) -> list[str]:
        """Take one event; returns what the engine does, a line each."""
        raise NotImplementedError


def play(story: str, teller: Teller) -> str:
    """Return a story with what the engine does now below each event."""
    lines: list[str] = []
    for line in story.splitlines():
        if line.startswith((" ", "\t")):
            continue
        lines.append(line.rstrip())
        if line.strip() and not line.startswith("#"):
            try:
                lines += [INDENT + text for text in teller.tell(Words.of(line))]
            except Exception as error:
                error.add_note(f"the story was at {line!r}")
                raise
    return "\n".join(lines) + "\n"


def stories(folder: Path) -> list[Path]:
    """Return every story, each in the folder of its engine."""
    return sorted(folder.glob("*/*.txt"))

"""What a durable consumer writes of itself: where it stands, what it gave up, that it is alive.

A position is an ordinary sample of a reliable publisher, under a key of its own for each run of a
source, so that caches store, acknowledge, keep and align it as they do any other (ADR 0152). So is
a dead letter, a sample that could not be processed (ADR 0154).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from durable_cache.errors import ConfigError, RemoteProtocolError
from durable_cache.model.arguments import refused
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.checks import check_identity, check_samples
from durable_cache.protocol.wire import (
    SN_LIMIT,
    Content,
    is_incarnation,
    own_key,
    seal,
    unseal,
)

OPEN_RUNS_MAX = 1_000
"""Runs of open numbers in one position, 20 kB; beyond it the last of them are written as one."""
_POSITION_BYTES_MAX = 128 * 1024
_REWINDS_MAX = _FENCE_MAX = 1 << 32
_DEAD_LETTER_BYTES_MAX = 1 << 30
_REASON_CHARACTERS_MAX = 1000
_LEAPS_MAX = 16
_DEAD = "dead"
"""Where a position's key has its source, which is never called so."""
_REWOUND_KEYS = 16
"""Positions that a run may have in a cache: one for each of its last rewinds."""
_WRITERS_KEYS = 16
"""Of each of those, positions that members who share it may have in a cache."""
_CLAIM = "claim"
"""Where a position's key has its epoch."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Weight(NamedTuple):
    """What decides which of two positions of a run is the later one."""

    rewinds: int
    fence: int
    exclusive: bool = False

    def is_less(self, other: Weight) -> bool:
        """Tell whether another one is later: by rewinds, then by fence.

        Of an exclusive consumer by fence, then by rewinds (ADR 0236): who claimed a source read all
        rewinds that a majority held, and one that none held counts no more.
        """
        if self.exclusive and other.exclusive:
            return (self.fence, self.rewinds) < (other.fence, other.rewinds)
        return self[:2] < other[:2]


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a consumer stands in one run of a source."""

    key_expr: str
    """What the consumer subscribes to: under another one its numbers mean something else."""
    source: SourceId
    epoch: int
    """As the consumer called the run when it wrote; the incarnation counts where there is one."""
    incarnation: str
    reached: int
    """Every number up to here was handed out, or will not come; -1: all that is kept is to come."""
    open: tuple[tuple[int, int], ...] = ()
    """Of those, the runs that are not confirmed."""
    rewinds: int = 0
    """How often it was rewound: of two positions the one with more rewinds stands alone."""
    ntp64: int = 0
    """What is not confirmed was published then or later, as its source's clock says; 0: unknown."""
    fence: int = 0
    """How often the consumer's sources went from one member to another until its writer had it."""
    exclusive: bool = False
    """Whether it counts only where more than half of the caches hold it."""

    @property
    def run(self) -> tuple[SourceId, str | int]:
        """Which run this is about: the incarnation names it where there is one."""
        return self.source, self.incarnation or self.epoch

    @property
    def weight(self) -> Weight:
        """Of two positions of a run the lesser one is of an earlier owner."""
        return Weight(self.rewinds, self.fence, self.exclusive)

    @property
    def confirmed_to(self) -> int:
        """The last number below which nothing is open; -1 where the first one is."""
        return self.open[0][0] - 1 if self.open else self.reached


class DeadLetter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sample that a consumer could not process, as it was delivered."""

    reason: str
    attempts: int
    """How often it was handed to the program."""
    sample: Sample


_dead_letters = msgspec.msgpack.Decoder(DeadLetter)
_positions = msgspec.msgpack.Decoder(Position)


def check_consumer(name: object, option: str = "consumer") -> str:
    """Return a consumer's name; ConfigError, which names the option, where it is none."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise refused(
            option, name, "a name of at most 64 letters, digits, dots, dashes and underscores"
        )
    return name


def kept_key_expr(domain: str, consumer: str) -> KeyExpression:
    """Return what all that a consumer writes lies under; ConfigError where the domain is no key."""
    return _within(domain, consumer, "**")


def positions_key_expr(domain: str, consumer: str, source: SourceId | None = None) -> KeyExpression:
    """Return what a consumer's positions and claims lie under, "*" for all consumers'."""
    return _within(domain, consumer, "*" if source is None else str(source), "*")


def claims_key_expr(domain: str, consumer: str) -> KeyExpression:
    """Return what a consumer's claims lie under, "*" for all consumers'."""
    return _within(domain, consumer, "*", _CLAIM)


def dead_letters_key_expr(domain: str, consumer: str) -> KeyExpression:
    """Return what a consumer's dead letters lie under, "*" for all consumers'."""
    return _within(domain, consumer, _DEAD, "*", "*", "*")


def _within(domain: str, consumer: str, *chunks: str) -> KeyExpression:
    try:
        return KeyExpression(own_key(domain, "consumers", consumer, *chunks))
    except ValueError as error:
        raise ConfigError(f"domain {domain!r}: {error}") from error


def dead_letters_in(batch: SampleBatch, domain: str) -> int:
    """Return how many samples of a batch are dead letters."""
    head, within = own_key(domain, "consumers", ""), f"/{_DEAD}/"
    return sum(one.key.startswith(head) and within in one.key for one in batch.samples)


def dead_letter_key(domain: str, consumer: str, sample: Sample) -> str:
    """Return the key of the dead letter of a sample."""
    source, epoch, sn = str(sample.source), str(sample.epoch), str(sample.sn)
    return own_key(domain, "consumers", consumer, _DEAD, source, epoch, sn)


def position_key(
    domain: str,
    consumer: str,
    source: SourceId,
    epoch: int,
    rewinds: int = 0,
    writer: SourceId | None = None,
) -> str:
    """Return the key of a consumer's position in one run of a source, so often rewound.

    Each rewind has another key, so that no position of before is newer under it (ADR 0235): the
    first is `<epoch>`, then `<epoch>.1`; after `_REWOUND_KEYS` of them they come round again. What
    members share has a further part, which is the `writer`'s: what others write who were out of
    reach is not newer under it, either (ADR 0313).
    """
    slot = rewinds % _REWOUND_KEYS
    run = f"{epoch}.{slot}" if slot or writer is not None else str(epoch)
    if writer is not None:
        run = f"{run}.{blake2b(str(writer).encode(), digest_size=1).digest()[0] % _WRITERS_KEYS}"
    return own_key(domain, "consumers", consumer, str(source), run)


def run_key_of(key: str) -> str:
    """Return the key of a run's position before it was rewound, of the key of any position."""
    head, _, run = key.rpartition("/")
    return f"{head}/{run.partition('.')[0]}"


def claim_key(domain: str, consumer: str, source: SourceId) -> str:
    """Return the key of the claim of an exclusive consumer's member to a source.

    Its payload is a position of no run: `reached` -1, with the fence that is claimed.
    """
    return own_key(domain, "consumers", consumer, str(source), _CLAIM)


def claim_of(key: str) -> str:
    """Return the key of the claim to a position's source."""
    return f"{key.rpartition('/')[0]}/{_CLAIM}"


def is_claim_key(domain: str, key: str) -> bool:
    """Tell whether a key is that of a claim to a source."""
    chunks = _chunks(domain, key)
    return len(chunks) == 3 and chunks[1] != _DEAD and chunks[2] == _CLAIM


def is_position_key(domain: str, key: str) -> bool:
    """Tell whether a key is that of a consumer's position."""
    chunks = _chunks(domain, key)
    return len(chunks) == 3 and chunks[1] != _DEAD and chunks[2] != _CLAIM


def _chunks(domain: str, key: str) -> list[str]:
    head = own_key(domain, "consumers", "")
    return key.removeprefix(head).split("/") if key.startswith(head) else []


def consumer_token(domain: str, consumer: str, subscriber: SourceId) -> str:
    """Return the liveliness token of a consumer, and of which subscriber it is."""
    return own_key(domain, "consumer", consumer, str(subscriber))


def consumer_tokens(domain: str, consumer: str) -> str:
    """Return what the tokens of all that bear a consumer's name lie under."""
    return own_key(domain, "consumer", consumer, "*")


def consumer_of(domain: str, key: str) -> str:
    """Return the consumer whose position, dead letter or token a key is; empty where it is none."""
    for kind in ("consumers", "consumer"):
        head = own_key(domain, kind, "")
        if key.startswith(head):
            return key.removeprefix(head).partition("/")[0]
    return ""


def fence_of_one_alone(found: Iterable[Position]) -> int:
    """Return the fence of a consumer that shares nothing: above those of members before it.

    It stays 0 where there were none, so that consumers of earlier versions may follow.
    """
    fence = max((position.fence for position in found), default=0)
    return fence + (fence > 0)


def next_fence(read: Iterable[Position], refused: int) -> int:
    """Return under which fence sources are begun whose positions were read: above all of these.

    It is further above, twice as far each time, the oftener caches `refused` what was written under
    the one before: they know a later fence that a later stamp hides (ADR 0237).
    """
    return max((position.fence for position in read), default=0) + (1 << min(refused, _LEAPS_MAX))


def encode_position(position: Position) -> bytes:
    """Return the payload of a position."""
    return seal(Content.POSITION, position)


def decode_position(frame: bytes) -> Position:
    """Read a position; RemoteProtocolError where it is none."""
    position = unseal(frame, Content.POSITION, _positions, _POSITION_BYTES_MAX)
    source, epoch, reached = position.source, position.epoch, position.reached
    check_identity(source, epoch, max(0, reached), position.ntp64)
    try:
        KeyExpression(position.key_expr)
    except ValueError as error:
        raise RemoteProtocolError(f"a position of no key expression: {error}") from error
    if reached < -1 or not 0 <= position.rewinds <= _REWINDS_MAX:
        raise RemoteProtocolError(
            f"a position that reached {reached}, rewound {position.rewinds} times"
        )
    if not 0 <= position.fence <= _FENCE_MAX:
        raise RemoteProtocolError(f"a position of fence {position.fence}")
    if position.incarnation and not is_incarnation(position.incarnation):
        raise RemoteProtocolError(f"{position.incarnation[:40]!r} is no incarnation")
    if len(position.open) > OPEN_RUNS_MAX:
        raise RemoteProtocolError(f"a position with {len(position.open)} open runs")
    before = -1
    for first, last in position.open:
        if not before < first <= last <= min(reached, SN_LIMIT):
            raise RemoteProtocolError(f"a position whose open numbers {first}..{last} do not fit")
        before = last
    return position


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Return the payload of a dead letter; of a long reason, its beginning."""
    reason = letter.reason[:_REASON_CHARACTERS_MAX]
    return seal(Content.DEAD_LETTER, msgspec.structs.replace(letter, reason=reason))


def decode_dead_letter(frame: bytes) -> DeadLetter:
    """Read a dead letter; RemoteProtocolError where it is none."""
    letter = unseal(frame, Content.DEAD_LETTER, _dead_letters, _DEAD_LETTER_BYTES_MAX)
    check_samples((letter.sample,), 1, None)
    if letter.attempts < 1 or len(letter.reason) > _REASON_CHARACTERS_MAX:
        raise RemoteProtocolError(f"a dead letter after {letter.attempts} attempts")
    return letter

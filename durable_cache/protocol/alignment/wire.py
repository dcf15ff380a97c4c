"""How caches write what they say to each other about what they know.

Every message is a frame of `durable_cache.protocol.wire`: version, content, checksum, msgpack of
one typed value. Sums of nodes and the runs of streams travel packed (`packing`). Whatever a peer
sends, decoding returns a value within the bounds here or raises `RemoteProtocolError`.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Stream
from durable_cache.protocol.alignment.fingerprints import ARITY, LEVELS_MAX
from durable_cache.protocol.alignment.packing import ENTRIES_MAX, NODES_MAX, check, check_runs
from durable_cache.protocol.checks import check_identity
from durable_cache.protocol.wire import Incarnation, seal, unseal

PROTOCOL = 2
_ROOT, _REQUEST, _REPLY = 16, 17, 18
ROOT_BYTES_MAX = 1024
REQUEST_BYTES_MAX = 512 * 1024
REPLY_BYTES_MAX = 1 << 30
NAMES_MAX = 4096
ID_LENGTH_MAX = 64
SCOPE_MAX = 1024


class Lane(IntEnum):
    """Which sums a comparison is about."""

    KNOWLEDGE = 0
    CONTENT = 1


PurgeTimes = tuple[tuple[int, int], ...]
"""(place, when the newest sample of the run that was purged was published); older caches say none.
"""


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Parameters(_Message, frozen=True, array_like=True, gc=False):
    """What two caches must have in common to compare at all."""

    protocol: int
    slot_seconds: int
    block: int
    seed_check: int
    """A hash of the deployment's secret."""


class Root(_Message, frozen=True, array_like=True, gc=False):
    """What a cache announces of a view when it changed."""

    cache_id: str
    incarnation: str
    view: int
    slot: int
    """The slot applied last."""
    knowledge: bytes
    content: int
    streams: int
    samples: int
    counted: bool
    """The content sum is complete."""


class Hello(_Message, frozen=True, array_like=True, gc=False, tag=1):
    """Who a cache is and what it keeps; both a request and its reply."""

    cache_id: str
    incarnation: str
    parameters: Parameters
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    age_seconds_max: float | None
    samples_max: int | None
    bytes_max: int | None


class Diff(_Message, frozen=True, array_like=True, gc=False, tag=2):
    """Here are the sums of my children below these nodes; where do yours differ?"""

    view: int
    incarnation: str
    slot: int
    changed: int
    """The slot in which my tree changed last: it is the same since."""
    exact: bool
    """Answer only about a tree as of the same slot."""
    lane: Lane
    salt: int
    level: int
    nodes: bytes
    """`encode_nodes`."""


class Entries(_Message, frozen=True, array_like=True, gc=False, tag=3):
    """Tell me about these streams, by name, from a number on."""

    view: int
    incarnation: str
    lane: Lane
    items: tuple[tuple[int, int], ...]
    """(place, first number)."""


class Pull(_Message, frozen=True, array_like=True, gc=False, tag=4):
    """Send me what you retain of these numbers, newest first."""

    view: int
    incarnation: str
    items: tuple[tuple[int, tuple[int, ...]], ...]
    """(place, flat runs)."""
    received_after_ns: int
    """Older samples are named, not sent."""
    bytes_max: int
    samples_max: int


class Blocks(_Message, frozen=True, array_like=True, gc=False, tag=5):
    """Tell me the content sums of these blocks, in at most 32 parts each."""

    view: int
    incarnation: str
    items: tuple[tuple[int, int, int], ...]
    """(place, first block, last block)."""


class DiffReply(_Message, frozen=True, array_like=True, gc=False, tag=10):
    """Where mine differ: children of differing nodes, or the streams below them."""

    nodes: bytes
    """The differing children with the sums of *their* children."""
    leaves: tuple[int, ...]
    """The differing children whose streams are all in `entries`."""
    entries: bytes
    rest: tuple[int, ...]
    """Differing children there was no room to answer: ask again."""
    names: tuple[Stream, ...]
    """The streams of `entries`, in their order, where the asker seemed to have none."""
    purged_ntp64: PurgeTimes = ()


class EntriesReply(_Message, frozen=True, array_like=True, gc=False, tag=11):
    entries: bytes
    names: tuple[Stream, ...]
    purged_ntp64: PurgeTimes = ()


class PullReply(_Message, frozen=True, array_like=True, gc=False, tag=12):
    """Samples, and what of the asked is not retained or too old; the rest means nothing."""

    batch: bytes
    absent: tuple[tuple[int, tuple[int, ...]], ...]
    old: tuple[tuple[int, tuple[int, ...]], ...]
    unpacked: int = 0
    """The size of `batch` before it was compressed; 0 where it is not."""
    incarnations: tuple[Incarnation, ...] = ()
    """Which runs the epochs of these sources are, as far as tokens say it and `batch` does not."""


class BlocksReply(_Message, frozen=True, array_like=True, gc=False, tag=13):
    parts: tuple[tuple[int, int, int, int, bytes], ...]
    """(place, first block, last block, blocks a part, 8 bytes a part)."""


class WrongSlot(_Message, frozen=True, array_like=True, gc=False, tag=14):
    """My tree is as of another slot."""

    slot: int
    changed: int


class Refused(_Message, frozen=True, array_like=True, gc=False, tag=15):
    """I do not answer that, and why."""

    reason: str
    retry: bool
    """It may be asked again later."""


Request = Hello | Diff | Entries | Pull | Blocks
Reply = Hello | DiffReply | EntriesReply | PullReply | BlocksReply | WrongSlot | Refused

_roots = msgspec.msgpack.Decoder(Root)
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode_root(root: Root) -> bytes:
    """Return the payload of a put on ``root/<view>/<cache_id>``."""
    return seal(_ROOT, root)


def decode_root(frame: bytes) -> Root:
    """Read a root."""
    root = unseal(frame, _ROOT, _roots, ROOT_BYTES_MAX)
    _check_ids(root.cache_id, root.incarnation)
    check(len(root.knowledge) == 16, "a root's sum has 16 bytes")
    _check_numbers(root.view, root.slot, root.content, root.streams, root.samples)
    return root


def encode_request(request: Request) -> bytes:
    """Return the payload of a query on ``align/<cache_id>``."""
    return seal(_REQUEST, request)


def decode_request(frame: bytes) -> Request:
    """Read a request of at most 512 KiB."""
    request = unseal(frame, _REQUEST, _requests, REQUEST_BYTES_MAX)
    match request:
        case Hello():
            _check_hello(request)
        case Diff():
            _check_numbers(request.view, request.slot, request.changed, request.salt)
            check(0 <= request.level < LEVELS_MAX, "no such level")
        case Entries():
            check(len(request.items) <= ENTRIES_MAX, "too many streams asked for")
            _check_numbers(*(number for item in request.items for number in item))
        case Pull():
            _check_items(request.items)
            _check_numbers(request.received_after_ns, request.bytes_max, request.samples_max)
        case Blocks():
            check(len(request.items) <= ENTRIES_MAX, "too many blocks asked for")
            _check_numbers(*(number for item in request.items for number in item))
    return request


def encode_reply(reply: Reply) -> bytes:
    """Return the payload of a reply."""
    return seal(_REPLY, reply)


def decode_reply(frame: bytes, bytes_max: int = REPLY_BYTES_MAX) -> Reply:
    """Read a reply."""
    reply = unseal(frame, _REPLY, _replies, bytes_max)
    match reply:
        case Hello():
            _check_hello(reply)
        case DiffReply():
            _check_names(reply.names)
            _check_times(reply.purged_ntp64)
            check(len(reply.leaves) + len(reply.rest) <= NODES_MAX * ARITY, "too many nodes")
        case EntriesReply():
            _check_names(reply.names)
            _check_times(reply.purged_ntp64)
        case PullReply():
            _check_items(reply.absent)
            _check_items(reply.old)
            _check_numbers(reply.unpacked)
            _check_incarnations(reply.incarnations)
        case BlocksReply():
            for place, first, last, width, sums in reply.parts:
                _check_numbers(place, first, last)
                check(width > 0 and len(sums) == 8 * -(-(last - first + 1) // width), "parts")
        case WrongSlot():
            _check_numbers(reply.slot, reply.changed)
        case Refused():
            check(len(reply.reason) <= 1024, "a long reason")
    return reply


def _check_numbers(*numbers: int) -> None:
    check(all(0 <= number < 1 << 64 for number in numbers), "a number out of range")


def _check_ids(*ids: str) -> None:
    for text in ids:
        check(0 < len(text) <= ID_LENGTH_MAX and text.isascii() and text.isprintable(), "an id")
        check(not set(text) & set("/*$?#"), "an id that is no chunk of a key")


def _check_hello(hello: Hello) -> None:
    _check_ids(hello.cache_id, hello.incarnation)
    check(len(hello.include) > 0 and len(hello.include + hello.exclude) <= SCOPE_MAX, "a scope")
    try:
        for text in hello.include + hello.exclude:
            KeyExpression(text)
    except ValueError as error:
        raise RemoteProtocolError(f"a scope that cannot be read: {error}") from error


def _check_names(names: tuple[Stream, ...]) -> None:
    check(len(names) <= NAMES_MAX, "too many names")
    for stream in names:
        check_identity(stream.source, stream.epoch, 0, 0)


def _check_times(times: PurgeTimes) -> None:
    check(len(times) <= ENTRIES_MAX, "too many purges")
    _check_numbers(*(number for item in times for number in item))


def _check_incarnations(incarnations: tuple[Incarnation, ...]) -> None:
    check(len(incarnations) <= NAMES_MAX, "too many runs")
    for source, epoch, name in incarnations:
        check_identity(source, epoch, 0, 0)
        check(0 < len(name) <= ID_LENGTH_MAX, "a run's name")


def _check_items(items: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
    check(len(items) <= ENTRIES_MAX, "too many streams")
    for place, runs in items:
        _check_numbers(place)
        check_runs(runs)

"""Which keys a key expression names, decided as Zenoh decides it, without Zenoh.

Keys are data: nothing here turns one into a path, a pattern for another engine or a query.
"""

from __future__ import annotations

import re
from functools import lru_cache

KEY_BYTES_MAX = 64 * 1024
"""What Zenoh's wire can bear of a key, and what is read of it."""
SHORT_BYTES_MAX = 32 * 1024
"""What is declared, published and stored (ADR 0240): a source, a token's chunks and a namespace
stand in front of it, and Zenoh ends the session that sends a longer key than it can bear."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""What Python makes of bytes that are no UTF-8, as of a terminal in another encoding."""
_REMEMBERED_LENGTH_MAX = 256
"""Longer expressions are rare, and would make what is remembered large."""


class KeyExpression:
    """A canonical Zenoh key expression: chunks between ``/``, with ``*``, ``**`` and ``$*``.

    Immutable. Raises ValueError, never to be retried, when the text is no canonical expression.
    A chunk that begins with ``@`` is verbatim: no wildcard matches it.
    """

    __slots__ = ("_regex", "chunks", "text")

    def __init__(self, text: str) -> None:
        _check(text)
        self.text = text
        self.chunks = tuple(text.split("/"))
        self._regex: re.Pattern[str] | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"KeyExpression({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyExpression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def is_key(self) -> bool:
        """Whether the expression names exactly one key."""
        return "*" not in self.text

    @property
    def prefix(self) -> str:
        """The text every named key begins with, up to the first wildcard (may be empty)."""
        if self.is_key:
            return self.text
        head = re.split(r"\$?\*", self.text, maxsplit=1)[0]
        # "a/**" also names "a" itself, so the slash before a double wildcard is not certain.
        return head[:-1] if self.text[len(head) :].startswith("**") and head else head

    def matches(self, key: str) -> bool:
        """Tell whether this expression names `key`, a key without wildcards."""
        if self._regex is None:
            self._regex = re.compile(_pattern(self.chunks))
        return self._regex.fullmatch(f"/{key}") is not None

    def concerns(self, key: str) -> bool:
        """Tell whether a publication on `key` is about a key that this expression names.

        Where `key` is itself an expression with wildcards, it is a wildcard update (ADR 0095).
        """
        update = parse_update(key)
        return self.matches(key) if update is None else self.intersects(update)

    def covers(self, key: str) -> bool:
        """Tell whether a publication on `key` is about no key but those this expression names."""
        update = parse_update(key)
        return self.matches(key) if update is None else self.includes(update)

    def intersects(self, other: KeyExpression) -> bool:
        """Tell whether some key is named by both."""
        return _intersect(self.chunks, other.chunks)

    def includes(self, other: KeyExpression) -> bool:
        """Tell whether every key named by `other` is named by this one."""
        return _include(self.chunks, other.chunks)


class _EveryKey(KeyExpression):
    __slots__ = ()

    def matches(self, key: str) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return other is self

    def __hash__(self) -> int:
        return id(self)


def is_verbatim(key: str) -> bool:
    """Tell whether a chunk of a key is verbatim, so that ``**`` does not name it."""
    return key.startswith("@") or "/@" in key


def parse_update(key: str) -> KeyExpression | None:
    """Return the expression of a wildcard update; None when `key` is a key, or nothing at all."""
    if "*" not in key:
        return None
    return _remembered(key) if len(key) <= _REMEMBERED_LENGTH_MAX else _parsed(key)


def parse_short(text: str) -> KeyExpression:
    """Return an expression that may be declared and published on; ValueError as `KeyExpression`."""
    if is_too_long(text):
        raise ValueError(
            f"{text[:40]!r}…: longer than {SHORT_BYTES_MAX} bytes; Zenoh cannot carry it with a "
            "source in front"
        )
    return KeyExpression(text)


def is_too_long(key: str) -> bool:
    """Tell whether a sample on this key could not be answered with its source in front."""
    return len(key) * 4 > SHORT_BYTES_MAX and _length(key) > SHORT_BYTES_MAX


def _length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _parsed(text: str) -> KeyExpression | None:
    try:
        return KeyExpression(text)
    except ValueError:
        return None


_remembered = lru_cache(maxsize=16_384)(_parsed)
"""More than the updates that a storage applies, so that each is compiled once; about 20 MB."""


def _check(text: str) -> None:
    if not text:
        raise ValueError("'': a key expression may not be empty")
    if not text.isascii() and _SURROGATE.search(text):
        raise ValueError(f"{text[:80]!a}: no UTF-8 text")
    if _length(text) > KEY_BYTES_MAX:
        raise ValueError(f"a key expression may not be longer than {KEY_BYTES_MAX} bytes")
    before = ""
    for chunk in text.split("/"):
        if not chunk:
            raise ValueError(f"{text!r}: empty chunk; write no leading, trailing or double slash")
        if "#" in chunk or "?" in chunk:
            raise ValueError(f"{text!r}: '#' and '?' may not appear in a key expression")
        stars = chunk.replace("$*", "")
        if chunk not in ("*", "**") and ("*" in stars or "$" in stars):
            raise ValueError(f"{text!r}: write '*', '**' or '$*' in chunk {chunk!r}")
        if chunk == "$*" or "$*$*" in chunk:
            raise ValueError(f"{text!r}: chunk {chunk!r} is not canonical; write '*' or one '$*'")
        if before == "**" and chunk in ("*", "**"):
            raise ValueError(f"{text!r}: not canonical; write '*/**' once, and no '**/**'")
        before = chunk


def _pattern(chunks: tuple[str, ...]) -> str:
    """Return what `matches` uses, for a key with a slash before it.

    The first place where the text between two wildcards fits is always good enough, so each is an
    atomic group: no key and no expression makes the search try the same place twice.
    """
    parts: list[str] = []
    segment: list[str] = []
    for chunk in chunks:
        if chunk == "**":
            parts.append("".join(segment))
            segment = []
        else:
            segment.append("/" + _chunk_pattern(chunk))
    head, *middle = parts or [""]
    if not parts:
        return "".join(segment)
    between = "".join(rf"(?>(?:/[^/@][^/]*+)*?{part})" for part in middle)
    last = "".join(segment)
    return head + between + rf"(?:/[^/@][^/]*+)*{last}"


def _chunk_pattern(chunk: str) -> str:
    if chunk == "*":
        return r"[^/@][^/]*+"
    first, *others = (re.escape(piece) for piece in chunk.split("$*"))
    if _verbatim(chunk) or not others:
        return re.escape(chunk) + "(?![^/])"
    middle = "".join(rf"(?>[^/]*?{piece})" for piece in others[:-1])
    return rf"(?!@){first}{middle}(?>[^/]*{others[-1]}(?![^/]))"


def _verbatim(chunk: str) -> bool:
    return chunk.startswith("@")


def _intersect(left: tuple[str, ...], right: tuple[str, ...]) -> bool:
    """Dynamic programme over both chunk lists: no input makes it more than quadratic."""
    reach = [False] * (len(right) + 1)
    reach[len(right)] = True
    for j in range(len(right) - 1, -1, -1):
        reach[j] = right[j] == "**" and reach[j + 1]
    for i in range(len(left) - 1, -1, -1):
        row = [False] * (len(right) + 1)
        row[len(right)] = left[i] == "**" and reach[len(right)]
        for j in range(len(right) - 1, -1, -1):
            row[j] = _step(left[i], right[j], row[j + 1], reach[j], reach[j + 1])
        reach = row
    return reach[0]


def _step(one: str, two: str, skip_two: bool, skip_one: bool, both: bool) -> bool:
    if one == "**":
        return skip_one or (skip_two and not _verbatim(two))
    if two == "**":
        return skip_two or (skip_one and not _verbatim(one))
    return both and _chunks_meet(one, two)


@lru_cache(maxsize=4096)
def _chunks_meet(one: str, two: str) -> bool:
    if one == two:
        return True
    if _verbatim(one) or _verbatim(two):
        return False
    if one == "*" or two == "*":
        return True
    if "$*" not in one and "$*" not in two:
        return False
    return _globs_meet(_glob(one), _glob(two))


def _glob(chunk: str) -> tuple[str, ...]:
    """Split a chunk into characters, with "" standing for a ``$*``."""
    letters: list[str] = []
    for at, piece in enumerate(chunk.split("$*")):
        if at:
            letters.append("")
        letters.extend(piece)
    return tuple(letters)


def _globs_meet(left: tuple[str, ...], right: tuple[str, ...]) -> bool:
    reach = [False] * (len(right) + 1)
    reach[len(right)] = True
    for j in range(len(right) - 1, -1, -1):
        reach[j] = right[j] == "" and reach[j + 1]
    for i in range(len(left) - 1, -1, -1):
        row = [False] * (len(right) + 1)
        row[len(right)] = left[i] == "" and reach[len(right)]
        for j in range(len(right) - 1, -1, -1):
            if left[i] == "" or right[j] == "":
                row[j] = reach[j] or row[j + 1]
            else:
                row[j] = left[i] == right[j] and reach[j + 1]
        reach = row
    return reach[0]


def _include(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    reach = [False] * (len(narrow) + 1)
    reach[len(narrow)] = True
    for i in range(len(wide) - 1, -1, -1):
        row = [False] * (len(narrow) + 1)
        row[len(narrow)] = wide[i] == "**" and reach[len(narrow)]
        for j in range(len(narrow) - 1, -1, -1):
            if wide[i] == "**":
                row[j] = reach[j] or (row[j + 1] and not _verbatim(narrow[j]))
            else:
                row[j] = narrow[j] != "**" and reach[j + 1] and _chunk_includes(wide[i], narrow[j])
        reach = row
    return reach[0]


@lru_cache(maxsize=4096)
def _chunk_includes(wide: str, narrow: str) -> bool:
    if wide == narrow:
        return True
    if _verbatim(wide) or _verbatim(narrow):
        return False
    if wide == "*":
        return True
    if "$*" not in wide or narrow == "*":
        return False
    # A lone "*" cannot stand in a chunk: only a wildcard of `wide` can cover the one put there.
    return re.fullmatch(_chunk_pattern(wide), narrow.replace("$*", "*")) is not None


EVERY_KEY: KeyExpression = _EveryKey("**")
"""Names the keys behind verbatim chunks, too, as no expression does: for what is in our own hands.
A backend takes it for ``**``."""

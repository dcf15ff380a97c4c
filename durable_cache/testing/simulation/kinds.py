"""Every kind of fault and event that a history counts, and what each needs to occur.

A kind that no history shows is one that nothing is known about: the tests compare this list with
what many histories counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_MEDIA = ("journal", "index", "backend")
KINDS: Mapping[str, str] = {
    "alignment begins anew": "small inbox",
    "answer broken off": "network",
    "answer is an error": "medium",
    "answer late": "network",
    **{f"{medium} away": "medium" for medium in _MEDIA},
    **{f"{medium} full": "medium" for medium in _MEDIA},
    **{f"{medium} unknown outcome": "medium" for medium in _MEDIA},
    **{f"{medium} unreadable": "medium" for medium in _MEDIA},
    "backend loses a sample": "rot",
    "batch of several sources": "",
    "burst": "burst",
    "cache asks for other names": "pinned foreign",
    "caches compared": "align",
    "cache gives up": "",
    "cache killed": "crash",
    "cache tells of a last number": "",
    "clock jumps": "clock",
    "commit failed": "medium",
    "commit takes its time": "slow commits",
    **{f"crash after a call of the {medium}": "crash" for medium in _MEDIA},
    **{f"crash before a call of the {medium}": "crash" for medium in _MEDIA},
    "cache that was never in reach": "join",
    "conflict": "pinned foreign",
    "drain failed": "medium",
    "epochs agreed": "pinned foreign",
    "epochs differ": "pinned foreign",
    "heartbeat": "foreign",
    "held but not found": "rot",
    "killed before it drained": "crash",
    "journal at its bound": "small journal",
    "late joiner asks for history": "join",
    "link cut": "part",
    "look-up": "",
    "look-up failed": "medium",
    "medium lies": "power cut",
    "medium slow": "medium",
    "no backend can be read": "medium",
    "numbering wrapped": "wrap",
    "payload too large": "large payloads",
    "power cut": "power cut",
    "power cut that loses writes": "power cut",
    "operator purges": "purge",
    **{f"{medium} put back": "put back" for medium in _MEDIA},
    **{f"{medium} wiped": "wipe" for medium in _MEDIA},
    "put fails": "",
    "publisher restarts, new zid": "restart",
    "publisher restarts, pinned zid": "pinned",
    "question failed": "medium",
    "queue full": "small queue",
    "receipt done": "",
    "restart that nothing tells": "pinned foreign",
    "retention removes": "retention",
    "purge pulled": "purge",
    "room for what others gave failed": "little room",
    "samples pulled": "align",
    "samples before their token": "at once",
    "sample doubled": "network",
    "sample late": "network",
    "sample lost": "network",
    "sample of an earlier run late": "pinned",
    "slow consumer drops": "slow consumer",
    "start failed": "medium",
    "subscriber joins": "join",
    "subscriber leaves": "leave",
    "timestamp goes back": "times back",
    "too many unacknowledged": "few receipts",
    "what is on its way is purged": "purge",
    "wildcard update": "wildcards",
}
"""Each kind, with the kind of trouble without which it does not occur, or is a rarity; "" where it
always may."""


def expected(without: Collection[str] = ()) -> set[str]:
    """Return the kinds that histories show which are spared these kinds of trouble."""
    return {kind for kind, trouble in KINDS.items() if trouble not in without}

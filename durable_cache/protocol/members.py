"""How the members of one consumer share its sources: who processes which, and from when on.

Theory of operation (ADR 0156). Every member works out the same owner of a source from the same
set of members, without asking anybody: the one of the highest hash of both. A member that joins
takes sources from all others and moves none between them; of one that goes, each other one takes
some.

Members learn of each other at different moments. So each shows, in its liveliness token, its
*round*, which counts the changes it saw, and a digest of its *view*: the members it knows, with the
rounds that they show. On a change a member first stops what it loses, then shows the new round. It
begins what it gains once every member it knows shows the digest that it shows itself.

So no two members that know of each other process one source. Say that A acts under one set of
members and B under another, each of them in the other's set. Then A showed B's view once, with the
round in which B acts, and B showed A's view with A's round. One of the two did so before it came to
the round in which it acts now; from then on it knew a later round of the other than the one that
its view is of. Rounds that are known only grow.

Between two views a member goes on with what it owns under all of them: among all *contenders*,
everybody who was a member since it began last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from durable_cache.model.sample import SourceId
from durable_cache.protocol.wire import own_key

_CONTENDERS_MAX = 256
"""With more since it began last, a member stops everything until all agree."""
_GONE_MAX = 8
"""Members that went and are remembered, in case they come back."""
_OWNED_MAX = 10_000
"""Sources of which it is remembered whether they are owned."""
_VIEWS_MAX = 16
"""Tokens of one member that are remembered; it shows at most two at a time."""
_TOKEN = re.compile(r"([0-9]{1,18})-([0-9a-f]{16})")


class View(NamedTuple):
    """What a member shows of itself: how often its members changed, and who they are to it."""

    round: int
    digest: str


NO_VIEW = View(0, "0" * 16)
"""What a member shows before it looked who the others are."""


def member_token(domain: str, consumer: str, member: SourceId, view: View) -> str:
    """Return the liveliness token of a member that shares, and of the view that it acts under."""
    return own_key(domain, "consumer", consumer, str(member), f"{view.round}-{view.digest}")


def member_tokens(domain: str, consumer: str) -> str:
    """Return what the tokens of all members lie under that share."""
    return own_key(domain, "consumer", consumer, "*", "*")


def read_member_token(key: str) -> tuple[SourceId, View] | None:
    """Return whose token a key is, and of which view; None where it is none."""
    *_, member, view = ("", *key.split("/"))
    found = _TOKEN.fullmatch(view)
    if found is None:
        return None
    try:
        return SourceId.parse(member), View(int(found[1]), found[2])
    except ValueError:
        return None


def owner_of(source: SourceId, members: Iterable[SourceId]) -> SourceId | None:
    """Return which of some members processes a source; None where there are none.

    All runs of a source and all its keys go together: its numbers count over all of them, and a
    later run begins behind the earlier one.
    """
    return max(members, key=lambda member: (_weight(member, source), member), default=None)


def _weight(member: SourceId, source: SourceId) -> bytes:
    return blake2b(f"{member}/{source}".encode(), digest_size=8).digest()


class Sharing:
    """What one member knows of all, and what it may process; owned by one thread.

    `owns` may be asked by any thread. The shell tells what tokens it `see`s, stops what is lost and
    says `stopped`, shows `shown`, and calls `begin` once `agreed`.
    """

    def __init__(self, own: SourceId) -> None:
        self._own = own
        self._views: dict[SourceId, dict[View, None]] = {}
        """What each other member shows now."""
        self._rounds: dict[SourceId, int] = {}
        """The latest round that each other member showed."""
        self._round, self._stopped, self._begun = 1, 0, 0
        self._contenders: frozenset[SourceId] | None = None
        self._owned: tuple[frozenset[SourceId] | None, dict[SourceId, bool]] = (None, {})
        """Contenders, and of which sources it is worked out whether we own them among those."""
        self._began_with: frozenset[SourceId] = frozenset()
        self.gone: dict[SourceId, None] = {}
        """Who shared with us and is gone, as far as is known; who went last is last."""
        self.returned: set[SourceId] = set()
        """Who was gone and lives after all: the network was cut, or that one was stopped."""
        self.parted = False
        """Whether one was met since something was begun last that lived before: out of reach."""
        self.members: frozenset[SourceId] = frozenset([own])
        """Who is known to live, ourselves among them."""

    def owns(self, source: SourceId) -> bool:
        """Tell whether a source is processed here now."""
        contenders, owned = self._owned
        found = owned.get(source)
        if found is None:
            if len(owned) >= _OWNED_MAX:
                owned.clear()
            found = contenders is not None and owner_of(source, contenders) == self._own
            owned[source] = found
        return found

    def owned_then(self, source: SourceId) -> bool:
        """Tell whether a source is to be processed here once all agree."""
        return owner_of(source, self.members) == self._own

    @property
    def contenders(self) -> frozenset[SourceId]:
        """Everybody who was a member since it was begun last; nobody where it was not."""
        return self._contenders or frozenset()

    @property
    def began_with(self) -> frozenset[SourceId]:
        """The members that all acted by when something was begun here last; empty before."""
        return self._began_with

    @property
    def must_stop(self) -> bool:
        """Whether members changed, and what is lost by that may still be under way."""
        return self._stopped != self._round

    @property
    def shown(self) -> View:
        """What the token is to say; only what was stopped may be shown to be."""
        rounds = {**self._rounds, self._own: self._round}
        told = "\n".join(f"{member} {rounds[member]}" for member in sorted(self.members))
        return View(self._round, blake2b(told.encode(), digest_size=8).hexdigest())

    @property
    def agreed(self) -> bool:
        """Whether every member shows what we show, so that all act by one set of members."""
        if self.must_stop:
            return False
        digest = self.shown.digest
        return all(any(view.digest == digest for view in views) for views in self._views.values())

    @property
    def has_begun(self) -> bool:
        """Whether everything that is to be processed here is, as far as is known."""
        return self._begun == self._round

    @property
    def gains(self) -> bool:
        """Whether something is to be begun: some contender is no member any more."""
        return self._contenders is None or not self._contenders <= self.members

    def see(self, member: SourceId, view: View, *, alive: bool) -> None:
        """A token of a member was seen, or went; what is told of ourselves is passed over."""
        if member == self._own:
            return
        self.parted |= alive and member not in self._views and view != NO_VIEW
        views = self._views.setdefault(member, {})
        if alive:
            views.pop(view, None)
            views[view] = None
            if len(views) > _VIEWS_MAX:
                del views[next(iter(views))]
            self._rounds[member] = max(view.round, self._rounds.get(member, 0))
        else:
            views.pop(view, None)
        if not views:
            del self._views[member]
            self._rounds.pop(member, None)
        members = frozenset([self._own, *self._views])
        if members != self.members:
            self._change(members)

    def _change(self, members: frozenset[SourceId]) -> None:
        self.returned |= (members - self.members) & self.gone.keys()
        self.returned &= members  # who went again returns once more
        went = (self.members - members) & self._began_with
        self.gone.update((member, None) for member in sorted(went))
        while len(self.gone) > _GONE_MAX:
            del self.gone[next(iter(self.gone))]
        self.members = members
        self._round += 1
        if self._contenders is not None:
            contenders = self._contenders | members
            self._contend(None if len(contenders) > _CONTENDERS_MAX else contenders)

    def _contend(self, contenders: frozenset[SourceId] | None) -> None:
        self._contenders, self._owned = contenders, (contenders, {})

    def forget(self, member: SourceId) -> None:
        """Take a member that returned as one that we began with: it may go again before we do."""
        self.returned.discard(member)
        self.gone.pop(member, None)
        self._began_with |= {member} & self.members

    def stopped(self) -> None:
        """Nothing that is not owned here is under way any more."""
        self._stopped = self._round

    def lapse(self) -> None:
        """Own nothing until it is begun anew: others took us for dead."""
        self._begun = 0
        self._contend(None)

    def begin(self) -> None:
        """Own what the members that all agree on give us; only when `agreed`."""
        self._begun, self._began_with, self.parted = self._round, self.members, False
        self._contend(self.members)

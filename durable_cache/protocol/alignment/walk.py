"""Where two trees differ: the nodes a comparison has still to compare."""

from __future__ import annotations

from collections.abc import Iterable

from durable_cache.errors import RemoteProtocolError
from durable_cache.protocol.alignment.answers import child_sums
from durable_cache.protocol.alignment.events import AlignerOptions
from durable_cache.protocol.alignment.fingerprints import ARITY, LEVELS_MAX, LEVELS_STORED
from durable_cache.protocol.alignment.packing import NodeSums, decode_nodes, encode_nodes
from durable_cache.protocol.alignment.peer import KnownDifferences
from durable_cache.protocol.alignment.view import View
from durable_cache.protocol.alignment.wire import Diff, DiffReply, Lane

_ALL = 0xFFFF


class Walk:
    """The nodes to compare, the deepest first, so that few are waiting; owned by its comparison."""

    def __init__(
        self,
        view: View,
        known_differences: KnownDifferences,
        lane: Lane,
        salt: int,
        options: AlignerOptions,
    ) -> None:
        self._view, self._known_differences, self._lane, self._salt = (
            view,
            known_differences,
            lane,
            salt,
        )
        self._options = options
        self.todo: dict[int, list[tuple[int, int]]] = {0: [(0, _ALL)]}
        """By level: (path, one bit for each child to compare)."""

    def next(self) -> tuple[int, bytes]:
        """Take the nodes to ask about now: their level, and their children's sums."""
        level = max(self.todo)
        limit = self._options.nodes_per_request_max
        if level >= LEVELS_STORED:  # the streams below come back, and must have room
            limit = min(limit, max(1, self._options.entries_per_reply_max // 2))
        part, rest = self.todo[level][:limit], self.todo[level][limit:]
        if rest:
            self.todo[level] = rest
        else:
            del self.todo[level]
        sums = self._sums(level, [path for path, _ in part])
        return level, encode_nodes([NodeSums(p, asked, sums[p]) for p, asked in part], level)

    def _sums(self, level: int, paths: list[int]) -> dict[int, dict[int, int]]:
        """Return the cut sums that the peer is expected to have, were nothing new different."""
        offsets = self._known_differences.offsets(level, paths)
        tree = self._view.tree
        return {
            path: child_sums(
                tree.children(level, path), self._lane, self._salt, offsets.get(path, {})
            )
            for path in paths
        }

    def put_back(self, asked: Diff) -> None:
        """Ask again what was not answered."""
        nodes = decode_nodes(asked.nodes, asked.level)
        back = [(node.path, node.asked) for node in nodes]
        self.todo[asked.level] = back + self.todo.get(asked.level, [])

    def take(self, asked: Diff, reply: DiffReply) -> list[tuple[int, int]]:
        """Go on where the reply says that sums differ.

        Returns the (level, path) of the nodes below which only this side has streams.
        """
        level = asked.level + 1
        if reply.nodes and level >= LEVELS_MAX - 1:
            raise RemoteProtocolError("nodes below the last level")
        sent = {node.path: node.asked for node in decode_nodes(asked.nodes, asked.level)}
        _check_children(sent, (*reply.leaves, *reply.rest))
        self._again(asked.level, sent, reply.rest)
        nodes = decode_nodes(reply.nodes, level)
        _check_children(sent, (node.path for node in nodes))
        sums = self._sums(level, [node.path for node in nodes])
        only_mine = []
        for path, _, theirs in nodes:
            for child in range(ARITY):
                if sums[path].get(child) == theirs.get(child):
                    continue
                below = path * ARITY + child
                if child in theirs:
                    self.todo.setdefault(level + 1, []).append((below, _ALL))
                else:
                    only_mine.append((level + 1, below))
        return only_mine

    def _again(self, level: int, sent: dict[int, int], rest: tuple[int, ...]) -> None:
        masks: dict[int, int] = {}
        for child in rest:
            masks[child // ARITY] = masks.get(child // ARITY, 0) | 1 << child % ARITY
        if masks == sent:
            raise RemoteProtocolError("an answer that answers nothing")
        if masks:
            self.todo.setdefault(level, []).extend(masks.items())


def _check_children(sent: dict[int, int], children: Iterable[int]) -> None:
    for child in children:
        if not sent.get(child // ARITY, 0) >> child % ARITY & 1:
            raise RemoteProtocolError("an answer about a node that was not asked for")

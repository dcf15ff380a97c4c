"""Are sums what their leaves add up to, whatever the order, and do cuts show every difference?"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.sample import SourceId, Stream
from durable_cache.protocol.alignment.fingerprints import (
    ARITY,
    Node,
    PrefixTree,
    content_term,
    knowledge_fingerprint,
    short_content,
    short_knowledge,
    stream_hash,
)


@dataclass
class Leaf:
    place: int
    knowledge: int
    content: int


places = st.integers(0, (1 << 64) - 1) | st.integers(0, 1 << 12)
leaves = st.builds(Leaf, places, st.integers(0, (1 << 128) - 1), st.integers(0, (1 << 64) - 1))


def summed(chosen: list[Leaf]) -> Node:
    return Node(
        sum(leaf.knowledge for leaf in chosen) % (1 << 128),
        sum(leaf.content for leaf in chosen) % (1 << 64),
        len(chosen),
    )


@given(st.lists(leaves, max_size=30, unique_by=lambda leaf: leaf.place), st.randoms())
def test_every_node_is_the_sum_of_its_leaves(found: list[Leaf], random: Random) -> None:
    tree: PrefixTree[Leaf] = PrefixTree()
    for leaf in found:
        tree.insert(leaf)
    assert tree.root == summed(found)
    for leaf in found:
        for level in range(16):
            index = leaf.place >> (64 - 4 * level)
            below = [other for other in found if other.place >> (64 - 4 * level) == index]
            assert tree.node(level, index) == summed(below)
            assert [*tree.leaves(level, index)] == sorted(below, key=lambda leaf: leaf.place)
            children = tree.children(level, index)
            assert [tree.node(level + 1, index * ARITY + at) for at in range(16)] == children
    random.shuffle(found)
    for leaf in found:
        tree.remove(leaf)
    assert tree.root == Node()
    assert not any(tree._levels)
    assert not tree._buckets


@given(leaves, st.integers(0, (1 << 128) - 1), st.integers(0, (1 << 64) - 1))
def test_a_change_reaches_every_level(leaf: Leaf, knowledge: int, content: int) -> None:
    tree: PrefixTree[Leaf] = PrefixTree()
    tree.insert(leaf)
    tree.change(leaf.place, knowledge - leaf.knowledge, content - leaf.content)
    leaf.knowledge, leaf.content = knowledge, content
    for level in range(16):
        assert tree.node(level, leaf.place >> (64 - 4 * level)) == Node(knowledge, content, 1)


@given(st.integers(0, (1 << 128) - 1), st.integers(0, 127))
def test_one_bit_of_difference_shows_under_some_salt(value: int, bit: int) -> None:
    salts = [Random(seed).getrandbits(64) for seed in range(8)]
    other = value ^ 1 << bit
    assert any(short_knowledge(value, salt) != short_knowledge(other, salt) for salt in salts)
    low, low_other = value % (1 << 64), (value ^ 1 << bit % 64) % (1 << 64)
    assert any(short_content(low, salt) != short_content(low_other, salt) for salt in salts)


def test_the_secret_places_and_names_streams_anew() -> None:
    stream = Stream("a/b", SourceId("a1", 1), 7)
    assert stream_hash(b"one", stream) != stream_hash(b"two", stream)
    assert knowledge_fingerprint(b"one", 1, (0, 5), 0) != knowledge_fingerprint(
        b"two", 1, (0, 5), 0
    )


def test_streams_that_read_alike_have_places_of_their_own() -> None:
    streams = [
        Stream("a/b", SourceId("a1", 1), 7),
        Stream("a/b", SourceId("a1", 17), 7),
        Stream("7:a/b", SourceId("a1", 1), 7),
        Stream("a/b", SourceId("a1", 1), 0),
        Stream("a\x00/b", SourceId("a1", 1), 7),
    ]
    assert len({stream_hash(b"", stream) for stream in streams}) == len(streams)


def test_nothing_known_is_no_fingerprint_and_a_purge_is_one() -> None:
    assert knowledge_fingerprint(b"", 1, (), 0) == 0
    assert knowledge_fingerprint(b"", 1, (0, 4), 5) != knowledge_fingerprint(b"", 1, (0, 4), 0)


def test_payloads_that_changed_places_show() -> None:
    one, two = b"1" * 16, b"2" * 16
    assert content_term(1, one) + content_term(2, two) != content_term(1, two) + content_term(
        2, one
    )

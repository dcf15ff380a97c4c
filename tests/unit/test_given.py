"""What others gave waits for the tokens that were heard before it, and for no others."""

from __future__ import annotations

from durable_cache.runtime.given import GivenInTurn


def test_it_waits_for_the_tokens_before_it_and_keeps_its_order() -> None:
    given: GivenInTurn[str] = GivenInTurn()
    given.heard()
    given.heard()
    given.add("samples", samples=3)
    given.heard()
    given.add("the end of the fetch")
    assert given.samples == 3
    assert not given
    given.handed_in()
    assert not given
    given.handed_in()
    assert given
    assert given.take() == "samples"
    assert given.samples == 0
    assert not given, "a token came before the end"
    given.handed_in()
    assert given
    assert given.take() == "the end of the fetch"
    assert not given
    assert not given.waits


def test_where_no_token_waits_it_waits_for_nothing() -> None:
    given: GivenInTurn[str] = GivenInTurn()
    given.add("samples", samples=1)
    assert given
    assert given.waits


def test_a_process_that_ends_leaves_nothing_to_the_next() -> None:
    given: GivenInTurn[str] = GivenInTurn()
    given.heard()
    given.add("samples", samples=1)
    given.clear()
    assert (given.waits, given.samples) == (False, 0)
    given.add("others")
    assert given

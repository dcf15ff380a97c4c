"""How the columns of a page of many small streams come into the order of its streams."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from durable_cache_sql.snapshot import in_order


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99))), ids=st.permutations(range(6))
)
def test_columns_are_put_in_the_order_of_their_streams(
    rows: list[tuple[int, int]], ids: list[int]
) -> None:
    rows.sort()
    wanted = [row for one in ids for row in rows if row[0] == one]
    assert list(zip(*in_order(list(zip(*rows, strict=True)), ids), strict=True)) == wanted

"""Does a table of runs know those of one source as if it had looked at all of them?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.sample import SourceId
from durable_cache.protocol.subscriber.run_table import RunTable, shorten

SOURCES = [SourceId("ab12", eid) for eid in (1, 2)]
KEYS = st.tuples(st.sampled_from(SOURCES), st.integers(0, 3))
STEPS = st.lists(st.tuples(st.sampled_from(["put", "pop", "shorten"]), KEYS, st.integers(0, 5)))


@given(STEPS)
def test_the_runs_of_a_source_are_those_that_all_of_them_hold_of_it(
    steps: list[tuple[str, tuple[SourceId, int], int]],
) -> None:
    table: RunTable[int] = RunTable()
    known: dict[tuple[SourceId, int], int] = {}
    for step, key, number in steps:
        match step:
            case "put":
                table[key] = known[key] = number
            case "pop":
                assert table.pop(key, None) == known.pop(key, None)
            case _:
                shorten(table, number)
                shorten(known, number)
        assert list(table.items()) == list(known.items())
        assert len(table) == len(known)
        for source in SOURCES:
            of = {epoch: value for (one, epoch), value in known.items() if one == source}
            assert dict(table.of(source)) == of

"""Is each page of the memory backend what sorting everything would give, whatever came between?"""

from __future__ import annotations

from random import Random

import pytest

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.selection import Cursor, Order, Selection, SnBounds, TimeBounds
from durable_cache.storage.contract import Floor
from durable_cache.storage.memory import MemoryStorage

SOURCES = [SourceId("ab12", 1), SourceId("c3", 2)]
KEYS = ["a/1", "a/2", "b/1"]


def sample(chance: Random, sn: int) -> Sample:
    """Return one whose timestamp is near its number, often that of another."""
    source, key = chance.choice(SOURCES), chance.choice(KEYS)
    return Sample(key, source, 1, sn, b"", ntp64=100 + sn // 3 + chance.randrange(4))


def selection(chance: Random, order: Order) -> Selection:
    first, ntp64 = chance.randrange(60), chance.randrange(60)
    return Selection(
        KeyExpression(chance.choice(["**", "a/*", "a/1"])),
        zid=chance.choice([None, None, "ab12"]),
        sns=chance.choice([SnBounds(), SnBounds(first), SnBounds(first, first + 40)]),
        times=chance.choice([TimeBounds(), TimeBounds(), TimeBounds(90 + ntp64, 120 + ntp64)]),
        order=order,
    )


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("seed", range(20))
def test_a_page_is_the_next_of_all_that_is_there(seed: int, order: Order) -> None:
    chance, storage = Random(seed), MemoryStorage()
    there: dict[tuple[Stream, int], Sample] = {}
    reading: tuple[Selection, Cursor | None] | None = None
    top = 0
    for _ in range(150):
        match chance.randrange(6):
            case 0 | 1:
                some = [sample(chance, sn) for sn in range(top, top + chance.randrange(1, 9))]
                top += len(some)
            case 2 if top:  # late, and perhaps there
                some = [sample(chance, chance.randrange(top)) for _ in range(4)]
            case 3 if top and chance.random() < 0.3:
                stream, floor = Stream("a/1", SOURCES[0], 1), chance.randrange(top)
                gone = [at for at in there if at[0] == stream and at[1] < floor]
                assert storage.purge([Floor(stream, floor)]) == len(gone)
                for at in gone:
                    del there[at]
                continue
            case _:
                asked, cursor = reading or (selection(chance, order), None)
                limit = chance.randrange(1, 12)
                page = storage.read(asked, limit, cursor)
                places = {asked.place(one): one for one in there.values() if asked.holds(one)}
                following = [at for at in sorted(places) if cursor is None or at > cursor]
                assert [*page.samples] == [places[at] for at in following[:limit]]
                more = following[limit - 1] if len(following) > limit else None
                assert page.cursor == more
                reading = None if more is None else (asked, more)
                continue
        storage.append(SampleBatch(some))
        for one in some:
            there.setdefault((one.stream, one.sn), one)

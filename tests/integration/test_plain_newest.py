"""Does a plain GET say of the newest of a key what every other reader says?"""

from __future__ import annotations

import msgspec
import zenoh

from durable_cache import declare_reliability_cache
from durable_cache.endpoints.session import Session
from durable_cache.model.sample import Kind, Sample, SampleBatch
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.conformance.newest import NEWEST_CASES, values
from durable_cache.testing.network import LocalNetwork

Found = dict[str, tuple[str, bytes]]


def moved(sample: Sample, at: int) -> Sample:
    """Give each case keys of its own, so that one storage holds them all."""
    return msgspec.structs.replace(sample, key=f"c{at}/{sample.key}")


def told(sample: Sample) -> tuple[str, bytes]:
    return sample.timestamp_id, sample.payload  # Zenoh rounds a time that no clock of its own made


def get(session: Session, selector: str) -> Found:
    replies = session.get(selector, consolidation=zenoh.ConsolidationMode.NONE)
    found = [reply.ok for reply in replies if reply.ok is not None]
    assert len({str(each.key_expr) for each in found}) == len(found), "one reply a key"
    return {
        str(each.key_expr): (str(each.timestamp).partition("/")[2], each.payload.to_bytes())
        for each in found
    }


def test_a_plain_get_is_the_table_of_every_reader() -> None:
    storage = MemoryStorage()
    for at, case in enumerate(NEWEST_CASES):
        storage.append(SampleBatch([moved(sample, at) for sample in case.samples]))
    with (
        LocalNetwork() as network,
        declare_reliability_cache(network.client(), "**", backend=storage),
    ):
        asker = network.client()
        for at, case in enumerate(NEWEST_CASES):
            newest = {sample.key: sample for sample in (moved(each, at) for each in values(case))}
            there = {k: told(s) for k, s in newest.items() if s.kind is Kind.PUT}
            assert get(asker, f"c{at}/**") == there, case.name
            assert get(asker, f"c{at}/t/a") == {k: v for k, v in there.items() if k[-1] == "a"}
            every = {k: told(s) for k, s in newest.items()}
            assert get(asker, f"c{at}/**?_max=1") == every, case.name

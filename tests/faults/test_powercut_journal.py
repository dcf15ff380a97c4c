"""A power cut under load: every sample that was acknowledged at level disk is there after."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Selection
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.plugins import open_storage
from tests.kit.powercut import PowerCutDisk, reason_unavailable, said_until_cut

CYCLES = 20
SOURCE = SourceId("ab12", 7)
WRITER = """
import sys, threading
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_powercut_journal import numbered, opened
from durable_cache.model.sample import SampleBatch
store = opened(Path({disk!r}))
threading.Thread(target=store.run_drain, daemon=True).start()
sn = int({begin})
while True:
    batch = [numbered(sn + at) for at in range(1 + sn % 200)]
    store.commit(SampleBatch(batch))
    sn += len(batch)
    print(sn, flush=True)
"""

pytestmark = [pytest.mark.root, pytest.mark.slow]


@cache  # each is compared after every cut that follows
def numbered(sn: int) -> Sample:
    """Return the sample of a number, the same in both processes."""
    chance = random.Random(sn)
    return Sample(
        f"fleet/{sn % 5}",
        SOURCE,
        3,
        sn,
        chance.randbytes(chance.choice([0, 10, 256, 2000])),
        attachment=chance.choice([None, b"", b"meta"]),
        encoding=chance.choice(["zenoh/bytes", "application/json;v1"]),
        ntp64=(sn + 1) << 32,
        timestamp_id="ab12",
        received_ns=sn + 1,
    )


def opened(disk: Path) -> JournaledStorage:
    url = f"sqlite:///{disk}/samples.db"
    return JournaledStorage(open_storage("sql", "fleet", {"url": url}), disk / "state")


def stored(store: JournaledStorage) -> dict[int, Sample]:
    found: dict[int, Sample] = {}
    cursor = None
    while True:
        page = store.read(Selection(), 5000, cursor)
        found.update((sample.sn, sample) for sample in page.samples)
        if page.cursor is None:
            return found
        cursor = page.cursor


@pytest.mark.skipif(reason_unavailable() is not None, reason=str(reason_unavailable()))
def test_no_acknowledged_sample_is_lost_when_the_power_is_cut(tmp_path: Path) -> None:
    chance = random.Random(11)
    acknowledged = 0
    cut_while_draining = 0
    with PowerCutDisk(tmp_path, size_mib=512) as disk:
        for _ in range(CYCLES):
            script = WRITER.format(
                tests=str(Path(__file__).parent), disk=str(disk.path), begin=acknowledged
            )
            said = said_until_cut(disk, script, chance.random() * 0.6)
            acknowledged = int(said[-1])
            store = opened(disk.path)
            of_journal = [finding for finding in store.findings if finding.startswith("journal")]
            assert not of_journal, "a torn end is no damage"
            cut_while_draining += store.backlog.samples > 0
            found = stored(store)
            lost = [sn for sn in range(acknowledged) if found.get(sn) != numbered(sn)]
            assert not lost, f"{len(lost)} of {acknowledged} lost, the first {lost[:3]}"
            acknowledged = max(found) + 1
            store.close()
    assert acknowledged > 1000
    assert cut_while_draining

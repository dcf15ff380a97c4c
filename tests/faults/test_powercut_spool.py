"""A power cut while a publisher puts: its spool opens, whatever of its mark reached the disk."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from durable_cache.endpoints.publisher.spool import Spool
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.publisher.events import Standing
from durable_cache.storage.journaled.mark import read_mark
from tests.kit.powercut import PowerCutDisk, reason_unavailable, said_until_cut

CYCLES, MAKING_CYCLES = 12, 40
SOURCE = SourceId("ab12", 7)
NAME = "0000aaaa"
WRITER = """
import os, sys, threading
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_powercut_spool import SOURCE, NAME, numbered, opened, settle
spool = opened(Path({disk!r}))
spool.begin(SOURCE, 5, NAME)
mark = os.open(Path({disk!r}) / "spool" / "spool.mark", os.O_RDONLY)
def write_back():
    while True:  # as early as any kernel might
        os.fsync(mark)
if {early}:
    threading.Thread(target=write_back, daemon=True).start()
sn = int({begin})
while True:
    spool.append(numbered(sn), NAME)
    print(sn, flush=True)
    if sn % 10 == 9:
        settle(spool, sn - 9, sn - 4)
    sn += 1
"""

pytestmark = [pytest.mark.root, pytest.mark.slow]


def numbered(sn: int) -> Sample:
    """Return the sample of a number, the same in both processes."""
    chance = random.Random(sn)
    return Sample("a/b", SOURCE, 5, sn, chance.randbytes(chance.choice([0, 300, 5000])))


def opened(disk: Path) -> Spool:
    return Spool(disk / "spool", "d", "a/**", bytes_max=1 << 30)


def settle(spool: Spool, first: int, last: int) -> None:
    spool.settle([Standing(NAME, sn) for sn in range(first, last + 1)])


@pytest.mark.skipif(reason_unavailable() is not None, reason=str(reason_unavailable()))
@pytest.mark.parametrize("early", [True, False], ids=["mark-written-back", "mark-not-written"])
def test_a_spool_is_whole_after_a_power_cut(tmp_path: Path, early: bool) -> None:
    chance = random.Random(12)
    begin, behind = 0, 0
    with PowerCutDisk(tmp_path, size_mib=128) as disk:
        for _ in range(CYCLES):
            script = WRITER.format(
                tests=str(Path(__file__).parent), disk=str(disk.path), begin=begin, early=early
            )
            kept = int(said_until_cut(disk, script, chance.random() * 0.4)[-1])
            note = read_mark(disk.path / "spool" / "spool.mark")
            assert note is not None
            spool = opened(disk.path)
            (left,) = spool.spooled
            spool.close()
            assert left.goes_on
            assert left.samples == tuple(map(numbered, range(left.samples[0].sn, left.next_sn)))
            assert left.next_sn > kept
            behind += note.last_id < left.next_sn
            begin = left.next_sn
    assert begin > 200
    assert behind or early, "a mark that nobody wrote back was on the disk"


MAKER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_powercut_spool import SOURCE, NAME, numbered, opened
for at in range({begin}, 10_000):
    folder = Path({disk!r}) / str(at)
    folder.mkdir()
    print(at, flush=True)
    spool = opened(folder)
    spool.begin(SOURCE, 5, NAME)
    spool.append(numbered(0), NAME)
    if at % 2:
        spool.close()
    print("kept", flush=True)
"""


@pytest.mark.skipif(reason_unavailable() is not None, reason=str(reason_unavailable()))
def test_a_power_cut_while_a_spool_is_made_leaves_none_that_is_refused(tmp_path: Path) -> None:
    chance = random.Random(13)
    begin, unfinished = 0, 0
    with PowerCutDisk(tmp_path, size_mib=256) as disk:
        for _ in range(MAKING_CYCLES):
            script = MAKER.format(
                tests=str(Path(__file__).parent), disk=str(disk.path), begin=begin
            )
            said = said_until_cut(disk, script, chance.random() * 0.15)
            made = [int(line) for line in said if line.strip().isdigit()]
            kept = sum(line == "kept\n" for line in said)
            for at in made:
                folder = disk.path / str(at)
                folder.mkdir(exist_ok=True)
                spool = opened(folder)
                if at - begin < kept:
                    assert spool.spooled[0].samples == (numbered(0),)
                spool.close()
            unfinished += kept < len(made)
            for folder in disk.path.glob("[0-9]*"):
                shutil.rmtree(folder)
            begin = made[-1] + 1
    assert unfinished

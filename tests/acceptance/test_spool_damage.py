"""A spool whose files were damaged is refused by name, or gives all that was put into it."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from durable_cache import Receipt, ReliablePublisher, declare_reliable_publisher
from durable_cache.endpoints.session import close_session, open_session
from durable_cache.errors import StorageCorrupt
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.acceptance.test_spool_kill import Publishing, cache_on, stored
from tests.kit.faults import ModuleProcess

PUTS = 120
ZID = "5e1f"
PROGRAM = """
import signal, sys
from durable_cache import declare_reliable_publisher
from durable_cache.endpoints.session import close_session, open_session

spool, first, last, ending = sys.argv[1:5]
session = open_session({
    "mode": "peer", "id": "5e1f", "listen": {"endpoints": []},
    "scouting": {"multicast": {"enabled": False}}, "timestamping": {"enabled": True},
})
publisher = declare_reliable_publisher(
    session, "fleet/one", acknowledgements=1, spool_dir=spool, epochs_timeout_seconds=0.1
)
for number in range(int(first), int(last)):
    publisher.put(b"%d " % number + bytes(400))
    if number % 20 == 0:
        publisher.put(b"%d " % number + bytes(40_000))
if ending == "close":
    publisher.close()
    close_session(session)
print("all put", flush=True)
if ending != "close":
    signal.pause()
"""
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the spool of a publisher that closed once, went on, and was killed.

    So half of what it holds is in the database, and half in its log.
    """
    folder = tmp_path_factory.mktemp("killed")
    (folder / "program.py").write_text(PROGRAM)
    lives = (("0", str(PUTS // 2), "close"), (str(PUTS // 2), str(PUTS), "kill"))
    for life in lives:
        arguments = [str(folder / "spool"), *life]
        with ModuleProcess("program", arguments, folder=folder, ready="all put") as process:
            process.kill() if life[-1] == "kill" else process.wait()
    assert (folder / "spool" / "spool.db-wal").stat().st_size > 200_000
    return folder / "spool"


@pytest.fixture
def spool(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "spool"))


@contextmanager
def going_on(spool: Path) -> Iterator[ReliablePublisher[Receipt]]:
    """Declare the next publisher, with the same zid and without a network."""
    session = open_session(
        {
            "mode": "peer",
            "id": ZID,
            "listen": {"endpoints": []},
            "scouting": {"multicast": {"enabled": False}},
            "timestamping": {"enabled": True},
        }
    )
    try:
        with declare_reliable_publisher(
            session,
            "fleet/one",
            acknowledgements=1,
            spool_dir=spool,
            history=10_000,
            epochs_timeout_seconds=0.01,
        ) as publisher:
            yield publisher
    finally:
        close_session(session)


def numbers(publisher: ReliablePublisher[Receipt]) -> list[int]:
    return [int(sample.payload.split()[0]) for sample in publisher.kept()]


EVERY_IN_ORDER = [at for at in range(PUTS) for _ in range(1 + (at % 20 == 0))]
EVERY = sorted([*range(PUTS), *range(0, PUTS, 20)])


def refused(spool: Path) -> str:
    """Return why a spool is refused, twice in the same words, and see that it is left as it is."""
    said = []
    before = files(spool)
    for _ in range(2):
        with pytest.raises(StorageCorrupt) as caught, going_on(spool):
            pass
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0].startswith(f"spool {spool} is damaged: journal {spool}/spool.db")
    assert "move the directory away" in said[0]
    assert files(spool) == before
    return said[0]


def files(spool: Path) -> dict[str, bytes]:
    """Return what the files hold, but for what says who has the spool now."""
    found = {path.name: path.read_bytes() for path in spool.iterdir()}
    return {name: data for name, data in found.items() if name in NAMES and data}


NAMES = ("spool.db", "spool.db-wal", "spool.mark")


def halve(name: str) -> Damage:
    def damage(spool: Path) -> None:
        with (spool / name).open("r+b") as file:
            file.truncate((spool / name).stat().st_size // 2)

    return damage


def empty(name: str) -> Damage:
    def damage(spool: Path) -> None:
        (spool / name).write_bytes(b"")

    return damage


def delete(*names: str) -> Damage:
    def damage(spool: Path) -> None:
        for name in names:
            (spool / name).unlink()

    return damage


def cut_one_byte(spool: Path) -> None:
    """Take the last byte of the last commit: nothing else says that it was whole."""
    log = spool / "spool.db-wal"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 1)


def flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (halve("spool.db-wal"), r"it ends at entry \d+, and entry 126 was committed to it"),
        (cut_one_byte, "it ends at entry 125, and entry 126 was committed to it"),
        (delete("spool.db-wal"), "it ends at entry 63, and entry 126 was committed to it"),
        (empty("spool.db-wal"), "it ends at entry 63, and entry 126 was committed to it"),
        (
            empty("spool.db"),
            "gone or empty, and its log spool.db-wal is not; move the",
        ),
        (
            delete("spool.db"),
            "gone or empty, and its log spool.db-wal is not; move the",
        ),
        (halve("spool.db"), r"spool\.db: .*; move the directory away and lose what only it holds"),
        (delete("spool.db", "spool.db-wal"), "gone or empty, and entry 126 was committed to it"),
        (empty("spool.mark"), "spool.mark is damaged; delete .*spool.mark to"),
        (halve("spool.mark"), "spool.mark is damaged; delete .*spool.mark to"),
        (
            delete("spool.db", "spool.db-wal", "spool.db-shm", "lock"),
            "gone or empty, and entry 126 was committed to it",
        ),
    ],
    ids=[
        "log-halved",
        "last-byte-of-the-log",
        "log-deleted",
        "log-emptied",
        "database-emptied",
        "database-deleted",
        "database-halved",
        "database-and-log-deleted",
        "mark-emptied",
        "mark-halved",
        "everything-but-the-mark",
    ],
)
def test_a_spool_that_lost_something_is_refused(spool: Path, damage: Damage, said: str) -> None:
    damage(spool)
    why = refused(spool)
    assert re.search(said, why)
    if "delete" in why:  # as it says
        (spool / "spool.mark").unlink()
        with going_on(spool) as publisher:
            assert publisher.next_sn == 0
            left = numbers(publisher)
            assert left == EVERY_IN_ORDER[: len(left)]


def test_a_spool_that_is_whole_gives_everything(spool: Path) -> None:
    with going_on(spool) as publisher:
        assert sorted(numbers(publisher)) == EVERY
        assert publisher.unacknowledged == len(EVERY)
        assert publisher.next_sn == len(EVERY)


def test_what_sqlite_makes_anew_may_be_missing(spool: Path) -> None:
    delete("spool.db-shm", "lock")(spool)
    with going_on(spool) as publisher:
        assert sorted(numbers(publisher)) == EVERY


@pytest.mark.parametrize("seed", range(24))
def test_a_flipped_bit_in_the_log_is_found(spool: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = spool / "spool.db-wal"
    flip(log, chance.randrange(log.stat().st_size), chance.randrange(8))
    assert "entry 126 was committed" in refused(spool)


@pytest.mark.parametrize("logged", [True, False], ids=["beside-its-log", "closed"])
@pytest.mark.parametrize("seed", range(24))
def test_a_flipped_bit_in_the_database_is_found_or_changes_nothing(
    spool: Path, seed: int, logged: bool
) -> None:
    if not logged:
        with closing(sqlite3.connect(spool / "spool.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    chance = random.Random(seed)
    data = (spool / "spool.db").read_bytes()
    used = [at for at in range(len(data)) if data[at]]
    flip(spool / "spool.db", chance.choice(used), chance.randrange(8))
    told = ""
    try:
        with going_on(spool) as publisher:
            assert sorted(numbers(publisher)) == EVERY
            assert publisher.next_sn == len(EVERY)
    except StorageCorrupt as error:
        told = str(error)
    assert not told or told.startswith(f"spool {spool} is damaged: ")


def test_a_spool_of_an_earlier_version_is_opened_and_watched_from_then_on(spool: Path) -> None:
    (spool / "spool.mark").unlink()
    with closing(sqlite3.connect(spool / "spool.db", isolation_level=None)) as database:
        database.execute("DELETE FROM kept WHERE name IN ('mark', 'sum', 'last_sum')")
        database.execute("DELETE FROM kept WHERE kind = 'numbering_sum'")
        database.execute("UPDATE kept SET value = '1' WHERE name = 'format'")
    with going_on(spool) as publisher:
        assert sorted(numbers(publisher)) == EVERY
        assert publisher.next_sn == len(EVERY)
        publisher.put(b"1000 ")
    delete("spool.db")(spool)
    assert f"entry {len(EVERY) + 1} was committed to it" in refused(spool)


def test_what_is_left_is_handed_over_and_no_number_is_given_twice(
    spool: Path, tmp_path: Path
) -> None:
    """As the error says: without its mark what is left goes out, and another numbering begins."""
    halve("spool.db-wal")(spool)
    refused(spool)
    (spool / "spool.mark").unlink()
    with LocalNetwork() as network, cache_on(network, tmp_path) as cache:
        again = Publishing(tmp_path, network.endpoint, ZID)
        again.finish()
        wait_until(lambda: len(stored(cache)) > PUTS // 2, what="what is left")
        (new,) = again.told
        runs: dict[tuple[object, int], list[int]] = {}
        for source, epoch, sn in sorted(stored(cache)):
            runs.setdefault((source, epoch), []).append(sn)
        assert runs.pop(new[:2]) == [0]
        (left,) = runs.values()
        assert left == [*range(len(left))]
        assert PUTS // 2 < len(left) < len(EVERY)

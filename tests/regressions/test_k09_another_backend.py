"""K9: a backend that is not the one the stream index tells of is recognised, and filled again."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from durable_cache import CacheOptions, Origins, ReliabilityCache, declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered


def opened(
    network: LocalNetwork, folder: Path, name: str, *, aligned: bool = False, file: str = "one.db"
) -> ReliabilityCache:
    origin = Origins.SESSION_LOCAL if aligned else Origins.ANY
    return declare_reliability_cache(
        network.client(),
        "a/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{folder}/{name}-{file}"},
        state_dir=folder,
        options=CacheOptions(name=name, align=aligned, allowed_origin=origin),
    )


def publish(source: Numbered, caches: list[ReliabilityCache], first: int, last: int) -> None:
    """Publish when every cache is reached: a sample without a number is ignored and counted."""

    def reached() -> bool:
        source.session.put("a/probe", b"")
        return all(cache.status().ignored for cache in caches)

    wait_until(reached, what="a path to every cache")
    for sn in range(first, last + 1):
        source.put(sn)


def wait_stored(caches: list[ReliabilityCache], count: int) -> None:
    for cache in caches:
        wait_until(lambda cache=cache: cache.status().appended >= count)
        assert cache.wait_drained(10)


def delete(folder: Path, _: Path) -> str:
    for path in folder.glob("mine-one.db*"):
        path.unlink()
    return "one.db"


def restore_older(folder: Path, older: Path) -> str:
    delete(folder, older)
    for path in older.iterdir():
        shutil.copy(path, folder / path.name)
    return "one.db"


def configure_another(_: Path, __: Path) -> str:
    return "two.db"


@pytest.mark.parametrize("lose", [delete, restore_older, configure_another])
def test_an_aligned_peer_fills_a_backend_that_lost_what_it_had(
    network: LocalNetwork, tmp_path: Path, lose, caplog: pytest.LogCaptureFixture
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    source = Numbered(network.client(), "a/b")
    with opened(network, tmp_path, "mine") as mine, opened(network, tmp_path, "theirs") as theirs:
        publish(source, [mine, theirs], 0, 49)
        wait_stored([mine, theirs], 50)
    for path in tmp_path.glob("mine-one.db*"):
        shutil.copy(path, older / path.name)
    with opened(network, tmp_path, "mine") as mine, opened(network, tmp_path, "theirs") as theirs:
        publish(source, [mine, theirs], 50, 99)
        wait_stored([mine, theirs], 50)
    file = lose(tmp_path, older)
    with (
        caplog.at_level(logging.WARNING),
        opened(network, tmp_path, "theirs", aligned=True),
        opened(network, tmp_path, "mine", aligned=True, file=file) as mine,
    ):
        wait_until(lambda: len(mine.find("a/**")) == 100, 15, "what the peer has")
    assert any("backend" in record.message for record in caplog.records)

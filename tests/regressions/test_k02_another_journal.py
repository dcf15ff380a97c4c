"""K2: what is acknowledged survives beside a stream index that was written with another journal."""

from __future__ import annotations

import logging
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from durable_cache import CacheOptions, ReliabilityCache, declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected

SLOWLY = replace(CacheOptions().journal, drain_linger_seconds=60.0)
"""Nothing reaches the backend by itself: what is committed is in the journal alone."""


def opened(network: LocalNetwork, folder: Path, options: CacheOptions) -> ReliabilityCache:
    return declare_reliability_cache(
        network.client(),
        "a/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{folder}/one.db"},
        state_dir=folder,
        options=options,
    )


def publish(network: LocalNetwork, cache: ReliabilityCache, count: int, *, singly: bool) -> None:
    """Publish under a source of its own; `singly` makes a journal entry of each."""
    before = cache.status().appended
    source = Numbered(network.client(), "a/b")
    connected(source.publisher)
    for sn in range(count):
        source.put(sn)
        if singly:
            wait_until(lambda wanted=before + sn + 1: cache.status().appended >= wanted)
    wait_until(lambda: cache.status().appended >= before + count)


def killed(folder: Path, copy: Path) -> Path:
    """Return what a SIGKILL leaves: the files as they are beside the running cache."""
    return Path(shutil.copytree(folder, copy))


def move_away(folder: Path) -> None:
    for path in folder.rglob("journal.db*"):
        path.rename(path.with_name("moved-" + path.name))


def test_a_journal_that_was_moved_away_costs_nothing_that_comes_after(
    network: LocalNetwork, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    with opened(network, folder, CacheOptions()) as cache:
        publish(network, cache, 20, singly=True)
        assert cache.wait_drained(10)
    move_away(folder)
    with (
        caplog.at_level(logging.WARNING),
        opened(network, folder, CacheOptions(journal=SLOWLY)) as cache,
    ):
        publish(network, cache, 10, singly=True)
        assert len(cache.find("a/**")) == 30
        left = killed(folder, tmp_path / "killed")
    with opened(network, left, CacheOptions()) as cache:
        assert len(cache.find("a/**")) == 30
    assert any("journal" in record.message for record in caplog.records)


def test_an_older_copy_of_the_journal_costs_nothing_that_comes_after(
    network: LocalNetwork, tmp_path: Path
) -> None:
    folder, older = tmp_path / "one", tmp_path / "older"
    for path in (folder, older):
        path.mkdir()
    with opened(network, folder, CacheOptions()) as cache:
        publish(network, cache, 5, singly=True)
    for path in folder.rglob("journal.db*"):
        shutil.copy(path, older / path.name)
    with opened(network, folder, CacheOptions()) as cache:
        publish(network, cache, 20, singly=True)
        assert cache.wait_drained(10)
    (state,) = (path.parent for path in folder.rglob("journal.db"))
    move_away(folder)
    for path in older.iterdir():
        shutil.copy(path, state / path.name)
    with opened(network, folder, CacheOptions(journal=SLOWLY)) as cache:
        publish(network, cache, 10, singly=True)
        left = killed(folder, tmp_path / "killed")
    with opened(network, left, CacheOptions()) as cache:
        assert len(cache.find("a/**")) == 35


def test_a_journal_that_lost_its_end_says_so(
    network: LocalNetwork, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    with opened(network, folder, CacheOptions(journal=SLOWLY)) as cache:
        publish(network, cache, 10, singly=True)
        left = killed(folder, tmp_path / "killed")
    (log,) = left.rglob("journal.db-wal")
    os.truncate(log, log.stat().st_size - 1)
    with caplog.at_level(logging.WARNING), opened(network, left, CacheOptions()) as cache:
        assert len(cache.find("a/**")) == 9
        (finding,) = cache.status().findings
        assert re.search(
            r"journal\.db: it ends at entry 9, and entry 10 was committed to it.*asked of other",
            finding,
        )
        publish(network, cache, 5, singly=True)
        assert cache.wait_drained(10)
    assert any("entry 10 was committed" in record.message for record in caplog.records)
    with opened(network, left, CacheOptions()) as cache:
        assert len(cache.find("a/**")) == 14
        assert not cache.status().findings

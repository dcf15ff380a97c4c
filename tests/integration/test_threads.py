"""How many Python threads of ours run, and what `docs/concurrency.md` says of them."""

from __future__ import annotations

import re
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from durable_cache import declare_reliability_cache
from durable_cache.endpoints.workers import Pool
from durable_cache.service.config import read_settings
from durable_cache.service.service import Service
from durable_cache.testing.network import LocalNetwork, free_port
from tests.tree import ROOT

PAGE = (ROOT / "docs/concurrency.md").read_text()
SERVICE_THREADS_MAX, FURTHER_STORAGE_MAX = 8, 3


def ours() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("dc-"))


def settings(tmp_path: Path, storages: int, *, align: bool) -> dict[str, object]:
    return {
        "mode": "peer",
        "scouting": {"multicast": {"enabled": False}},
        "listen": {"endpoints": [f"tcp/127.0.0.1:{free_port()}"]},
        "plugins": {
            "durable_cache": {
                "state_dir": str(tmp_path / "state"),
                "http": {"listen": f"127.0.0.1:{free_port()}"},
                "volumes": {"main": {"backend": "sql", "url": f"sqlite:///{tmp_path}/s.db"}},
                "storages": {
                    f"s{at}": {
                        "key_expr": f"s{at}/**",
                        "volume": "main",
                        "alignment": {"enabled": align},
                    }
                    for at in range(storages)
                },
            }
        },
    }


def threads_of_service(tmp_path: Path, storages: int, *, align: bool = False) -> list[str]:
    before = set(ours())
    with Service(read_settings(settings(tmp_path, storages, align=align))):
        return [name for name in ours() if name not in before]


def test_a_service_with_one_storage_runs_eight_threads_and_each_further_one_adds_three(
    tmp_path: Path,
) -> None:
    main = 1
    aligned = threads_of_service(tmp_path / "aligned", 1, align=True)
    assert main + len(aligned) <= SERVICE_THREADS_MAX, aligned
    first = threads_of_service(tmp_path / "one", 1)
    for align in (False, True):
        third = threads_of_service(tmp_path / f"three-{align}", 3, align=align)
        assert len(third) - len(first) <= 2 * FURTHER_STORAGE_MAX, third


def test_what_is_put_by_rest_takes_one_thread_more(tmp_path: Path) -> None:
    before, port = set(ours()), free_port()
    document: dict[str, Any] = settings(tmp_path, 1, align=True)
    document["plugins"]["durable_cache"]["rest"] = {"listen": f"127.0.0.1:{port}"}
    with Service(read_settings(document)):
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("PUT", "/s0/a", body=b"x")
        assert connection.getresponse().status == 200
        running = [name for name in ours() if name not in before]
        assert 1 + len(running) <= SERVICE_THREADS_MAX + 1, running


def test_every_thread_and_lock_stands_in_the_page(tmp_path: Path) -> None:
    documented = [
        re.escape(name).replace("<storage>", ".+").replace("<name>", ".+").replace("<n>", r"\d+")
        for name in re.findall(r"`(dc-[^`]*?)…?`", PAGE)
    ]
    for name in threads_of_service(tmp_path, 2, align=True):
        assert any(re.match(pattern, name) for pattern in documented), f"document {name}"
    locks = set(re.findall(r"^\| `(\w+\.\w+)` \|", PAGE, re.MULTILINE))
    found = set()
    for path in (ROOT / "durable_cache/endpoints", ROOT / "durable_cache/storage"):
        for file in path.rglob("*.py"):
            owner = ""
            for line in file.read_text().splitlines():
                owner = match[1] if (match := re.match(r"class (\w+)", line)) else owner
                if lock := re.search(r"self\.(\w+) = (?:Lock|RLock|Condition)\(", line):
                    found.add(f"{owner}.{lock[1]}")
    assert found <= locks | OTHERS, f"document {sorted(found - locks - OTHERS)}"


OTHERS = {
    "MemoryStorage._lock",  # a backend's own
    "Channel._changed",  # the user's
}


def test_two_caches_share_a_pool(network: LocalNetwork) -> None:
    pool = Pool("shared", threads=2)
    before = len(ours())
    session = network.client()
    with (
        declare_reliability_cache(session, "a/**", pool=pool),
        declare_reliability_cache(session, "b/**", pool=pool),
    ):
        assert len(ours()) - before <= 2 * FURTHER_STORAGE_MAX
    assert pool.close(5) == []

"""Are storages put, removed and kept otherwise while a service runs, and is nothing lost by it?"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from durable_cache import ReliablePublisher, declare_reliable_publisher
from durable_cache.endpoints.session import close_session, open_session
from durable_cache.testing.network import wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Any]
READY = "try from another terminal"
LAB = {"key_expr": "lab/**", "volume": "main"}


class Served:
    """A service that can be started again, and a session of a program beside it."""

    def __init__(self, start: Start, run: Run, port: int, folder: Path) -> None:
        self._start, self._run, self.folder = start, run, folder
        self.endpoint = f"tcp/127.0.0.1:{port}"
        self.document: dict[str, Any] = {
            "listen": {"endpoints": [self.endpoint]},
            "scouting": {"multicast": {"enabled": False}},
            "adminspace": {"permissions": {"write": True}},
            "plugins": {
                "durable_cache": {
                    "volumes": {"main": {"backend": "sql", "url": "sqlite:///samples.db"}},
                    "storages": {"fleet": {"key_expr": "fleet/**", "volume": "main"}},
                }
            },
        }
        self.write()
        self.process = self.begin()
        self.session = open_session(
            {
                "mode": "client",
                "connect": {"endpoints": [self.endpoint]},
                "scouting": {"multicast": {"enabled": False}},
            }
        )

    @property
    def storages(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["plugins"]["durable_cache"]["storages"]
        return found

    def write(self, text: str = "") -> None:
        (self.folder / "cache.json5").write_text(text or json.dumps(self.document))

    def begin(self) -> Any:
        process = self._start("serve", "-c", "cache.json5")
        found = re.search(r"serving as peer ([0-9a-f]+)", process.wait_for(READY))
        assert found
        self.prefix = f"@/{found[1]}/durable_cache/config/storages"
        return process

    def again(self) -> None:
        self.process.send(signal.SIGTERM)
        assert self.process.end() == 0
        self.process = self.begin()
        wait_until(lambda: self.outcomes() is not None, 30, "the session to be linked again")

    def outcomes(self) -> Any:
        """Return what became of changes; None where the service does not answer."""
        asked = f"{self.prefix.removesuffix('/config/storages')}/changes"
        replies = [reply.ok for reply in self.session.get(asked, timeout=2) if reply.ok is not None]
        return json.loads(replies[0].payload.to_string()) if replies else None

    def put(self, path: str, table: object) -> None:
        self.session.put(f"{self.prefix}/{path}", json.dumps(table))

    def remove(self, name: str) -> None:
        self.session.delete(f"{self.prefix}/{name}")

    def names(self) -> set[str]:
        result = self._run("status", "-e", self.endpoint, "--format", "json")
        (report,) = json.loads(result.stdout)
        return {storage["name"] for storage in report["storages"]}

    def payloads(self, selector: str) -> list[str]:
        result = self._run(
            "query", selector, "-e", self.endpoint, "--format", "json", "--limit", "0"
        )
        return [json.loads(line)["payload"] for line in result.stdout.splitlines()]

    def said(self, text: str) -> int:
        return int(self.process.stderr.count(text))

    def said_again(self, text: str, before: int) -> bool:
        return self.said(text) > before

    def publisher(self, key: str) -> ReliablePublisher[Any]:
        return declare_reliable_publisher(self.session, key, acknowledgements=1, level="disk")


@pytest.fixture
def served(
    start: Start, run: Run, free_port: Callable[[], int], tmp_path: Path
) -> Iterator[Served]:
    service = Served(start, run, free_port(), tmp_path)
    yield service
    close_session(service.session)


class Load:
    """Publishes numbers on one key until it is stopped."""

    def __init__(self, publisher: ReliablePublisher[Any]) -> None:
        self._publisher, self._stop = publisher, Event()
        self.receipts: list[Any] = []
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            self.receipts.append(self._publisher.put(b"%d" % len(self.receipts)))

    def acknowledged(self) -> int:
        return sum(receipt.wait(0) for receipt in self.receipts)

    def stop(self) -> list[str]:
        """End, wait for every acknowledgement, return what was published."""
        self._stop.set()
        self._thread.join()
        assert all(receipt.wait(20) for receipt in self.receipts), "not acknowledged"
        return [str(number) for number in range(len(self.receipts))]


def test_storages_come_and_go_under_load_and_stay_so_over_a_restart(served: Served) -> None:
    served.put("old", {"key_expr": "old/**", "volume": "main"})
    served.process.wait_for("a storage was added storage=old")
    with served.publisher("old/a") as out:
        receipt = out.put(b"kept")
        assert receipt is not None
        assert receipt.wait(20)
    with served.publisher("fleet/a") as fleet:
        steady = Load(fleet)
        served.put("lab", LAB)
        served.process.wait_for("a storage was added storage=lab")
        with served.publisher("lab/a") as lab:
            new = Load(lab)
            wait_until(lambda: new.acknowledged() > 200, 30)
            served.remove("old")
            served.process.wait_for("a storage was removed storage=old")
            before = len(steady.receipts)
            wait_until(lambda: len(steady.receipts) > before + 200, 30)
            published = {"lab/**": new.stop(), "fleet/**": steady.stop()}
    assert served.names() == {"fleet", "lab"}
    assert {selector: served.payloads(selector) for selector in published} == published
    assert served.payloads("old/**") == []
    served.again()
    assert served.names() == {"fleet", "lab"}
    assert {selector: served.payloads(selector) for selector in published} == published
    served.put("old", {"key_expr": "old/**", "volume": "main"})
    served.process.wait_for("a storage was added storage=old")
    assert served.payloads("old/**") == ["kept"], "what a removed storage stored stays stored"


def test_retention_is_changed_while_the_service_runs(served: Served) -> None:
    with served.publisher("fleet/a") as out:
        for receipt in [out.put(b"%d" % number) for number in range(10)]:
            assert receipt is not None
            assert receipt.wait(20)
    assert len(served.payloads("fleet/**")) == 10
    served.put("fleet/retention", {"samples_max": 3})
    served.process.wait_for("storages keep otherwise storages=fleet")
    assert served.payloads("fleet/**") == ["7", "8", "9"]
    served.again()
    assert served.payloads("fleet/**") == ["7", "8", "9"]


MISTAKES = [
    ("lab", {"key_expr": "lab//x"}, "storages.lab.key_expr: 'lab//x'"),
    ("lab", {"key_exp": "lab/**"}, "storages.lab.key_exp: unknown setting"),
    ("lab", {**LAB, "volume": "lake"}, "storages.lab.volume: no volume is called 'lake'"),
    ("lab", [1], "storages.lab: expected a table"),
    ("La b", LAB, "a name is 1 to 64 of a-z"),
    (
        "fleet",
        {"key_expr": "other/**"},
        "storages.fleet.key_expr: can only be changed by a restart",
    ),
    ("fleet/retention", {"samples": 3}, "fleet.retention.samples: unknown setting"),
    ("lab/retention", {}, "storages.lab: there is no such storage; there are: fleet"),
    ("fleet/limits", {}, "is no setting that can be changed"),
    ("fleet", None, "storages.fleet: the last storage cannot be removed"),
    ("lab", None, "storages.lab: there is no such storage; there are: fleet"),
]


def test_what_is_wrong_changes_nothing_and_is_said_in_one_line(served: Served) -> None:
    for path, table, _ in MISTAKES:
        if table is None:
            served.remove(path)
        else:
            served.put(path, table)
    wait_until(lambda: len(served.outcomes()) == len(MISTAKES), 30)
    lines = [line for line in served.process.stderr.splitlines() if "nothing was changed" in line]
    for (path, _, said), outcome, line in zip(MISTAKES, served.outcomes(), lines, strict=True):
        assert outcome["key"] == f"{served.prefix}/{path}"
        assert said in outcome["error"]
        assert said in line
    assert served.names() == {"fleet"}
    assert not (served.folder / "durable-cache-data" / "changes.json").exists()


def test_changing_storages_needs_the_permission(served: Served) -> None:
    del served.document["adminspace"]
    served.write()
    served.again()
    served.put("lab", LAB)
    served.process.wait_for("changing storages is not allowed here; set adminspace")
    assert served.names() == {"fleet"}


def test_the_file_is_read_again_at_sighup(served: Served) -> None:
    served.storages["lab"] = LAB
    served.storages["fleet"]["retention"] = {"samples_max": 5}
    served.write()
    served.process.send(signal.SIGHUP)
    served.process.wait_for("the configuration was read again")
    assert served.names() == {"fleet", "lab"}
    del served.storages["fleet"]
    served.write()
    served.process.send(signal.SIGHUP)
    served.process.wait_for("a storage was removed storage=fleet")
    assert served.names() == {"lab"}


MISTAKES_OF_FILES = [
    (("lab/**", "lab//x"), "plugins.durable_cache.storages.lab.key_expr: 'lab//x'"),
    (('"fleet/**"', '"f/**"'), "storages.fleet.key_expr: can only be changed by a restart"),
    (("samples.db", "other.db"), "volumes.main: can only be changed by a restart"),
    (('"storages"', '"domain": "x", "storages"'), "durable_cache.domain: can only be changed"),
    (("{", "{{"), "cache.json5: "),
]


def test_a_mistake_in_the_file_changes_nothing(served: Served) -> None:
    served.storages["lab"] = LAB
    good = json.dumps(served.document)
    for change, said in MISTAKES_OF_FILES:
        before = served.said("nothing was changed")
        served.write(good.replace(*change, 1))
        served.process.send(signal.SIGHUP)
        wait_until(partial(served.said_again, "nothing was changed", before), 30)
        line = served.process.stderr.splitlines()[-1]
        assert "the configuration was read again and nothing was changed" in line
        assert said in line
    assert served.names() == {"fleet"}
    with served.publisher("fleet/a") as out:
        receipt = out.put(b"still stored")
        assert receipt is not None
        assert receipt.wait(20)


def test_a_change_that_no_longer_fits_the_file_is_named_at_the_start(
    served: Served, run: Run
) -> None:
    served.put("lab", LAB)
    served.process.wait_for("a storage was added storage=lab")
    served.process.send(signal.SIGTERM)
    assert served.process.end() == 0
    checked = run("check-config", "cache.json5")
    assert checked.returncode == 0
    assert "changes.json: changes storages of the configuration: lab" in checked.stderr
    served.document["plugins"]["durable_cache"]["volumes"] = {
        "db": {"backend": "sql", "url": "sqlite:///samples.db"}
    }
    served.storages["fleet"]["volume"] = "db"
    served.write()
    result = run("serve", "-c", "cache.json5")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "storages.lab.volume: no volume is called 'main'" in line
    assert "changes.json" in line


def test_a_terminal_that_is_closed_ends_the_service(
    environment: dict[str, str], tmp_path: Path, free_port: Callable[[], int]
) -> None:
    from tests.acceptance.conftest import COMMAND

    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, "serve", "-l", f"tcp/127.0.0.1:{free_port()}", "--no-multicast-scouting"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    deadline = time.monotonic() + 30
    while READY.encode() not in said:
        assert time.monotonic() < deadline, said
        said += os.read(ours, 4096)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    try:
        assert process.wait(20) in (0, 1)
    finally:
        process.kill()

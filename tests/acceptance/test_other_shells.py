"""Do zsh and fish complete the command when Tab is pressed there?"""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SECONDS_MAX = 30.0
READY = "ready-to-complete"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return where a shell's script was written, under the name that the shell looks for."""
    folder = tmp_path_factory.mktemp("completion")

    def made(shell: str, name: str) -> Path:
        if shutil.which(shell) is None:
            pytest.skip(f"there is no {shell}")
        done = subprocess.run(
            [sys.executable, "-m", "durable_cache", "completion", shell],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        (folder / name).write_text(done.stdout)
        return folder / name

    return made


def test_fish_completes_verbs_options_and_choices(script: Callable[[str, str], Path]) -> None:
    path = script("fish", "durable-cache.fish")

    def offered(line: str) -> set[str]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {path}; complete -C '{line}'"],
            cwd=path.parent,
            env={**os.environ, "HOME": str(path.parent)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return {word.partition("\t")[0] for word in done.stdout.splitlines()}

    assert offered("durable-cache qu") == {"query"}
    assert {"json", "mcap", "parquet"} <= offered("durable-cache query a --format ")
    assert "--connect" in offered("durable-cache status --co")
    assert "durable-cache.fish" in offered("durable-cache serve --config dura")


class Zsh:
    """A zsh at a terminal, which completes what is typed before Tab."""

    def __init__(self, folder: Path) -> None:
        self._screen, terminal = pty.openpty()
        self._process = subprocess.Popen(
            ["zsh", "-f", "-i"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder), "LANG": "C"},
            start_new_session=True,
        )
        os.close(terminal)
        self.type(f"fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; PS1=''\n")
        half = len(READY) // 2
        self.type(f"print {READY[:half]}''{READY[half:]}\n")  # what is echoed is not the answer
        self.wait_for(READY)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def wait_for(self, wanted: str) -> None:
        shown, deadline = "", time.monotonic() + SECONDS_MAX
        while wanted not in shown:
            assert time.monotonic() < deadline, f"{wanted!r} is not in {shown!r}"
            if select.select([self._screen], [], [], 0.2)[0]:
                shown += os.read(self._screen, 65536).decode(errors="replace")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._screen)


@pytest.fixture
def zsh(script: Callable[[str, str], Path]) -> Iterator[Zsh]:
    opened = Zsh(script("zsh", "_durable-cache").parent)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("durable-cache qu", "durable-cache query "),
        ("durable-cache query a --format pa", "--format parquet "),
        ("durable-cache status --conn", "status --connect"),
    ],
)
def test_zsh_completes_verbs_options_and_choices(typed: str, completed: str, zsh: Zsh) -> None:
    zsh.type(f"{typed}\t")
    zsh.wait_for(completed)

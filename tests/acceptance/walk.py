"""Follows a page as a newcomer would: every block as printed, in order, from an empty directory.

Run by `test_walks.py` in a network of its own, where the default ports are free and nobody listens,
as ``python walk.py PAGE DIRECTORY FOLDER_OF_COMMANDS``; prints what differs from the page, a line
of JSON each. Blocks are told apart by the word behind their fence:

* ``console``: commands behind ``$``, each followed by what it prints, stdout and stderr together;
* ``sh``: a script that must end with 0;
* ``python``: a program that must end with 0; a ``text`` block right behind it is what it prints;
* ``json5 NAME``, ``yaml NAME``: a file to be saved under that name.

In what is shown, ``…`` stands for anything, alone on a line for any lines, many spaces for one, and
empty lines do not count. What serves or follows goes on beside the other commands, until the next
that serves or the end of the page, and is then stopped with Ctrl-C.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COMMAND_SECONDS_MAX = 120.0
READY_SECONDS_MAX = 60.0
READY = "try from another terminal"
_FENCE = re.compile(r"^```(\S*)[ \t]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INTERRUPTED = 130


class Block(NamedTuple):
    """One fenced block of a page."""

    line: int
    language: str
    name: str
    text: str
    shown: str = ""
    """What a program prints, where the page says so."""


def blocks_of(page: str) -> list[Block]:
    """Return a page's blocks; a program's output stands in its block."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(page):
        block = Block(page.count("\n", 0, match.start()) + 1, *match.groups())
        beside = not page[end : match.start()].strip()
        if block.language == "text" and found and found[-1].language == "python" and beside:
            found[-1] = found[-1]._replace(shown=block.text)
        else:
            found.append(block)
        end = match.end()
    return found


def steps_of(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block and what it prints."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        command = [lines.pop(0)]
        while lines and lines[0].startswith("> "):
            command.append(lines.pop(0)[2:])
        yield "\n".join(command), "\n".join(lines)


def is_as_shown(shown: str, printed: str) -> bool:
    """Tell whether what was printed is what the page shows."""
    pattern = ""
    for line in _squeezed(shown):
        if line == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += "[^\n]*?".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _squeezed(printed))) is not None


def _squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


class Beside(NamedTuple):
    """A command that goes on while others are tried."""

    line: int
    command: str
    shown: str
    process: subprocess.Popen[bytes]
    output: Path


class Walk:
    """One page being followed."""

    def __init__(self, directory: Path, commands: Path) -> None:
        self.directory = directory
        self.differences: list[str] = []
        self._beside: list[Beside] = []
        self._killed = False
        self._environment = {
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
        }

    def follow(self, page: str, unable: set[int]) -> None:
        """Try every block but those in the lines `unable`."""
        try:
            for block in blocks_of(page):
                if block.line not in unable:
                    self._try(block)
        finally:
            self._stop_all()

    def _try(self, block: Block) -> None:
        match block.language:
            case "console":
                for command, shown in steps_of(block):
                    self._run(block.line, command, shown)
            case "sh":
                served = re.search(r"^durable-cache serve.*$", block.text, re.MULTILINE)
                script = block.text if served is None else block.text[: served.start()]
                if script.strip():
                    self._run(block.line, f"set -eo pipefail\n{script}", "…")
                if served is not None:
                    self._run(block.line, served[0], "…")
            case "python":
                program = self.directory / "program.py"
                program.write_text(block.text)
                self._run(block.line, "python program.py", block.shown or "…")
            case "json5" | "yaml" if block.name:
                (self.directory / block.name).write_text(block.text)
            case _:
                self.differences.append(
                    f"line {block.line}: nobody knows how to try a block of {block.language!r}"
                )

    def _run(self, line: int, command: str, shown: str) -> None:
        if command.startswith("durable-cache serve"):
            self._stop_all()
            self._start(line, command, shown, READY)
        elif "--follow" in command and "--limit" not in command:
            self._start(line, command, shown, "")
        else:
            self._killed |= "kill -9" in command
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_SECONDS_MAX,
                check=False,
            )
            self._compare(line, command, shown, done.stdout)
            failure = re.search(r"# exit code (\d+)", command)
            wanted = int(failure[1]) if failure else 0
            if done.returncode != wanted:
                self.differences.append(
                    f"line {line}: {command}: exit code {done.returncode}: {done.stdout}"
                )

    def _start(self, line: int, command: str, shown: str, ready: str) -> None:
        output = self.directory / f".output-{len(self._beside)}-{time.monotonic_ns()}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._beside.append(Beside(line, command, shown, process, output))
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not (text := output.read_text()) or ready not in text:
            if process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.05)

    def _stop_all(self) -> None:
        while self._beside:
            beside = self._beside.pop()
            following = "--follow" in beside.command
            deadline = time.monotonic() + 10
            while following and not is_as_shown(beside.shown, beside.output.read_text()):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            wanted = {_INTERRUPTED} if following else {0, -signal.SIGKILL} if self._killed else {0}
            if beside.process.poll() is None:
                beside.process.send_signal(signal.SIGINT)
                wanted -= {-signal.SIGKILL}
            code = beside.process.wait(60)
            printed = beside.output.read_text()
            shown = beside.shown if following else f"{beside.shown}\n…"
            self._compare(beside.line, beside.command, shown, printed)
            if code not in wanted:
                self.differences.append(
                    f"line {beside.line}: {beside.command}: exit code {code}: {printed}"
                )
        self._killed = False

    def _compare(self, line: int, command: str, shown: str, printed: str) -> None:
        if not is_as_shown(shown, printed):
            self.differences.append(
                f"line {line}: {command}\nthe page shows:\n{shown}\nit prints:\n{printed}"
            )


def raise_loopback() -> None:
    """Switch the loopback of a new network on."""
    flags_request, flags_set, up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(control, flags_request, request))
        fcntl.ioctl(control, flags_set, struct.pack("16sh14x", b"lo", flags | up))


def main(page: str, directory: str, commands: str, unable: str) -> None:
    raise_loopback()
    walk = Walk(Path(directory), Path(commands))
    walk.follow(Path(page).read_text(encoding="utf-8"), set(json.loads(unable)))
    for difference in walk.differences:
        print(json.dumps(difference))


if __name__ == "__main__":
    main(*sys.argv[1:])

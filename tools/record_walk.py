"""Records a page of commands: each is run, and what it prints is written below it.

``python tools/record_walk.py docs/walk.md`` follows the page from an empty directory, with the
wheel installed, as ``tests/acceptance/walk.py`` does. What differs from one run to the next, names,
times and rates, becomes ``…``, and so the test that follows the page holds every other word true.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.acceptance.test_walks import install, own_network
from tests.acceptance.walk import Walk, raise_loopback

_VARIES = (
    (r"\b[0-9a-f]{24,32}(:[0-9a-f]+)?(?=\s|$|\"|:|,|/)", "…"),  # a Zenoh id
    (r"\b[0-9a-f]{6,32}…", "…"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "…"),
    (r"\b\d{15,20}\b", "…"),  # an epoch, an NTP64 timestamp
    (r"(?<=, )\d+/s", "…/s"),
    (r"\d+(?= milliseconds)", "…"),
    (r"(?<=…|,| )\d{9}(?=,| )", "…"),  # an epoch, in seconds
    (r"^[0-9a-f]{8}(?=:| )", "…"),  # how an id begins
    (r"(?<=yes) {2,}[\d ]*$", "  …"),  # how much was received, and what of it twice
    (r"^(cache@.*\n?)+", "…\n"),  # what came twice by chance
    (r"(?<=…) {2,}", "  "),
    (r"\bin \d[\d.]* s\b", "in … s"),
    (r"^ *\d+\.\d s ", "… s "),
    (r"/\S*/bin/(durable-cache|python\S*)", r"…/\1"),
)


class Recording(Walk):
    """Follows a page and remembers what was printed instead of comparing it."""

    def __init__(self, directory: Path, commands: Path) -> None:
        super().__init__(directory, commands)
        self.printed: list[tuple[str, str]] = []

    def _compare(self, line: int, command: str, shown: str, printed: str) -> None:
        self.printed.append((command, _steady(printed)))


def _steady(printed: str) -> str:
    for pattern, stead in _VARIES:
        printed = re.sub(pattern, stead, printed, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())


def recorded(page: str, printed: list[tuple[str, str]]) -> str:
    """Return the page with what was printed below each command of its console blocks."""
    left = list(printed)

    def fill(match: re.Match[str]) -> str:
        commands = re.findall(r"^\$ .*(?:\n> .*)*", match[1], re.MULTILINE)
        lines = []
        for command in commands:
            plain = re.sub(r"^(\$|>) ", "", command, flags=re.MULTILINE)
            at = next(at for at, (ran, _) in enumerate(left) if ran == plain)
            _, text = left.pop(at)
            lines += [command, *([text] if text else [])]
        return "```console\n" + "\n".join(lines) + "\n```"

    return re.sub(r"^```console\n(.*?)\n```$", fill, page, flags=re.MULTILINE | re.DOTALL)


def main(name: str, directory: str = "", commands: str = "") -> None:
    """Record the page; in a network of its own where the commands are installed already."""
    page = Path(name)
    if not directory:
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "here").mkdir()
            installed = install(Path(place))
            arguments = [str(page.resolve()), f"{place}/here", str(installed)]
            subprocess.run(own_network(sys.executable, __file__, *arguments), check=True)
        return
    raise_loopback()
    recording = Recording(Path(directory), Path(commands))
    text = page.read_text(encoding="utf-8")
    recording.follow(text, set())
    for difference in recording.differences:
        print(json.dumps(difference), file=sys.stderr)
    if recording.differences:
        raise SystemExit("nothing is written: a command did not end as the page says")
    page.write_text(recorded(text, recording.printed), encoding="utf-8")
    print(f"{name}: {len(recording.printed)} commands")


if __name__ == "__main__":
    main(*sys.argv[1:])

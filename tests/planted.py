"""The faults that are planted on purpose: `mutations.toml`, read."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path

import msgspec

from tests.tree import ROOT

__all__ = ["Fault", "planted_faults"]

PACKAGE = ROOT / "durable_cache"
TESTS = ROOT / "tests"
_LIST = TESTS / "mutations.toml"


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In `file` of the package `old` becomes `new`, and `test` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str
    """`unit/test_x.py::test_y`: the test that notices soonest; another of its file may as well."""

    @property
    def test_file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def test_name(self) -> str:
        return self.test.partition("::")[2].partition("::")[0]

    def trouble(self) -> str:
        """Return why the fault cannot be planted as it is written down; empty when it can."""
        count = _text(PACKAGE / self.file).count(self.old)
        if count != 1:
            return f"`old` stands {count} times in {self.file}, and must stand there once"
        if self.old == self.new:
            return "`new` is `old`"
        defined = rf"^(?:def {re.escape(self.test_name)}\(|{re.escape(self.test_name)} = )"
        if not re.search(defined, _text(TESTS / self.test_file), re.MULTILINE):
            return f"there is no test {self.test}"
        return ""


@lru_cache(maxsize=1)
def planted_faults() -> tuple[Fault, ...]:
    """Return every fault of the list, in its order."""
    listed = tomllib.loads(_LIST.read_text(encoding="utf-8"))
    return tuple(msgspec.convert(listed["mutation"], list[Fault]))


@lru_cache(maxsize=256)
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""

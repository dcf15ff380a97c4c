"""How is the suite divided between processes, and what do its tests want printed at the end?

Tests of one file stay together, for their servers and fixtures are shared by the file; whatever
needs Spark stays in one process, for its machine takes half a minute to start. What takes longest
goes first, so that no process waits at the end for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

SPARK = "the tests that need Spark"
FIRST = (
    *("test_spark", "test_delta_spark", "test_mutations", "simulation/", "test_alignment"),
    *("test_kill", "test_delta_crashes", "faults/", "acceptance/", "regressions/", "compose/"),
)
"""Parts of the paths of what takes minutes, the longest first."""
PRINTED = "printed"


def part_of(nodeid: str) -> str:
    """Return the name of the part of the suite that a test belongs to."""
    path = nodeid.partition("::")[0]
    return SPARK if "spark" in path.rpartition("/")[2] else path


def _rank(item: pytest.Item) -> int:
    path = item.nodeid.partition("::")[0]
    return next((at for at, long in enumerate(FIRST) if long in path), len(FIRST))


class InParts(LoadScopeScheduling):
    """Gives whole parts to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)


class SideBySide:
    """What pytest asks about running in several processes, and about the last page."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name a failure at once: a run that is cut off has no last page."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None and not hasattr(self._config, "workerinput"):
            terminal.write_line(f" FAILED {report.nodeid} ({report.when})")

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Iterator[None]:
        result = yield  # after the order was drawn by chance
        if config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
            items.sort(key=_rank)
        return result

    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: object
    ) -> LoadScopeScheduling:
        config.option.loadscopereorder = False
        return InParts(config, log)  # type: ignore[arg-type]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reports in terminalreporter.stats.values():
            for report in reports:
                if getattr(report, "when", "") != "call":
                    continue
                for name, text in report.user_properties:
                    if name == PRINTED:
                        terminalreporter.section(report.nodeid, sep="-")
                        terminalreporter.line(str(text))


@pytest.fixture
def print_at_end(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return what prints a text below the suite's results, whichever process ran the test."""
    return lambda text: record_property(PRINTED, text)
